//! Places that a program may call from. Knows runtimes, not locks.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::task::{Context, Wake, Waker};
use std::thread::Thread;

use tokio::runtime::{Builder, Runtime};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where work is done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    NoRuntime,
    OneThread,
    TaskOfOneThread,
    Workers,
    TaskOfOneWorker,
    TaskOfTwoWorkers,
    BlockingPool,
    NoDrivers,
    NoDriversWorkers,
    TimersOnly,
    Entered,
    Ended,
}

pub(crate) const PLACES: [Place; 12] = [
    Place::NoRuntime,
    Place::OneThread,
    Place::TaskOfOneThread,
    Place::Workers,
    Place::TaskOfOneWorker,
    Place::TaskOfTwoWorkers,
    Place::BlockingPool,
    Place::NoDrivers,
    Place::NoDriversWorkers,
    Place::TimersOnly,
    Place::Entered,
    Place::Ended,
];

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoRuntime => "without a runtime",
            Self::OneThread => "in block_on of a current-thread runtime",
            Self::TaskOfOneThread => "in a task of a current-thread runtime",
            Self::Workers => "in block_on of a runtime with one worker",
            Self::TaskOfOneWorker => "in a task of a runtime with one worker",
            Self::TaskOfTwoWorkers => "in a task of a runtime with two workers",
            Self::BlockingPool => "in spawn_blocking of a runtime with one worker",
            Self::NoDrivers => "in a current-thread runtime without drivers",
            Self::NoDriversWorkers => "in a task of a runtime without drivers",
            Self::TimersOnly => "in a task of a runtime with timers alone",
            Self::Entered => "inside a current-thread runtime that nobody drives",
            Self::Ended => "inside a runtime that is shut down",
        }
    }

    /// Does the work there, and ends the place.
    pub(crate) fn run(self, work: impl FnOnce() -> Work + Send + 'static) {
        watch_for_panics();
        let all = |builder: &mut Builder| builder.enable_all().build().unwrap();
        let bare = |builder: &mut Builder| builder.build().unwrap();
        let mut one = Builder::new_current_thread();
        let mut many = Builder::new_multi_thread();
        many.worker_threads(if matches!(self, Self::TaskOfTwoWorkers) { 2 } else { 1 });
        match self {
            Self::NoRuntime => drive(work()),
            Self::OneThread => all(&mut one).block_on(work()),
            Self::TaskOfOneThread => task(&all(&mut one), work()),
            Self::Workers => all(&mut many).block_on(work()),
            Self::TaskOfOneWorker | Self::TaskOfTwoWorkers => task(&all(&mut many), work()),
            Self::BlockingPool => {
                let runtime = all(&mut many);
                let here = runtime.handle().clone();
                let done = runtime.spawn_blocking(move || here.block_on(work()));
                runtime.block_on(done).unwrap();
            }
            Self::NoDrivers => bare(&mut one).block_on(work()),
            Self::NoDriversWorkers => task(&bare(&mut many), work()),
            Self::TimersOnly => task(&bare(many.enable_time()), work()),
            Self::Entered => {
                let runtime = all(&mut one);
                let _inside = runtime.enter();
                drive(work());
            }
            Self::Ended => {
                let runtime = all(&mut many);
                let handle = runtime.handle().clone();
                runtime.shutdown_background();
                let _inside = handle.enter();
                drive(work());
            }
        }
    }
}

fn task(runtime: &Runtime, work: Work) {
    runtime.block_on(runtime.spawn(work)).unwrap();
}

/// An executor that knows nothing of tokio.
pub(crate) fn drive(work: impl Future<Output = ()>) {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut work = pin!(work);
    while work.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        std::thread::park();
    }
}

static DRIVER_PANICS: AtomicUsize = AtomicUsize::new(0);

/// How often a panic about missing drivers was printed, or would have been.
pub(crate) fn driver_panics() -> usize {
    DRIVER_PANICS.load(Ordering::SeqCst)
}

fn watch_for_panics() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.to_string().contains("Tokio 1.x context") {
                DRIVER_PANICS.fetch_add(1, Ordering::SeqCst);
            }
            usual(info);
        }));
    });
}

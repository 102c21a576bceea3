//! Where the connections of an engine live, and which of them serves a call.
//!
//! An engine has a thread with a runtime of its own ([`EngineThread`]): connections there live when
//! the caller's runtime is busy, blocked or gone. A call from async code is faster on a connection
//! that lives on the caller's own runtime ([`Callers`]): no other thread has to be woken. Two rules
//! keep that from doing harm, and this file is the only place that knows them.
//!
//! 1. [`Callers::find`], once per engine: the runtime has timers and sockets, and it runs tasks
//!    while the caller waits. A runtime that was only entered, or whose one thread waits for us in
//!    some other executor, fails that test.
//! 2. [`Callers::serves`], at each call: the caller runs on that runtime, and does not block its
//!    thread ([`is_blocked`]), which may be the one that the connection needs.
//!
//! Whatever fails a test is served by the engine's own thread. Nothing here ever waits for a thread
//! to end.

use std::fmt;
use std::panic;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Id, RuntimeFlavor};
use tokio::sync::oneshot;

use crate::contract::{Error, ErrorKind};
use crate::limits;
use crate::process::{Birth, is_blocked};

/// The engine's own thread. Dropping it ends the thread and what runs there, without waiting.
pub(crate) struct EngineThread {
    handle: Handle,
    /// Closing this channel ends the thread: the sender is dropped with this value.
    alive: Option<oneshot::Sender<()>>,
    birth: Birth,
}

impl EngineThread {
    /// Starts the thread. Its name is what `top -H` and debuggers show.
    ///
    /// # Errors
    /// If the system gives no thread, or no descriptors for a runtime.
    pub(crate) fn start(name: &str) -> Result<Self, Error> {
        let refused = |error: std::io::Error| {
            Error::new(ErrorKind::Limit, format!("the system gives no thread: {error}"))
                .with_help("raise the limits of threads and open files")
                .caused_by(error)
        };
        // Made here, so that its trouble is heard by the caller.
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let handle = runtime.handle().clone();
        let (alive, over) = oneshot::channel::<()>();
        let work = move || {
            // The error is the news: the other end is gone.
            let _ = runtime.block_on(over);
            // A lookup of a host name may hang in a helper thread; no caller waits for it any more.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(refused)?;
        Ok(Self { handle, alive: Some(alive), birth: Birth::here() })
    }

    /// The handle of that runtime, to spawn the tasks of connections on.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        if self.birth.is_inherited() {
            // The thread is the parent's, and so is the descriptor that would wake it.
            std::mem::forget(self.alive.take());
        }
    }
}

impl fmt::Debug for EngineThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineThread")
    }
}

/// The callers' Tokio runtime, found able to run the tasks of connections ([`Callers::find`]).
#[derive(Clone, Debug)]
pub(crate) struct Callers {
    handle: Handle,
    id: Id,
    has_threads: bool,
}

impl Callers {
    /// The runtime that this is called from, if connections can live there.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(crate) async fn find(own: &EngineThread) -> Option<Self> {
        if is_blocked() {
            return None;
        }
        let handle = Handle::try_current().ok()?;
        if !has_drivers() || !runs_tasks(&handle, own).await {
            return None;
        }
        // The only worker may be the one that a caller blocks.
        let has_threads = handle.runtime_flavor() != RuntimeFlavor::CurrentThread
            && handle.metrics().num_workers() > 1;
        Some(Self { id: handle.id(), handle, has_threads })
    }

    /// The handle of that runtime, to spawn the tasks of connections on.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Whether the runtime has several threads of its own, so that its tasks go on whatever one
    /// caller does. Otherwise they stand still while a caller blocks the one there is.
    pub(crate) fn has_threads(&self) -> bool {
        self.has_threads
    }

    /// Whether this is called from that very runtime, by a thread that is not blocked.
    pub(crate) fn are_here(&self) -> bool {
        !is_blocked() && Handle::try_current().is_ok_and(|here| here.id() == self.id)
    }

    /// Whether a connection that lives there serves this call.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn serves(&self) -> bool {
        if self.has_threads {
            // From another runtime too.
            !is_blocked() && Handle::try_current().is_ok()
        } else {
            self.are_here()
        }
    }
}

/// Whether this thread is blocked inside a runtime. If it is a worker, then a task that it spawns
/// or wakes may run only when the thread goes on: the latest one waits in a place from which no
/// other worker takes it. Another thread has to do that on its behalf.
#[cfg(feature = "redis")]
pub(crate) fn blocks_a_runtime() -> bool {
    is_blocked() && Handle::try_current().is_ok()
}

/// Whether tasks of this runtime run while its caller waits. Timed by a runtime that surely runs.
async fn runs_tasks(handle: &Handle, own: &EngineThread) -> bool {
    let (tell, told) = oneshot::channel();
    handle.spawn(async move {
        let _ = tell.send(());
    });
    let in_time = own.handle().spawn(async { tokio::time::timeout(limits::CALL, told).await });
    matches!(in_time.await, Ok(Ok(Ok(()))))
}

/// Whether the runtime that this is called from has timers and sockets.
///
/// Tokio has no function that tells. What needs a driver panics where there is none, so that is
/// tried, with its message kept from the panic hook. Where a panic would end the process nothing is
/// tried, and the runtime counts as one without drivers.
fn has_drivers() -> bool {
    if cfg!(panic = "abort") || std::thread::panicking() {
        return false;
    }
    quietly(|| {
        let tried = panic::catch_unwind(|| {
            drop(tokio::time::sleep(Duration::ZERO));
            // Without a free descriptor there is an error, but no panic.
            drop(tokio::net::UnixDatagram::unbound());
        });
        tried.is_ok()
    })
}

/// Does something that may panic, and is caught, without a word from the panic hook: another one
/// stands in its place meanwhile, which passes on the panics of all other threads.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (usual, this) = (Arc::new(panic::take_hook()), std::thread::current().id());
    let others = Arc::clone(&usual);
    panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() != this {
            others(info);
        }
    }));
    let done = work();
    // If ours is gone, the program has set a hook of its own meanwhile, and keeps it.
    if Arc::strong_count(&usual) > 1 {
        drop(panic::take_hook());
        match Arc::try_unwrap(usual) {
            Ok(usual) => panic::set_hook(usual),
            Err(usual) => panic::set_hook(Box::new(move |info| usual(info))),
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells when it is dropped.
    struct Told(Option<oneshot::Sender<()>>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.take().unwrap().send(());
        }
    }

    fn with_a_task_that_never_ends() -> (EngineThread, oneshot::Receiver<()>) {
        let own = EngineThread::start("test").unwrap();
        let (tell, told) = oneshot::channel();
        let guard = Told(Some(tell));
        own.handle().spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        (own, told)
    }

    #[test]
    fn work_runs_on_a_thread_of_its_own() {
        let own = EngineThread::start("test").unwrap();
        let (tell, told) = oneshot::channel();
        own.handle().spawn(async { tell.send(std::thread::current().id()) });
        assert_ne!(told.blocking_recv().unwrap(), std::thread::current().id());
    }

    #[test]
    fn dropping_it_ends_what_runs_there() {
        let (own, told) = with_a_task_that_never_ends();
        drop(own);
        told.blocking_recv().unwrap();
    }

    /// Whether the callers' runtime is found fit, asked for inside a runtime in this way.
    fn is_found(
        runtime: &tokio::runtime::Runtime,
        ask: impl FnOnce(&EngineThread) -> bool,
    ) -> bool {
        let own = EngineThread::start("test").unwrap();
        let _inside = runtime.enter();
        ask(&own)
    }

    fn runtimes(with: impl Fn(&mut Builder)) -> [tokio::runtime::Runtime; 2] {
        [Builder::new_current_thread(), Builder::new_multi_thread()].map(|mut builder| {
            with(builder.worker_threads(1));
            builder.build().unwrap()
        })
    }

    fn driven(runtime: &tokio::runtime::Runtime) -> bool {
        let own = EngineThread::start("test").unwrap();
        let found = runtime.block_on(Callers::find(&own));
        found.is_some_and(|callers| {
            assert!(!callers.are_here(), "outside");
            let _inside = runtime.enter();
            assert!(!crate::process::blocking(|| callers.are_here()), "blocked");
            callers.are_here()
        })
    }

    #[test]
    fn a_runtime_with_drivers_that_runs_is_found() {
        for runtime in runtimes(|builder| _ = builder.enable_all()) {
            assert!(driven(&runtime));
        }
    }

    #[test]
    fn a_runtime_without_timers_or_sockets_is_left_alone() {
        for runtime in runtimes(|_| ()) {
            assert!(!driven(&runtime));
        }
        for runtime in runtimes(|builder| _ = builder.enable_time()) {
            assert!(!driven(&runtime));
        }
        for runtime in runtimes(|builder| _ = builder.enable_io()) {
            assert!(!driven(&runtime));
        }
    }

    #[test]
    fn a_runtime_whose_thread_waits_for_us_elsewhere_is_left_alone() {
        let [one_thread, _] = runtimes(|builder| _ = builder.enable_all());
        let entered = |own: &EngineThread| {
            let mut found = std::pin::pin!(Callers::find(own));
            // Another executor than ours, which leaves no mark.
            let waker = std::task::Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
            let mut cx = std::task::Context::from_waker(&waker);
            loop {
                match found.as_mut().poll(&mut cx) {
                    std::task::Poll::Ready(found) => return found.is_some(),
                    std::task::Poll::Pending => std::thread::park(),
                }
            }
        };
        assert!(!is_found(&one_thread, entered));
        // Ours says so at once.
        let blocked = |own: &EngineThread| crate::process::blocking(|| entered(own));
        assert!(!is_found(&one_thread, blocked));
    }

    struct Unpark(std::thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }

    #[tokio::test]
    async fn it_may_be_dropped_by_async_code() {
        let (own, told) = with_a_task_that_never_ends();
        drop(own);
        told.await.unwrap();
    }
}

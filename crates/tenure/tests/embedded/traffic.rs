//! Many processes, one lock, thousands of hand-offs, and deaths among them: every holder sees for
//! itself that it is alone, and the auditor judges what all of them wrote down.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};
use servers::Dice;
use tenure::block_on;
use tenure::engine::embedded::{EmbeddedEngine, Location};
use tenure::{Error, ErrorKind, Fence, LockStatus, Tenure};

use crate::history::{Deaths, Diary, judge_all};
use crate::host::{Host, Worker, terms};
use crate::worker::say;

/// How many may be in at once where the lock is a semaphore.
const PERMITS: u32 = 3;

/// What one process does to a lock until it has had enough.
pub(crate) struct Traffic {
    thread: JoinHandle<()>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    rounds: Mutex<u64>,
    moved: Condvar,
    enough: AtomicBool,
}

impl Traffic {
    pub(crate) fn start(scratch: &Path, path: &str, shape: &str, seed: u64) -> Self {
        // Opened before the store, hence let go of before it when this process dies.
        let resource = Resource::open(scratch);
        let diary = Diary::of_this_process(scratch);
        let engine = EmbeddedEngine::open(&Location::at(path), terms()).unwrap();
        // Long enough that nothing is its doing; or short, where that is what it is about.
        let lease = Duration::from_millis(if shape == "leased" { 500 } else { 60_000 });
        let builder = Tenure::builder().lease(lease);
        let tenure = builder.witness(Arc::clone(&diary) as _).open(Arc::new(engine)).unwrap();
        let shared = Arc::<Shared>::default();
        let (shape, theirs) = (shape.to_owned(), Arc::clone(&shared));
        let work = move || {
            let mut driver = Driver { tenure, diary, resource, dice: Dice(seed) };
            while !theirs.enough.load(Ordering::SeqCst) {
                driver.round(&shape);
                *theirs.rounds.lock().unwrap() += 1;
                theirs.moved.notify_all();
            }
            block_on(driver.tenure.close());
        };
        Self { thread: std::thread::spawn(work), shared }
    }

    /// Waits until so many more rounds are done.
    pub(crate) fn advance(&self, rounds: u64) {
        let begun = self.shared.rounds.lock().unwrap();
        let until = *begun + rounds;
        drop(self.shared.moved.wait_while(begun, |rounds| *rounds < until).unwrap());
    }

    pub(crate) fn finish(self) -> u64 {
        self.shared.enough.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
        *self.shared.rounds.lock().unwrap()
    }
}

struct Driver {
    tenure: Tenure,
    diary: Arc<Diary>,
    resource: Resource,
    dice: Dice,
}

impl Driver {
    fn round(&mut self, shape: &str) {
        let done = match shape {
            "mutex" => self.mutex(),
            "rw" => self.rwlock(),
            "leased" => self.leased(),
            _ => self.semaphore(),
        };
        match done {
            Ok(()) => {}
            // A caller with a limit of a millisecond may get no reply in it.
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unavailable) => {}
            Err(error) if shape == "leased" && error.kind() == ErrorKind::Lost => {}
            Err(error) => say(&format!("violation {error}")),
        }
    }

    fn mutex(&mut self) -> Result<(), Error> {
        let mut mutex = self.tenure.mutex("a")?;
        // Now and then a caller gives up waiting.
        if self.throw(16) == 0 {
            mutex = mutex.timeout(Duration::from_millis(1));
        }
        let guard = block_on(mutex.lock())?;
        self.alone(&guard)?;
        // Some are let go of in the background.
        if self.throw(4) != 0 {
            return block_on(guard.release());
        }
        drop(guard);
        Ok(())
    }

    /// Where holders may be stopped, the kernel cannot say who is in: only fences can.
    fn leased(&mut self) -> Result<(), Error> {
        let guard = block_on(self.tenure.mutex("d")?.lock())?;
        for _ in 0..self.throw(20) {
            if !self.diary.used(&guard) {
                guard.check()?;
            }
        }
        block_on(guard.release())
    }

    fn rwlock(&mut self) -> Result<(), Error> {
        let lock = self.tenure.rwlock("b")?;
        if self.throw(3) == 0 {
            let guard = block_on(lock.write())?;
            self.alone(&guard)?;
            return block_on(guard.release());
        }
        let guard = block_on(lock.read())?;
        if !self.resource.share(guard.fence()?) {
            say("violation a reader beside a writer");
        }
        self.diary.used(&guard);
        self.resource.leave();
        block_on(guard.release())
    }

    fn semaphore(&mut self) -> Result<(), Error> {
        let permit = block_on(self.tenure.semaphore("c", PERMITS)?.acquire())?;
        if !self.resource.sit_down() {
            say("violation more holders than permits");
        }
        self.diary.used(&permit);
        self.resource.leave();
        block_on(permit.release())
    }

    fn alone(&mut self, held: &LockStatus) -> Result<(), Error> {
        if !self.resource.enter(held.fence()?) {
            say("violation not alone, or with an old fence");
        }
        self.diary.used(held);
        self.resource.leave();
        Ok(())
    }

    /// A number below this one.
    fn throw(&mut self, below: u64) -> u64 {
        self.dice.throw(below)
    }
}

/// What the lock protects. The kernel says who is in it, and forgets a process when it dies.
struct Resource {
    seats: Vec<File>,
    fence: File,
}

impl Resource {
    fn open(scratch: &Path) -> Self {
        let open = |name: &str| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options.open(scratch.join(name)).unwrap()
        };
        let seats = (0..PERMITS).map(|seat| open(&format!("seat-{seat}"))).collect();
        Self { seats, fence: open("fence") }
    }

    /// Alone, and with a larger fence than every holder before.
    fn enter(&self, fence: Fence) -> bool {
        let alone = fcntl_lock(&self.seats[0], FlockOperation::NonBlockingLockExclusive).is_ok();
        let grows = self.last_fence() < fence.get();
        self.fence.write_all_at(&fence.get().to_le_bytes(), 0).unwrap();
        alone && grows
    }

    /// Not beside a holder that must be alone, and with a larger fence than the last one who was.
    fn share(&self, fence: Fence) -> bool {
        let shared = fcntl_lock(&self.seats[0], FlockOperation::NonBlockingLockShared).is_ok();
        shared && self.last_fence() < fence.get()
    }

    /// One of the seats is free.
    fn sit_down(&self) -> bool {
        let take = |seat: &File| fcntl_lock(seat, FlockOperation::NonBlockingLockExclusive).is_ok();
        self.seats.iter().any(take)
    }

    fn leave(&self) {
        for seat in &self.seats {
            fcntl_lock(seat, FlockOperation::Unlock).unwrap();
        }
    }

    fn last_fence(&self) -> u64 {
        let mut bytes = [0_u8; 8];
        match self.fence.read_exact_at(&mut bytes, 0) {
            Ok(()) => u64::from_le_bytes(bytes),
            Err(_) => 0,
        }
    }
}

fn start(host: &Host, shape: &str, seed: u64) -> Worker {
    let (scratch, path) = (host.scratch().display(), host.path());
    let mut worker = Worker::start();
    let order = format!("traffic {scratch} {} {shape} {seed}", path.display());
    worker.ask(&order, "started");
    worker
}

/// Longer by night.
fn scaled(usual: u64) -> u64 {
    match std::env::var("TENURE_TEST_SCALE").as_deref() {
        Ok("nightly") => usual * 10,
        _ => usual,
    }
}

/// Processes that hand a lock to each other, each this often at least.
fn hand_offs(shape: &str, processes: u64, rounds: u64) {
    let host = Host::new();
    let mut workers: Vec<_> = (0..processes).map(|seed| start(&host, shape, seed)).collect();
    for worker in &mut workers {
        worker.say(&format!("rounds {rounds}"));
    }
    for worker in &workers {
        worker.hear("advanced");
    }
    for worker in &mut workers {
        worker.say("enough");
    }
    let done = workers.iter().map(|worker| worker.hear("done").parse::<u64>().unwrap());
    assert!(done.sum::<u64>() >= processes * rounds);
    workers.into_iter().for_each(Worker::dismiss);
    let verdicts = judge_all(host.scratch(), &Deaths::default());
    println!("{shape}, {processes} processes: {verdicts}");
    assert!(verdicts.violations.is_empty(), "{verdicts}");
    assert!(verdicts.waited > verdicts.grants / 10, "it was contended: {verdicts}");
    host.assert_empty();
}

#[test]
fn two_processes_hand_a_mutex_over_thousands_of_times() {
    hand_offs("mutex", 2, scaled(1_500));
}

#[test]
fn sixteen_processes_hand_a_mutex_over_thousands_of_times() {
    hand_offs("mutex", 16, scaled(250));
}

#[test]
fn sixteen_processes_share_a_read_write_lock() {
    hand_offs("rw", 16, scaled(100));
}

#[test]
fn sixteen_processes_share_a_semaphore() {
    hand_offs("semaphore", 16, scaled(100));
}

/// Waits until every worker has gone through two more rounds.
fn advance(workers: &mut [Worker]) {
    for worker in &mut *workers {
        worker.say("rounds 2");
    }
    for worker in workers {
        worker.hear("advanced");
    }
}

/// Lets the workers end.
fn finish(mut workers: Vec<Worker>) {
    for worker in &mut workers {
        worker.say("enough");
    }
    for worker in &workers {
        worker.hear("done");
    }
    workers.into_iter().for_each(Worker::dismiss);
}

/// Kills processes wherever they happen to be, and starts others in their place.
fn killing(shape: &str, seed: u64, deaths: u64) {
    let (host, mut dice) = (Host::new(), Dice(seed));
    let mut workers: Vec<_> = (0..16).map(|nth| start(&host, shape, seed + nth)).collect();
    let mut killed = Deaths::default();
    for nth in 0..deaths {
        // Not to wait for anything: only to hit them at different points.
        std::thread::sleep(Duration::from_micros(dice.throw(20_000)));
        let victim = dice.pick(16);
        killed.about_to_kill(workers[victim].pid());
        workers[victim].kill();
        workers[victim] = start(&host, shape, seed + 100 + nth);
        // Every process goes on, long before a lease is over.
        if nth % 8 == 7 {
            advance(&mut workers);
        }
    }
    finish(workers);
    let verdicts = judge_all(host.scratch(), &killed);
    println!("{shape}, seed {seed}, {deaths} killed: {verdicts}");
    assert!(verdicts.violations.is_empty(), "seed {seed}: {verdicts}");
    host.assert_empty();
}

#[test]
fn sixteen_processes_are_killed_at_random_and_the_others_go_on() {
    for seed in 0..scaled(1) {
        killing("mutex", 1_000 * seed + 1, 40);
    }
}

#[test]
fn readers_and_writers_are_killed_at_random_and_the_others_go_on() {
    for seed in 0..scaled(1) {
        killing("rw", 1_000 * seed + 2, 24);
    }
}

#[test]
fn holders_of_permits_are_killed_at_random_and_the_others_go_on() {
    for seed in 0..scaled(1) {
        killing("semaphore", 1_000 * seed + 3, 24);
    }
}

/// Stops some processes wherever they happen to be, for longer or shorter than their lease.
#[test]
fn sixteen_processes_are_stopped_at_random_and_keep_all_promises() {
    let seed = 4;
    let (host, mut dice) = (Host::new(), Dice(seed));
    let mut workers: Vec<_> = (0..16).map(|nth| start(&host, "leased", seed + nth)).collect();
    for _ in 0..scaled(10) {
        let first = dice.pick(16);
        let some: Vec<_> = (0..4).map(|nth| (first + nth * 3) % 16).collect();
        for nth in &some {
            workers[*nth].stop();
        }
        // How long they are stopped is what this is about.
        std::thread::sleep(Duration::from_millis(dice.throw(900)));
        for nth in &some {
            workers[*nth].go_on();
        }
        advance(&mut workers);
    }
    finish(workers);
    let verdicts = judge_all(host.scratch(), &Deaths::default());
    println!("stopped, seed {seed}: {verdicts}");
    assert!(verdicts.violations.is_empty(), "seed {seed}: {verdicts}");
    host.assert_empty();
}

#[test]
fn a_thousand_waiters_of_four_processes_are_all_served() {
    let host = Host::new();
    let tenure = host.tenure();
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    let mut workers: Vec<_> = (0..4).map(|_| host.worker()).collect();
    for worker in &mut workers {
        worker.say("crowd a 250");
    }
    for worker in &workers {
        worker.hear("queued");
    }
    block_on(guard.release()).unwrap();
    for worker in workers {
        assert_eq!(worker.hear("served"), "250");
        worker.dismiss();
    }
    host.assert_empty();
}

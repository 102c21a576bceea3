//! The session: one process's claims at one engine. A table of claims, a keeper thread that renews
//! and releases them, and the futures in which callers wait. Depends on the contract and the clock;
//! contains no engine-specific code and no admission rules.
//!
//! ```text
//! acquire  --claim-->  engine        in the caller's own future, no hop through another task
//! keeper   --renew-->  engine        one thread for everything held or waited for
//! engine   --signal--> table         wakes the waiting caller
//! guard    --drop--->  keeper --release--> engine
//! ```
//!
//! All state is in one [`Table`] behind one mutex, which is never held across a call to the engine,
//! a waker or an `await`. Whatever follows from a change of the table (wakers to call, losses to
//! declare, releases to send) is collected in [`Effects`] under the lock and carried out after it
//! was dropped.

mod acquire;
mod attempt;
mod cells;
mod confirm;
mod deadlock;
mod due_times;
mod effects;
mod entry;
mod errors;
mod hold;
mod inherited;
mod jobs;
mod joint;
mod keeper;
mod measured;
mod one_by_one;
mod park;
mod rates;
mod reenter;
mod release;
mod repeat;
mod request;
mod retry;
mod sampler;
mod sent_ids;
mod share;
mod signals;
mod table;
mod timed_out;
mod update_lines;
mod wake_hook;
mod watch;
mod witness;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use acquire::{AtOnce, Begun};
pub(crate) use confirm::Wanted;
pub use deadlock::DeadlockMode;
pub(crate) use deadlock::DeadlockSettings;
pub(crate) use hold::Hold;
pub use hold::{LockStatus, Lost};
pub use park::block_on;
pub(crate) use park::{sleep_until, within};
pub use release::Closed;
pub(crate) use request::{AcquireRequest, Outcome, Wait};
pub use sampler::{Sample, Sampler};
pub(crate) use share::Share;
pub(crate) use update_lines::KnownCell;
pub(crate) use wake_hook::WakeHook;
pub use watch::{CellChange, CellWatch};
use witness::Events;
pub use witness::{CallOutcome, Event, StoreCall, WaitEnd, Witness};

use self::effects::Effects;
use self::entry::{Entry, Phase};
use self::inherited::forked_error;
use self::jobs::JobAlarms;
use self::measured::MeasuredEngine;
use self::sent_ids::SentIds;
use self::table::Table;
use self::update_lines::UpdateLines;
use crate::contract::{
    Claim, Engine, Error, ErrorKind, Grant, SessionId, SignalListener, Verb, host_name, short,
};
use crate::limits;
use crate::process::Birth;
use crate::seeded::{self, Bug};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::{Alarm, Clock, Tick, back_off};

/// The settings of a session.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) max_lease: Duration,
    /// The timeout of one call to the store.
    pub(crate) call: Duration,
    /// How long `close` waits for the store to confirm all releases.
    pub(crate) close: Duration,
    /// The process id shown to other clients, where it is not that of this process.
    pub(crate) pid: Option<u32>,
    pub(crate) witnesses: Vec<Arc<dyn Witness>>,
    pub(crate) on_wake: Option<WakeHook>,
    /// How many replicas must have a grant before its guard is returned.
    pub(crate) replicas: Option<Wanted>,
    pub(crate) deadlocks: DeadlockSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_lease: limits::DEFAULT_MAX_LEASE,
            call: limits::CALL,
            close: limits::CLOSE,
            pid: None,
            witnesses: Vec::new(),
            on_wake: None,
            replicas: None,
            deadlocks: DeadlockSettings::default(),
        }
    }
}

/// A handle to a session. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Session {
    handle: Arc<Handle>,
}

/// Ends the keeper when the last clone of the session is dropped. Guards keep only the core.
struct Handle {
    core: Arc<Core>,
}

/// The state that guards, waiting callers and the keeper share.
pub(crate) struct Core {
    id: SessionId,
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    alarm: Arc<dyn Alarm>,
    settings: Settings,
    host: Arc<str>,
    /// The process id shown to other clients.
    pid: u32,
    /// The process in which the keeper's thread runs.
    birth: Birth,
    table: Mutex<Table>,
    events: Events,
    sent_ids: Mutex<SentIds>,
    job_alarms: JobAlarms,
    update_lines: UpdateLines,
    noise: AtomicU64,
}

impl Session {
    /// Opens a session and starts its keeper.
    pub(crate) fn open(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Self, Error> {
        let alarm = clock.alarm();
        let id = SessionId::new();
        let pid = settings.pid.unwrap_or_else(std::process::id);
        let core = Arc::new(Core {
            id,
            engine: MeasuredEngine::wrap(engine, &clock, &settings.witnesses),
            clock,
            alarm: Arc::clone(&alarm),
            events: Events::new(settings.witnesses.clone()),
            job_alarms: JobAlarms::default(),
            settings,
            host: host_name(),
            pid,
            birth: Birth::here(),
            table: Mutex::new(Table::new(alarm)),
            sent_ids: Mutex::new(SentIds::default()),
            update_lines: UpdateLines::default(),
            noise: AtomicU64::new(seed(id)),
        });
        let listener: Arc<dyn SignalListener> = Arc::clone(&core) as _;
        core.engine.listen(id, Arc::downgrade(&listener) as Weak<dyn SignalListener>);
        keeper::start(Arc::clone(&core))?;
        Ok(Self { handle: Arc::new(Handle { core }) })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    /// Returns how many claims the session holds or waits for.
    pub(crate) fn claims(&self) -> usize {
        if self.core().is_inherited() { 0 } else { self.core().lock().len() }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core().fmt(f)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.core.is_inherited() {
            return;
        }
        self.core.lock().orphaned = true;
        self.core.alarm.ring();
    }
}

impl Core {
    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn host(&self) -> &Arc<str> {
        &self.host
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    /// How long to pause after so many attempts that failed, with jitter.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        back_off(failures, self.jitter())
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers an event of this instant. Never called under the table's lock.
    fn emit(&self, claim: &Arc<Claim>, event: impl FnOnce() -> Event) {
        if self.events.has_witness() {
            self.events.push(claim, self.clock.now(), event);
            self.events.deliver();
        }
    }

    /// The safe-until of a claim whose last answered call was sent at `sent`.
    fn safe_until(&self, sent: Tick, lease: Duration) -> Tick {
        let from = if seeded::on(Bug::DeadlineFromReply) { self.clock.now() } else { sent };
        from + lease - self.engine.promises().margin(lease)
    }

    /// Builds the hold of a claim that was granted.
    fn make_hold(&self, entry: &Entry, grant: Grant, now: Tick) -> Arc<Hold> {
        let safe_until = self.safe_until(entry.sent_at, entry.claim.lease);
        let cap = entry.max_hold.map_or(Tick::NEVER, |most| now + most);
        let granted = || Event::Granted { fences: grant.fences.clone(), safe_until };
        self.events.push(&entry.claim, now, granted);
        let fencing = self.engine.promises().fencing;
        Hold::new(&entry.claim, grant, fencing, &self.clock, safe_until, cap)
    }

    /// Records that a waiting claim was granted. Its caller is woken and has one lease to pick the
    /// grant up.
    fn record_grant(&self, entry: &mut Entry, grant: Grant, now: Tick, effects: &mut Effects) {
        let hold = self.make_hold(entry, grant, now);
        // A max_hold that passes before the pick-up ends it as well.
        let most = entry.max_hold.unwrap_or(entry.claim.lease).min(entry.claim.lease);
        entry.ask_at = Tick::NEVER;
        entry.phase = Phase::Granted { hold, give_back_at: now + most };
        effects.wake.extend(entry.waker.take());
    }

    /// Carries out what follows from a change of the table: losses, wakers, releases. Never called
    /// under the table's lock, since wakers may run anything.
    fn apply(&self, mut effects: Effects) {
        if self.events.has_witness() {
            let now = self.clock.now();
            for (hold, loss) in &effects.lost {
                self.events.push(hold.claim(), now, || Event::Lost { loss: loss.clone() });
            }
            for hold in &effects.replaced {
                self.events.push(hold.claim(), now, || Event::Released);
            }
            self.events.deliver();
        }
        effects.notify();
        // Only now may the store receive the releases and grant the locks to other claims.
        self.send_back(effects.give_back);
    }

    /// A random number from 0 to 255.
    pub(crate) fn jitter(&self) -> u8 {
        let mixed = seed_mix(self.noise.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed));
        mixed.to_le_bytes()[0]
    }

    /// Makes a call to the store with the session's timeout. Returns an error without calling if
    /// the session is closed or belongs to the parent of a forked process.
    pub(crate) async fn limited<T, C>(
        &self,
        verb: Verb,
        call: impl FnOnce() -> C,
    ) -> Result<T, Error>
    where
        C: Future<Output = Result<T, Error>>,
    {
        self.check_open(verb)?;
        let call = call();
        self.limited_from(self.clock.now(), verb, call).await
    }

    /// Returns an error if the session is closed or belongs to the parent of a forked process.
    fn check_open(&self, verb: Verb) -> Result<(), Error> {
        self.check_process(verb)?;
        if self.lock().closed { Err(closed_error(verb)) } else { Ok(()) }
    }

    /// Makes a call to the store with the session's timeout, counted from `now`.
    async fn limited_from<T>(
        &self,
        now: Tick,
        verb: Verb,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match park::within(self, now + self.settings.call, call).await {
            Some(answer) => answer.map_err(|error| error.during(verb)),
            None if self.is_inherited() => Err(forked_error(verb)),
            None => Err(unanswered(verb, self.settings.call)),
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("engine", &self.engine.promises().engine)
            .finish_non_exhaustive()
    }
}

fn unanswered(verb: Verb, waited: Duration) -> Error {
    let what = format!("no answer within {}", short(waited));
    Error::new(ErrorKind::Unavailable, what)
        .effect_unknown()
        .during(verb)
        .with_help("check that the store is up and reachable")
}

fn closed_error(verb: Verb) -> Error {
    Error::new(ErrorKind::Closed, "this Tenure was closed")
        .during(verb)
        .with_help("connect again for new locks")
}

fn seed(id: SessionId) -> u64 {
    let bytes = id.as_u128().to_le_bytes();
    u64::from_le_bytes([
        bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
    ])
}

/// The finalizer of `SplitMix64`: turns a counter into jitter.
fn seed_mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_is_that_of_split_mix() {
        // The first two numbers of the published generator, started at 0.
        assert_eq!(seed_mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
        assert_eq!(seed_mix(0x3c6e_f372_fe94_f82a), 0x6e78_9e6a_a1b9_65f4);
    }
}

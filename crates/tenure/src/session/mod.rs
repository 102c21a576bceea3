//! One process's standing with one engine: a table of claims, a keeper, and the waits of callers.
//! Knows the contract and the clock; knows no store and no rules.
//!
//! ```text
//! acquire  --claim-->  engine        caller's own future, no hop through another task
//! keeper   --renew-->  engine        one thread for everything held or waited for
//! engine   --signal--> table         the waiting caller is woken
//! guard    --drop--->  keeper --release--> engine
//! ```

mod acquire;
mod ask;
mod cells;
mod confirm;
mod entry;
mod hold;
mod inherited;
mod joint;
mod keeper;
mod one_by_one;
mod park;
mod reenter;
mod release;
mod repeat;
mod retry;
mod table;
mod witness;
mod words;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use ask::{Ask, Outcome, Wait};
pub(crate) use confirm::Wanted;
pub(crate) use hold::Hold;
pub use hold::Lost;
pub use park::block_on;
pub use release::Closed;
pub(crate) use release::Lease;
pub use witness::{Event, Witness};

use self::entry::{EarlyEnd, Entry, Over, Phase};
use self::inherited::forked_error;
use self::table::{Table, Work};
use crate::contract::{
    Claim, ClaimId, Ear, Engine, Error, ErrorKind, Grant, Loss, SessionId, Signal, Verb, host_name,
    short,
};
use crate::limits;
use crate::process::Birth;
use crate::seeded::{self, Bug};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::{Alarm, Clock, Tick};

/// How a session behaves.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) max_lease: Duration,
    /// Time limit of one call to the store.
    pub(crate) call: Duration,
    /// How long closing waits for the store to confirm that everything was given back.
    pub(crate) close: Duration,
    /// The process to name to others, where it is not this one.
    pub(crate) pid: Option<u32>,
    pub(crate) witness: Option<Arc<dyn Witness>>,
    /// Grants count only once replicas have them.
    pub(crate) replicas: Option<Wanted>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_lease: limits::DEFAULT_MAX_LEASE,
            call: limits::CALL,
            close: limits::CLOSE,
            pid: None,
            witness: None,
            replicas: None,
        }
    }
}

/// One process's standing with one engine. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Session {
    handle: Arc<Handle>,
}

/// Tells the keeper when the last clone is gone. Guards keep only the core.
struct Handle {
    core: Arc<Core>,
}

/// What guards, waits and the keeper share.
pub(crate) struct Core {
    id: SessionId,
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    alarm: Arc<dyn Alarm>,
    settings: Settings,
    host: Arc<str>,
    /// The process that others are told of.
    pid: u32,
    /// The process that the keeper is in.
    birth: Birth,
    table: Mutex<Table>,
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
            engine,
            clock,
            alarm: Arc::clone(&alarm),
            settings,
            host: host_name(),
            pid,
            birth: Birth::here(),
            table: Mutex::new(Table::new(alarm)),
            noise: AtomicU64::new(seed(id)),
        });
        let ear: Arc<dyn Ear> = Arc::clone(&core) as _;
        core.engine.listen(id, Arc::downgrade(&ear) as Weak<dyn Ear>);
        keeper::start(Arc::clone(&core))?;
        Ok(Self { handle: Arc::new(Handle { core }) })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    /// How many claims the session holds or waits for.
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

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn saw(&self, claim: &Arc<Claim>, event: Event<'_>) {
        if let Some(witness) = &self.settings.witness {
            witness.saw(claim, event);
        }
    }

    /// Until when a claim may be trusted that was answered to a call sent at `sent`.
    fn safe_until(&self, sent: Tick, lease: Duration) -> Tick {
        let from = if seeded::on(Bug::DeadlineFromReply) { self.clock.now() } else { sent };
        from + lease - self.engine.promises().margin(lease)
    }

    /// The claim holds: makes the grant its holder will see.
    fn make_hold(&self, entry: &Entry, grant: Grant, now: Tick) -> Arc<Hold> {
        let safe_until = self.safe_until(entry.sent_at, entry.claim.lease);
        let cap = entry.max_hold.map_or(Tick::NEVER, |most| now + most);
        self.saw(&entry.claim, Event::Granted { fences: &grant.fences, safe_until });
        let fencing = self.engine.promises().fencing;
        Hold::new(&entry.claim, grant, fencing, &self.clock, safe_until, cap)
    }

    /// A waiting claim was granted: its caller is woken and has a lease's time to pick it up.
    fn granted(&self, entry: &mut Entry, grant: Grant, now: Tick, work: &mut Work) {
        let hold = self.make_hold(entry, grant, now);
        // A max_hold that passes before the pick-up ends it as well.
        let most = entry.max_hold.unwrap_or(entry.claim.lease).min(entry.claim.lease);
        entry.ask_at = Tick::NEVER;
        entry.phase = Phase::Granted { hold, give_back_at: now + most };
        work.wake.extend(entry.waker.take());
    }

    /// Tells everybody concerned. Never under the table's lock: wakers may run anything.
    fn announce(&self, mut work: Work) {
        for (hold, loss) in &work.lost {
            self.saw(hold.claim(), Event::Lost { loss });
        }
        for hold in &work.replaced {
            self.saw(hold.claim(), Event::Released);
        }
        work.announce();
        // Only now may the store hear of it, and give it to somebody else.
        self.send_back(work.give_back);
    }

    /// A number from 0 to 255 that differs from call to call and from session to session.
    fn jitter(&self) -> u8 {
        let mixed = seed_mix(self.noise.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed));
        mixed.to_le_bytes()[0]
    }

    /// A call to the store with its time limit. It is made only if this process may make it and the
    /// session is open.
    pub(crate) async fn limited<T, C>(
        &self,
        verb: Verb,
        call: impl FnOnce() -> C,
    ) -> Result<T, Error>
    where
        C: Future<Output = Result<T, Error>>,
    {
        self.check_process(verb)?;
        if self.lock().closed {
            return Err(closed_error(verb));
        }
        let call = call();
        self.limited_from(self.clock.now(), verb, call).await
    }

    /// A call to the store with its time limit, counted from `now`.
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

impl Ear for Core {
    fn hear(&self, signal: Signal) {
        let now = self.clock.now();
        let mut work = Work::default();
        let mut table = self.lock();
        match signal {
            Signal::Granted { claim, grant } => {
                self.hear_granted(&mut table, claim, grant, &mut work);
            }
            Signal::Ended { claim, loss } => hear_ended(&mut table, claim, loss, now, &mut work),
            Signal::AllEnded { loss } => {
                for id in table.ids() {
                    hear_ended(&mut table, id, loss.clone(), now, &mut work);
                    table.update(id, |entry| {
                        if matches!(entry.phase, Phase::Sent) {
                            entry.rare_mut().early_end = Some(EarlyEnd::All);
                        }
                    });
                }
            }
            Signal::Again { claim, after } => {
                table.update(claim, |entry| {
                    entry.missed |= entry.renewing || matches!(entry.phase, Phase::Sent);
                    if matches!(entry.phase, Phase::Waiting { .. }) {
                        entry.ask_at = entry.ask_at.min(now + after);
                    }
                });
            }
            Signal::Resync => {
                for id in table.ids() {
                    table.update(id, |entry| {
                        entry.missed = entry.renewing || matches!(entry.phase, Phase::Sent);
                        if matches!(entry.phase, Phase::Waiting { .. }) {
                            entry.renew_at = now;
                        }
                    });
                }
            }
        }
        drop(table);
        self.announce(work);
    }
}

fn hear_ended(table: &mut Table, claim: ClaimId, loss: Loss, now: Tick, work: &mut Work) {
    match table.get(claim).map(|entry| &entry.phase) {
        Some(Phase::Held { .. } | Phase::Granted { .. }) => table.lose(claim, loss, now, work),
        Some(Phase::Waiting { .. }) => table.wait_over(claim, Over::Ended(loss), now, work),
        // The push overtook the answer: keep it until the answer comes.
        Some(Phase::Sent) => {
            table.update(claim, |entry| entry.rare_mut().early_end = Some(EarlyEnd::This(loss)));
        }
        Some(Phase::Over(_)) | None => {}
    }
}

impl Core {
    fn hear_granted(&self, table: &mut Table, claim: ClaimId, grant: Grant, work: &mut Work) {
        let now = self.clock.now();
        let granted = table.update(claim, |entry| match entry.phase {
            // The push overtook the answer: keep it until the answer names its arrival.
            Phase::Sent => {
                entry.early = Some(Box::new(grant));
                false
            }
            // A push from an earlier life of the claim must not become a grant.
            Phase::Waiting { .. } if entry.arrival == Some(grant.arrival) => {
                self.granted(entry, grant, now, work);
                true
            }
            _ => false,
        });
        if granted == Some(true) {
            table.retire_replaced(claim, work);
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

/// Mixes a counter into a number that looks random (the finaliser of `SplitMix64`).
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

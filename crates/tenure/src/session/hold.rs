//! One grant as its holder sees it: fences, safe-until, loss. Knows one claim and the clock.
//!
//! A holder reads the clock itself and never trusts that a timer fired: a process that was stopped
//! for longer than its lease finds out with its first question, not when a thread gets to it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::contract::{Arrival, Claim, Error, ErrorKind, Fence, Fences, Fencing, Grant, Loss};
use crate::process::Birth;
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::{Clock, Tick};

/// One grant, shared by its guards, its observers and the keeper.
pub(crate) struct Hold {
    claim: Arc<Claim>,
    arrival: Arrival,
    clock: Arc<dyn Clock>,
    /// Nanoseconds of a [`Tick`]. Only grows.
    safe_until: AtomicU64,
    /// `max_hold` ends the grant here whatever is renewed.
    cap: Tick,
    state: Mutex<HoldState>,
    /// How many replicas of the store had the grant before it was handed out, or [`UNASKED`].
    replicas: AtomicU32,
    fencing: Fencing,
    /// The process that holds it.
    birth: Birth,
    /// [`HELD`], [`RELEASED`] or [`LOST`]. Changes once, under the lock of `state`.
    ended: AtomicU8,
}

/// What changes while a grant is held.
struct HoldState {
    fences: Fences,
    /// Why the grant is over, if it is [`LOST`]. Boxed, like the wakers: most holds have neither.
    loss: Option<Box<Loss>>,
    wakers: Option<Box<Wakers>>,
}

/// The grant is not over, unless its time has passed.
const HELD: u8 = 0;
/// It is over with [`Loss::Released`], which nearly every grant is in the end: kept without a box.
const RELEASED: u8 = 1;
/// It is over with the loss in its state.
const LOST: u8 = 2;

/// The replicas were not asked. Four bytes less than an option: there may be many thousands of
/// holds.
const UNASKED: u32 = u32::MAX;

/// The wakers of the futures that wait for the loss. Each is removed when its future is dropped, so
/// that a long hold stays small.
#[derive(Default)]
struct Wakers {
    next: u64,
    waiting: Vec<(u64, Waker)>,
}

impl Hold {
    pub(super) fn new(
        claim: &Arc<Claim>,
        grant: Grant,
        fencing: Fencing,
        clock: &Arc<dyn Clock>,
        safe_until: Tick,
        cap: Tick,
    ) -> Arc<Self> {
        Arc::new(Self {
            claim: Arc::clone(claim),
            arrival: grant.arrival,
            clock: Arc::clone(clock),
            safe_until: AtomicU64::new(safe_until.as_nanos()),
            cap,
            state: Mutex::new(HoldState { fences: grant.fences, loss: None, wakers: None }),
            replicas: AtomicU32::new(UNASKED),
            fencing,
            birth: Birth::here(),
            ended: AtomicU8::new(HELD),
        })
    }

    fn state(&self) -> MutexGuard<'_, HoldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the grant was ended, if it was.
    fn ended(&self) -> Option<Loss> {
        match self.ended.load(Ordering::Acquire) {
            HELD => None,
            RELEASED => Some(Loss::Released),
            _ => self.state().loss.as_deref().cloned(),
        }
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    /// How many replicas of the store had the grant before it was handed out, if that was asked.
    pub(crate) fn replicas(&self) -> Option<u32> {
        let replicas = self.replicas.load(Ordering::Acquire);
        (replicas != UNASKED).then_some(replicas)
    }

    /// Records how many replicas have the grant. The first number is kept: it is the one that was
    /// waited for.
    pub(super) fn confirmed_by(&self, replicas: u32) {
        let (first, order) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.replicas.compare_exchange(UNASKED, replicas, first, order);
    }

    /// How far its fences grow.
    pub(crate) fn fencing(&self) -> Fencing {
        self.fencing
    }

    /// The instant until which the grant may be trusted.
    pub(super) fn safe_until(&self) -> Tick {
        Tick::from_nanos(self.safe_until.load(Ordering::Acquire)).min(self.cap)
    }

    /// When `max_hold` ends the grant.
    pub(super) fn cap(&self) -> Tick {
        self.cap
    }

    /// The last known fences, whether or not the grant may be trusted.
    pub(super) fn last_fences(&self) -> Fences {
        self.state().fences.clone()
    }

    /// Takes over a later safe-until and fences, after a renewal of this grant or of the members it
    /// is made of.
    pub(super) fn follow(&self, safe_until: Tick, fences: Fences) {
        self.state().fences = fences;
        self.safe_until.fetch_max(safe_until.as_nanos(), Ordering::AcqRel);
    }

    /// How long the grant may still be trusted without another renewal.
    pub(crate) fn remaining(&self) -> Duration {
        match self.loss_at(self.clock.now()) {
            Some(_) => Duration::ZERO,
            None => self.safe_until().since(self.clock.now()),
        }
    }

    /// What is left of `max_hold`, if there is one.
    pub(super) fn hold_left(&self) -> Option<Duration> {
        (self.cap != Tick::NEVER).then(|| self.cap.since(self.clock.now()))
    }

    /// The fences, if the grant may be trusted at this instant.
    pub(crate) fn fences(&self) -> Result<Fences, Error> {
        self.check()?;
        Ok(self.state().fences.clone())
    }

    /// The largest fence of the grant, if it may be trusted at this instant.
    pub(crate) fn fence(&self) -> Result<Fence, Error> {
        self.check()?;
        let state = self.state();
        Ok(state.fences.as_slice().iter().copied().max().unwrap_or(Fence::new(0)))
    }

    /// An error if the grant may not be trusted at this instant.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_at(self.clock.now())
    }

    /// An error if the grant may not be trusted at `now`, which must have been read just before.
    pub(super) fn check_at(&self, now: Tick) -> Result<(), Error> {
        match self.loss_at(now) {
            None => Ok(()),
            Some(loss) => {
                self.end_at(now, loss);
                Err(self.lost_error())
            }
        }
    }

    /// Why the grant is over, if it is.
    pub(super) fn loss_at(&self, now: Tick) -> Option<Loss> {
        if self.birth.is_inherited() {
            return Some(Loss::Forked);
        }
        if let Some(loss) = self.ended() {
            return Some(loss);
        }
        if now >= self.cap {
            return Some(Loss::MaxHold);
        }
        (now >= self.safe_until()).then_some(Loss::Expired)
    }

    /// Records a renewal. It counts only for the same grant, and only if its safe-until has not
    /// passed yet: the holder may have stopped by then. The clock is read after `note`, so that a
    /// recorded renewal always comes before the end of the grant.
    pub(super) fn renewed(
        &self,
        safe_until: Tick,
        grant: &Grant,
        note: impl FnOnce(),
    ) -> Result<(), Loss> {
        self.is_this(grant)?;
        note();
        if let Some(loss) = self.loss_at(self.clock.now()) {
            return Err(loss);
        }
        self.follow(safe_until, grant.fences.clone());
        Ok(())
    }

    /// Records the renewal of a grant that was not handed to a caller yet. Its safe-until may have
    /// passed: no caller has trusted it.
    pub(super) fn revived(&self, safe_until: Tick, grant: &Grant) -> Result<(), Loss> {
        self.is_this(grant)?;
        self.follow(safe_until, grant.fences.clone());
        Ok(())
    }

    fn is_this(&self, grant: &Grant) -> Result<(), Loss> {
        let state = self.state();
        let falls = |(old, new): (&Fence, &Fence)| new < old;
        let pairs = state.fences.as_slice().iter().zip(grant.fences.as_slice());
        // Another arrival is another grant: in between, another owner may have held the lock.
        if grant.arrival != self.arrival || pairs.into_iter().any(falls) {
            return Err(Loss::Forgotten);
        }
        Ok(())
    }

    /// Ends the grant and wakes every future that waits for the loss. The first reason is kept.
    pub(super) fn end(&self, loss: Loss) {
        self.end_at(self.clock.now(), loss);
    }

    /// Ends the grant at `now`, which must have been read just before.
    pub(super) fn end_at(&self, now: Tick, loss: Loss) {
        if self.birth.is_inherited() {
            // The grant and its wakers belong to the parent process.
            return;
        }
        // If the safe-until has passed, that came before the reason given now.
        let loss = self.loss_at(now).unwrap_or(loss);
        let mut state = self.state();
        if self.ended.load(Ordering::Relaxed) == HELD {
            let how = if loss == Loss::Released { RELEASED } else { LOST };
            state.loss = (how == LOST).then(|| Box::new(loss));
            self.ended.store(how, Ordering::Release);
        }
        let wakers = state.wakers.take();
        drop(state);
        for (_, waker) in wakers.into_iter().flat_map(|wakers| wakers.waiting) {
            waker.wake();
        }
    }

    /// Builds the error that a holder gets after the loss.
    pub(crate) fn lost_error(&self) -> Error {
        let loss = self.loss();
        let next = match loss {
            Loss::Forked => "take a lock of the child's own: connect after the fork",
            Loss::MaxHold => "finish sooner, or allow a longer max_hold",
            Loss::Closed => "connect again for new locks",
            Loss::Released => "take the lock again before you go on",
            _ => "stop what you do under this lock; another holder may have begun",
        };
        let what = match &loss {
            Loss::Released => "the lock is no longer held: it was released".to_owned(),
            loss => format!("the lock was lost: {loss}"),
        };
        Error::new(ErrorKind::Lost, what)
            .on(self.claim.parts.first_name())
            .because_of(loss)
            .with_help(next)
    }

    /// Why the grant is over, once it is.
    fn loss(&self) -> Loss {
        if self.birth.is_inherited() {
            return Loss::Forked;
        }
        self.ended().unwrap_or(Loss::Expired)
    }

    /// Resolves when the grant is over.
    pub(crate) fn lost(self: &Arc<Self>) -> Lost {
        Lost { hold: Arc::clone(self), key: None }
    }
}

/// The status of a lock that was acquired: fence, time left, loss. Cheap to clone. It only watches:
/// a `LockStatus` does not keep the lock, and outlives it. Every guard dereferences to one.
///
/// # Examples
/// ```
/// use tenure::{Loss, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.mutex("reports")?.lock().await?;
/// let status = guard.status(); // for another task or thread
/// status.check()?; // an error once the lock is lost
/// println!("{} is held with fence {}", status.name(), status.fence()?);
/// assert_eq!(status.run(async { 42 }).await?, 42); // dropped if the lock is lost meanwhile
///
/// tenure.close().await;
/// assert_eq!(status.lost().await, Loss::Closed);
/// assert!(status.remaining().is_zero());
/// # drop(guard);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
// Defined here, because a guard's share contains it; its methods are in `primitives/guard.rs`.
#[derive(Clone)]
#[must_use]
pub struct LockStatus {
    pub(crate) hold: Arc<Hold>,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("claim", &self.claim.id)
            .field("name", self.claim.parts.first_name())
            .field("remaining", &self.remaining())
            .field("ended", &self.ended())
            .finish_non_exhaustive()
    }
}

/// Resolves to the reason when a lock is lost. Made by `lost()`.
///
/// # Cancel safety
/// Dropping it loses nothing; ask for another.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Lost {
    hold: Arc<Hold>,
    key: Option<u64>,
}

impl Future for Lost {
    type Output = Loss;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Loss> {
        let hold = Arc::clone(&self.hold);
        if hold.check().is_err() {
            return Poll::Ready(hold.loss());
        }
        let mut state = hold.state();
        // It may have ended between the look above and the lock, under which grants end.
        if hold.ended.load(Ordering::Relaxed) != HELD {
            drop(state);
            return Poll::Ready(hold.loss());
        }
        self.key = Some(state.wakers.get_or_insert_default().put(self.key, cx.waker()));
        Poll::Pending
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(key) = self.key.filter(|_| !self.hold.birth.is_inherited())
            && let Some(wakers) = self.hold.state().wakers.as_mut()
        {
            wakers.waiting.retain(|(other, _)| *other != key);
        }
    }
}

impl Wakers {
    /// Enters a waker, or replaces the one under the key. Returns its key.
    fn put(&mut self, key: Option<u64>, waker: &Waker) -> u64 {
        let old = self.waiting.iter_mut().find(|(other, _)| Some(*other) == key);
        if let Some((key, old)) = old {
            old.clone_from(waker);
            return *key;
        }
        self.next += 1;
        self.waiting.push((self.next, waker.clone()));
        self.next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;
    use crate::contract::{Part, samples};
    use crate::time::ManualClock;

    fn grant(arrival: u64, fence: u64) -> Grant {
        Grant { fences: [Fence::new(fence)].into_iter().collect(), arrival: Arrival(arrival) }
    }

    /// A grant with arrival 1 and fence 10, to be trusted for a second.
    fn hold() -> Arc<Hold> {
        let claim = Arc::new(samples::claim(Part::write("a".parse().unwrap())));
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
        let safe_until = clock.now() + Duration::from_secs(1);
        Hold::new(&claim, grant(1, 10), Fencing::Strict, &clock, safe_until, Tick::NEVER)
    }

    #[test]
    fn a_renewal_counts_only_for_the_same_arrival_and_fences_that_do_not_fall() {
        let hold = hold();
        let later = hold.safe_until() + Duration::from_secs(1);
        let renewed = |grant: Grant| hold.renewed(later, &grant, || ());
        assert_eq!(renewed(grant(2, 11)), Err(Loss::Forgotten), "another grant");
        assert_eq!(renewed(grant(1, 9)), Err(Loss::Forgotten), "a fence that falls");
        assert_eq!(hold.remaining(), Duration::from_secs(1), "neither put off the end");
        assert_eq!(renewed(grant(1, 12)), Ok(()));
        assert_eq!(hold.fence().unwrap(), Fence::new(12));
        assert_eq!(hold.remaining(), Duration::from_secs(2));
    }

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    fn poll(lost: &mut Lost, bell: &Arc<Bell>) -> Poll<Loss> {
        let waker = Waker::from(Arc::clone(bell));
        Pin::new(lost).poll(&mut Context::from_waker(&waker))
    }

    #[test]
    fn whoever_waits_for_the_loss_is_woken_once_and_whoever_leaves_is_forgotten() {
        let hold = hold();
        let bells: [Arc<Bell>; 3] = Default::default();
        let mut waiting = [hold.lost(), hold.lost(), hold.lost()];
        for (lost, bell) in waiting.iter_mut().zip(&bells) {
            assert!(poll(lost, bell).is_pending() && poll(lost, bell).is_pending());
        }
        let [first, _second, mut third] = waiting;
        drop(first);
        // The third has moved to another task.
        let moved = Arc::<Bell>::default();
        assert!(poll(&mut third, &moved).is_pending());
        let kept = |bell: &Arc<Bell>| Arc::strong_count(bell) - 1;
        assert_eq!(bells.each_ref().map(kept), [0, 1, 0]);
        hold.end(Loss::Closed);
        let woken = |bell: &Arc<Bell>| bell.0.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(bells.each_ref().map(woken), [0, 1, 0]);
        assert_eq!(woken(&moved), 1);
        assert_eq!(poll(&mut third, &moved), Poll::Ready(Loss::Closed));
    }
}

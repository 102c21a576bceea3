//! Sets on engines that cannot acquire several names in one step: one claim for each name, one
//! after the other, in sorted order. Each of these claims takes the ordinary acquire path.
//!
//! All clients acquire names in the same order, so that owners which hold nothing else cannot wait
//! in a circle. While the claim waits for one name, the names before it are held and renewed. If
//! one of them is lost, another owner may have held it meanwhile: all are released and acquired
//! again.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::errors::{WaitTimeout, timed_out_error};
use super::joint::Joint;
use super::{AcquireRequest, Core, Outcome, Share, Wait, closed_error};
use crate::contract::{Error, ErrorKind, Loss, Name, Parts, Verb};
use crate::time::Tick;

/// Acquires a set name by name.
///
/// Dropping the future withdraws the claim that waits and releases the names acquired before.
pub(super) async fn acquire(core: Arc<Core>, ask: AcquireRequest) -> Result<Outcome, Error> {
    let deadline = core.deadline(ask.wait);
    loop {
        let mut acquired = Acquired::nothing(&core);
        // An error is that of one name; dropping `acquired` releases the names before it.
        match acquired.acquire_all(&ask, deadline).await? {
            SetOutcome::Held(lease) => return Ok(Outcome::Held(lease)),
            SetOutcome::No => {
                // "No" means that nothing is held, so the releases are confirmed first.
                acquired.release().await;
                return Ok(Outcome::No);
            }
            SetOutcome::Lost(name, loss) => {
                acquired.release().await;
                if let Some(error) = final_loss(ask.wait, &name, loss) {
                    return Err(error);
                }
            }
        }
    }
}

/// The outcome of one round.
enum SetOutcome {
    /// Everything is held.
    Held(Share),
    /// A try found one of the names held.
    No,
    /// One of the names was lost before the last one was acquired.
    Lost(Name, Loss),
}

/// The names acquired so far. Dropping it releases them, in reverse order.
struct Acquired<'a> {
    core: &'a Arc<Core>,
    held: Option<Held>,
}

/// The grants so far, as one: if one of them is lost, or the grant for the next name is not picked
/// up, the keeper releases all, even if the caller's future is not polled.
struct Held {
    joint: Arc<Joint>,
    lease: Share,
}

impl<'a> Acquired<'a> {
    fn nothing(core: &'a Arc<Core>) -> Self {
        Self { core, held: None }
    }

    async fn acquire_all(
        &mut self,
        ask: &AcquireRequest,
        deadline: Tick,
    ) -> Result<SetOutcome, Error> {
        // One deadline and one owner for all. `max_hold` counts for the whole set, from its end.
        let mut one = AcquireRequest { max_hold: None, ..ask.clone() };
        let parts = ask.parts.as_slice();
        for (at, part) in parts.iter().enumerate() {
            if self.core.clock.now() >= deadline {
                return Err(timed_out(self.core, ask.wait, part.name()).await);
            }
            one.parts = Parts::one(part.clone());
            let lease = match self.acquire_next(&one, deadline).await {
                NextOutcome::Reply(outcome) => match outcome? {
                    Outcome::Held(lease) => lease,
                    Outcome::No => return Ok(SetOutcome::No),
                },
                NextOutcome::Lost(name, loss) => return Ok(SetOutcome::Lost(name, loss)),
            };
            let max_hold = ask.max_hold.filter(|_| at + 1 == parts.len());
            if let Err((name, loss)) = self.join(&ask.parts, lease, max_hold) {
                return Ok(SetOutcome::Lost(name, loss));
            }
        }
        // A set has at least one name.
        Ok(self.held.take().map_or(SetOutcome::No, |held| SetOutcome::Held(held.lease)))
    }

    /// Acquires one more name, unless a name before it is lost meanwhile.
    async fn acquire_next(&self, ask: &AcquireRequest, deadline: Tick) -> NextOutcome {
        let joint = self.held.as_ref().map(|held| &held.joint);
        let mut acquiring = pin!(self.core.acquire_one(ask.clone(), deadline, joint));
        let mut lost = joint.map(|joint| joint.hold().lost());
        poll_fn(|cx| {
            // Polled first, so that no call is made for a set that has lost a name.
            if let (Some(lost), Some(joint)) = (&mut lost, joint)
                && let Poll::Ready(loss) = Pin::new(lost).poll(cx)
            {
                return Poll::Ready(NextOutcome::Lost(joint.culprit().clone(), loss));
            }
            acquiring.as_mut().poll(cx).map(NextOutcome::Reply)
        })
        .await
    }

    /// Adds one grant to those held.
    fn join(
        &mut self,
        parts: &Parts,
        lease: Share,
        max_hold: Option<Duration>,
    ) -> Result<(), (Name, Loss)> {
        let timeout = lease.timeout();
        let old = self.held.as_ref().map(|held| &held.joint);
        let joint = self.core.join(parts, old, lease.hold(), max_hold)?;
        lease.hand_over();
        if let Some(old) = self.held.take() {
            old.lease.hand_over();
        }
        let lease = Share::of_joint(Arc::clone(self.core), Arc::clone(&joint), timeout);
        self.held = Some(Held { joint, lease });
        Ok(())
    }

    /// Releases everything and waits for the store's reply. If none comes, the keeper retries.
    async fn release(&mut self) {
        let Some(held) = self.held.take() else { return };
        if let Err(error) = held.lease.release().await {
            tracing::debug!(%error, "a name of a set was lost, or its release is unconfirmed");
        }
    }
}

/// The outcome of acquiring one more name.
enum NextOutcome {
    Reply(Result<Outcome, Error>),
    Lost(Name, Loss),
}

/// Builds the error for a deadline that passed between two names, with the holders of the next.
async fn timed_out(core: &Core, wait: Wait, name: &Name) -> Error {
    let slot = core.inspect_for_error(name, core.inspect_deadline()).await.flatten();
    let holders = slot.map(|slot| slot.holders).unwrap_or_default();
    let (place, own_hold, trouble, deadlock) = (None, None, None, None);
    let in_set = true;
    timed_out_error(WaitTimeout { wait, name, in_set, holders, place, own_hold, trouble, deadlock })
}

/// The error for a loss after which the set is not taken anew.
fn final_loss(wait: Wait, name: &Name, loss: Loss) -> Option<Error> {
    let what = match loss {
        Loss::Closed => return Some(closed_error(Verb::Claim).on(name)),
        Loss::Evicted { .. } => format!("the wait was ended: {loss}"),
        _ if wait == Wait::Try => {
            format!("it was lost again while the rest of the set was taken: {loss}")
        }
        _ => return None,
    };
    let error = Error::new(ErrorKind::Lost, what).during(Verb::Claim).on(name).because_of(loss);
    Some(error.with_help("nothing of the set is held; try again"))
}

//! Sets on engines that cannot take several names in one step: one claim for each name, one after
//! the other, sorted. Knows the order and the ways back; each claim goes its own plain way.
//!
//! Everybody takes names in the same order, so nobody who holds nothing else can wait in a circle.
//! While one name is waited for, those before it are held and renewed. Losing one of them means
//! that somebody else may have had it meanwhile: all are given back and taken anew.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::joint::Joint;
use super::words::{TooLate, timed_out_error};
use super::{Ask, Core, Lease, Outcome, Wait, closed_error};
use crate::contract::{Error, ErrorKind, Loss, Name, Parts, Verb};
use crate::time::Tick;

/// Acquires a set name by name.
///
/// Dropping the future withdraws the claim that waits and gives back what was taken.
pub(super) async fn acquire(core: Arc<Core>, ask: Ask) -> Result<Outcome, Error> {
    let deadline = core.deadline(ask.wait);
    loop {
        let mut taken = Taken::nothing(&core);
        // An error is that of the name it was met at; what was taken before goes back behind it.
        match taken.take_all(&ask, deadline).await? {
            Come::All(lease) => return Ok(Outcome::Held(lease)),
            Come::No => {
                // "No" means that nothing is held, so the store has to hear of it first.
                taken.give_back().await;
                return Ok(Outcome::No);
            }
            Come::Lost(name, loss) => {
                taken.give_back().await;
                if let Some(error) = final_loss(ask.wait, &name, loss) {
                    return Err(error);
                }
            }
        }
    }
}

/// What one round came to.
enum Come {
    /// Everything is held.
    All(Lease),
    /// A try found one of the names taken.
    No,
    /// One of the names was lost before the last was taken.
    Lost(Name, Loss),
}

/// What is held while the rest is taken. Dropping it gives it back, in reverse order.
struct Taken<'a> {
    core: &'a Arc<Core>,
    held: Option<Held>,
}

/// What was taken so far, bound together: if one of them is lost, or a grant for the next is not
/// picked up, all are given back, though nobody may look here for long.
struct Held {
    joint: Arc<Joint>,
    lease: Lease,
}

impl<'a> Taken<'a> {
    fn nothing(core: &'a Arc<Core>) -> Self {
        Self { core, held: None }
    }

    async fn take_all(&mut self, ask: &Ask, deadline: Tick) -> Result<Come, Error> {
        // One deadline and one owner for all. How long it may be held counts for the whole.
        let mut one = Ask { max_hold: None, ..ask.clone() };
        let parts = ask.parts.as_slice();
        for (at, part) in parts.iter().enumerate() {
            if self.core.clock.now() >= deadline {
                return Err(too_late(self.core, ask.wait, part.name()).await);
            }
            one.parts = Parts::one(part.clone());
            let lease = match self.take(&one, deadline).await {
                Next::Taken(outcome) => match outcome? {
                    Outcome::Held(lease) => lease,
                    Outcome::No => return Ok(Come::No),
                },
                Next::Lost(name, loss) => return Ok(Come::Lost(name, loss)),
            };
            let max_hold = ask.max_hold.filter(|_| at + 1 == parts.len());
            if let Err((name, loss)) = self.join(&ask.parts, lease, max_hold) {
                return Ok(Come::Lost(name, loss));
            }
        }
        // A set has at least one name.
        Ok(self.held.take().map_or(Come::No, |held| Come::All(held.lease)))
    }

    /// Takes one more, unless what is held is lost meanwhile.
    async fn take(&self, ask: &Ask, deadline: Tick) -> Next {
        let joint = self.held.as_ref().map(|held| &held.joint);
        let mut taking = pin!(self.core.acquire_by(ask, deadline, joint));
        let mut lost = joint.map(|joint| joint.hold().lost());
        poll_fn(|cx| {
            // First, so that no step is taken towards a set of which a part is gone.
            if let (Some(lost), Some(joint)) = (&mut lost, joint)
                && let Poll::Ready(loss) = Pin::new(lost).poll(cx)
            {
                return Poll::Ready(Next::Lost(joint.culprit().clone(), loss));
            }
            taking.as_mut().poll(cx).map(Next::Taken)
        })
        .await
    }

    /// Binds one more to what is held.
    fn join(
        &mut self,
        parts: &Parts,
        lease: Lease,
        max_hold: Option<Duration>,
    ) -> Result<(), (Name, Loss)> {
        let timeout = lease.timeout();
        let old = self.held.as_ref().map(|held| &held.joint);
        let joint = self.core.join(parts, old, lease.hold(), max_hold)?;
        lease.hand_over();
        if let Some(old) = self.held.take() {
            old.lease.hand_over();
        }
        let lease = Lease::of_joint(Arc::clone(self.core), Arc::clone(&joint), timeout);
        self.held = Some(Held { joint, lease });
        Ok(())
    }

    /// Gives everything back and waits for the store's word. If it does not come, the keeper goes
    /// on asking.
    async fn give_back(&mut self) {
        let Some(held) = self.held.take() else { return };
        if let Err(error) = held.lease.release().await {
            tracing::debug!(%error, "what was taken of a set was lost, or is not yet given back");
        }
    }
}

/// What came of taking one more.
enum Next {
    Taken(Result<Outcome, Error>),
    Lost(Name, Loss),
}

/// The deadline passed between two names: says what is missing and who has it.
async fn too_late(core: &Core, wait: Wait, name: &Name) -> Error {
    let slot = core.look_at(name, core.patience_to_look()).await.flatten();
    let holders = slot.map(|slot| slot.holders).unwrap_or_default();
    timed_out_error(TooLate { wait, name, holders, place: None, own_hold: None, trouble: None })
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

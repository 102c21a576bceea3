//! Work that ends with its lock. Knows futures, not sessions.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use super::guard::{AnyGuard, Held};
use crate::contract::{Error, ErrorKind};

/// Locks, runs the work under the lock, and releases.
pub(super) async fn under<G, F, T>(
    lock: impl Future<Output = Result<G, Error>> + Send,
    work: impl FnOnce(Held) -> F + Send,
) -> Result<T, Error>
where
    G: AnyGuard,
    F: Future<Output = T> + Send,
{
    let guard = lock.await?;
    let output = until_lost(&guard, work(Held::clone(&guard))).await?;
    match guard.into_lease().release().await {
        // The work is done; the lock goes back in the background, and the lease is the backstop.
        Err(error) if error.kind() != ErrorKind::Lost => Ok(output),
        released => released.map(|()| output),
    }
}

/// Runs `work` until it is done or the lock is lost, whichever comes first.
///
/// The loss is looked at first, so that work never takes a step on a lock that is gone; and once
/// more at the end, because the step itself may have outlasted the lock.
pub(super) async fn until_lost<T>(held: &Held, work: impl Future<Output = T>) -> Result<T, Error> {
    let mut work = pin!(work);
    let mut lost = held.lost();
    poll_fn(|cx| {
        if Pin::new(&mut lost).poll(cx).is_ready() {
            return Poll::Ready(Err(lost_error(held)));
        }
        match work.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(held.check().map(|()| output)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

fn lost_error(held: &Held) -> Error {
    match held.check() {
        Err(error) => error,
        // `lost` resolves only after the hold has ended, and that is final.
        Ok(()) => unreachable!("a lost hold stays lost"),
    }
}

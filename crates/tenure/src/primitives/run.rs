//! Work that ends with its lock. Knows futures, not sessions.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use super::guard::{AnyGuard, LockStatus};
use crate::contract::{Error, ErrorKind};

/// Releases the guard of work that is done.
pub(super) async fn release_after<G: AnyGuard, T>(guard: G, output: T) -> Result<T, Error> {
    match guard.into_share().release().await {
        // The work is done; the lock is released in the background, and the lease is the backstop.
        Err(error) if error.kind() != ErrorKind::Lost => Ok(output),
        released => released.map(|()| output),
    }
}

/// Runs `work` until it is done or the lock is lost, whichever comes first.
///
/// The loss is looked at first, so that work never takes a step on a lock that is gone; and once
/// more at the end, because the step itself may have outlasted the lock.
pub(super) async fn until_lost<T>(
    held: &LockStatus,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
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

fn lost_error(held: &LockStatus) -> Error {
    match held.check() {
        Err(error) => error,
        // `lost` resolves only after the hold has ended, and that is final.
        Ok(()) => unreachable!("a lost hold stays lost"),
    }
}

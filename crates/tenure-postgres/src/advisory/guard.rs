//! A lock that is held on a connection of ours. Knows how it ends, not how it came.

use std::fmt;

use tokio::runtime::Handle;

use super::errand::Errand;
use super::key::{Key, Mode};
use super::table::Place;
use tenure::contract::{Error, ErrorKind, Loss, Verb};

/// An advisory lock that is held.
///
/// Dropping it releases the lock in the background; [`release`](Self::release) waits for the
/// server to confirm it.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard {
    /// None once it is being given back.
    place: Option<Place>,
    home: Handle,
    key: Key,
    mode: Mode,
}

impl Guard {
    pub(super) fn new(place: Place, key: Key, home: Handle) -> Self {
        let mode = place.mode;
        Self { place: Some(place), home, key, mode }
    }

    fn is_inherited(&self) -> bool {
        self.place.as_ref().is_some_and(Place::is_inherited)
    }

    /// What is locked.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key.clone()
    }

    /// Whether it is shared: other shared holders may hold it too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.mode == Mode::Shared
    }

    /// Resolves when the lock is lost: its connection has ended, and the server has freed it or
    /// will. It may have another holder before this resolves.
    ///
    /// # Cancel safety
    /// May be dropped at any time; ask again.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let ended = self.place.as_ref().map(|place| place.wire.ended());
        let inherited = self.is_inherited();
        async move {
            if inherited {
                return Loss::Forked;
            }
            if let Some(ended) = ended {
                ended.await;
            }
            Loss::Disconnected
        }
    }

    /// Whether the lock is still held, as far as is known here. Costs no call.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if its connection has ended.
    pub fn check(&self) -> Result<(), Error> {
        match &self.place {
            Some(place) if place.is_inherited() => Err(lost(&self.key, Loss::Forked)),
            Some(place) if !place.wire.has_ended() => Ok(()),
            _ => Err(lost(&self.key, Loss::Disconnected)),
        }
    }

    /// Releases the lock and waits for the server to confirm it. See
    /// [`Advisory`](super::Advisory) for an example.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock had been lost before: it may have had another holder.
    ///
    /// # Cancel safety
    /// May be dropped at any time. The lock is given back all the same.
    pub async fn release(mut self) -> Result<(), Error> {
        let Some(place) = self.place.take() else { return Ok(()) };
        if place.is_inherited() {
            return Err(lost(&self.key, Loss::Forked));
        }
        Errand::new(self.home.clone(), give_back(place, self.key.clone())).await
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(place) = self.place.take().filter(|place| !place.is_inherited()) {
            // If that runtime is gone, so is the connection, and the server has freed the lock.
            let key = self.key.clone();
            self.home.spawn(async move {
                if let Err(error) = give_back(place, key).await {
                    tracing::warn!("{error}");
                }
            });
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Guard");
        it.field("key", &self.key).field("mode", &self.mode).finish_non_exhaustive()
    }
}

async fn give_back(place: Place, key: Key) -> Result<(), Error> {
    let (number, mode) = (place.key, place.mode);
    match place.wire.give(number, mode).await {
        Ok(true) => return Ok(()),
        Ok(false) => return Err(lost(&key, Loss::Forgotten).during(Verb::Release)),
        Err(_) if place.wire.has_ended() => {}
        // Ended from outside, before or after it was done.
        Err(error)
            if error.as_db_error().is_some() && place.wire.give(number, mode).await.is_ok() =>
        {
            return Ok(());
        }
        Err(error) => {
            // It stands, yet does not do as it is told: what it holds must not stay.
            tracing::warn!("{key} could not be given back, its connection is ended: {error}");
            place.wire.end();
        }
    }
    Err(lost(&key, Loss::Disconnected).during(Verb::Release))
}

/// The error of a lock that was lost, found by a check or by a release.
pub(super) fn lost(key: &Key, loss: Loss) -> Error {
    Error::new(ErrorKind::Lost, format!("the lock {key} was lost: {loss}"))
        .because_of(loss)
        .with_help("others may have had it meanwhile: check what you did under it")
}

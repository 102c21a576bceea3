//! Guards whose release blocks. Knows the async guards, and nothing else.

use std::ops::Deref;

use super::wait;
use crate::contract::{Error, Loss};
use crate::primitives::{self, Held};

/// Declares the blocking form of a guard.
macro_rules! guard {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[must_use = "if unused, the lock is released at once"]
        #[derive(Debug)]
        pub struct $name(pub(super) primitives::$name);

        impl $name {
            /// Gives the lock back and waits for the store's word.
            ///
            /// # Errors
            /// If the lock had been lost before, or the store could not be reached; then it is
            /// released in the background, and the lease is the backstop.
            pub fn release(self) -> Result<(), Error> {
                wait(self.0.release())
            }

            /// Blocks until the lock is lost, and says why.
            #[must_use]
            pub fn wait_lost(&self) -> Loss {
                wait(self.0.lost())
            }
        }

        impl Deref for $name {
            type Target = Held;

            fn deref(&self) -> &Held {
                &self.0
            }
        }
    };
}

guard! {
    /// The one holder of a mutex.
    Guard
}
guard! {
    /// A reader of a read-write lock.
    ReadGuard
}
guard! {
    /// The one writer of a read-write lock.
    WriteGuard
}
guard! {
    /// Permits of a semaphore.
    Permit
}
guard! {
    /// The holder of several locks at once.
    SetGuard
}

impl ReadGuard {
    /// Becomes the writer; see [`ReadGuard::upgrade`](crate::ReadGuard::upgrade).
    ///
    /// # Errors
    /// If another reader already waits to write, the wait limit passes, or the lock was lost. The
    /// error brings the read guard back.
    pub fn upgrade(self) -> Result<WriteGuard, primitives::Unchanged<Self>> {
        let unchanged = |primitives::Unchanged { error, guard }| primitives::Unchanged {
            error,
            guard: Self(guard),
        };
        wait(self.0.upgrade()).map(WriteGuard).map_err(unchanged)
    }
}

impl WriteGuard {
    /// Becomes a reader; see [`WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    ///
    /// # Errors
    /// If the lock was lost, or the store could not be reached. The error brings the guard back.
    pub fn downgrade(self) -> Result<ReadGuard, primitives::Unchanged<Self>> {
        let unchanged = |primitives::Unchanged { error, guard }| primitives::Unchanged {
            error,
            guard: Self(guard),
        };
        wait(self.0.downgrade()).map(ReadGuard).map_err(unchanged)
    }
}

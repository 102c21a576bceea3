//! Locks whose calls block. Knows the async locks, and nothing else.

use std::time::Duration;

use super::guards::{Guard, Permit, ReadGuard, SetGuard, WriteGuard};
use super::wait;
use crate::contract::{Error, Name, Part};
use crate::primitives::{self, Owner};

/// Declares the blocking form of a lock, with the methods that set its options.
macro_rules! lock {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            inner: primitives::$name,
        }

        impl From<primitives::$name> for $name {
            fn from(inner: primitives::$name) -> Self {
                Self { inner }
            }
        }

        impl $name {
            /// How long the lock lives without a renewal.
            #[must_use]
            pub fn lease(self, lease: Duration) -> Self {
                Self { inner: self.inner.lease(lease) }
            }

            /// How long to wait at most. Without it: until the lock is ours.
            #[must_use]
            pub fn wait(self, limit: Duration) -> Self {
                Self { inner: self.inner.wait(limit) }
            }

            /// Wait until the lock is ours, whatever a preset or default says.
            #[must_use]
            pub fn wait_forever(self) -> Self {
                Self { inner: self.inner.wait_forever() }
            }

            /// End the hold after this long, even if it could be renewed.
            #[must_use]
            pub fn max_hold(self, most: Duration) -> Self {
                Self { inner: self.inner.max_hold(most) }
            }

            /// Keep the lock closed this long after a holder's lease ran out.
            #[must_use]
            pub fn lock_delay(self, delay: Duration) -> Self {
                Self { inner: self.inner.lock_delay(delay) }
            }

            /// A short text shown to whoever looks who holds or waits.
            #[must_use]
            pub fn label(self, label: &str) -> Self {
                Self { inner: self.inner.label(label) }
            }

            /// Takes its options from a preset.
            #[must_use]
            pub fn preset(self, name: &str) -> Self {
                Self { inner: self.inner.preset(name) }
            }

            /// Claims for this owner.
            #[must_use]
            pub fn owner(self, owner: &Owner) -> Self {
                Self { inner: self.inner.owner(owner) }
            }
        }
    };
}

lock! {
    /// An exclusive lock; see [`tenure::Mutex`](crate::Mutex).
    Mutex
}
lock! {
    /// Many readers or one writer; see [`tenure::RwLock`](crate::RwLock).
    RwLock
}
lock! {
    /// At most N holders; see [`tenure::Semaphore`](crate::Semaphore).
    Semaphore
}
lock! {
    /// Several locks at once; see [`tenure::All`](crate::All).
    All
}
lock! {
    /// One lock for a family of names; see [`tenure::Family`](crate::Family).
    Family
}

impl Mutex {
    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        self.inner.name()
    }

    /// This lock as part of a set.
    #[must_use]
    pub fn part(&self) -> Part {
        self.inner.part()
    }

    /// Blocks until the lock is ours.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    #[track_caller]
    pub fn lock(&self) -> Result<Guard, Error> {
        wait(self.inner.lock()).map(Guard)
    }

    /// Takes the lock if it is free and nobody waits for it.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    #[track_caller]
    pub fn try_lock(&self) -> Result<Option<Guard>, Error> {
        Ok(wait(self.inner.try_lock())?.map(Guard))
    }
}

impl RwLock {
    /// A reader's part of a set.
    #[must_use]
    pub fn reader(&self) -> Part {
        self.inner.reader()
    }

    /// A writer's part of a set.
    #[must_use]
    pub fn writer(&self) -> Part {
        self.inner.writer()
    }

    /// Blocks until we are a reader.
    ///
    /// # Errors
    /// As [`RwLock::read`](crate::RwLock::read).
    #[track_caller]
    pub fn read(&self) -> Result<ReadGuard, Error> {
        wait(self.inner.read()).map(ReadGuard)
    }

    /// Blocks until we are the writer.
    ///
    /// # Errors
    /// As [`RwLock::write`](crate::RwLock::write).
    #[track_caller]
    pub fn write(&self) -> Result<WriteGuard, Error> {
        wait(self.inner.write()).map(WriteGuard)
    }

    /// Reads if that is possible at once.
    ///
    /// # Errors
    /// As [`RwLock::try_read`](crate::RwLock::try_read).
    #[track_caller]
    pub fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        Ok(wait(self.inner.try_read())?.map(ReadGuard))
    }

    /// Writes if that is possible at once.
    ///
    /// # Errors
    /// As [`RwLock::try_write`](crate::RwLock::try_write).
    #[track_caller]
    pub fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(wait(self.inner.try_write())?.map(WriteGuard))
    }
}

impl Semaphore {
    /// `permits` of it as part of a set.
    ///
    /// # Errors
    /// If that is none, or more than there are.
    pub fn permits(&self, permits: u32) -> Result<Part, Error> {
        self.inner.permits(permits)
    }

    /// Blocks until `permits` permits are ours, all at once.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`](crate::Semaphore::acquire).
    #[track_caller]
    pub fn acquire(&self, permits: u32) -> Result<Permit, Error> {
        wait(self.inner.acquire(permits)).map(Permit)
    }

    /// Takes permits if that many are free and nobody waits.
    ///
    /// # Errors
    /// As [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    #[track_caller]
    pub fn try_acquire(&self, permits: u32) -> Result<Option<Permit>, Error> {
        Ok(wait(self.inner.try_acquire(permits))?.map(Permit))
    }
}

impl All {
    /// Blocks until all locks of the set are ours.
    ///
    /// # Errors
    /// As [`All::lock`](crate::All::lock).
    #[track_caller]
    pub fn lock(&self) -> Result<SetGuard, Error> {
        wait(self.inner.lock()).map(SetGuard)
    }

    /// Takes all locks if every one of them is to be had at once, and none otherwise.
    ///
    /// # Errors
    /// As [`All::try_lock`](crate::All::try_lock).
    #[track_caller]
    pub fn try_lock(&self) -> Result<Option<SetGuard>, Error> {
        Ok(wait(self.inner.try_lock())?.map(SetGuard))
    }
}

impl Family {
    /// Blocks until the family's lock is ours, for work on this member.
    ///
    /// # Errors
    /// As [`Family::lock`](crate::Family::lock).
    #[track_caller]
    pub fn lock(&self, member: &str) -> Result<Guard, Error> {
        wait(self.inner.lock(member)).map(Guard)
    }

    /// Takes the family's lock if it is free and nobody waits for it.
    ///
    /// # Errors
    /// As [`Family::try_lock`](crate::Family::try_lock).
    #[track_caller]
    pub fn try_lock(&self, member: &str) -> Result<Option<Guard>, Error> {
        Ok(wait(self.inner.try_lock(member))?.map(Guard))
    }
}

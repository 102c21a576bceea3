//! A session of the command from connecting to its end, which has a time limit of its own.
//!
//! At the end, locks are given back and waiting claims withdrawn. A store that is silent or away
//! cannot confirm that, so the wait for it is bounded: by `--close-timeout` as a whole, and by
//! [`GRACE`] from the first signal on. The leases are the backstop. Whatever the command has to
//! tell is told before this wait begins.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::contract::{Engine, short};
use tenure::{Builder, Closed, ErrorKind, LockSetGuard, Tenure};

use crate::failure::{self, Failure};
use crate::interrupts::{Interrupts, Waited};
use crate::settings::Settings;
use crate::wanted::Wanted;

/// How long the store has at least to confirm a release, whatever signals come. Service managers
/// signal every process of a service at once, so the signal that ends a command may come twice.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// An open session.
#[derive(Debug)]
pub(crate) struct Session {
    engine: Arc<dyn Engine>,
    tenure: Tenure,
}

impl Session {
    /// Connects to the store, for the process that people know. If something interrupts that, the
    /// answer is an exit code.
    pub(crate) fn open(
        settings: &Settings,
        pid: u32,
        interrupts: &Interrupts<'_>,
    ) -> Result<Result<Self, u8>, Failure> {
        let engine = match settings.engine_unless(interrupts)? {
            Ok(engine) => engine,
            Err(code) => return Ok(Err(code)),
        };
        Self::on(engine, settings.builder().on_behalf_of(pid)).map(Ok)
    }

    /// A session with an engine that is connected already.
    pub(crate) fn on(engine: Arc<dyn Engine>, builder: Builder) -> Result<Self, Failure> {
        let tenure = builder.open(Arc::clone(&engine))?;
        Ok(Self { engine, tenure })
    }

    pub(crate) fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Gives back what is left, as long as the end may take. Afterwards nothing of the session
    /// stays behind in this process.
    pub(crate) fn close(self, ending: &mut Ending<'_>) {
        let Self { engine, tenure } = self;
        // Nothing more can be done about a failure.
        let _ = ending.wait(pin!(tenure.close()));
        drop(tenure);
        // The keeper lets go of the store on a thread of its own. If we ended before it did, the
        // session's files would stay; the caller was told already.
        let pause = Duration::from_micros(100);
        for _ in 0..100 {
            if Arc::strong_count(&engine) == 1 {
                break;
            }
            std::thread::sleep(pause);
        }
    }
}

/// The end of a session. It begins with the first wait.
#[derive(Debug)]
pub(crate) struct Ending<'a> {
    interrupts: &'a Interrupts<'a>,
    limit: Duration,
    began: Option<Instant>,
}

impl<'a> Ending<'a> {
    pub(crate) fn new(interrupts: &'a Interrupts<'a>, limit: Duration) -> Self {
        Self { interrupts, limit, began: None }
    }

    /// Waits for a step of the end. None if the time is up.
    pub(crate) fn wait<T>(
        &mut self,
        mut step: Pin<&mut dyn Future<Output = T>>,
    ) -> Result<Option<T>, Failure> {
        let began = *self.began.get_or_insert_with(Instant::now);
        loop {
            // A limit too long to be said is none.
            let until = began.checked_add(self.limit);
            match self.interrupts.wait(step.as_mut(), until)? {
                Waited::Done(value) => return Ok(Some(value)),
                Waited::Late => return Ok(None),
                Waited::Interrupted(_) => {
                    self.limit = self.limit.min(began.elapsed().max(GRACE));
                }
                // The front of a guardian is gone, which changes nothing here.
                Waited::Gone => {}
            }
        }
    }

    /// Gives a lock back. A failure if the lock was lost before, or if the store did not confirm
    /// the release in time.
    pub(crate) fn give_back(
        &mut self,
        tenure: &Tenure,
        wanted: &Wanted,
        guard: LockSetGuard,
    ) -> Result<(), Failure> {
        match self.wait(pin!(guard.release()))? {
            Some(Ok(())) => return Ok(()),
            // The session sends the release again and again until it is confirmed.
            Some(Err(error)) if error.kind() == ErrorKind::Unavailable => {}
            Some(Err(error)) => return Err(error.into()),
            None => {}
        }
        if self.wait(pin!(tenure.close()))? == Some(Closed::Confirmed) {
            return Ok(());
        }
        // If the lease has passed meanwhile, it has ended the lock.
        match self.unconfirmed(wanted.lease) {
            Some((tried, left)) => Err(Failure::new(
                failure::UNREACHABLE,
                format!(
                    "{}: the store did not confirm the release within {tried}; the lock frees \
                     itself when its lease ends, in at most {left}",
                    wanted.name(),
                ),
            )),
            None => Ok(()),
        }
    }

    /// For how long the end was tried, and how much of a lease is left at most. None if it has
    /// passed.
    pub(crate) fn unconfirmed(&self, lease: Duration) -> Option<(String, String)> {
        let tried = self.began.map(|began| began.elapsed()).unwrap_or_default();
        let left = lease.checked_sub(tried).filter(|left| !left.is_zero())?;
        // Rounded up: it is a promise.
        Some((short(tried), short(Duration::from_secs(left.as_secs() + 1))))
    }
}

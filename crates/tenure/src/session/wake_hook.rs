//! What the keeper calls each time that it wakes, on behalf of a layer above the session.
//!
//! The keeper wakes at least to renew what is held, so a hook needs no timer of its own. It runs on
//! the keeper's thread: it must be quick. If it panics, no lock is lost for it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::time::Tick;

/// A function for the keeper to call with the time at which it woke.
#[derive(Clone)]
pub(crate) struct WakeHook(Arc<dyn Fn(Tick) + Send + Sync>);

impl WakeHook {
    pub(crate) fn new(hook: impl Fn(Tick) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    pub(super) fn call(&self, now: Tick) {
        if catch_unwind(AssertUnwindSafe(|| (self.0)(now))).is_err() {
            tracing::error!("a listener panicked on the keeper's thread");
        }
    }
}

impl fmt::Debug for WakeHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeHook").finish_non_exhaustive()
    }
}

//! Events of a session, for histories, metrics and reports.

use std::fmt;
use std::sync::Arc;

use crate::contract::{Claim, Fences, Loss};
use crate::time::Tick;

/// Receives the events of a session. Called on the path of every lock: must be quick and must not
/// block.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use tenure::contract::Claim;
/// use tenure::{Event, Tenure, Witness};
///
/// #[derive(Debug, Default)]
/// struct Grants(AtomicU64);
///
/// impl Witness for Grants {
///     fn on_event(&self, _claim: &Arc<Claim>, event: Event<'_>) {
///         if matches!(event, Event::Granted { .. }) {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let grants = Arc::new(Grants::default());
/// let tenure = Tenure::builder().witness(grants.clone()).blocking_connect("memory:")?;
/// tenure.mutex("reports")?.blocking_lock()?.blocking_release()?;
/// assert_eq!(grants.0.load(Ordering::Relaxed), 1);
/// # Ok::<(), tenure::Error>(())
/// ```
pub trait Witness: fmt::Debug + Send + Sync + 'static {
    /// Called for each event in the life of a claim.
    fn on_event(&self, claim: &Arc<Claim>, event: Event<'_>);
}

/// One event in the life of a claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// It is about to be sent for the first time.
    Sent,
    /// It waits at this place.
    Queued {
        /// Its place in the queue, from 1.
        place: usize,
    },
    /// It holds, and may be trusted until the given instant. Emitted again if that instant passed
    /// before the caller picked the grant up, and a renewal has made it good again.
    Granted {
        /// One fence for each part.
        fences: &'a Fences,
        /// Until when it may be trusted without another renewal.
        safe_until: Tick,
    },
    /// It was renewed and may be trusted until the given instant.
    Renewed {
        /// Until when it may be trusted.
        safe_until: Tick,
    },
    /// It was refused.
    Refused,
    /// It was lost while it held.
    Lost {
        /// Why.
        loss: &'a Loss,
    },
    /// Its guard was released or dropped; from here on it must not be used.
    Released,
    /// Its caller gave up waiting.
    Withdrawn,
    /// Its own task or thread already holds the name under another owner: it waits for itself.
    WaitsForItself {
        /// The claim that holds.
        held_by: &'a Arc<Claim>,
    },
}

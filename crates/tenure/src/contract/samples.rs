//! A claim for tests and benchmarks, of which each test changes what it is about.

use std::time::Duration;

use super::{About, Claim, ClaimId, Conduct, Lineage, OwnerId, Part, Parts, Patience};

/// Returns a claim of one part that waits, with a lease of one second, of a new owner and of no
/// session.
#[must_use]
pub fn claim(part: Part) -> Claim {
    Claim {
        id: ClaimId::new(),
        session: None,
        lineage: Lineage::root(OwnerId::new()),
        parts: Parts::one(part),
        lease: Duration::from_secs(1),
        lock_delay: Duration::ZERO,
        patience: Patience::Wait,
        replaces: None,
        about: About {
            host: "host".into(),
            pid: 1,
            place: None,
            label: None,
            conduct: Conduct::default(),
        },
    }
}

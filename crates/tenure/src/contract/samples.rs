//! What tests and benchmarks begin with: a claim, of which each changes what it is about, and
//! numbers that are the same in every run.

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

/// Returns the next pseudo-random number of a seed, and steps the seed (`SplitMix64`).
pub fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *seed;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

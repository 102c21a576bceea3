//! Claim and release of a lock that nothing else wants, with one look at its slot each. The same
//! rules as `claim.rs` and `release.rs` in the case that is nearly all of them: a claim of one name
//! that has no slot, and a release of the only hold of a slot without a line. Everything else is
//! declined, and nothing has changed then but what time has ended already.
//!
//! Why it is the same: without a slot there is no holder, no ticket, no shape and no lock delay, so
//! the claim is admitted with a new fence. A slot without a line serves no ticket, and after its
//! only hold was released it is idle and would be forgotten; its last fence goes into the floor.

use std::sync::Arc;

use super::slot::Life;
use super::{Heap, Ledger, Now, Shelf};
use crate::contract::{Claim, Grant};
use crate::time::Tick;

impl Ledger<Heap> {
    /// Grants a claim of one name that has no slot.
    pub(crate) fn claim_free(&mut self, claim: &Arc<Claim>, now: Now) -> Option<Grant> {
        let [part] = claim.parts.as_slice() else { return None };
        if claim.replaces.is_some() || self.shelf.tomb(claim.id, now.tick).is_some() {
            return None;
        }
        if self.shelf.crowded() {
            self.sweep(now);
        }
        let slot = self.shelf.open_new(part.name(), part.shape())?;
        self.mint.wall_micros = now.wall_micros;
        let arrival = self.mint.arrival();
        let life = Life { from: now.tick, until: now.tick + claim.lease };
        let fence = slot.grant(claim, part.weight(), arrival, life, &mut self.mint);
        Some(Grant { fences: std::iter::once(fence).collect(), arrival })
    }

    /// Releases a claim that is the only hold of its slot and has not expired.
    pub(crate) fn release_lone(&mut self, claim: &Claim, now: Tick) -> bool {
        let [part] = claim.parts.as_slice() else { return false };
        let lone = self.shelf.peek(part.name()).is_some_and(|slot| slot.is_lone(claim.id, now));
        if lone {
            let last = self.shelf.forget(part.name());
            self.mint.floor = self.mint.floor.max(last);
        }
        lone
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::contract::{Part, Patience, Release, Released, Verdict, samples};

    /// Claims and releases at random: one ledger takes the short way wherever it can, the other one
    /// never, and both answer the same.
    #[test]
    fn the_short_way_answers_as_the_long_one() {
        let (mut short, mut long) = (Ledger::<Heap>::default(), Ledger::<Heap>::default());
        let mut dice: u64 = 11;
        let mut below = |end: usize| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(dice >> 33).unwrap() % end
        };
        let mut now = Now { tick: Tick::ZERO + Duration::from_secs(9), wall_micros: 1_000_000 };
        let mut made: Vec<Arc<Claim>> = Vec::new();
        let (mut granted, mut released) = (0, 0);
        for step in 0..20_000 {
            let passed = Duration::from_millis([0, 0, 0, 1, 1, 40, 40, 3_000][below(8)]);
            now.tick = now.tick + passed;
            now.wall_micros += u64::from(below(3) == 0);
            if below(2) == 0 || made.is_empty() {
                let name = ["a", "b", "c"][below(3)].parse().unwrap();
                let part = match below(4) {
                    0 => Part::read(name),
                    1 => Part::permits(name, 1, 2).unwrap(),
                    _ => Part::write(name),
                };
                let patience = if below(2) == 0 { Patience::Try } else { Patience::Wait };
                let lock_delay = Duration::from_millis([0, 500][below(2)]);
                let claim = Claim { lock_delay, patience, ..samples::claim(part) };
                made.push(Arc::new(claim));
                let claim = &made[made.len() - 1];
                let expected = long.claim(claim, now);
                let found = match short.claim_free(claim, now) {
                    None => short.claim(claim, now),
                    Some(grant) => {
                        granted += 1;
                        Verdict::Granted(grant)
                    }
                };
                assert_eq!(found, expected, "step {step}");
            } else {
                // The latest in half of the cases: the others have often expired.
                let nth = if below(2) == 0 { made.len() - 1 } else { below(made.len()) };
                let claim = made.swap_remove(nth);
                let uncertain = below(4) == 0;
                let batch = [Release { claim: claim.to_ref(), uncertain }];
                let expected = long.release(&batch, now);
                let found = if !uncertain && short.release_lone(&claim, now.tick) {
                    released += 1;
                    vec![Released::Done]
                } else {
                    short.release(&batch, now)
                };
                assert_eq!(found, expected, "step {step}");
            }
            assert_eq!(short.take_signals(), long.take_signals(), "step {step}");
            assert_eq!(short.census(now), long.census(now), "step {step}");
        }
        assert!(granted > 500 && released > 500, "{granted} and {released} took the short way");
    }
}

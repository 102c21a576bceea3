//! The deadlines of a session's claims: which is next, and which are due. Contains no claims.
//!
//! An ordered set, with a few deadlines beside it that are not sorted in yet. A lock that is held
//! for a short time comes and goes without the set: its deadline is added to `fresh`, and is found
//! there when it is removed. When `fresh` is full, or when the deadlines are looked at in order,
//! all of it moves into the set. Every deadline is in exactly one of the two.

use std::collections::BTreeSet;

use crate::contract::ClaimId;
use crate::time::Tick;

/// How many deadlines stand beside the set.
const FRESH: usize = 8;

/// Instants, each with the claim that something is due for.
#[derive(Debug, Default)]
pub(super) struct DueTimes {
    sorted: BTreeSet<(Tick, ClaimId)>,
    fresh: Vec<(Tick, ClaimId)>,
}

impl DueTimes {
    pub(super) fn insert(&mut self, at: Tick, id: ClaimId) {
        if self.fresh.len() == FRESH {
            self.sort();
        }
        self.fresh.push((at, id));
    }

    pub(super) fn remove(&mut self, at: Tick, id: ClaimId) {
        // The latest first: locks end in reverse order more often than in any other.
        match self.fresh.iter().rposition(|one| *one == (at, id)) {
            Some(place) => drop(self.fresh.swap_remove(place)),
            None => drop(self.sorted.remove(&(at, id))),
        }
    }

    /// The next deadline.
    pub(super) fn first(&mut self) -> Option<Tick> {
        self.sort();
        self.sorted.first().map(|(at, _)| *at)
    }

    /// The claims with a deadline up to this instant, the earliest first.
    pub(super) fn until(&mut self, instant: Tick) -> Vec<ClaimId> {
        self.sort();
        self.sorted.iter().take_while(|(at, _)| *at <= instant).map(|(_, id)| *id).collect()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.sorted.is_empty() && self.fresh.is_empty()
    }

    fn sort(&mut self) {
        self.sorted.extend(self.fresh.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn deadlines_are_the_same_whether_they_are_sorted_in_or_not() {
        let (mut deadlines, mut expected) = (DueTimes::default(), BTreeSet::new());
        let ids: Vec<ClaimId> = (0..64).map(|_| ClaimId::new()).collect();
        let mut dice: u64 = 7;
        for step in 0..4_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = ids[usize::try_from(dice >> 33).unwrap() % ids.len()];
            let at = Tick::ZERO + Duration::from_secs(dice >> 60);
            if expected.remove(&(at, id)) {
                deadlines.remove(at, id);
            } else {
                expected.insert((at, id));
                deadlines.insert(at, id);
            }
            if step % 17 == 0 {
                let instant = Tick::ZERO + Duration::from_secs(9);
                let due: Vec<ClaimId> =
                    expected.iter().filter(|(at, _)| *at <= instant).map(|(_, id)| *id).collect();
                assert_eq!(deadlines.until(instant), due, "step {step}");
                assert_eq!(deadlines.first(), expected.first().map(|(at, _)| *at));
            }
        }
        for (at, id) in &expected {
            deadlines.remove(*at, *id);
        }
        assert!(deadlines.is_empty());
    }
}

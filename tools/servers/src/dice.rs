//! Numbers that look random and come from a seed, so that a run of random faults can be repeated.

use std::time::Duration;

/// A generator of numbers, by `splitmix64`.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// Returns a number below this one, which must not be 0.
    pub fn throw(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }

    /// Returns an index below this one, which must not be 0.
    ///
    /// # Panics
    /// Never: the result is below an index.
    pub fn pick(&mut self, below: usize) -> usize {
        usize::try_from(self.throw(below as u64)).expect("below an index")
    }

    /// Returns a time of fewer milliseconds than this, which must not be 0.
    pub fn millis(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.throw(below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_every_time() {
        // The first two numbers of `splitmix64` for the seed 0, as published.
        let mut dice = Dice(0);
        let two = [dice.throw(u64::MAX), dice.throw(u64::MAX)];
        assert_eq!(two, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        assert!((0..1_000).all(|_| dice.pick(3) < 3 && dice.millis(2) < Duration::from_millis(2)));
    }
}

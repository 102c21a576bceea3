//! Issues fences and arrival numbers, from counters and from the wall clock that the caller hands
//! in.

use crate::contract::{Arrival, Fence};
use crate::limits;
use crate::seeded::{self, Bug};

/// Gives out fences and arrival numbers.
///
/// A fence is larger than the last one of its slot, than the floor (the largest fence of any slot
/// that was forgotten), and at least the wall clock in microseconds: so fences of one name grow
/// through release, expiry and clock corrections, and, as far as clocks agree, through a loss of
/// all memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mint {
    /// The largest fence of any slot that was forgotten.
    pub(crate) floor: u64,
    /// The wall clock of the verb that runs.
    pub(crate) wall_micros: u64,
    /// The number of the latest arrival.
    pub(crate) arrivals: u64,
    /// The largest fence given out.
    pub(crate) top: u64,
    /// How many may still come in from the line in this step; no limit if not given. For stores
    /// where a step has one number to give out, which two grants of one slot cannot share.
    pub(crate) admissions: Option<usize>,
}

impl Mint {
    /// A fence above everything this slot has given out.
    pub(super) fn fence(&mut self, last: &mut u64) -> Fence {
        // A broken wall clock must not push fences out of their range for ever.
        let clock = self.wall_micros.min(limits::FENCE / 2);
        let step = u64::from(!seeded::on(Bug::FenceReuse));
        let fence = (*last + step).max(self.floor + step).max(clock);
        debug_assert!(fence < limits::FENCE, "fences outgrew their range");
        *last = fence;
        self.top = self.top.max(fence);
        Fence::new(fence)
    }

    /// Whether one more may come in from the line in this step; if so, it is counted.
    pub(super) fn admit(&mut self) -> bool {
        match &mut self.admissions {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// The number of a claim that has just arrived.
    pub(super) fn arrival(&mut self) -> Arrival {
        self.arrivals += 1;
        Arrival(self.arrivals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_grow_past_the_last_the_floor_and_the_clock() {
        let mut last = 0;
        let mut mint = Mint { floor: 0, wall_micros: 100, ..Mint::default() };
        assert_eq!(mint.fence(&mut last).get(), 100);
        assert_eq!(mint.fence(&mut last).get(), 101);
        mint.wall_micros = 50;
        assert_eq!(mint.fence(&mut last).get(), 102, "a clock set back");
        mint.floor = 500;
        assert_eq!(mint.fence(&mut last).get(), 501, "a slot that was forgotten and came back");
    }

    #[test]
    fn a_clock_in_the_far_future_leaves_room_to_grow() {
        let mut last = 0;
        let mut mint = Mint { wall_micros: u64::MAX, ..Mint::default() };
        let (first, second) = (mint.fence(&mut last), mint.fence(&mut last));
        assert!(first < second && second.get() < limits::FENCE);
    }
}

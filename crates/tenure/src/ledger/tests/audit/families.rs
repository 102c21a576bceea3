//! Fences of one name (promise 3): every grant has a new one above all others, but for families.
//!
//! A family is what re-enters and nests: it shares one fence, until a member ends by expiry or one
//! asks for more; then the next grant or renewal in the family brings a new one for all of it.

use super::super::*;
use super::{Checked, Seat, check};
use crate::contract::Arrival;
use crate::limits;

/// The families of one name, and the largest fence it ever had.
#[derive(Clone, Debug, Default)]
pub(super) struct Families {
    last: u64,
    all: Vec<Family>,
}

#[derive(Clone, Debug)]
struct Family {
    members: Vec<(ClaimId, Arrival)>,
    fence: Fence,
    spent: bool,
}

impl Families {
    /// Whether, for the key of a state, the next in the family of this claim has a new fence.
    pub(super) fn standing(&self, seat: &Seat) -> Option<(bool, bool)> {
        let family = self.all.iter().find(|family| family.members.contains(&seat.life()))?;
        Some((family.spent, Some(family.fence) == seat.fence))
    }

    /// Follows one step: holders before and after, in the order in which they came in.
    pub(super) fn follow(
        &mut self,
        before: &[Seat],
        after: &[Seat],
        shares: bool,
        renewed: Option<ClaimId>,
        now: Now,
        expired: impl Fn(&Seat) -> bool,
    ) -> Checked {
        let stays = |seat: &Seat| after.iter().any(|other| other.life() == seat.life());
        let comes = |seat: &Seat| !before.iter().any(|other| other.life() == seat.life());
        let replaced = |seat: &Seat| {
            let id = Some(seat.claim.id);
            after.iter().any(|new| comes(new) && new.claim.replaces == id) && !expired(seat)
        };
        let mut present: Vec<Seat> = Vec::new();
        for seat in before {
            if stays(seat) || replaced(seat) {
                present.push(seat.clone());
            } else {
                self.leave(seat, expired(seat));
            }
        }
        for seat in after.iter().filter(|seat| comes(seat)) {
            self.come(seat, &present, shares, now)?;
            present.push(seat.clone());
        }
        for seat in before.iter().filter(|seat| stays(seat)) {
            let same = after.iter().find(|other| other.life() == seat.life());
            let told = same.and_then(|same| same.fence);
            if renewed == Some(seat.claim.id) {
                self.renew(seat, told, now)?;
            } else {
                let same = told == seat.fence;
                check(same, || format!("{} has another fence, unasked", seat.claim.id))?;
            }
        }
        for seat in before.iter().filter(|seat| !stays(seat) && replaced(seat)) {
            self.leave(seat, false);
        }
        Ok(())
    }

    fn leave(&mut self, seat: &Seat, expired: bool) {
        for family in &mut self.all {
            if family.members.contains(&seat.life()) {
                family.members.retain(|member| *member != seat.life());
                family.spent |= expired;
            }
        }
        self.all.retain(|family| !family.members.is_empty());
    }

    fn come(&mut self, seat: &Seat, present: &[Seat], shares: bool, now: Now) -> Checked {
        let of = |owner: OwnerId| present.iter().filter(move |other| other.owner() == owner);
        let heaviest = |owner: OwnerId| of(owner).max_by_key(|other| other.weight);
        let base = seat.lineage().all().find_map(heaviest).filter(|_| shares);
        let family = base.and_then(|base| {
            self.all.iter().position(|family| family.members.contains(&base.life()))
        });
        let Some((base, at)) = base.zip(family) else {
            let fence = self.fresh(seat, seat.fence, now)?;
            self.all.push(Family { members: vec![seat.life()], fence, spent: false });
            return Ok(());
        };
        self.all[at].members.push(seat.life());
        self.all[at].spent |= base.weight < seat.weight;
        self.share(at, seat, seat.fence, now)
    }

    fn renew(&mut self, seat: &Seat, told: Option<Fence>, now: Now) -> Checked {
        let at = self.all.iter().position(|family| family.members.contains(&seat.life()));
        let at = at.ok_or_else(|| format!("{} is of no family", seat.claim.id))?;
        self.share(at, seat, told, now)
    }

    fn share(&mut self, at: usize, seat: &Seat, told: Option<Fence>, now: Now) -> Checked {
        if self.all[at].spent {
            let fence = self.fresh(seat, told, now)?;
            (self.all[at].fence, self.all[at].spent) = (fence, false);
        }
        let fence = self.all[at].fence;
        check(told == Some(fence), || format!("{} should share {fence:?}", seat.claim.id))
    }

    fn fresh(&mut self, seat: &Seat, told: Option<Fence>, now: Now) -> Result<Fence, String> {
        let fence = told.ok_or_else(|| format!("{} has no fence", seat.claim.id))?;
        let wall = now.wall_micros;
        let grows = fence.get() > self.last && fence.get() >= wall && fence.get() < limits::FENCE;
        check(grows, || {
            let (id, last) = (seat.claim.id, self.last);
            format!("{id} has {fence}, which is not new after {last} at {wall}")
        })?;
        self.last = fence.get();
        Ok(fence)
    }
}

//! Raising the fences of a namespace: a floor at a majority of nodes.
//!
//! A node never gives out a number at or below its floor. A fence is decided by the numbers of q
//! nodes: q equal ones, or the largest of q. Any q nodes have one among them that is of the
//! majority with the floor, so every fence that is decided from then on is above it, whatever the
//! nodes without the floor say.

use super::Quorum;
use super::node::Lane;
use crate::contract::{Error, Fence, Raised};
use crate::engine::redis::client::{strange, text};

impl Quorum {
    /// Raises the numbers of all nodes. Asks how far numbers have got before it changes anything: a
    /// node alone cannot refuse what others have accepted.
    pub(super) async fn raise_fences(&self, lane: Lane, to: Fence) -> Result<Raised, Error> {
        let highest = self.lift_floors(lane, Fence::new(0)).await?;
        if to <= highest {
            return Ok(Raised::NotAbove(highest));
        }
        // Fewer than a majority may have it: repeating the call does no harm.
        self.lift_floors(lane, to).await.map_err(Error::effect_unknown)?;
        Ok(Raised::Done)
    }

    /// Lifts the floor of all nodes that answer, at least a majority; 0 changes nothing. Returns
    /// how far numbers may have got before.
    async fn lift_floors(&self, lane: Lane, to: Fence) -> Result<Fence, Error> {
        let site = &self.site;
        let calling = site
            .calling(&site.scripts().raise_fences, vec![site.keys.node.clone()])
            .with(to.get().to_string());
        let mut highest = 0;
        for answer in self.ask_all(lane, calling).await? {
            let number: Option<u64> = text(&answer).and_then(|number| number.parse().ok());
            highest = number.ok_or_else(|| strange(&answer))?.max(highest);
        }
        Ok(Fence::new(highest))
    }
}

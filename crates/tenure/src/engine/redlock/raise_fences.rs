//! Raising the fences of a namespace: a floor at a majority of nodes.
//!
//! A node never grants a number at or below its floor. A fence is decided by the numbers of q
//! nodes: q equal ones, or the largest of q. Any q nodes have one among them that is of the
//! majority with the floor, so every fence that is decided from then on is above it, whatever the
//! nodes without the floor reply.

use super::Quorum;
use super::node::Placement;
use crate::contract::{Error, Fence, Raised, Verb};
use crate::engine::redis::client::{strange, text};

impl Quorum {
    /// Raises the floor at all nodes. Reads the highest numbers before it changes anything: one
    /// node alone cannot refuse what others have accepted.
    pub(super) async fn raise_fences(
        &self,
        placement: Placement,
        to: Fence,
    ) -> Result<Raised, Error> {
        let raised = self.raise_all(placement, to).await;
        raised.map_err(|error| error.during(Verb::RaiseFences))
    }

    async fn raise_all(&self, placement: Placement, to: Fence) -> Result<Raised, Error> {
        let highest = self.raise_floors(placement, Fence::new(0)).await?;
        if to <= highest {
            return Ok(Raised::NotAbove(highest));
        }
        // Fewer than a majority may have it: repeating the call does no harm.
        self.raise_floors(placement, to).await.map_err(Error::effect_unknown)?;
        Ok(Raised::Done)
    }

    /// Raises the floor of all nodes that reply, at least a majority; 0 changes nothing. Returns
    /// the highest number that may have been granted before.
    async fn raise_floors(&self, placement: Placement, to: Fence) -> Result<Fence, Error> {
        let context = &self.context;
        let call = context
            .script_call(&context.scripts().raise_fences, vec![context.keys.node.clone()])
            .with(to.get().to_string());
        let mut highest = 0;
        for answer in self.call_all(placement, call).await? {
            let number: Option<u64> = text(&answer).and_then(|number| number.parse().ok());
            highest = number.ok_or_else(|| strange(&answer))?.max(highest);
        }
        Ok(Fence::new(highest))
    }
}

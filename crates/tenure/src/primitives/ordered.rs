//! The order checker on the way of a request: asked before the session is, and told of the grant.
//! Only where a `Tenure` has a checker; the rules are in the room `order`.

use std::sync::Arc;

use crate::contract::{Cells, Error};
use crate::order::{FlowKey, HoldMark, OrderChecker, OrderRequest, WaitLimit};
use crate::session::{AcquireRequest, Core, Share, Wait};

/// A request that the order checker has let through.
pub(super) struct OrderedRequest {
    order: OrderChecker,
    level: Option<Arc<str>>,
    scoped: bool,
    /// The task or thread that asks.
    task: Option<FlowKey>,
}

impl OrderedRequest {
    /// Checks a request. What no process of this service has seen before is shared with the store.
    pub(super) async fn check(
        order: OrderChecker,
        level: Option<Arc<str>>,
        core: &Arc<Core>,
        ask: &AcquireRequest,
    ) -> Result<Self, Error> {
        let task = FlowKey::current();
        let checked = Self { order, level, scoped: ask.scoped, task };
        let request = checked.request(ask);
        if checked.order.check(&request, task, &**core.clock())? {
            // Boxed: it happens once for each edge, and the futures of all locks stay small.
            let cells: &dyn Cells = &**core;
            Box::pin(checked.order.share(cells, &request, &**core.clock())).await?;
        }
        Ok(checked)
    }

    fn request<'a>(&'a self, ask: &'a AcquireRequest) -> OrderRequest<'a> {
        OrderRequest {
            parts: &ask.parts,
            lineage: &ask.lineage,
            scoped: ask.scoped,
            level: self.level.as_ref(),
            wait: match ask.wait {
                Wait::Try => WaitLimit::Try,
                Wait::Limit(_) | Wait::TryFor(_) => WaitLimit::Bounded,
                Wait::Unlimited => WaitLimit::Unlimited,
            },
            about: &ask.about,
        }
    }

    /// Counts the lock as held until the mark is dropped.
    pub(super) fn hold(self, lease: &Share, core: &Core) -> Option<HoldMark> {
        let claim = lease.hold().claim();
        self.order.hold(claim, self.scoped, self.level.as_ref(), self.task, core.clock())
    }
}

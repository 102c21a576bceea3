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

/// A request that was checked.
pub(super) enum CheckedOrder {
    /// Every process of this service knows what it does.
    Known(OrderedRequest),
    /// It taught something that has to be shared with the store.
    News(OrderedRequest),
}

impl CheckedOrder {
    /// Shares what the request taught.
    pub(super) async fn shared(
        self,
        core: &Arc<Core>,
        ask: &AcquireRequest,
    ) -> Result<OrderedRequest, Error> {
        match self {
            Self::Known(ordered) => Ok(ordered),
            Self::News(ordered) => {
                let cells: &dyn Cells = &**core;
                ordered.order.share(cells, &ordered.request(ask), &**core.clock()).await?;
                Ok(ordered)
            }
        }
    }
}

impl OrderedRequest {
    /// Checks a request against what its flow holds.
    pub(super) fn check(
        order: OrderChecker,
        level: Option<Arc<str>>,
        core: &Core,
        ask: &AcquireRequest,
    ) -> Result<CheckedOrder, Error> {
        let task = FlowKey::current();
        let checked = Self { order, level, scoped: ask.scoped, task };
        let news = checked.order.check(&checked.request(ask), task, &**core.clock())?;
        Ok(if news { CheckedOrder::News(checked) } else { CheckedOrder::Known(checked) })
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

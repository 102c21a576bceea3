//! The order checker on the way of a request: asked before the session is, and told of the grant.
//! Only where a `Tenure` has a checker; the rules are in the room `order`.

use std::panic::Location;
use std::sync::Arc;

use crate::contract::{Cells, Error, Place};
use crate::order::{FlowKey, HoldMark, OrderChecker, OrderRequest, WaitLimit};
use crate::session::{AcquireRequest, Core, Share, Wait, within};

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
    /// Shares what the request taught. The time that this takes is taken off the wait.
    pub(super) async fn shared(
        self,
        core: &Arc<Core>,
        ask: &mut AcquireRequest,
    ) -> Result<OrderedRequest, Error> {
        match self {
            Self::Known(ordered) => Ok(ordered),
            Self::News(ordered) => ordered.share(core, ask).await.map(|()| ordered),
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

    /// Checks an upgrade of a guard that has this mark.
    pub(super) async fn check_upgrade(
        mark: &HoldMark,
        core: &Arc<Core>,
        ask: &mut AcquireRequest,
        place: &'static Location<'static>,
    ) -> Result<(), Error> {
        let Some((order, level, in_flow)) = mark.checker() else { return Ok(()) };
        // A guard that has left the flow of its owner is in that of its task alone.
        let task = FlowKey::current();
        let checked = Self { order, level, scoped: ask.scoped && in_flow, task };
        // The claim keeps the place where it was first made; the order is that of this call.
        let mut upgrade = ask.clone();
        upgrade.about.place = upgrade.about.place.map(|_| Place::Here(place));
        let request = OrderRequest { upgrades: true, ..checked.request(&upgrade) };
        if checked.order.check_upgrade(&request, task, &**core.clock())? {
            Box::pin(checked.share(core, &mut upgrade)).await?;
            ask.wait = upgrade.wait;
        }
        Ok(())
    }

    /// Shares what was learned. A store whose cells do not respond delays the lock for no longer
    /// than one call to the store may take, and leaves it half of its timeout.
    async fn share(&self, core: &Arc<Core>, ask: &mut AcquireRequest) -> Result<(), Error> {
        let cells: &dyn Cells = &**core;
        let began = core.now();
        let call = core.settings().call;
        let limit = match ask.wait {
            Wait::Limit(limit) | Wait::TryFor(limit) => call.min(limit / 2),
            Wait::Try | Wait::Unlimited => call,
        };
        let request = self.request(ask);
        let shared = self.order.share(cells, &request, &**core.clock());
        let shared = within(core, began + limit, shared).await;
        if let Wait::Limit(left) | Wait::TryFor(left) = &mut ask.wait {
            *left = left.saturating_sub(core.now().since(began));
        }
        // Not in time: it is tried again with a later lock.
        shared.unwrap_or(Ok(()))
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
            upgrades: false,
            about: &ask.about,
        }
    }

    /// Counts the lock as held until the mark is dropped.
    pub(super) fn hold(self, lease: &Share, core: &Core) -> Option<HoldMark> {
        let claim = lease.hold().claim();
        self.order.hold(claim, self.scoped, self.level.as_ref(), self.task, core.clock())
    }
}

//! The rates behind a [`Link`]: requests are lost, delayed or repeated like other calls.

use super::link::{Copied, Link, lost};
use crate::contract::{Engine, Name, Pending, Rates, Settle, Settled, Take, TakeVerdict};

impl Rates for Link {
    fn take<'a>(&'a self, take: &'a Take) -> Pending<'a, TakeVerdict> {
        let rates = rates_of(self.inner());
        self.carry(|| rates.take(take), || Copied::Take(take.clone()))
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Settled> {
        Box::pin(async move {
            if self.is_cut() {
                return Err(lost("the link is cut"));
            }
            rates_of(self.inner()).settle(settle).await
        })
    }

    fn reset<'a>(&'a self, name: &'a Name) -> Pending<'a, ()> {
        Box::pin(async move {
            if self.is_cut() {
                return Err(lost("the link is cut"));
            }
            rates_of(self.inner()).reset(name).await
        })
    }
}

/// The rates of an engine that promises them.
pub(super) fn rates_of(engine: &dyn Engine) -> &dyn Rates {
    engine.rates().expect("the engine promises rates")
}

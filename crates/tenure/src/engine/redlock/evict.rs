//! The evict verb: ends one grant by force, at every node that has it with exactly this fence. Each
//! node keeps the reason in a tombstone and publishes the eviction to the holder's session.

use super::Quorum;
use super::node::Placement;
use super::record::NodeRecord;
use crate::contract::{Error, Evicted, Eviction, HolderView, Verb};
use crate::engine::redis::client::{list, strange, text};

impl Quorum {
    pub(super) async fn evict(
        &self,
        placement: Placement,
        eviction: &Eviction,
    ) -> Result<Evicted, Error> {
        let evicted = self.end_grant(placement, eviction).await;
        evicted.map_err(|error| error.during(Verb::Evict).on(&eviction.name))
    }

    async fn end_grant(&self, placement: Placement, eviction: &Eviction) -> Result<Evicted, Error> {
        let context = &self.context;
        let call = context
            .script_call(&context.scripts().evict, vec![context.keys.lock(&eviction.name)])
            .with(eviction.fence.get().to_string())
            .with(eviction.reason.as_bytes())
            .with(context.tombstone_micros())
            .with(context.keys.shared().channels.clone());
        let answers = self.call_all(placement, call).await.map_err(Error::effect_unknown)?;
        let nodes = self.nodes.len();
        let silent = nodes - answers.len();
        let (mut ended, mut others) = (Vec::new(), Vec::new());
        for answer in &answers {
            let strange = || strange(answer);
            let Some([now, said, record]) = list(answer) else { return Err(strange()) };
            let now = text(now).and_then(|now| now.parse().ok()).ok_or_else(strange)?;
            let record = NodeRecord::seen(list(record).unwrap_or_default(), now);
            if text(said) == Some("d") { ended.extend(record) } else { others.extend(record) }
        }
        let shown = |records: &[NodeRecord], silent| -> Vec<HolderView> {
            NodeRecord::of_majority(records.iter(), silent, nodes).into_iter().collect()
        };
        if ended.is_empty() {
            return Ok(Evicted::NoSuchGrant(shown(&others, silent)));
        }
        // A hold with this fence at any node was this grant, or what is left of it.
        Ok(Evicted::Done(shown(&ended, nodes)))
    }
}

//! The claim verb in a cluster: subscribes to the channel of the session and name, then claims at
//! the node that keeps the name.

use super::{ClusterEngine, only};
use crate::contract::{Claim, Error, Verb, Verdict};
use crate::engine::redis::batch::{BatchVerb, single_reply};
use crate::engine::redis::codec::{plain_lease, push_claim};
use crate::engine::redis::errors::to_error;
use crate::engine::redis::replies;

impl ClusterEngine {
    /// Makes a claim.
    pub(super) async fn claim(&self, claim: &Claim) -> Result<Verdict, Error> {
        let name = only(&claim.parts)?;
        let mut text = String::with_capacity(384);
        push_claim(&mut text, claim, &self.inner.keys);
        let script = &self.inner.options.scripts().claim;
        let mut request = match plain_lease(claim).map(|ttl| ttl.to_string()) {
            Some(ttl) => self.inner.request(name, script, &[ttl.as_bytes(), text.as_bytes()]),
            None => self.inner.request(name, script, &[b"", b"", text.as_bytes()]),
        };
        if let Some(session) = claim.session {
            request.after_subscribe = self.subscribe(session, name);
        }
        let result = self.inner.run(request).await;
        let result = result.and_then(|value| single_reply(BatchVerb::Claim, value));
        let (now, value) = result.map_err(|error| to_error(error, Verb::Claim))?;
        replies::verdict(&value, 1, now, &self.inner.keys)
    }
}

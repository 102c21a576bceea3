//! The renew verb in a cluster, one call per claim; and renewals that wait for replicas.

use std::time::Duration;

use redis::Value;

use super::calls::SlotRequest;
use super::topology::RefreshScope;
use super::{ClusterEngine, only};
use crate::contract::{ClaimRef, Confirmed, Error, Renewed, Verb};
use crate::engine::redis::client::{RequestError, list, strange};
use crate::engine::redis::codec::push_reference;
use crate::engine::redis::replies;

impl ClusterEngine {
    /// Renews claims.
    pub(super) async fn renew(&self, batch: &[ClaimRef]) -> Result<Vec<Renewed>, Error> {
        let requests = batch.iter().map(|claim| self.renew_request(claim));
        let values = self.run_each(Verb::Renew, requests).await?;
        let one = |value: &Value| match list(value) {
            Some([_, reply]) => replies::renewed(reply, 1),
            _ => Err(strange(value)),
        };
        values.iter().map(one).collect()
    }

    fn renew_request(&self, claim: &ClaimRef) -> Result<SlotRequest, Error> {
        let mut text = String::with_capacity(56);
        push_reference(&mut text, claim);
        let script = &self.inner.options.scripts().renew;
        Ok(self.inner.request(only(&claim.parts)?, script, &[text.as_bytes()]))
    }

    /// Renews a claim at the node that keeps its name, and waits for that node's replicas.
    pub(super) async fn confirm(
        &self,
        claim: &ClaimRef,
        replicas: u32,
        within: Duration,
    ) -> Result<Confirmed, RequestError> {
        let slot = self.inner.slot(claim.parts.first_name());
        let mut retries = 2;
        loop {
            let node = self.inner.node_of(slot).map_err(RequestError::NotConnected)?;
            let confirmations = node.confirmations().ok_or(RequestError::Closed)?;
            let error = match confirmations.confirm(claim, replicas, within).await {
                Ok(confirmed) => return Ok(confirmed),
                Err(error) => error,
            };
            let moved = error.redirection().is_some_and(|to| !to.ask);
            if retries == 0 || !(moved || error.is_from_wrong_node()) {
                return Err(error);
            }
            retries -= 1;
            let refreshed = self.inner.refresh(RefreshScope::UntilSettled).await;
            refreshed.map_err(RequestError::NotConnected)?;
        }
    }
}

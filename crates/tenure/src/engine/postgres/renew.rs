//! The renew verb: one call of `renew` for a whole batch of holders and waiters.

use super::PostgresEngine;
use super::calls::in_order;
use super::replies::ReplyRow;
use super::statements::{Function, batch};
use crate::contract::{ClaimRef, Error, Renewed, Verb};

impl PostgresEngine {
    pub(super) async fn renew(&self, claims: &[ClaimRef]) -> Result<Vec<Renewed>, Error> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let is_async = self.inner.context.is_async();
        let parameters = |ns| batch(|| claims.iter(), ns, is_async);
        let replies = self.call(Verb::Renew, Function::Renew, parameters).await?;
        let renewed = in_order(replies, claims.len(), Verb::Renew, ReplyRow::renewed)?;
        for (claim, renewed) in claims.iter().zip(&renewed) {
            self.inner.set_waiting(claim.id, matches!(renewed, Renewed::Waiting(_)));
        }
        Ok(renewed)
    }
}

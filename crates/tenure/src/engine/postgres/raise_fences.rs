//! Raises the sequence that all fences of the database come from. One call.

use super::PostgresEngine;
use super::errors::unexpected_reply;
use super::statements::{Function, Parameters};
use crate::contract::{Error, Fence, FenceFloor, Pending, Raised, Verb};

impl FenceFloor for PostgresEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        Box::pin(self.raise_sequence(to))
    }
}

impl PostgresEngine {
    async fn raise_sequence(&self, to: Fence) -> Result<Raised, Error> {
        let to = i64::try_from(to.get()).unwrap_or(i64::MAX);
        let parameters = |_| -> Parameters { vec![Box::new(to)] };
        let replies = self.call(Verb::RaiseFences, Function::RaiseFences, parameters);
        let reply = replies.await?.pop().ok_or_else(unexpected_reply)?;
        reply.raised().map_err(|error| error.during(Verb::RaiseFences))
    }
}

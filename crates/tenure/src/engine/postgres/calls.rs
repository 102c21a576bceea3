//! The way of a call through the engine: pick a connection, wait for a permit, call a function of
//! the schema, parse the rows, and deliver the signals among them.
//!
//! A call from async code uses the connection on the callers' runtime, if that runtime is fit to
//! serve it (`Callers::serves` in `common/runtime.rs`); all others use the connection on the
//! engine's own thread. There are no retries here: a failed call is an error, with its effect, and
//! the session decides.

use std::sync::atomic::Ordering;

use tokio_postgres::Row;

use super::PostgresEngine;
use super::connection::ConnectionManager;
use super::errors::{call_failed, unexpected_reply};
use super::pipeline::CallPermit;
use super::replies::ReplyRow;
use super::statements::{Function, Parameters};
use crate::contract::{Error, SessionId, Verb};

impl PostgresEngine {
    /// Returns the connection for a call: the one on the callers' runtime if the call is made there
    /// and the runtime can serve it, otherwise the one on the engine's thread.
    pub(super) fn connection(&self) -> &ConnectionManager {
        match &self.inner.callers_connection {
            Some((callers, connection)) if callers.serves() => connection,
            _ => &self.inner.own_connection,
        }
    }

    /// Waits until a call may be sent.
    pub(super) async fn permit(&self, verb: Verb) -> Result<CallPermit, Error> {
        self.inner.calls.fetch_add(1, Ordering::SeqCst);
        let pipeline = self.connection().get().await.map_err(|error| error.during(verb))?;
        Ok(pipeline.permit(verb).await)
    }

    /// Calls a function and returns its rows. `parameters` is called with the namespace's number.
    pub(super) async fn query(
        &self,
        verb: Verb,
        function: Function,
        parameters: impl FnOnce(i32) -> Parameters,
    ) -> Result<Vec<Row>, Error> {
        let permit = self.permit(verb).await?;
        let parameters = parameters(permit.ns());
        let rows = permit.call(function, parameters).await;
        rows.map_err(|error| call_failed(error.as_ref()).during(verb))
    }

    /// Calls a function whose rows are replies, and delivers the signals among them.
    pub(super) async fn call(
        &self,
        verb: Verb,
        function: Function,
        parameters: impl FnOnce(i32) -> Parameters,
    ) -> Result<Vec<ReplyRow>, Error> {
        let rows = self.query(verb, function, parameters).await?;
        self.parse_replies(&rows).await.map_err(|error| error.during(verb))
    }

    /// Parses rows. Rows that are signals are taken out and delivered: directly to sessions of this
    /// engine, by notifications to all others, unless `notify_later` sends those. Returns when the
    /// notifications were sent: the process may end when its last release has returned.
    pub(super) async fn parse_replies(&self, rows: &[Row]) -> Result<Vec<ReplyRow>, Error> {
        let replies = rows.iter().map(ReplyRow::parse).collect::<Result<Vec<_>, _>>();
        let mut replies = replies?;
        let mut remote: Vec<(SessionId, String)> = Vec::new();
        replies.retain(|reply| {
            let Some((session, text)) = reply.signal() else { return true };
            if !self.inner.context.router.deliver(session, text) && !reply.is_notified_later() {
                remote.push((session, text.to_owned()));
            }
            false
        });
        if !remote.is_empty() {
            self.notify(remote).await;
        }
        Ok(replies)
    }
}

/// Returns one result for each item of a batch, in the order of the batch.
pub(super) fn in_order<T>(
    mut replies: Vec<ReplyRow>,
    count: usize,
    verb: Verb,
    parse: impl Fn(ReplyRow) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    replies.sort_by_key(|reply| reply.item);
    let complete = replies.iter().map(|reply| reply.item).eq(1..=count);
    if !complete {
        return Err(unexpected_reply().during(verb));
    }
    let parsed = replies.into_iter().map(parse);
    parsed.collect::<Result<_, _>>().map_err(|error| error.during(verb))
}

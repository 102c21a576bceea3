//! What the listening connection has registered for the watchers of cells: rows in the table
//! `watches`, which make the writers of all processes notify; a lock of the connection's session,
//! which tells that the rows are in use; and the channel that it listens to. `watch` in
//! `sql/cells.sql` does that, and the head of that file says why no signal is lost.
//!
//! The rows are set as a whole, to the ranges of all living watchers:
//!
//! - when a watcher is added, whose caller waits for it;
//! - on each new connection, before it counts as up. It has an id of its own: the rows of the
//!   connection before are deleted by the next sweep of any client, since their lock is free;
//! - at the listener's ping, if watchers are gone since.
//!
//! If the server refuses on a new connection, the update is tried again at each ping, and the
//! watchers get a gap when it succeeds.

use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::connect::ConnectionContext;
use super::errors::{self, SendState};
use crate::contract::{CellRange, Error};
use crate::sync::random_bytes;

/// Limit of registered ranges. Beyond it all cells of the namespace are watched.
const MAX_RANGES: usize = 256;

/// Whether the text is the beginning of names rather than one name, and the text.
type WatchedText = (bool, String);

/// What one connection has registered.
pub(super) struct RegisteredWatches {
    watcher: Uuid,
    texts: Vec<WatchedText>,
    /// Whether the session has the lock of the watcher.
    locked: bool,
    /// Whether the session listens.
    listens: bool,
    /// Whether the last update failed.
    failed: bool,
}

/// Why nothing could be registered.
pub(super) enum RegisterError {
    /// The server has refused it. The connection is in use.
    Refused(Error),
    /// The connection is of no more use.
    Broken,
}

impl RegisteredWatches {
    pub(super) fn new() -> Self {
        let watcher = Uuid::from_bytes(random_bytes());
        Self { watcher, texts: Vec::new(), locked: false, listens: false, failed: false }
    }

    /// Registers the ranges of all living watchers, and nothing else. Returns at once if that is
    /// registered.
    pub(super) async fn update(
        &mut self,
        context: &ConnectionContext,
        client: &Client,
    ) -> Result<(), RegisterError> {
        let texts = texts_of(&context.router.watchers.ranges());
        if texts == self.texts && !self.failed {
            return Ok(());
        }
        let limit = context.statement_timeout();
        let error = match timeout(limit, self.register(context, client, &texts)).await {
            Ok(Ok(())) => {
                self.texts = texts;
                if std::mem::take(&mut self.failed) {
                    context.router.watchers.gap();
                }
                return Ok(());
            }
            Ok(Err(Some(error))) if error.as_db_error().is_some() => error,
            Ok(Err(_)) | Err(_) => return Err(RegisterError::Broken),
        };
        self.failed = true;
        match timeout(limit, client.batch_execute("ROLLBACK")).await {
            Ok(Ok(())) => Err(RegisterError::Refused(errors::to_error(&error, SendState::NotSent))),
            _ => Err(RegisterError::Broken),
        }
    }

    /// Returns the error of the client or the server; `None` if the reply cannot be used.
    async fn register(
        &mut self,
        context: &ConnectionContext,
        client: &Client,
        texts: &[WatchedText],
    ) -> Result<(), Option<tokio_postgres::Error>> {
        let schema = context.location.quoted_schema();
        let limit = context.statement_timeout().as_millis();
        client
            .batch_execute(&format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {limit}; \
                 SET LOCAL statement_timeout = {limit}; SET LOCAL synchronous_commit = off"
            ))
            .await?;
        let names: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
        let prefixes: Vec<bool> = texts.iter().map(|(is_prefix, _)| *is_prefix).collect();
        let namespace = context.namespace.as_str();
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&namespace, Type::TEXT),
            (&self.watcher, Type::UUID),
            (&self.locked, Type::BOOL),
            (&names, Type::TEXT_ARRAY),
            (&prefixes, Type::BOOL_ARRAY),
        ];
        let text = format!("SELECT {schema}.watch($1, $2, $3, $4, $5)");
        let rows = client.query_typed(&text, &parameters).await?;
        client.batch_execute("COMMIT").await?;
        self.locked = !texts.is_empty();
        if self.listens == self.locked {
            return Ok(());
        }
        let channel: &str = rows.first().ok_or(None)?.try_get(0)?;
        if !is_channel(channel) {
            return Err(None);
        }
        let verb = if self.locked { "LISTEN" } else { "UNLISTEN" };
        client.batch_execute(&format!("{verb} \"{channel}\"")).await?;
        self.listens = self.locked;
        Ok(())
    }
}

/// Returns whether a text can be quoted as it is.
fn is_channel(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b':')
}

fn texts_of(ranges: &[CellRange]) -> Vec<WatchedText> {
    let text = |range: &CellRange| match range {
        CellRange::One(name) => (false, name.as_str().to_owned()),
        CellRange::Prefix(prefix) => (true, prefix.clone()),
    };
    let mut texts: Vec<WatchedText> = ranges.iter().map(text).collect();
    texts.sort();
    texts.dedup();
    if texts.len() > MAX_RANGES { vec![(true, String::new())] } else { texts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Name;

    #[test]
    fn ranges_are_registered_once_and_many_become_all() {
        let one = |text: &str| CellRange::One(Name::try_from(text).unwrap());
        let ranges = [one("b"), CellRange::Prefix("a".into()), one("b"), one("a")];
        let texts = [(false, "a".to_owned()), (false, "b".to_owned()), (true, "a".to_owned())];
        assert_eq!(texts_of(&ranges), texts);
        let many = |count: usize| (0..count).map(|n| one(&n.to_string())).collect::<Vec<_>>();
        assert_eq!(texts_of(&many(MAX_RANGES)).len(), MAX_RANGES);
        assert_eq!(texts_of(&many(MAX_RANGES + 1)), [(true, String::new())]);
    }

    #[test]
    fn only_plain_channels_are_listened_to() {
        assert!(is_channel("tenure:cells:16403:1"));
        for odd in ["", "tenure\"", "a b", "a;b"] {
            assert!(!is_channel(odd), "{odd}");
        }
    }
}

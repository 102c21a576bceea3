//! The checks of `tenure doctor` for one server: its report, its settings, the access list, the
//! clock, the link, and its sentinels. Sends the questions and parses the replies; `findings.rs`
//! and `sentinels.rs` turn them into findings, without I/O.
//!
//! A question that the server refuses is no error: the finding then says what could not be seen.

mod findings;
mod isolation;
mod replica;
mod sentinels;

use std::sync::Arc;

use redis::Value;

use self::findings::{ClockOffset, LinkSecurity, SETTINGS, ServerFacts};
use super::RedisEngine;
use super::client::sentinel::{self, SentinelReport};
use super::client::{RequestError, RequestResult, ServerInfo, info_text, list, pack};
use super::errors::to_error;
use crate::contract::{Diagnostics, Error, Finding, Pending, SessionId, Verb};
use crate::engine::common::redis::url::{Address, is_near};

/// The commands that the engine sends outside of scripts.
const COMMANDS: [&str; 7] =
    ["EVAL", "EVALSHA", "PING", "SCAN", "SCRIPT|LOAD", "SUBSCRIBE", "UNSUBSCRIBE"];

impl Diagnostics for RedisEngine {
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(async move { self.examine().await })
    }
}

impl RedisEngine {
    /// Asks the server and its sentinels, and returns what was found.
    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let connection = self.batcher().connection();
        let call = |words: &[&[u8]]| connection.call(&pack(words));
        // All are sent before the first reply is awaited.
        let info = call(&[b"INFO"]);
        let settings = SETTINGS.map(|name| call(&[b"CONFIG", b"GET", name.as_bytes()]));
        let user = call(&[b"ACL", b"WHOAMI"]);
        let rights = call(&self.rights_words().iter().map(|word| &**word).collect::<Vec<_>>());

        let info = unless_refused(info.await)?.as_ref().and_then(info_text).map(ServerInfo::new);
        let server = info.or_else(|| self.inner.handshake.server());
        let mut seen_settings = [const { None }; SETTINGS.len()];
        for (setting, answer) in seen_settings.iter_mut().zip(settings) {
            *setting = unless_refused(answer.await)?.as_ref().and_then(setting_in);
        }
        let user = unless_refused(user.await)?.as_ref().and_then(info_text).map(str::to_owned);
        let forbidden = unless_refused(rights.await)?.as_ref().and_then(words_in);
        let location = &self.inner.handshake.location;
        let facts = ServerFacts {
            server: server.unwrap_or_else(|| ServerInfo::new("")),
            settings: seen_settings,
            user,
            forbidden,
            clock: self.offset().await?,
            link: match location.address() {
                Address::Unix(_) => LinkSecurity::Unix,
                _ if location.tls().is_some() => LinkSecurity::Tls,
                near if is_near(near) => LinkSecurity::Loopback,
                _ => LinkSecurity::Plain,
            },
            grace: location.grace().then_some(self.inner.handshake.max_lease),
            watched: location.primary().is_some(),
        };
        let mut findings = facts.judge();
        if let Some(primary) = location.primary() {
            findings.extend(sentinels::judge(primary, &self.sentinel_reports().await));
        }
        Ok(findings)
    }

    /// Returns the report of each sentinel that the URL names.
    async fn sentinel_reports(&self) -> Vec<SentinelReport> {
        let location = Arc::clone(&self.inner.handshake.location);
        // On the engine's thread: the caller may have no runtime.
        let reports = self.inner.own.handle().spawn(sentinel::reports(location));
        reports.await.unwrap_or_default()
    }

    /// Returns the command that asks which commands are forbidden.
    fn rights_words(&self) -> Vec<Vec<u8>> {
        let scripts = self.inner.options.scripts();
        let channel = self.inner.keys.channel(SessionId::new());
        let first = ["EVAL", &scripts.rights.text, "1", &self.inner.keys.top, &channel];
        let commands = scripts.commands(false).into_iter().chain(COMMANDS);
        first.into_iter().chain(commands).map(|word| word.as_bytes().to_vec()).collect()
    }

    /// Compares clocks. Of a few tries the quickest is the most exact.
    async fn offset(&self) -> Result<Option<ClockOffset>, Error> {
        let mut best: Option<ClockOffset> = None;
        for _ in 0..3 {
            let before = self.inner.clock.wall_micros();
            let answer = unless_refused(self.batcher().connection().call(&pack(&[b"TIME"])).await)?;
            let after = self.inner.clock.wall_micros();
            let offset =
                answer.and_then(|answer| ClockOffset::new(before, time_in(&answer)?, after));
            best = best.into_iter().chain(offset).min_by_key(|offset| offset.give_or_take);
        }
        Ok(best)
    }
}

/// Returns the reply, or none if the server refused the question.
pub(super) fn unless_refused(outcome: RequestResult) -> Result<Option<Value>, Error> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(RequestError::Server { .. }) => Ok(None),
        Err(error) => Err(to_error(error, Verb::Inspect)),
    }
}

pub(super) fn words_in(value: &Value) -> Option<Vec<String>> {
    list(value)?.iter().map(|word| info_text(word).map(str::to_lowercase)).collect()
}

pub(super) fn setting_in(value: &Value) -> Option<String> {
    match value {
        Value::Map(pairs) => info_text(&pairs.first()?.1).map(str::to_owned),
        _ => None,
    }
}

/// Parses the reply to `TIME` into microseconds.
pub(super) fn time_in(value: &Value) -> Option<u64> {
    let [seconds, micros] = list(value)? else { return None };
    let number = |value: &Value| info_text(value)?.parse::<u64>().ok();
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_in_the_shapes_that_servers_give_them() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(time_in(&Value::Array(vec![text("12"), text("345")])), Some(12_000_345));
        assert_eq!(time_in(&Value::Array(vec![text("12")])), None);
        let map = Value::Map(vec![(text("save"), text("60 1"))]);
        assert_eq!(setting_in(&map), Some("60 1".to_owned()));
        assert_eq!(setting_in(&Value::Map(Vec::new())), None);
        assert_eq!(words_in(&Value::Array(vec![text("ZADD")])), Some(vec!["zadd".to_owned()]));
        assert_eq!(words_in(&Value::Nil), None);
    }
}

//! Looks at the server with the eyes of an operator. Knows what to ask and how servers answer;
//! `judge.rs` and `watch.rs` know what the answers mean for locks.

mod follower;
mod isolation;
mod judge;
mod watch;

use std::sync::Arc;

use redis::Value;

use self::judge::{Facts, Link, Offset, SETTINGS};
pub(super) use self::watch::{Heard, Opinion};
use super::errors::Trouble;
use super::pack::pack;
use super::reception::Server;
use super::sentinel;
use super::url::{Address, is_near};
use super::wire::Outcome;
use super::{RedisEngine, answers, to_error};
use crate::contract::{Diagnostics, Error, Finding, Pending, SessionId, Verb};

/// What we call outside of scripts.
const CALLED: [&str; 7] =
    ["EVAL", "EVALSHA", "PING", "SCAN", "SCRIPT|LOAD", "SUBSCRIBE", "UNSUBSCRIBE"];

impl Diagnostics for RedisEngine {
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(async move { self.ask_the_server().await })
    }
}

impl RedisEngine {
    /// Asks the server all there is to ask, and judges the answers.
    pub(super) async fn ask_the_server(&self) -> Result<Vec<Finding>, Error> {
        let wire = self.lane().wire();
        let call = |words: &[&[u8]]| wire.call(&pack(words));
        // All are sent before the first answer is awaited.
        let info = call(&[b"INFO"]);
        let settings = SETTINGS.map(|name| call(&[b"CONFIG", b"GET", name.as_bytes()]));
        let user = call(&[b"ACL", b"WHOAMI"]);
        let rights = call(&self.rights_words().iter().map(|word| &**word).collect::<Vec<_>>());

        let info = seen(info.await)?.as_ref().and_then(words_of).map(Server::new);
        let server = info.or_else(|| self.inner.reception.server());
        let mut seen_settings = [const { None }; SETTINGS.len()];
        for (setting, answer) in seen_settings.iter_mut().zip(settings) {
            *setting = seen(answer.await)?.as_ref().and_then(setting_in);
        }
        let user = seen(user.await)?.as_ref().and_then(words_of).map(str::to_owned);
        let forbidden = seen(rights.await)?.as_ref().and_then(words_in);
        let location = &self.inner.reception.location;
        let facts = Facts {
            server: server.unwrap_or_else(|| Server::new("")),
            settings: seen_settings,
            user,
            forbidden,
            clock: self.offset().await?,
            link: match location.address() {
                Address::Unix(_) => Link::Unix,
                _ if location.tls().is_some() => Link::Tls,
                near if is_near(near) => Link::Loopback,
                _ => Link::Plain,
            },
            grace: location.grace().then_some(self.inner.reception.max_lease),
            watched: location.primary().is_some(),
        };
        let mut findings = facts.judge();
        if let Some(primary) = location.primary() {
            findings.extend(watch::judge(primary, &self.ask_the_sentinels().await));
        }
        Ok(findings)
    }

    /// What each sentinel that the URL names thinks of the primary.
    async fn ask_the_sentinels(&self) -> Vec<Heard> {
        let location = Arc::clone(&self.inner.reception.location);
        // On our own thread: whoever asks may have no runtime.
        let asking = self.inner.own.handle().spawn(sentinel::opinions(location));
        asking.await.unwrap_or_default()
    }

    /// The call that asks which commands are forbidden.
    fn rights_words(&self) -> Vec<Vec<u8>> {
        let scripts = self.inner.manner.scripts();
        let channel = self.inner.keys.channel(SessionId::new());
        let first = ["EVAL", &scripts.rights.text, "1", &self.inner.keys.top, &channel];
        let commands = scripts.commands(false).into_iter().chain(CALLED);
        first.into_iter().chain(commands).map(|word| word.as_bytes().to_vec()).collect()
    }

    /// Compares clocks. Of a few tries the quickest says most.
    async fn offset(&self) -> Result<Option<Offset>, Error> {
        let mut best: Option<Offset> = None;
        for _ in 0..3 {
            let before = self.inner.clock.wall_micros();
            let answer = seen(self.lane().wire().call(&pack(&[b"TIME"])).await)?;
            let after = self.inner.clock.wall_micros();
            let offset = answer.and_then(|answer| Offset::new(before, time_in(&answer)?, after));
            best = best.into_iter().chain(offset).min_by_key(|offset| offset.give_or_take);
        }
        Ok(best)
    }
}

/// An answer, unless the server refuses it: then there is nothing to see, and no harm done.
pub(super) fn seen(outcome: Outcome) -> Result<Option<Value>, Error> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Trouble::Server { .. }) => Ok(None),
        Err(trouble) => Err(to_error(trouble, Verb::Inspect)),
    }
}

pub(super) fn words_of(value: &Value) -> Option<&str> {
    match value {
        Value::VerbatimString { text, .. } => Some(text),
        other => answers::text(other),
    }
}

pub(super) fn words_in(value: &Value) -> Option<Vec<String>> {
    answers::list(value)?.iter().map(|word| words_of(word).map(str::to_lowercase)).collect()
}

pub(super) fn setting_in(value: &Value) -> Option<String> {
    match value {
        Value::Map(pairs) => words_of(&pairs.first()?.1).map(str::to_owned),
        _ => None,
    }
}

/// Seconds and microseconds, as one number.
pub(super) fn time_in(value: &Value) -> Option<u64> {
    let [seconds, micros] = answers::list(value)? else { return None };
    let number = |value: &Value| words_of(value)?.parse::<u64>().ok();
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

//! What the conformance suite needs of the engine: its own clock, and to know when nothing is under
//! way. Knows the engine from inside, and is in no build but the suite's.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::location::Location;
use super::manner::Manner;
use super::pack::pack;
use super::wire::{Outcome, Reply};
use super::{Inner, RedisEngine, to_error};
use crate::contract::{Error, SessionId, Verb};
use crate::engine::Terms;
use crate::time::Clock;

impl RedisEngine {
    /// Opens a store whose scripts go by this clock.
    pub(crate) fn on_stage(url: &str, terms: &Terms, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let location = Location::parse(url)?;
        let manner = Manner::new(Duration::ZERO).with_clock(clock);
        let engine = Self::open(location, terms, manner)?;
        engine.inner.own.handle().block_on(engine.greet())?;
        Ok(engine)
    }

    /// How many calls were made and pushes heard.
    pub(crate) fn activity(&self) -> u64 {
        self.inner.manner.activity.load(Ordering::SeqCst)
    }

    /// An answer behind everything that is on its way.
    pub(crate) fn round_trip(&self) -> oneshot::Receiver<Outcome> {
        let (caller, answer) = oneshot::channel();
        self.inner.back.wire().send(&pack(&[b"PING"]), Reply::One(caller));
        answer
    }

    /// The engine, as long as somebody else has it.
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.inner))
    }

    /// Ends a session in the store, as if its leases had run out.
    pub(crate) fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let ending = async {
            let keys = self.scan(&self.inner.keys.all_locks()).await?;
            let mut names: Vec<_> =
                keys.iter().filter_map(|key| self.inner.keys.name_of(key)).collect();
            names.sort();
            names.dedup();
            let slots: Vec<String> = names.iter().map(|name| self.slot_key(name)).collect();
            let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
            let script = &self.inner.manner.scripts().end_session;
            let session = session.to_hex();
            let ended = self.inner.back.run(script, &slots, &[session.as_bytes()]).await;
            ended.map_err(|trouble| to_error(trouble, Verb::Release))
        };
        self.inner.own.handle().block_on(ending).map(drop)
    }
}

/// An engine that may be gone.
#[derive(Clone)]
pub(crate) struct WeakEngine(Weak<Inner>);

impl WeakEngine {
    pub(crate) fn upgrade(&self) -> Option<RedisEngine> {
        self.0.upgrade().map(|inner| RedisEngine { inner })
    }
}

//! Who waits for which name, and whom to wake when a node tells that it is free. Knows sessions and
//! names, not nodes.
//!
//! Nothing rests on these hints: whoever hears none asks again when its pause is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::keys::Keys;
use crate::contract::{Claim, ClaimId, Ear, IdMap, Name, SessionId, Signal};
use crate::engine::redis::answers::signal;
use crate::sync::random_bytes;

/// The first pause of whoever found a name taken; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(8);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// Who waits, and who hears.
pub(super) struct Hints {
    /// How many nodes are a majority.
    majority: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    ears: IdMap<SessionId, Weak<dyn Ear>>,
    waiting: HashMap<Name, Waiting>,
}

#[derive(Default)]
struct Waiting {
    claims: Vec<One>,
    /// The claim whose end was told last, and by how many nodes: every node tells the same.
    told: (Vec<u8>, usize),
}

struct One {
    claim: ClaimId,
    session: SessionId,
    tries: u32,
}

impl Hints {
    pub(super) fn new(majority: usize) -> Self {
        Self { majority, inner: Mutex::default() }
    }

    /// Sends a session's signals to this ear.
    pub(super) fn listen(&self, session: SessionId, ear: Weak<dyn Ear>) {
        let mut inner = self.lock();
        inner.ears.retain(|_, ear| ear.strong_count() > 0);
        inner.ears.insert(session, ear);
    }

    /// The claim waits. How long to pause before it asks again, and whether it is the first to wait
    /// for its name.
    pub(super) fn wait(&self, claim: &Claim) -> (Duration, bool) {
        let Some(session) = claim.session else { return (pause(4), false) };
        let mut inner = self.lock();
        let name = claim.parts.first_name();
        let first = !inner.waiting.contains_key(name);
        let waiting = inner.waiting.entry(name.clone()).or_default();
        let known = waiting.claims.iter().position(|one| one.claim == claim.id);
        let at = known.unwrap_or_else(|| {
            waiting.claims.push(One { claim: claim.id, session, tries: 0 });
            waiting.claims.len() - 1
        });
        let tries = waiting.claims[at].tries;
        waiting.claims[at].tries = tries.saturating_add(1);
        (pause(tries), first)
    }

    /// The claim waits no longer. Whether it was the last to wait for the name.
    pub(super) fn leave(&self, name: &Name, claim: ClaimId) -> bool {
        let mut inner = self.lock();
        let Some(waiting) = inner.waiting.get_mut(name) else { return false };
        waiting.claims.retain(|one| one.claim != claim);
        let last = waiting.claims.is_empty();
        if last {
            inner.waiting.remove(name);
        }
        last
    }

    /// Whether anybody waits for the name.
    pub(super) fn is_waited_for(&self, name: &Name) -> bool {
        self.lock().waiting.contains_key(name)
    }

    /// All channels to hear. Nobody publishes on the last one: it only shows whether we may listen.
    pub(super) fn channels(&self, keys: &Keys) -> Vec<String> {
        let inner = self.lock();
        let sessions = inner.ears.keys().map(|session| keys.channel(*session));
        let names = inner.waiting.keys().map(|name| keys.free(name));
        sessions.chain(names).chain([keys.channels() + "nobody"]).collect()
    }

    /// Somebody published this.
    pub(super) fn message(&self, keys: &Keys, channel: &[u8], payload: &[u8]) {
        if let Some(session) = keys.session_of(channel) {
            let ear = self.lock().ears.get(&session).and_then(Weak::upgrade);
            if let (Some(ear), Some(signal)) = (ear, signal(payload)) {
                ear.hear(signal);
            }
            return;
        }
        let Some(name) = keys.freed(channel) else { return };
        let mut inner = self.lock();
        let Inner { ears, waiting } = &mut *inner;
        let Some(waiting) = waiting.get_mut(&name) else { return };
        let (told, nodes) = &mut waiting.told;
        if told != payload {
            payload.clone_into(told);
            *nodes = 0;
        }
        *nodes += 1;
        // The first is early notice. With the last that makes a majority it can be had, which may
        // be long after, and whoever came too early pauses by then.
        if *nodes != 1 && *nodes != self.majority {
            return;
        }
        let woken = wake(ears, waiting);
        drop(inner);
        tell(woken);
    }

    /// Messages may have been missed: everybody who waits asks again.
    pub(super) fn missed(&self) {
        let mut inner = self.lock();
        let Inner { ears, waiting } = &mut *inner;
        let woken: Vec<_> = waiting.values_mut().flat_map(|one| wake(ears, one)).collect();
        drop(inner);
        tell(woken);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Woken = Vec<(Arc<dyn Ear>, Signal)>;

/// Whom to wake for a name, each at another moment: all at once would only split the votes. By then
/// the other nodes are free as well.
fn wake(ears: &IdMap<SessionId, Weak<dyn Ear>>, waiting: &mut Waiting) -> Woken {
    let crowd = u32::try_from(waiting.claims.len()).unwrap_or(u32::MAX).min(16);
    let one = |one: &mut One| {
        // Who has lost often competes with many, of whom most are in other processes.
        let after = Duration::from_millis(4) * (crowd + one.tries.min(16));
        one.tries /= 2;
        let after = Duration::from_millis(1) + chance(after);
        let signal = Signal::Again { claim: one.claim, after };
        Some((ears.get(&one.session)?.upgrade()?, signal))
    };
    waiting.claims.iter_mut().filter_map(one).collect()
}

/// No lock of ours is held here.
fn tell(woken: Woken) {
    for (ear, signal) in woken {
        ear.hear(signal);
    }
}

/// How long to pause after so many tries: between a half and the whole of a length that doubles.
fn pause(tries: u32) -> Duration {
    let whole = PAUSE.saturating_mul(1 << tries.min(10)).min(LONGEST);
    whole / 2 + chance(whole / 2)
}

/// Some length up to this one.
fn chance(most: Duration) -> Duration {
    let [byte, ..] = random_bytes();
    most * u32::from(byte) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_with_chance_in_their_second_half() {
        for (tries, least, most) in [(0, 4, 8), (3, 32, 64), (7, 500, 1000), (99, 500, 1000)] {
            let millis = pause(tries).as_millis();
            assert!((least..=most).contains(&millis), "{tries}: {millis}");
        }
    }
}

//! Grants that replicas have: a renewal and `WAIT` together, on a connection of their own. Knows
//! how replicas are asked, not who wants to know.
//!
//! `WAIT` counts the replicas that have what *its own connection* wrote last; on any other it says
//! that all have nothing, which is true and useless. So the claim is renewed here, where `WAIT`
//! follows: who has the renewal has the grant before it. And `WAIT` holds up its whole connection,
//! so nothing else goes over this one, and all who ask meanwhile are answered by one more `WAIT`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::codec::push_reference;
use super::keys::Keys;
use super::lane::script_call;
use super::manner::Manner;
use super::pack::pack;
use super::scripts::Script;
use super::trouble::Trouble;
use super::wire::Wire;
use super::{answers, to_error};
use crate::contract::{ClaimRef, Confirmed, Error, Verb};
use crate::limits;

/// The connection on which replicas are asked for.
pub(super) struct Replicas {
    desk: Arc<Desk>,
    home: Handle,
}

struct Desk {
    wire: Wire,
    keys: Arc<Keys>,
    manner: Arc<Manner>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Somebody serves those who wait.
    busy: bool,
    waiting: Vec<Waiting>,
}

impl Queue {
    /// Takes one more. Whether somebody has to begin to serve.
    fn join(&mut self, one: Waiting) -> bool {
        self.waiting.push(one);
        !std::mem::replace(&mut self.busy, true)
    }

    /// Those to serve next; none, and then nobody serves any more.
    fn next(&mut self) -> Vec<Waiting> {
        let count = self.waiting.len().min(limits::BATCH);
        self.busy = count > 0;
        self.waiting.drain(..count).collect()
    }
}

struct Waiting {
    claim: ClaimRef,
    replicas: u32,
    within: Duration,
    caller: oneshot::Sender<Result<Confirmed, Error>>,
}

impl Replicas {
    pub(super) fn new(wire: Wire, keys: Arc<Keys>, manner: Arc<Manner>, home: Handle) -> Self {
        let queue = Mutex::default();
        Self { desk: Arc::new(Desk { wire, keys, manner, queue }), home }
    }

    /// The connection.
    pub(super) fn wire(&self) -> &Wire {
        &self.desk.wire
    }

    /// Renews a claim and says how many replicas have it, once so many do or the time is up. May
    /// take twice as long: one `WAIT` at a time.
    pub(super) async fn confirm(
        &self,
        claim: &ClaimRef,
        replicas: u32,
        within: Duration,
    ) -> Result<Confirmed, Error> {
        let (caller, answer) = oneshot::channel();
        let begin =
            self.desk.queue().join(Waiting { claim: claim.clone(), replicas, within, caller });
        if begin {
            // Not by the caller: its future may be dropped, and the others wait too.
            self.home.spawn(Arc::clone(&self.desk).serve());
        }
        answer.await.unwrap_or_else(|_| Err(to_error(Trouble::Closed, Verb::Renew)))
    }
}

impl Desk {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers all who wait, and then those who came meanwhile.
    async fn serve(self: Arc<Self>) {
        loop {
            let batch = self.queue().next();
            if batch.is_empty() {
                return;
            }
            match self.ask(&batch).await {
                Ok((renewed, replicas)) => tell(batch, &renewed, replicas),
                Err(trouble) => {
                    let error = to_error(trouble, Verb::Renew);
                    for one in batch {
                        drop(one.caller.send(Err(error.clone())));
                    }
                }
            }
        }
    }

    /// Renews all in one step; what the script says, and how many replicas have that.
    async fn ask(&self, batch: &[Waiting]) -> Result<(Value, u32), Trouble> {
        self.manner.active();
        let script = &self.manner.scripts().renew;
        match self.ask_by(batch, "EVALSHA", &script.sha).await {
            // Nothing was written, so that `WAIT` counted something else.
            Err(trouble) if trouble.is_unknown_script() => self.ask_by_text(batch, script).await,
            answer => answer,
        }
    }

    async fn ask_by_text(&self, batch: &[Waiting], s: &Script) -> Result<(Value, u32), Trouble> {
        self.ask_by(batch, "EVAL", &s.text).await
    }

    async fn ask_by(
        &self,
        batch: &[Waiting],
        verb: &str,
        script: &str,
    ) -> Result<(Value, u32), Trouble> {
        let names = batch.iter().flat_map(|one| one.claim.parts.names());
        let slots: Vec<String> = names.map(|name| self.keys.slot(name)).collect();
        let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
        let text = |one: &Waiting| {
            let mut text = String::with_capacity(56);
            push_reference(&mut text, &one.claim);
            text
        };
        let texts: Vec<String> = batch.iter().map(text).collect();
        let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let options = self.manner.options(false);
        let renew = script_call(verb, script, &self.keys, &slots, &options, &texts);
        let replicas = batch.iter().map(|one| one.replicas).max().unwrap_or(1).to_string();
        // Zero would be for ever.
        let within = batch.iter().map(|one| one.within.as_millis()).max().unwrap_or(1).max(1);
        let wait = pack(&[b"WAIT", replicas.as_bytes(), within.to_string().as_bytes()]);
        let (renewed, counted) = self.wire.call_two(&renew, &wait);
        let (renewed, counted) = (renewed.await?, counted.await?);
        let count = answers::number(&counted).and_then(|count| u32::try_from(count).ok());
        Ok((renewed, count.ok_or_else(|| Trouble::strange(&counted))?))
    }
}

/// Tells each its part. Whoever left does not want to know.
fn tell(batch: Vec<Waiting>, renewed: &Value, replicas: u32) {
    let all = answers::list(renewed).unwrap_or_default();
    let fits = all.len() == batch.len() + 1;
    for (at, one) in batch.into_iter().enumerate() {
        let answer = if fits {
            answers::renewed(&all[at + 1], one.claim.parts.as_slice().len())
        } else {
            Err(answers::strange(renewed))
        };
        let answer = answer.map(|renewed| Confirmed { renewed, replicas });
        drop(one.caller.send(answer));
    }
}

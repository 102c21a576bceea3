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

use super::answers;
use super::codec::push_reference;
use super::errors::Trouble;
use super::keys::Keys;
use super::lane::script_call;
use super::manner::Manner;
use super::pack::pack;
use super::wire::Wire;
use super::{RedisEngine, to_error};
use crate::contract::{ClaimRef, Confirmed, Pending, Replication, Verb};
use crate::limits;

impl Replication for RedisEngine {
    fn confirm<'a>(
        &'a self,
        claim: &'a ClaimRef,
        replicas: u32,
        within: Duration,
    ) -> Pending<'a, Confirmed> {
        Box::pin(async move {
            let confirmed = self.replicas().confirm(claim, replicas, within).await;
            confirmed.map_err(|trouble| to_error(trouble, Verb::Renew))
        })
    }
}

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
    caller: oneshot::Sender<Renewal>,
}

/// What a renewal with its count comes to.
type Renewal = Result<Confirmed, Trouble>;

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
    ) -> Renewal {
        let (caller, answer) = oneshot::channel();
        let begin =
            self.desk.queue().join(Waiting { claim: claim.clone(), replicas, within, caller });
        if begin {
            // Not by the caller: its future may be dropped, and the others wait too.
            self.home.spawn(Arc::clone(&self.desk).serve());
        }
        answer.await.unwrap_or(Err(Trouble::Closed))
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
            self.manner.active();
            let script = &self.manner.scripts().renew;
            let mut answers = self.ask(&batch, ("EVALSHA", &script.sha)).await;
            let unknown = |answer: &Renewal| answer.as_ref().is_err_and(Trouble::is_unknown_script);
            if answers.iter().any(unknown) {
                // Nothing was written, so that `WAIT` counted something else.
                answers = self.ask(&batch, ("EVAL", &script.text)).await;
            }
            // Whoever left does not want to know.
            for (one, answer) in batch.into_iter().zip(answers) {
                drop(one.caller.send(answer));
            }
        }
    }

    /// Renews all; what the script says of each, and how many replicas have that.
    async fn ask(&self, batch: &[Waiting], script: (&str, &str)) -> Vec<Renewal> {
        // Where all share a top they are renewed in one step.
        let size = if self.keys.are_by_name() { 1 } else { batch.len() };
        let mut commands: Vec<_> =
            batch.chunks(size).map(|part| self.renewal(part, script)).collect();
        let replicas = batch.iter().map(|one| one.replicas).max().unwrap_or(1).to_string();
        // Zero would be for ever.
        let within = batch.iter().map(|one| one.within.as_millis()).max().unwrap_or(1).max(1);
        commands.push(pack(&[b"WAIT", replicas.as_bytes(), within.to_string().as_bytes()]));
        let mut calls = self.wire.call_all(&commands);
        let Some(counted) = calls.pop() else { return Vec::new() };
        let mut renewals = Vec::with_capacity(calls.len());
        for call in calls {
            renewals.push(call.await);
        }
        let counted = counted.await.and_then(|counted| {
            let count = answers::number(&counted).and_then(|count| u32::try_from(count).ok());
            count.ok_or_else(|| Trouble::strange(&counted))
        });
        let parts = batch.chunks(size).zip(renewals);
        parts.flat_map(|(part, renewed)| read(part, renewed, &counted)).collect()
    }

    fn renewal(&self, batch: &[Waiting], script: (&str, &str)) -> Vec<u8> {
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
        let top = self.keys.top_of(batch[0].claim.parts.first_name());
        script_call(script, &top, &slots, &self.manner.options(false), &texts)
    }
}

/// What a renewal with its count came to, for each of those who asked for it.
fn read(
    batch: &[Waiting],
    renewed: Result<Value, Trouble>,
    counted: &Result<u32, Trouble>,
) -> Vec<Renewal> {
    let (renewed, replicas) = match (renewed, counted) {
        (Ok(renewed), Ok(replicas)) => (renewed, *replicas),
        (Err(trouble), _) => return batch.iter().map(|_| Err(trouble.clone())).collect(),
        (_, Err(trouble)) => return batch.iter().map(|_| Err(trouble.clone())).collect(),
    };
    let all = answers::list(&renewed).unwrap_or_default();
    if all.len() != batch.len() + 1 {
        return batch.iter().map(|_| Err(Trouble::strange(&renewed))).collect();
    }
    let one = |(one, answer): (&Waiting, &Value)| {
        let renewed = answers::renewed(answer, one.claim.parts.as_slice().len());
        let renewed = renewed.map_err(Trouble::Strange)?;
        Ok(Confirmed { renewed, replicas })
    };
    batch.iter().zip(&all[1..]).map(one).collect()
}

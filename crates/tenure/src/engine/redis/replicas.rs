//! Waiting until replicas have a grant: a renewal and `WAIT` in one pipeline, on a connection of
//! their own.
//!
//! `WAIT` counts the replicas that have what *its own connection* wrote last; on any other it says
//! that all have nothing, which is true and useless. So the claim is renewed here, where `WAIT`
//! follows: a replica that has the renewal has the grant before it. And `WAIT` blocks its whole
//! connection, so that this one is used for nothing else. Requests that arrive while a `WAIT`
//! blocks share the next one: a worker task takes the whole queue each time, and ends when it is
//! empty.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::client::{MultiplexedConnection, RequestError, TaskRuntimes, list, number, pack};
use super::codec::push_reference;
use super::connect::ServerHandler;
use super::errors::to_error;
use super::keys::RedisKeys;
use super::scripts::{ScriptOptions, pack_script};
use super::{RedisEngine, RedisInner, replies};
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
            let confirmed = self.confirmations().confirm(claim, replicas, within).await;
            confirmed.map_err(|error| to_error(error, Verb::Renew))
        })
    }
}

impl RedisEngine {
    fn confirmations(&self) -> &Confirmations {
        self.inner.confirmations.get_or_init(|| {
            let RedisInner { keys, options, handshake, listeners, changes, own, .. } = &*self.inner;
            let handler = Arc::new(ServerHandler::new(handshake, listeners, changes, false));
            let own = own.handle().clone();
            let runtimes = TaskRuntimes { first: own.clone(), fallback: own.clone() };
            let location = Arc::clone(&handshake.location);
            let connection =
                MultiplexedConnection::open(location, handler, Box::new(|_| ()), runtimes);
            Confirmations::new(connection, Arc::clone(keys), Arc::clone(options), own)
        })
    }
}

/// The connection for `WAIT`, and the requests that share it.
pub(super) struct Confirmations {
    worker: Arc<ConfirmWorker>,
    runtime: Handle,
}

struct ConfirmWorker {
    connection: MultiplexedConnection,
    keys: Arc<RedisKeys>,
    options: Arc<ScriptOptions>,
    queue: Mutex<ConfirmQueue>,
}

#[derive(Default)]
struct ConfirmQueue {
    /// The worker task runs.
    running: bool,
    requests: Vec<ConfirmRequest>,
}

impl ConfirmQueue {
    /// Adds a request. Returns true if the caller has to start the worker.
    fn push(&mut self, request: ConfirmRequest) -> bool {
        self.requests.push(request);
        !std::mem::replace(&mut self.running, true)
    }

    /// Takes the next batch. If it is empty, the worker ends.
    fn next(&mut self) -> Vec<ConfirmRequest> {
        let count = self.requests.len().min(limits::BATCH);
        self.running = count > 0;
        self.requests.drain(..count).collect()
    }
}

struct ConfirmRequest {
    claim: ClaimRef,
    replicas: u32,
    within: Duration,
    caller: oneshot::Sender<ConfirmResult>,
}

/// The renewed claim, and how many replicas have it.
type ConfirmResult = Result<Confirmed, RequestError>;

impl Confirmations {
    pub(super) fn new(
        connection: MultiplexedConnection,
        keys: Arc<RedisKeys>,
        options: Arc<ScriptOptions>,
        runtime: Handle,
    ) -> Self {
        let queue = Mutex::default();
        Self { worker: Arc::new(ConfirmWorker { connection, keys, options, queue }), runtime }
    }

    pub(super) fn connection(&self) -> &MultiplexedConnection {
        &self.worker.connection
    }

    /// Renews a claim and returns how many replicas have it, once so many do or `within` is over.
    /// May take twice as long, because only one `WAIT` runs at a time.
    pub(super) async fn confirm(
        &self,
        claim: &ClaimRef,
        replicas: u32,
        within: Duration,
    ) -> ConfirmResult {
        let (caller, reply) = oneshot::channel();
        let request = ConfirmRequest { claim: claim.clone(), replicas, within, caller };
        if self.worker.queue().push(request) {
            // Not in the caller, whose future may be dropped while other requests wait.
            self.runtime.spawn(Arc::clone(&self.worker).run());
        }
        reply.await.unwrap_or(Err(RequestError::Closed))
    }
}

impl ConfirmWorker {
    fn queue(&self) -> MutexGuard<'_, ConfirmQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves batches until the queue is empty.
    async fn run(self: Arc<Self>) {
        loop {
            let batch = self.queue().next();
            if batch.is_empty() {
                return;
            }
            self.options.count_activity();
            let script = &self.options.scripts().renew;
            let mut results = self.renew_and_wait(&batch, ("EVALSHA", &script.sha)).await;
            let unknown = |result: &ConfirmResult| {
                result.as_ref().is_err_and(RequestError::is_unknown_script)
            };
            if results.iter().any(unknown) {
                // Nothing was written, so that `WAIT` counted an earlier write.
                results = self.renew_and_wait(&batch, ("EVAL", &script.text)).await;
            }
            for (one, result) in batch.into_iter().zip(results) {
                // A caller that dropped its future does not want the result.
                drop(one.caller.send(result));
            }
        }
    }

    /// Renews all claims and waits for replicas.
    async fn renew_and_wait(
        &self,
        batch: &[ConfirmRequest],
        script: (&str, &str),
    ) -> Vec<ConfirmResult> {
        // Claims that share a top are renewed in one call.
        let size = if self.keys.are_by_name() { 1 } else { batch.len() };
        let mut commands: Vec<_> =
            batch.chunks(size).map(|part| self.renewal(part, script)).collect();
        let replicas = batch.iter().map(|one| one.replicas).max().unwrap_or(1).to_string();
        // 0 would block for ever.
        let within = batch.iter().map(|one| one.within.as_millis()).max().unwrap_or(1).max(1);
        commands.push(pack(&[b"WAIT", replicas.as_bytes(), within.to_string().as_bytes()]));
        let mut calls = self.connection.call_all(&commands);
        let Some(counted) = calls.pop() else { return Vec::new() };
        let mut renewals = Vec::with_capacity(calls.len());
        for call in calls {
            renewals.push(call.await);
        }
        let counted = counted.await.and_then(|counted| {
            let count = number(&counted).and_then(|count| u32::try_from(count).ok());
            count.ok_or_else(|| RequestError::strange(&counted))
        });
        let parts = batch.chunks(size).zip(renewals);
        parts.flat_map(|(part, renewed)| read(part, renewed, &counted)).collect()
    }

    fn renewal(&self, batch: &[ConfirmRequest], script: (&str, &str)) -> Vec<u8> {
        let names = batch.iter().flat_map(|one| one.claim.parts.names());
        let slots: Vec<String> = names.map(|name| self.keys.slot(name)).collect();
        let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
        let text = |one: &ConfirmRequest| {
            let mut text = String::with_capacity(56);
            push_reference(&mut text, &one.claim);
            text
        };
        let texts: Vec<String> = batch.iter().map(text).collect();
        let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let top = self.keys.top_of(batch[0].claim.parts.first_name());
        pack_script(script, &top, &slots, &self.options.argument(false), &texts)
    }
}

/// Splits the reply of a renewal into the results of its requests.
fn read(
    batch: &[ConfirmRequest],
    renewed: Result<Value, RequestError>,
    counted: &Result<u32, RequestError>,
) -> Vec<ConfirmResult> {
    let (renewed, replicas) = match (renewed, counted) {
        (Ok(renewed), Ok(replicas)) => (renewed, *replicas),
        (Err(error), _) => return batch.iter().map(|_| Err(error.clone())).collect(),
        (_, Err(error)) => return batch.iter().map(|_| Err(error.clone())).collect(),
    };
    let all = list(&renewed).unwrap_or_default();
    if all.len() != batch.len() + 1 {
        return batch.iter().map(|_| Err(RequestError::strange(&renewed))).collect();
    }
    let one = |(one, reply): (&ConfirmRequest, &Value)| {
        let renewed = replies::renewed(reply, one.claim.parts.as_slice().len());
        let renewed = renewed.map_err(RequestError::UnexpectedReply)?;
        Ok(Confirmed { renewed, replicas })
    };
    batch.iter().zip(&all[1..]).map(one).collect()
}

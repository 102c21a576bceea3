//! The embedded engine: many processes on one host share locks through a directory, without a
//! server.
//!
//! `embedded:` is the user's own store, the same from a shell, from cron and from a service of that
//! user; `embedded:///path` is the store in that directory. The rules are those of the ledger, run
//! inside write transactions of an LMDB file that every process maps.
//!
//! ```text
//! verb ──> step.rs ──> store.rs ──> gate.rs ──> ledger over slots.rs, queue/, holders/ ──> commit
//!                          │                                                                │
//!                          ▼                                                                ▼
//!                       worker.rs, if the gate is busy           signals.rs ──> datagrams.rs ══>
//! ```
//!
//! - A verb is one transaction, run on the caller's thread if the gate is free, otherwise on the
//!   worker thread. Its signals are sent after the commit.
//! - A release grants to the next waiter and sends a datagram to that waiter's session.
//! - A process that dies releases the lock on its liveness file; the event loop of every process
//!   that waits for it is woken, and ends what the dead process held (`cleanup.rs`).
//! - A reboot ends every lock. Cells, jobs, and how far fences were given out, outlive it
//!   (`durable.rs`).
//!
//! There is no `doctor.rs`: what a doctor would examine (the owner and mode of the directory, the
//! file system, the format, damage) is checked whenever the store is opened, and refused.

mod cell_codec;
mod cell_rows;
mod cell_watches;
mod cells;
mod claim;
mod cleanup;
mod codec;
mod commit;
mod commit_queue;
mod connect;
mod datagrams;
mod deadlock;
mod directory;
mod durable;
mod errors;
mod event_loop;
mod evict;
mod files;
mod gate;
mod handover;
mod holders;
mod inspect;
mod job_commit;
mod job_rows;
mod jobs;
mod liveness;
mod map;
mod queue;
mod raise_fences;
mod rates;
mod release;
mod renew;
mod sessions;
mod signals;
mod sizes;
mod slots;
mod step;
mod store;
#[cfg(any(test, feature = "test-util"))]
mod testing;
mod txn;
mod url;
mod worker;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use self::cells::EmbeddedCells;
pub(super) use self::connect::connect;
use self::jobs::EmbeddedJobs;
use self::sessions::Sessions;
pub use self::url::Location;
use super::Terms;
use crate::contract::{
    DeadlockHandling, Engine, Error, Fencing, IdMap, Name, Promises, SessionId, SignalListener,
    Survives, Wake, optional_objects,
};
use crate::engine::common::verbs::boxed_verbs;
pub use crate::ledger::Census;
use crate::time::Clock;

/// What the embedded engine promises.
pub const PROMISES: Promises = Promises {
    engine: "embedded",
    fencing: Fencing::Strict,
    fencing_rests_on: "a high-water mark on disk, reserved ahead and synced",
    lists_rest_on: "the order of keys in the file",
    jobs: true,
    deadlocks: DeadlockHandling::Broken,
    rates: true,
    wake: Wake::Push,
    survives: &[Survives::ClientCrash],
    replicas: false,
    drift_percent: 0,
    ..Promises::EVERY_RULE
};

/// How many sessions in the way of a waiting claim are watched, in each slot: those of the holders
/// and of the nearest waiters before it. After a death every waiter looks up the next ones.
const WATCHED: usize = 4;

/// The embedded engine, bound to one namespace of one store.
pub struct EmbeddedEngine {
    sessions: Arc<Sessions>,
    scope: StepScope,
    terms: Terms,
    cells: EmbeddedCells,
    jobs: EmbeddedJobs,
    /// Sessions that could not begin, with the reason.
    failed: Mutex<IdMap<SessionId, Error>>,
    /// The sessions of this engine, which leave when it is dropped.
    joined: Mutex<Vec<SessionId>>,
    /// The name at which the last sweep ended.
    swept: Arc<Mutex<Option<Name>>>,
}

/// The namespace and the clock of a step.
#[derive(Clone, Debug)]
pub(crate) struct StepScope {
    namespace: u32,
    clock: Arc<dyn Clock>,
}

impl Engine for EmbeddedEngine {
    fn promises(&self) -> &Promises {
        &PROMISES
    }

    boxed_verbs!();

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.join(session, listener);
    }

    optional_objects!(self:
        immediate => None,
        cells => Some(&self.cells),
        jobs => Some(&self.jobs),
        rates => Some(self),
        fence_floor => Some(self),
        replication => None,
        partitions => None,
        diagnostics => None,
        ownership_proof => None,
        deadlocks => Some(self),
        local => Some(&*self.sessions),
    );
}

impl Drop for EmbeddedEngine {
    fn drop(&mut self) {
        for session in lock(&self.joined).drain(..) {
            self.sessions.leave(session);
        }
    }
}

impl std::fmt::Debug for EmbeddedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedEngine")
            .field("store", self.sessions.store())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Opens a store, joins sessions to it, and agrees with the other clients of the namespace on the
//! longest lease.
//!
//! The longest lease is kept in the store. A client that states another one changes it if no
//! session lives in the store and no claim in the namespace. A client that agreed and has no
//! session yet is not seen by that check; it registers again when its session has joined, and fails
//! then if the longest lease has been changed meanwhile.

use std::sync::{Arc, Mutex, Weak};

use super::cells::EmbeddedCells;
use super::directory::StoreDirectory;
use super::jobs::EmbeddedJobs;
use super::sessions::{self, Sessions};
use super::sizes::Sizes;
use super::slots::SlotRows;
use super::store::{StepKind, StoreAddress, WAIT};
use super::url::{self, Location};
use super::{EmbeddedEngine, StepScope, lock};
use crate::contract::{Engine, Error, Page, Query, SessionId, SignalListener, Verb};
use crate::engine::Terms;
use crate::engine::common::max_lease;
use crate::ledger::Ledger;

/// Opens the store that an `embedded:` URL names; `rest` follows the scheme.
pub(in crate::engine) fn connect(rest: &str, terms: Terms) -> Result<Arc<dyn Engine>, Error> {
    let open = || EmbeddedEngine::open(&url::read(rest)?, terms);
    let engine = open().map_err(|error| error.during(Verb::Connect))?;
    Ok(Arc::new(engine))
}

impl EmbeddedEngine {
    /// Opens the store at a location, and makes it if it is not there yet.
    ///
    /// # Errors
    /// If the directory is not this user's own, can be written by others, is on a network file
    /// system, holds a newer format or something damaged, is used from another pid namespace, or
    /// the disk is full; if clients or claims rely on another `max_lease` of the namespace.
    pub fn open(location: &Location, terms: Terms) -> Result<Self, Error> {
        Self::open_sized(location, terms, Sizes::SHIPPED)
    }

    /// Opens the store with these sizes, if this process has not opened it already.
    pub(super) fn open_sized(
        location: &Location,
        terms: Terms,
        sizes: Sizes,
    ) -> Result<Self, Error> {
        let root = StoreDirectory::of(location.path())?;
        let boot = location.boot_id()?;
        let sessions = Sessions::at(&StoreAddress { root, boot }, sizes)?;
        let namespace = register(&sessions, &terms)?;
        let clock = Arc::clone(&terms.clock);
        let space = terms.namespace.clone();
        let scope = StepScope { namespace, clock: Arc::clone(&clock) };
        let jobs = EmbeddedJobs::new(Arc::clone(&sessions), scope, space.clone());
        let cells = EmbeddedCells::new(Arc::clone(&sessions), clock, space, terms.max_lease);
        Ok(Self {
            sessions,
            scope: StepScope { namespace, clock: Arc::clone(&terms.clock) },
            terms,
            cells,
            jobs,
            failed: Mutex::default(),
            joined: Mutex::default(),
            swept: Arc::default(),
        })
    }

    /// Joins a session. If that fails, its claims fail with the error: a session that cannot be
    /// woken or watched must not wait.
    pub(super) fn join(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        match self.sessions.join(session, listener) {
            Ok(()) => {
                lock(&self.joined).push(session);
                // Before it joined, another client may have changed the longest lease.
                if let Err(error) = register(&self.sessions, &self.terms) {
                    lock(&self.failed).insert(session, error);
                }
            }
            Err(error) => {
                let error = sessions::cannot_join(&error, self.sessions.directory());
                lock(&self.failed).insert(session, error);
            }
        }
    }
}

/// Returns the number of the namespace if the longest lease is, or can be made, the one of `terms`.
fn register(sessions: &Sessions, terms: &Terms) -> Result<u32, Error> {
    let clock = &*terms.clock;
    let (store, stated) = (sessions.store(), terms.max_lease);
    let ((number, current), _) = store.step(0, clock, StepKind::MayGrow, WAIT, |ledger, _| {
        ledger.shelf().namespace(&terms.namespace, stated, false)
    })?;
    if current == stated {
        return Ok(number);
    }
    let all = Query::Page(Page::default());
    let change = |ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
        let living = sessions.living();
        if !living.is_empty() {
            return Err(max_lease::connected(living));
        }
        match max_lease::claimed(&ledger.inspect(&all, now)) {
            Some(claims) => Err(claims),
            None => Ok(ledger.shelf().namespace(&terms.namespace, stated, true)),
        }
    };
    let (changed, _) = store.step(number, clock, StepKind::MayGrow, WAIT, change)?;
    changed
        .map(|(number, _)| number)
        .map_err(|because| max_lease::refused(current, stated, &because))
}

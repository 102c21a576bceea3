//! Opens a store, and agrees with its other clients on the longest lease of the namespace.

use std::sync::{Arc, Mutex, Weak};

use super::cells::EmbeddedCells;
use super::directory::StoreDirectory;
use super::sessions::{self, Sessions};
use super::sizes::Sizes;
use super::slots::SlotRows;
use super::store::{StepKind, StoreAddress, WAIT};
use super::url::{self, Location};
use super::{EmbeddedEngine, StepScope, lock};
use crate::contract::{Engine, Error, Page, Query, SessionId, SignalListener, Verb};
use crate::engine::{Terms, max_lease};
use crate::ledger::Ledger;

/// Opens the store that the rest of an `embedded:` URL names.
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
    /// the disk is full; if the namespace stands with another `max_lease`.
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
        let sessions = Sessions::at(&StoreAddress { root, boot: boot.clone() }, sizes)?;
        let namespace = register(&sessions, &terms)?;
        let clock = Arc::clone(&terms.clock);
        let space = terms.namespace.clone();
        let cells = EmbeddedCells::new(Arc::clone(&sessions), clock, space, &boot);
        Ok(Self {
            sessions,
            scope: StepScope { namespace, clock: Arc::clone(&terms.clock) },
            terms,
            cells,
            failed: Mutex::default(),
            joined: Mutex::default(),
            swept: Arc::default(),
        })
    }

    pub(super) fn join(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        match self.sessions.join(session, listener) {
            Ok(()) => {
                lock(&self.joined).push(session);
                // From here on it is seen; before, another client may have changed the terms.
                if let Err(error) = register(&self.sessions, &self.terms) {
                    lock(&self.failed).insert(session, error);
                }
            }
            // Told to whoever claims: a session that nobody can wake or watch must not wait.
            Err(error) => {
                let error = sessions::cannot_join(&error, self.sessions.directory());
                lock(&self.failed).insert(session, error);
            }
        }
    }
}

/// The number of the namespace, if its clients agree on the longest lease. A client that states
/// another one changes it, if no session lives in the store and no claim in the namespace.
///
/// A client that agreed and has no session yet is not seen here; it looks again when it has one,
/// see `listen`.
fn register(sessions: &Sessions, terms: &Terms) -> Result<u32, Error> {
    let clock = &*terms.clock;
    let (store, stated) = (sessions.store(), terms.max_lease);
    let ((number, stands), _) = store.step(0, clock, StepKind::MayGrow, WAIT, |ledger, _| {
        ledger.shelf().namespace(&terms.namespace, stated, false)
    })?;
    if stands == stated {
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
        .map_err(|because| max_lease::refused(stands, stated, &because))
}

//! Opens an engine.
//!
//! 1. The URL is parsed and the engine's own thread is started.
//! 2. The client agrees on the terms of the namespace (`terms.rs`), which is the first call to the
//!    cluster. It creates them if there are none, and fails if they contradict.
//! 3. The watch stream is opened in the background, and reconnects by itself (`watches.rs`).
//! 4. The expiry thread is started. It waits for the alarm of `claims` and removes expired keys.
//! 5. A task waits for the discovery of a restored cluster, which ends all claims of all sessions.
//!
//! The thread and the tasks have weak references, so dropping the last engine handle ends them.

use std::sync::{Arc, Weak};

use super::cell_watches::CellWatches;
use super::claims::Claims;
use super::connection::ClusterConnection;
use super::in_flight::InFlightClaims;
use super::keys::Keys;
use super::leases::Leases;
use super::signals::{SessionListeners, WatchRouter};
use super::tasks::{CallerRuntime, Tasks};
use super::terms::{self, StatedTerms};
#[cfg(feature = "conformance")]
use super::testing::{GatePass, Lessor};
use super::url::Location;
use super::waiters::Waiters;
use super::watches::Watches;
use super::{EtcdEngine, Inner, now};
use crate::contract::{Engine, Error, ErrorKind, Loss, Signal, Verb};
use crate::engine::Terms;
use crate::engine::common::runtime::EngineThread;
use crate::sync::Mutex;

/// Opens the etcd that a URL names.
pub(in crate::engine) async fn connect(url: &str, terms: &Terms) -> Result<Arc<dyn Engine>, Error> {
    let opened = EtcdEngine::open(url, terms, OpenOptions::default()).await;
    Ok(Arc::new(opened.map_err(|error| error.during(Verb::Connect))?))
}

/// What the conformance suite replaces: who counts leases, and a gate for transactions.
#[derive(Clone, Default)]
pub(super) struct OpenOptions {
    #[cfg(feature = "conformance")]
    pub(super) lessor: Option<Arc<Lessor>>,
    #[cfg(feature = "conformance")]
    pub(super) gate: Option<GatePass>,
}

impl EtcdEngine {
    pub(super) async fn open(
        url: &str,
        terms: &Terms,
        options: OpenOptions,
    ) -> Result<Self, Error> {
        let location = Location::parse(url)?;
        let own = EngineThread::start("tenure-etcd")?;
        let caller_runtime = CallerRuntime::find(&own).await;
        let tasks = Tasks::new(own.handle().clone(), caller_runtime.clone());
        let keys = Keys::new(location.prefix(), &terms.namespace);
        let connection = ClusterConnection::new(&location, caller_runtime)?;
        #[cfg(feature = "conformance")]
        let connection =
            if options.lessor.is_some() { connection.for_tests(options.gate) } else { connection };
        let connection = Arc::new(connection);
        let max_lease = terms.max_lease;
        let stated = StatedTerms { max_lease, accepts_restored: false, changes_max_lease: false };
        let epoch = {
            let (connection, keys) = (Arc::clone(&connection), keys.clone());
            let now = now(&*terms.clock);
            let accepts_restored = location.accepts_restored();
            let stated = StatedTerms { accepts_restored, changes_max_lease: true, ..stated };
            let agreed = async move { terms::agree(&connection, &keys, stated, now).await };
            tasks.run(agreed).await?
        };
        let clock = Arc::clone(&terms.clock);
        let leases = Leases::new(Arc::clone(&connection), Arc::clone(&clock));
        #[cfg(feature = "conformance")]
        let leases = leases.with_lessor(options.lessor);
        #[cfg(not(feature = "conformance"))]
        let OpenOptions {} = options;
        let claims = Arc::new(Claims::new(clock.alarm()));
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| {
            let handler = Arc::new(WatchRouter(weak.clone()));
            let watches = Watches::start(Arc::clone(&connection), &tasks, &keys.beacon(), handler);
            let (waiters, in_flight, listeners) =
                (Waiters::default(), InFlightClaims::default(), SessionListeners::default());
            let claims = Arc::clone(&claims);
            Inner {
                location,
                keys,
                epoch: Mutex::new(epoch),
                stated,
                connection,
                leases,
                claims,
                waiters,
                in_flight,
                watches,
                cell_watches: CellWatches::default(),
                listeners,
                clock,
                tasks,
                #[cfg(feature = "conformance")]
                seen: std::sync::atomic::AtomicU64::new(0),
                own,
            }
        });
        start_expiry_thread(&claims, &inner)?;
        let (connection, weak) = (Arc::clone(&inner.connection), Arc::downgrade(&inner));
        inner.tasks.spawn_uncounted(async move {
            connection.until_restored().await;
            if let Some(inner) = weak.upgrade() {
                inner.notify_all(&Signal::AllEnded { loss: Loss::Forgotten });
            }
        });
        Ok(Self { inner })
    }
}

/// Starts the thread that removes claims that are no longer renewed.
fn start_expiry_thread(claims: &Arc<Claims>, inner: &Arc<Inner>) -> Result<(), Error> {
    let (claims, weak) = (Arc::clone(claims), Arc::downgrade(inner));
    let work = move || {
        loop {
            claims.wait();
            let Some(inner) = weak.upgrade() else { return };
            let due = claims.take_due(inner.clock.now());
            if due.closed {
                return;
            }
            if !due.claims.is_empty() || !due.keys.is_empty() {
                let tasks = inner.tasks.clone();
                tasks.spawn(async move { inner.expire_due(due).await });
            }
        }
    };
    let started = std::thread::Builder::new().name("tenure-expiry".to_owned()).spawn(work);
    started.map(drop).map_err(|error| {
        Error::new(ErrorKind::Limit, format!("cannot start a thread: {error}"))
            .with_help("raise the limit of threads")
            .caused_by(error)
    })
}

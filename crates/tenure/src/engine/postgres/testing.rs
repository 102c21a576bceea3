//! Hooks for the conformance suite, in no build but the suite's: an engine on a virtual clock, and
//! counters and barriers by which the suite knows that no call, reply or notification is in flight.
//!
//! The suite's schema has a function `clock` that reads a setting instead of the server's clock;
//! each call is a transaction that sets it first.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::connect::ConnectionContext;
use super::errors::{SendState, to_error};
use super::listener::NotificationListener;
use super::replies::COLUMNS;
use super::url::Location;
use super::{Inner, PostgresEngine, schema};
use crate::contract::{Error, ErrorKind, SessionId};
use crate::engine::Terms;
use crate::time::Clock;

/// Functions of the suite, which replace or extend those of the schema.
const SUITE_FUNCTIONS: &str = include_str!("../../conformance/sql/stage.sql");

/// Creates the schema of a URL, with the suite's functions.
pub(crate) fn install_suite_schema(url: &str) -> Result<(), Error> {
    let own = super::EngineThread::start("tenure-stage")?;
    let context = ConnectionContext::new(
        Location::parse(url)?,
        crate::contract::Namespace::default(),
        crate::limits::DEFAULT_MAX_LEASE,
    )?;
    own.handle().block_on(async {
        let (client, connection) = context.open().await?;
        tokio::spawn(connection);
        schema::apply(&client, &context.location).await?;
        let text = SUITE_FUNCTIONS.replace("@S", &context.location.quoted_schema());
        let installed = client.batch_execute(&text).await;
        installed.map_err(|error| Error::new(ErrorKind::Corrupt, format!("{error:?}")))
    })
}

impl PostgresEngine {
    /// Connects to a store on a virtual clock. `pooled` skips the detection of a pooler, which
    /// takes seconds.
    pub(crate) fn with_test_clock(
        url: &str,
        terms: &Terms,
        clock: Arc<dyn Clock>,
        pooled: bool,
    ) -> Result<Self, Error> {
        let location = Location::parse(url)?;
        let namespace = terms.namespace.clone();
        let mut context = ConnectionContext::new(location, namespace, terms.max_lease)?;
        context.clock = Some(clock);
        if pooled {
            context.assume_pooled();
        }
        let own = super::EngineThread::start("tenure-stage")?;
        let handle = own.handle().clone();
        handle.block_on(Self::open(context, own, None))
    }

    /// Returns how often the functions took each path that is marked, in all namespaces.
    pub(crate) fn paths(&self) -> Result<Vec<(String, u64)>, Error> {
        let schema = self.inner.context.location.quoted_schema();
        let text = format!("SELECT path, taken FROM {schema}.paths()");
        let read = async {
            let pipeline = self.inner.own_connection.get().await?;
            let rows = pipeline.query_in_suite(&text, &[]).await;
            rows.map_err(|error| to_error(&error, SendState::Sent))
        };
        let rows = self.inner.own.handle().block_on(read)?;
        let count = |row: &tokio_postgres::Row| {
            Some((row.try_get(0).ok()?, u64::try_from(row.try_get::<_, i64>(1).ok()?).ok()?))
        };
        Ok(rows.iter().filter_map(count).collect())
    }

    /// Returns a number that grows with each call, reply, notification and signal; `None` while
    /// any is in flight.
    pub(crate) fn activity(&self) -> Option<u64> {
        let (inner, router) = (&self.inner, &self.inner.context.router);
        let notifying = inner.notifies_in_flight.load(Ordering::SeqCst);
        let calls = inner.calls.load(Ordering::SeqCst);
        let subscribed = inner.listener.is_none() || router.all_subscribed();
        let ended = inner.own_connection.current().map_or(Some(0), |one| one.ended_if_idle())?;
        let idle = subscribed && notifying == 0 && !router.is_registering();
        idle.then(|| calls + ended + self.notifies_done() + router.delivered())
    }

    /// Returns how many calls of `notify` were made.
    pub(crate) fn notifies_done(&self) -> u64 {
        self.inner.notifies_done.load(Ordering::SeqCst)
    }

    /// Renews waiters as the polling task does, if the engine is behind a pooler.
    pub(crate) fn poll_waiters(&self) {
        if self.inner.listener.is_none() {
            self.inner.poll_waiters();
        }
    }

    /// Completes after the tasks have run that were ready on the engine's own thread.
    pub(crate) fn own_thread_barrier(&self) -> oneshot::Receiver<()> {
        let (sender, done) = oneshot::channel();
        self.inner.own.handle().spawn(async move {
            let _ = sender.send(());
        });
        done
    }

    /// Completes after the notifications were dispatched that the server has sent before.
    pub(crate) fn notification_barrier(&self) -> Option<oneshot::Receiver<()>> {
        self.inner.listener.as_ref().map(NotificationListener::round_trip)
    }

    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.inner))
    }

    /// Ends a session in the store, as if its leases had expired.
    pub(crate) fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let schema = self.inner.context.location.quoted_schema();
        let session = Uuid::from_u128(session.as_u128());
        let text = format!("SELECT {COLUMNS} FROM {schema}.end_session($1, $2)");
        let ending = async {
            let pipeline = self.inner.own_connection.get().await?;
            let typed: [(&(dyn ToSql + Sync), Type); 2] =
                [(&pipeline.ns, Type::INT4), (&session, Type::UUID)];
            let rows = pipeline.query_in_suite(&text, &typed).await;
            let rows = rows.map_err(|error| to_error(&error, SendState::Sent))?;
            self.parse_replies(&rows).await.map(drop)
        };
        self.inner.own.handle().block_on(ending)
    }
}

/// A weak reference to an engine.
#[derive(Clone)]
pub(crate) struct WeakEngine(Weak<Inner>);

impl WeakEngine {
    pub(crate) fn upgrade(&self) -> Option<PostgresEngine> {
        self.0.upgrade().map(|inner| PostgresEngine { inner })
    }
}

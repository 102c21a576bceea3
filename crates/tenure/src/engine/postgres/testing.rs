//! What the conformance suite needs of the engine: its own clock, and to know when nothing is under
//! way. Knows the engine from inside, and is in no build but the suite's.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::replies::COLUMNS;
use super::errors::{Sent, to_error};
use super::connect::Setup;
use super::signals::Listener;
use super::url::Location;
use super::{Inner, PostgresEngine, schema};
use crate::contract::{Error, ErrorKind, SessionId};
use crate::engine::Terms;
use crate::time::Clock;

/// The suite's own functions, over those of the schema.
const STAGE: &str = include_str!("../../conformance/sql/stage.sql");

/// Makes the schema of a URL one whose clock the suite owns.
pub(crate) fn furnish(url: &str) -> Result<(), Error> {
    let own = super::Own::start("tenure-stage")?;
    let setup = Setup::new(
        Location::parse(url)?,
        crate::contract::Namespace::default(),
        crate::limits::DEFAULT_MAX_LEASE,
    )?;
    own.handle().block_on(async {
        let (client, connection) = setup.dial().await?;
        tokio::spawn(connection);
        schema::bring_in(&client, &setup.location).await?;
        let text = STAGE.replace("@S", &setup.location.quoted_schema());
        let furnished = client.batch_execute(&text).await;
        furnished.map_err(|error| Error::new(ErrorKind::Corrupt, format!("{error:?}")))
    })
}

impl PostgresEngine {
    /// Opens a store whose functions go by this clock. Who knows that a pooler stands between
    /// says so: to find out takes seconds.
    pub(crate) fn on_stage(
        url: &str,
        terms: &Terms,
        clock: Arc<dyn Clock>,
        pooled: bool,
    ) -> Result<Self, Error> {
        let location = Location::parse(url)?;
        let mut setup = Setup::new(location, terms.namespace.clone(), terms.max_lease)?;
        setup.clock = Some(clock);
        if pooled {
            setup.know_pooled();
        }
        let own = super::Own::start("tenure-stage")?;
        let handle = own.handle().clone();
        handle.block_on(Self::open(setup, own, None))
    }

    /// How much was asked, told and heard, if nothing of it is under way.
    pub(crate) fn activity(&self) -> Option<u64> {
        let telling = self.inner.telling.load(Ordering::SeqCst);
        let calls = self.inner.calls.load(Ordering::SeqCst);
        let listening = self.inner.listener.is_none() || self.inner.setup.listeners.all_listen();
        let answered = self.inner.back.now().map_or(Some(0), |ready| ready.answered())?;
        let quiet = listening && telling == 0;
        quiet.then(|| calls + answered + self.told() + self.inner.setup.listeners.heard())
    }

    /// How often sessions of others were told something.
    pub(crate) fn told(&self) -> u64 {
        self.inner.told.load(Ordering::SeqCst)
    }

    /// Asks for whoever waits, where nobody tells them.
    pub(crate) fn poll(&self) {
        if self.inner.listener.is_none() {
            self.inner.poll_once();
        }
    }

    /// Done when whoever had an answer before has been woken.
    pub(crate) fn woken(&self) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        // Behind the task that had the answer, on the same thread.
        self.inner.own.handle().spawn(async move {
            let _ = tell.send(());
        });
        told
    }

    /// Done when everything that was told before has been heard.
    pub(crate) fn hears(&self) -> Option<oneshot::Receiver<()>> {
        self.inner.listener.as_ref().map(Listener::round_trip)
    }

    /// The engine, as long as somebody else has it.
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.inner))
    }

    /// Ends a session in the store, as if its leases had run out.
    pub(crate) fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let schema = self.inner.setup.location.quoted_schema();
        let session = Uuid::from_u128(session.as_u128());
        let text = format!("SELECT {COLUMNS} FROM {schema}.end_session($1, $2)");
        let ending = async {
            let ready = self.inner.back.ready().await?;
            let typed: [(&(dyn ToSql + Sync), Type); 2] =
                [(&ready.ns, Type::INT4), (&session, Type::UUID)];
            let rows = ready.call_on_stage(&text, &typed).await;
            self.read(&rows.map_err(|error| to_error(&error, Sent::Yes))?).map(drop)
        };
        self.inner.own.handle().block_on(ending)
    }
}

/// An engine that may be gone.
#[derive(Clone)]
pub(crate) struct WeakEngine(Weak<Inner>);

impl WeakEngine {
    pub(crate) fn upgrade(&self) -> Option<PostgresEngine> {
        self.0.upgrade().map(|inner| PostgresEngine { inner })
    }
}

//! One connection for calls that comes back when it is needed. Knows how to be ready, not what is
//! called.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_postgres::{Connection, Socket};

use super::connect::Setup;
use super::pipeline::{Ready, watch as watch_over};
use super::tls::Encrypted;
use crate::contract::{Error, ErrorKind};

/// How long all of a greeting may take once the handshake is done; a schema may have to be made.
const GREETING: Duration = Duration::from_secs(20);

type Outcome = Result<Arc<Ready>, Error>;

enum Stage {
    Down,
    /// An attempt is under way.
    Coming(watch::Receiver<Option<Outcome>>),
    Up(Arc<Ready>),
}

/// One connection.
pub(super) struct Line {
    setup: Arc<Setup>,
    stage: Arc<Mutex<Stage>>,
    /// Where its task runs, as long as that runtime lives; and then.
    home: Handle,
    fallback: Handle,
}

impl Line {
    pub(super) fn new(setup: Arc<Setup>, home: Handle, fallback: Handle) -> Self {
        Self { setup, stage: Arc::new(Mutex::new(Stage::Down)), home, fallback }
    }

    /// The connection, made anew if need be.
    ///
    /// # Errors
    /// Why it cannot be made. The next caller tries again.
    ///
    /// # Cancel safety
    /// May be dropped at any time. An attempt goes on for whoever comes next.
    pub(super) async fn ready(&self) -> Outcome {
        for home in [&self.home, &self.fallback] {
            let mut coming = match self.join(home) {
                Ok(ready) => return Ok(ready),
                Err(coming) => coming,
            };
            // No outcome: the runtime that the attempt ran on is gone.
            if let Ok(outcome) = coming.wait_for(Option::is_some).await
                && let Some(outcome) = &*outcome
            {
                return outcome.clone();
            }
            *self.stage() = Stage::Down;
        }
        let what = "the thread that keeps the connection is gone";
        Err(Error::new(ErrorKind::Closed, what).with_help("connect anew"))
    }

    /// The connection, or an attempt to make it: one that is under way, or a new one.
    fn join(&self, home: &Handle) -> Result<Arc<Ready>, watch::Receiver<Option<Outcome>>> {
        let mut stage = self.stage();
        match &*stage {
            Stage::Up(ready) if !ready.is_over() => return Ok(Arc::clone(ready)),
            Stage::Coming(coming) if coming.has_changed().is_ok() || coming.borrow().is_some() => {
                return Err(coming.clone());
            }
            _ => {}
        }
        let (tell, coming) = watch::channel(None);
        *stage = Stage::Coming(coming.clone());
        drop(stage);
        let (setup, stage) = (Arc::clone(&self.setup), Arc::clone(&self.stage));
        home.spawn(async move {
            let outcome = attempt(&setup).await;
            *stage.lock().unwrap_or_else(PoisonError::into_inner) = match &outcome {
                Ok(ready) => Stage::Up(Arc::clone(ready)),
                Err(_) => Stage::Down,
            };
            // Whoever waited may have left.
            let _ = tell.send(Some(outcome));
        });
        Err(coming)
    }

    /// The connection, if it stands.
    #[cfg(feature = "conformance")]
    pub(super) fn now(&self) -> Option<Arc<Ready>> {
        match &*self.stage() {
            Stage::Up(ready) => Some(Arc::clone(ready)),
            _ => None,
        }
    }

    fn stage(&self) -> std::sync::MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn attempt(setup: &Setup) -> Outcome {
    let (client, connection) = setup.dial().await?;
    let greeted = async {
        // It has to be driven while it is greeted; whether it is still good is known only then.
        let (tell, known) = tokio::sync::oneshot::channel::<Weak<Ready>>();
        tokio::spawn(drive(connection, known, setup.patience()));
        let ready = Arc::new(setup.greet(client).await?);
        let _ = tell.send(Arc::downgrade(&ready));
        Ok(ready)
    };
    tokio::time::timeout(GREETING, greeted).await.unwrap_or_else(|_| {
        let what = format!("{} did not greet us within {GREETING:?}", setup.location);
        Err(Error::new(ErrorKind::Unavailable, what)
            .with_help("check that the server is not stuck"))
    })
}

/// The task of a connection: reads and writes until it breaks, or falls silent. One on which
/// answers are awaited and nothing comes for as long as a statement may take is given up: its other
/// end may be gone without a word. Noticed after two or three times as long.
async fn drive(
    connection: Connection<Socket, Encrypted>,
    known: tokio::sync::oneshot::Receiver<Weak<Ready>>,
    patience: Duration,
) {
    let mut connection = pin!(connection);
    let mut watching = pin!(async {
        match known.await {
            Ok(ready) => watch_over(ready, patience).await,
            // It was never greeted: then it ends when its client is dropped.
            Err(_) => std::future::pending().await,
        }
    });
    let broken = poll_fn(|cx| {
        if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
            return Poll::Ready(ended.err().map(|error| error.to_string()));
        }
        watching.as_mut().poll(cx).map(|()| Some("no answer".to_owned()))
    })
    .await;
    if let Some(why) = broken {
        tracing::debug!("a connection to the database ended: {why}");
    }
}

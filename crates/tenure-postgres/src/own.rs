//! What can be done with a caller's client when a future of ours is dropped: say one thing
//! more, and have a wait cancelled. Knows clients, not locks.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::Stream;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{CancelToken, Client, NoTls, SimpleQueryStream, Socket};

use tenure::limits;

/// How long a wait may take to end once it is cancelled, before it is cancelled again; and how
/// often.
const AGAIN: Duration = Duration::from_millis(200);
const TIMES: u32 = 50;

type Done = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send>>;

/// How a wait on your own client is cancelled when its future is dropped.
///
/// A request to cancel travels on a connection of its own. It names the wait by a secret and
/// carries nothing else, and servers take it unencrypted; only a client that was told to require
/// TLS refuses to send it so. Then give the connector that the client itself has. Where it cannot
/// be sent, the wait goes on to its limit, and what it gets is given back then.
#[derive(Clone)]
pub struct Canceller(Arc<dyn Fn(CancelToken) -> Done + Send + Sync>);

impl Canceller {
    /// Without encryption.
    #[must_use]
    pub fn plain() -> Self {
        Self::tls(NoTls)
    }

    /// With the TLS connector of the client.
    pub fn tls<T>(connector: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as tokio_postgres::tls::TlsConnect<Socket>>::Future: Send,
    {
        Self(Arc::new(move |token| {
            let connector = connector.clone();
            Box::pin(async move { token.cancel_query(connector).await })
        }))
    }

    /// Cancels a wait, in the background, until what was said behind it is answered: a
    /// cancellation that comes before the wait has begun does nothing. No cancellation is on its
    /// way any more when the task has ended.
    pub(super) fn cancel(&self, token: CancelToken, behind: Answers) -> Option<JoinHandle<()>> {
        let here = Handle::try_current().ok()?;
        let cancel = Arc::clone(&self.0);
        Some(here.spawn(async move {
            let mut behind = pin!(behind.end());
            for _ in 0..TIMES {
                match timeout(limits::CALL, cancel(token.clone())).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return tracing::debug!("no wait is cancelled: {error}"),
                    Err(_) => return tracing::debug!("a wait could not be cancelled in time"),
                }
                if timeout(AGAIN, behind.as_mut()).await.is_ok() {
                    return;
                }
            }
        }))
    }
}

impl Default for Canceller {
    fn default() -> Self {
        Self::plain()
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Canceller")
    }
}

/// Says something on a connection without waiting for the answer: the client writes it down when
/// its future is first polled, and the server does it after all that was said before.
pub(super) fn say(client: &Client, text: &str) -> Answers {
    let said = pin!(client.simple_query_raw(text)).poll(&mut Context::from_waker(Waker::noop()));
    Answers(match said {
        Poll::Ready(Ok(answers)) => Some(Box::pin(answers)),
        // The connection is gone.
        _ => None,
    })
}

/// The answers to something said. They need not be awaited.
pub(super) struct Answers(Option<Pin<Box<SimpleQueryStream>>>);

impl Answers {
    /// Resolves when all are there.
    async fn end(self) {
        let Some(mut answers) = self.0 else { return };
        while let Some(Ok(_)) = poll_fn(|cx| answers.as_mut().poll_next(cx)).await {}
    }
}

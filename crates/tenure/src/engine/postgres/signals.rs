//! The connection that listens, one for all sessions of an engine: a database tells all its
//! listeners of everything, so there should be few. Knows channels, not claims.

use std::fmt::Write as _;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};

use super::errors::{self, Sent};
use super::connect::{Setup, backend};
use super::listeners::channel;
use super::tls::Encrypted;
use crate::contract::{Error, SessionId};
use crate::limits;

/// The first pause after a failed attempt; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);
/// How often we ask whether the other side lives, where nothing else is said.
const PING: Duration = Duration::from_secs(5);

/// What the task is asked to do.
enum Order {
    Listen(SessionId),
    Unlisten(SessionId),
    /// An answer behind everything that is on its way.
    RoundTrip(oneshot::Sender<()>),
}

/// The connection that listens. Dropping it ends it.
pub(super) struct Listener {
    orders: mpsc::UnboundedSender<Order>,
    setup: Arc<Setup>,
    /// Changes with each channel that is listened to, and with the state of the connection.
    news: watch::Receiver<State>,
}

/// In which state the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    Down,
}

impl Listener {
    /// Starts to listen, and goes on until dropped. Returns when it is up for the first time.
    ///
    /// # Errors
    /// If the first attempt fails.
    pub(super) async fn start(setup: Arc<Setup>, home: &Handle) -> Result<Self, Error> {
        let (orders, inbox) = mpsc::unbounded_channel();
        let (tell, told) = oneshot::channel();
        let (state, news) = watch::channel(State::Down);
        home.spawn(run(Arc::clone(&setup), inbox, state, tell));
        let gone = |_| Err(super::replies::strange());
        told.await.unwrap_or_else(gone)?;
        Ok(Self { orders, setup, news })
    }

    /// Listens for a session.
    pub(super) fn listen(&self, session: SessionId) {
        // A task that is gone hears nothing; whoever waits asks again every third of a lease.
        let _ = self.orders.send(Order::Listen(session));
    }

    /// Waits until a session is listened to. Where the connection is down there is nothing to wait
    /// for: it tells everybody when it is back.
    pub(super) async fn listens(&self, session: SessionId) {
        if self.setup.listeners.is_listening(session) {
            return;
        }
        let mut news = self.news.clone();
        while *news.borrow_and_update() == State::Up && !self.setup.listeners.is_listening(session)
        {
            if news.changed().await.is_err() {
                return;
            }
        }
    }

    /// Does so no longer.
    pub(super) fn unlisten(&self, session: SessionId) {
        let _ = self.orders.send(Order::Unlisten(session));
    }

    /// An answer behind everything that is on its way.
    #[cfg_attr(not(feature = "conformance"), allow(dead_code, reason = "the suite waits for it"))]
    pub(super) fn round_trip(&self) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let _ = self.orders.send(Order::RoundTrip(tell));
        told
    }
}

async fn run(
    setup: Arc<Setup>,
    mut inbox: mpsc::UnboundedReceiver<Order>,
    state: watch::Sender<State>,
    first: oneshot::Sender<Result<(), Error>>,
) {
    let mut first = Some(first);
    let mut pause = PAUSE;
    loop {
        match open(&setup).await {
            Ok((client, ended)) => {
                state.send_replace(State::Up);
                match first.take() {
                    Some(first) => _ = first.send(Ok(())),
                    // What was told meanwhile is lost.
                    None => setup.listeners.resync(),
                }
                pause = PAUSE;
                let over = serve(&setup, &client, ended, &mut inbox, &state).await;
                state.send_replace(State::Down);
                if over {
                    return;
                }
                tracing::debug!("the connection that listens broke; reconnecting");
            }
            Err(error) => {
                if let Some(first) = first.take() {
                    let _ = first.send(Err(error));
                    return;
                }
                tracing::debug!("{error}");
            }
        }
        if inbox.is_closed() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}

/// Connects and listens for all sessions. The second is done when the connection ends.
async fn open(setup: &Arc<Setup>) -> Result<(Client, oneshot::Receiver<()>), Error> {
    let (client, connection) = setup.dial().await?;
    let opening = async {
        let (tell, ended) = oneshot::channel();
        let hearing = Arc::clone(setup);
        tokio::spawn(async move {
            hear(&hearing, connection).await;
            let _ = tell.send(());
        });
        setup.listens_on(backend(&client).await?);
        let known = setup.listeners.sessions();
        let mut text = String::new();
        for channel in known.iter().copied().map(channel).chain([setup.listeners.probe()]) {
            // A channel is made of our own letters and digits.
            let _ = write!(text, "LISTEN \"{channel}\";");
        }
        let failed = |error: tokio_postgres::Error| errors::to_error(&error, Sent::No);
        client.batch_execute(&text).await.map_err(failed)?;
        for session in known {
            setup.listeners.listens(session);
        }
        Ok((client, ended))
    };
    let late = |_| {
        let what = format!("{} does not answer", setup.location);
        Err(Error::new(crate::contract::ErrorKind::Unavailable, what)
            .with_help("check that the server runs and can be reached"))
    };
    tokio::time::timeout(limits::CALL * 4, opening).await.unwrap_or_else(late)
}

/// Passes on what the database tells, until the connection ends.
async fn hear(setup: &Setup, mut connection: Connection<Socket, Encrypted>) {
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(told))) => {
                setup.listeners.message(told.channel(), told.payload());
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return,
        }
    }
}

/// Does what it is asked to, until the connection ends: false; or there is nobody left: true.
async fn serve(
    setup: &Setup,
    client: &Client,
    mut ended: oneshot::Receiver<()>,
    inbox: &mut mpsc::UnboundedReceiver<Order>,
    state: &watch::Sender<State>,
) -> bool {
    loop {
        let mut ping = pin!(tokio::time::sleep(PING));
        let next = poll_fn(|cx| {
            if Pin::new(&mut ended).poll(cx).is_ready() {
                return Poll::Ready(Next::Broken);
            }
            if let Poll::Ready(order) = inbox.poll_recv(cx) {
                return Poll::Ready(order.map_or(Next::Over, Next::Order));
            }
            ping.as_mut().poll(cx).map(|()| Next::Ping)
        })
        .await;
        let answered = match next {
            Next::Broken => return false,
            Next::Over => return true,
            Next::Ping => within(client.check_connection()).await,
            Next::Order(Order::Listen(session)) => {
                let text = format!("LISTEN \"{}\"", channel(session));
                let done = within(client.batch_execute(&text)).await;
                setup.listeners.listens(session);
                state.send_replace(State::Up);
                done
            }
            Next::Order(Order::Unlisten(session)) => {
                within(client.batch_execute(&format!("UNLISTEN \"{}\"", channel(session)))).await
            }
            Next::Order(Order::RoundTrip(tell)) => {
                let done = within(client.check_connection()).await;
                let _ = tell.send(());
                done
            }
        };
        if !answered {
            return false;
        }
    }
}

enum Next {
    Order(Order),
    Ping,
    Broken,
    Over,
}

/// Whether a statement is answered in time, and well.
async fn within(answer: impl Future<Output = Result<(), tokio_postgres::Error>>) -> bool {
    matches!(tokio::time::timeout(limits::CALL, answer).await, Ok(Ok(())))
}

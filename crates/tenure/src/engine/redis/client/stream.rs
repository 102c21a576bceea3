//! Bytes to and from a server: TCP, a Unix socket, or TLS over TCP.
//!
//! A plain socket is split: the connection's task reads, and any thread may write without waiting
//! ([`WriteHalf::try_write`]). Under TLS both directions share one state machine, so that only the
//! task writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::contract::{Error, ErrorKind};
use crate::engine::common::redis::url::{Address, Location};
use crate::engine::common::tls::{TlsOptions, client_config};

/// The options of a URL that name certificates.
const TLS_OPTIONS: TlsOptions = TlsOptions { ca: "ca=", cert: "cert=", key: "key=" };

/// How long a connection is idle before the kernel sends keepalive probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// The interval of the probes, and how many unanswered ones end the connection.
const KEEPALIVE_PROBES: (Duration, u32) = (Duration::from_secs(1), 3);
/// How long sent bytes may stay unacknowledged before the kernel ends the connection.
const USER_TIMEOUT_MS: u32 = 5_000;

/// One open connection.
pub(super) struct Transport {
    reader: ReadHalf,
    /// None under TLS, where reading and writing share one state machine.
    writer: Option<Arc<WriteHalf>>,
}

enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The side of a plain connection that any thread may write to.
#[derive(Debug)]
pub(super) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

impl Transport {
    /// Connects. The caller limits the time.
    pub(super) async fn connect(location: &Location) -> Result<Self, Error> {
        let refused = |error: io::Error| unreachable(location, error);
        match (location.address(), location.tls()) {
            (Address::Sentinels { .. } | Address::Cluster(_), _) => Err(Error::new(
                ErrorKind::InvalidOption,
                format!("{location} names sentinels or a cluster, not one server"),
            )
            .with_help("resolve the server first")),
            (Address::Unix(path), _) => {
                let (reader, writer) =
                    UnixStream::connect(path).await.map_err(refused)?.into_split();
                Ok(Self {
                    reader: ReadHalf::Unix(reader),
                    writer: Some(Arc::new(WriteHalf::Unix(writer))),
                })
            }
            (Address::Tcp(host), None) => {
                let stream = TcpStream::connect((&*host.name, host.port)).await.map_err(refused)?;
                tune(&stream).map_err(refused)?;
                let (reader, writer) = stream.into_split();
                Ok(Self {
                    reader: ReadHalf::Tcp(reader),
                    writer: Some(Arc::new(WriteHalf::Tcp(writer))),
                })
            }
            (Address::Tcp(host), Some(tls)) => {
                // Read before connecting: a wrong path should not cost the server a connection.
                let connector = TlsConnector::from(client_config(tls, &TLS_OPTIONS)?);
                let name = ServerName::try_from(host.name.clone()).map_err(|_| {
                    bad_file("the host cannot be a name in a certificate", "use another name")
                })?;
                let stream = TcpStream::connect((&*host.name, host.port)).await.map_err(refused)?;
                tune(&stream).map_err(refused)?;
                let secured = connector.connect(name, stream).await;
                let stream = secured.map_err(|error| insecure(location, error))?;
                Ok(Self { reader: ReadHalf::Tls(Box::new(stream)), writer: None })
            }
        }
    }

    /// Returns the half that other threads may write to; none under TLS.
    pub(super) fn writer(&self) -> Option<Arc<WriteHalf>> {
        self.writer.clone()
    }

    /// Reads what is there. Returns 0 at the end of the connection.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(match &mut self.reader {
            ReadHalf::Tcp(reader) => Pin::new(reader).poll_read(cx, &mut buffer),
            ReadHalf::Unix(reader) => Pin::new(reader).poll_read(cx, &mut buffer),
            ReadHalf::Tls(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
        })?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Writes some of the bytes.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let ReadHalf::Tls(stream) = &mut self.reader {
            return Pin::new(stream).poll_write(cx, bytes);
        }
        let Some(writer) = &self.writer else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        loop {
            match writer.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(writer.poll_ready(cx))?;
                }
                done => return Poll::Ready(done),
            }
        }
    }

    /// Flushes what TLS still buffers.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.reader {
            ReadHalf::Tls(stream) => Pin::new(stream).poll_flush(cx),
            ReadHalf::Tcp(_) | ReadHalf::Unix(_) => Poll::Ready(Ok(())),
        }
    }
}

impl WriteHalf {
    /// Writes some of the bytes, or returns `WouldBlock`.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(writer) => writer.try_write(bytes),
            Self::Unix(writer) => writer.try_write(bytes),
        }
    }

    /// Waits until the socket is writable. Only the task that polled last is woken.
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(writer) => writer.as_ref().poll_write_ready(cx),
            Self::Unix(writer) => writer.as_ref().poll_write_ready(cx),
        }
    }
}

/// Sets socket options: small writes leave at once, and a dead peer is noticed within seconds.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_PROBES.0)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES.1)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    Ok(())
}

fn unreachable(location: &Location, error: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no connection to {location}: {error}"))
        .with_help("check that the server runs and can be reached")
        .caused_by(error)
}

fn insecure(location: &Location, error: io::Error) -> Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(_)) => Error::new(
            ErrorKind::InvalidOption,
            format!("the certificate of {location} is not trusted: {error}"),
        )
        .with_help("give the authority that signed it by ca=, and the name it was signed for"),
        Some(_) => Error::new(ErrorKind::Unavailable, format!("no TLS with {location}: {error}"))
            .with_help("check that the port speaks TLS, and whether it wants cert= and key="),
        None => return unreachable(location, error),
    }
    .caused_by(error)
}

fn bad_file(what: impl Into<std::borrow::Cow<'static, str>>, next: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOption, what).with_help(next)
}

//! A client of one member of an etcd cluster: gRPC calls over one HTTP/2 connection, which is
//! established again when it breaks. Knows etcd's API, and nothing of locks.
//!
//! Messages are written by hand with `prost`'s derive macros and calls are made with `tonic`, so no
//! build script and no `protoc` is needed. A call is sent once. Only a call that the server
//! rejected because of its token is sent again, with a new token: the server has not acted on it.
//!
//! Streams send their first request before they wait for the server: etcd sends no response headers
//! before it has a request. A stream keeps the token that it was opened with.

#![allow(unreachable_pub, reason = "reachable in builds with the feature `test-util`")]
#![allow(missing_docs, reason = "messages and fields are those of etcd's API")]

#[cfg(test)]
mod field_numbers;
mod login;
mod messages;
mod txn;

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::uri::PathAndQuery;
use hyper_util::client::legacy::connect::HttpConnector;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codec::Streaming;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, ConnectError, Status};
use tonic_prost::ProstCodec;
use tower::util::MapResponse;

use self::login::AuthToken;
pub use self::login::Login;
pub use self::messages::*;

/// Largest response that is accepted. etcd itself has no limit for responses; a slot with a hundred
/// thousand waiters is smaller.
const RESPONSE_BYTES: usize = 256 << 20;

/// How often an open stream's connection is probed. etcd closes connections on which it is probed
/// more often than every 5 s, or at all while no stream is open.
const PROBE: Duration = Duration::from_secs(6);

/// How long the response to a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// When the kernel begins to probe a connection without traffic.
const TCP_PROBE: Duration = Duration::from_secs(15);

/// How to connect to a member.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The timeout of a connection attempt.
    pub connect_timeout: Option<Duration>,
    /// Certificates for TLS; plain text if not given.
    pub tls: Option<TlsPem>,
    /// User and password, if the cluster has authentication enabled.
    pub login: Option<Arc<Login>>,
    /// Counts the connections that were opened. A connection is counted before the first request
    /// is sent over it.
    pub opened: Arc<AtomicU64>,
}

/// Certificates and keys, in PEM.
#[derive(Clone, Default)]
pub struct TlsPem {
    /// The trusted certificate authority; the system's roots if not given.
    pub ca: Option<Vec<u8>>,
    /// The client's own certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for TlsPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPem").finish_non_exhaustive()
    }
}

/// The address of a member and how to connect to it, validated.
#[derive(Clone, Debug)]
pub struct Target {
    endpoint: Endpoint,
    connect_timeout: Option<Duration>,
    login: Option<Arc<Login>>,
    opened: Arc<AtomicU64>,
}

impl Target {
    /// A member at `http://host:port` or `https://host:port`.
    ///
    /// # Errors
    /// If the URL or a certificate is malformed.
    pub fn new(url: &str, options: &ClientOptions) -> Result<Self, RpcError> {
        let odd = |error: tonic::transport::Error| RpcError::other(&chain(&error));
        let mut endpoint = Endpoint::from_shared(url.to_owned()).map_err(odd)?;
        if let Some(tls) = &options.tls {
            let mut config = match &tls.ca {
                Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
                None => ClientTlsConfig::new().with_native_roots(),
            };
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            endpoint = endpoint.tls_config(config).map_err(odd)?;
        }
        let endpoint = endpoint
            .http2_keep_alive_interval(PROBE)
            .keep_alive_timeout(PROBE_TIMEOUT)
            .keep_alive_while_idle(false);
        let (connect_timeout, login) = (options.connect_timeout, options.login.clone());
        Ok(Self { endpoint, connect_timeout, login, opened: Arc::clone(&options.opened) })
    }

    /// Makes a channel, which connects when it is first used. Its connector is configured as
    /// `tonic` configures its own.
    fn channel(&self) -> Channel {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_keepalive(Some(TCP_PROBE));
        connector.set_connect_timeout(self.connect_timeout);
        let opened = Arc::clone(&self.opened);
        let counted = MapResponse::new(connector, move |connection| {
            opened.fetch_add(1, Ordering::SeqCst);
            connection
        });
        self.endpoint.connect_with_connector_lazy(counted)
    }
}

/// A client of one member.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    login: Option<Arc<Login>>,
}

impl Client {
    /// Makes a client, which connects when it is first used. Must be called in a tokio runtime,
    /// which will drive the connection.
    #[must_use]
    pub fn new(target: &Target) -> Self {
        Self { channel: target.channel(), login: target.login.clone() }
    }

    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, RpcError> {
        self.unary("/etcdserverpb.KV/Txn", request).await
    }

    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    #[cfg_attr(not(feature = "test-util"), expect(dead_code, reason = "tests and benchmarks"))]
    pub async fn delete(&self, key: &[u8]) -> Result<DeleteRangeResponse, RpcError> {
        let request = DeleteRangeRequest { key: key.to_vec(), range_end: Vec::new() };
        self.unary("/etcdserverpb.KV/DeleteRange", request).await
    }

    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    pub async fn lease_grant(&self, ttl: i64) -> Result<LeaseGrantResponse, RpcError> {
        self.unary("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl }).await
    }

    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    pub async fn lease_revoke(&self, id: i64) -> Result<(), RpcError> {
        let path = "/etcdserverpb.Lease/LeaseRevoke";
        let _: LeaseRevokeResponse = self.unary(path, LeaseRevokeRequest { id }).await?;
        Ok(())
    }

    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    pub async fn lease_time_to_live(&self, id: i64) -> Result<i64, RpcError> {
        let path = "/etcdserverpb.Lease/LeaseTimeToLive";
        let response: LeaseTimeToLiveResponse =
            self.unary(path, LeaseTimeToLiveRequest { id }).await?;
        Ok(response.ttl)
    }

    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    pub async fn member_list(&self) -> Result<MemberListResponse, RpcError> {
        self.unary("/etcdserverpb.Cluster/MemberList", MemberListRequest {}).await
    }

    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    pub async fn status(&self) -> Result<StatusResponse, RpcError> {
        self.unary("/etcdserverpb.Maintenance/Status", StatusRequest {}).await
    }

    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    pub async fn alarms(&self) -> Result<AlarmResponse, RpcError> {
        self.unary("/etcdserverpb.Maintenance/Alarm", AlarmRequest {}).await
    }

    /// Opens a stream of watches and creates the first one.
    ///
    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    pub async fn watch(&self, first: WatchCreateRequest) -> Result<WatchStream, RpcError> {
        self.stream("/etcdserverpb.Watch/Watch", first.into()).await
    }

    /// Opens a stream of keep-alives and sends one for this lease.
    ///
    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    pub async fn lease_keep_alive(&self, id: i64) -> Result<KeepAliveStream, RpcError> {
        self.stream("/etcdserverpb.Lease/LeaseKeepAlive", LeaseKeepAliveRequest { id }).await
    }

    /// Replaces the token, if there is a login, because the server rejected it on a stream.
    ///
    /// # Errors
    /// If the server does not respond or refuses.
    ///
    /// # Cancel safety
    /// The request may have been sent, and the server may act on it.
    pub async fn renew_token(&self) -> Result<(), RpcError> {
        if let Some(login) = &self.login {
            let stale = login.token(self).await?;
            login.renew(self, Some(&stale)).await?;
        }
        Ok(())
    }

    /// Sends one request and returns its response.
    async fn unary<Q, A>(&self, path: &'static str, request: Q) -> Result<A, RpcError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let Some(login) = &self.login else { return self.send(path, request, None).await };
        let token = login.token(self).await?;
        match self.send(path, request.clone(), Some(&token)).await {
            Err(failure) if failure.is_token_rejected() => {
                let token = login.renew(self, Some(&token)).await?;
                self.send(path, request, Some(&token)).await
            }
            answered => answered,
        }
    }

    async fn send<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        token: Option<&AuthToken>,
    ) -> Result<A, RpcError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let request = with_metadata(request, token);
        let path = PathAndQuery::from_static(path);
        let response = grpc.unary(request, path, ProstCodec::<Q, A>::default()).await;
        response.map(tonic::Response::into_inner).map_err(|status| RpcError::from_status(&status))
    }

    async fn stream<Q, A>(&self, path: &'static str, first: Q) -> Result<BidiStream<Q, A>, RpcError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let Some(login) = &self.login else { return self.open(path, first, None).await };
        let mut token = login.token(self).await?;
        if token.life.is_some() {
            // A stream lives as long as its token, so it is opened with a new one.
            token = login.renew(self, Some(&token)).await?;
        }
        match self.open(path, first.clone(), Some(&token)).await {
            Err(failure) if failure.is_token_rejected() => {
                let token = login.renew(self, Some(&token)).await?;
                self.open(path, first, Some(&token)).await
            }
            opened => opened,
        }
    }

    async fn open<Q, A>(
        &self,
        path: &'static str,
        first: Q,
        token: Option<&AuthToken>,
    ) -> Result<BidiStream<Q, A>, RpcError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (requests, queued) = mpsc::unbounded_channel();
        let _ = requests.send(first);
        let mut grpc = self.grpc().await?;
        let request = with_metadata(UnboundedReceiverStream::new(queued), token);
        let path = PathAndQuery::from_static(path);
        let response = grpc.streaming(request, path, ProstCodec::<Q, A>::default()).await;
        let responses = response.map_err(|status| RpcError::from_status(&status))?.into_inner();
        Ok(BidiStream { requests, responses, token_life: token.and_then(|token| token.life) })
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, RpcError> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(RESPONSE_BYTES);
        let ready = grpc.ready().await;
        ready.map_err(|error| RpcError::from_status(&Status::from_error(Box::new(error))))?;
        Ok(grpc)
    }
}

/// A bidirectional stream of requests and responses.
#[derive(Debug)]
pub struct BidiStream<Q, A> {
    requests: mpsc::UnboundedSender<Q>,
    responses: Streaming<A>,
    token_life: Option<Duration>,
}

/// A stream of watches.
pub type WatchStream = BidiStream<WatchRequest, WatchResponse>;

/// A stream of keep-alives.
pub type KeepAliveStream = BidiStream<LeaseKeepAliveRequest, LeaseKeepAliveResponse>;

impl<Q, A> BidiStream<Q, A> {
    /// Queues a request.
    ///
    /// # Errors
    /// If the stream has ended.
    pub fn send(&self, request: impl Into<Q>) -> Result<(), RpcError> {
        let sent = self.requests.send(request.into());
        sent.map_err(|_| RpcError::other("the stream has ended"))
    }

    /// The next response; `None` if the server ended the stream.
    ///
    /// # Errors
    /// If the stream broke.
    ///
    /// # Cancel safety
    /// No response is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<Option<A>, RpcError> {
        self.responses.message().await.map_err(|status| RpcError::from_status(&status))
    }

    /// How long the token of the stream lives, counted from when it was opened, if that is known.
    #[must_use]
    pub fn token_life(&self) -> Option<Duration> {
        self.token_life
    }
}

impl From<WatchCreateRequest> for WatchRequest {
    fn from(request: WatchCreateRequest) -> Self {
        Self { request_union: Some(RequestUnion::CreateRequest(request)) }
    }
}

impl From<WatchCancelRequest> for WatchRequest {
    fn from(request: WatchCancelRequest) -> Self {
        Self { request_union: Some(RequestUnion::CancelRequest(request)) }
    }
}

/// Every request requires a member that has a leader: one in a minority returns an error.
fn with_metadata<T>(message: T, token: Option<&AuthToken>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.value.clone());
    }
    request
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcError {
    /// The gRPC code.
    pub code: Code,
    /// The server's message, or what happened to the connection.
    pub message: String,
    /// The request was not sent: the connection could not be established, or was closed before.
    pub unsent: bool,
    /// The connection was established and closed before the request was sent.
    pub closed_early: bool,
}

impl RpcError {
    fn from_status(status: &Status) -> Self {
        let mut source = status.source();
        let (mut unconnected, mut closed_early, mut causes) = (false, false, String::new());
        while let Some(error) = source {
            unconnected |= error.is::<ConnectError>();
            // hyper cancels only requests that its connection has not begun to write.
            closed_early |= error.downcast_ref().is_some_and(hyper::Error::is_canceled);
            causes = error.to_string();
            source = error.source();
        }
        let message = match status.message() {
            message if causes.is_empty() || message.contains(&causes) => message.to_owned(),
            message => format!("{message}: {causes}"),
        };
        Self { code: status.code(), message, unsent: unconnected || closed_early, closed_early }
    }

    fn other(message: &str) -> Self {
        let message = message.to_owned();
        Self { code: Code::Unavailable, message, unsent: false, closed_early: false }
    }

    /// Whether a new token may help. The server has not acted on the request.
    fn is_token_rejected(&self) -> bool {
        let outdated = ["user name is empty", "revision of auth store is old"];
        match self.code {
            Code::Unauthenticated => true,
            Code::InvalidArgument => outdated.iter().any(|what| self.message.contains(what)),
            _ => false,
        }
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RpcError {}

/// The message of an error with those of its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

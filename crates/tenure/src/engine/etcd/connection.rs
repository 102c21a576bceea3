//! Calls to the members of a cluster: one at a time is asked, and the next one when it fails us.
//! Knows members and time limits, not what is said.
//!
//! A call is never repeated here: whoever made it knows whether that is harmless. What comes back
//! is compared with what was seen before, because a cluster that was restored from a backup counts
//! its revisions again from an older one, and fences would fall.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::client::{
    Client, Compare, Failure, Login, Options, RequestOp, ResponseHeader, ResponseOp, Target, Tls,
    TxnRequest,
};
use super::errors::CallError;
use super::tasks::CallerRuntime;
#[cfg(feature = "conformance")]
use super::testing::GatePass;
use super::url::{Location, Tls as TlsFiles};
use crate::contract::{Error, ErrorKind};
use crate::limits;
use crate::sync::{Mutex, PoisonError};

/// How long one member may take where there are others to ask.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a connection attempt may take: shorter than a call, so that a call to a member that
/// cannot be reached is known not to have been sent.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(800);

/// The members of one cluster.
pub(super) struct ClusterConnection {
    members: Vec<MemberConnection>,
    caller_runtime: CallerRuntime,
    current: watch::Sender<usize>,
    limit: Duration,
    observed: Mutex<ClusterState>,
    /// The store is not the one it was.
    restored: AtomicBool,
    /// Told when that is found.
    restored_notify: Notify,
    /// What the suite lets transactions pass.
    #[cfg(feature = "conformance")]
    gate: Option<GatePass>,
}

/// A member and the connections to it: one that the engine's own thread keeps, and one that the
/// callers' runtime keeps for calls that are made there.
struct MemberConnection {
    endpoint: String,
    target: Target,
    engine: OnceLock<Client>,
    caller: OnceLock<Client>,
}

/// The newest that was seen of a cluster.
#[derive(Clone, Copy, Debug, Default)]
struct ClusterState {
    cluster: Option<u64>,
    revision: u64,
    raft_term: u64,
}

/// What a transaction came to.
#[derive(Debug)]
pub(super) struct TxnReply {
    /// Whether its comparisons held.
    pub(super) succeeded: bool,
    /// The store's revision after it.
    pub(super) revision: u64,
    pub(super) replies: Vec<ResponseOp>,
}

impl ClusterConnection {
    pub(super) fn new(location: &Location, caller_runtime: CallerRuntime) -> Result<Self, Error> {
        let login = location.credentials()?;
        let login = login.map(|(user, password)| Arc::new(Login::new(user, password)));
        let tls = location.tls().map(read_tls).transpose()?;
        let options = Options { connect_timeout: Some(CONNECT_TIMEOUT), tls, login };
        let member = |endpoint: String| {
            let target = Target::new(&endpoint, &options).map_err(|failure| {
                let what = format!("the connection cannot be set up: {failure}");
                Error::new(ErrorKind::InvalidOption, what)
                    .with_help("check the hosts in the URL and the files of ca=, cert= and key=")
            })?;
            let (engine, caller) = (OnceLock::new(), OnceLock::new());
            Ok::<_, Error>(MemberConnection { endpoint, target, engine, caller })
        };
        let members: Vec<MemberConnection> =
            location.endpoints().into_iter().map(member).collect::<Result<_, _>>()?;
        let limit = if members.len() > 1 { MEMBER_TIMEOUT } else { limits::CALL };
        // Clients that start together should not all ask the same member.
        let first = usize::from(crate::sync::random_bytes()[0]) % members.len();
        let (current, _) = watch::channel(first);
        let (observed, restored) = (Mutex::new(ClusterState::default()), AtomicBool::new(false));
        let restored_notify = Notify::new();
        Ok(Self {
            members,
            caller_runtime,
            current,
            limit,
            observed,
            restored,
            restored_notify,
            #[cfg(feature = "conformance")]
            gate: None,
        })
    }

    /// With a time limit that a busy machine does not reach, for tests that count time themselves,
    /// and perhaps with a gate for transactions.
    #[cfg(feature = "conformance")]
    pub(super) fn for_tests(mut self, gate: Option<GatePass>) -> Self {
        self.limit = Duration::from_secs(60);
        self.gate = gate;
        self
    }

    /// Passes the gate of the suite, if there is one.
    #[cfg(feature = "conformance")]
    async fn pass_gate(&self) {
        if let Some(gate) = &self.gate {
            gate().await;
        }
    }

    /// Which member is asked; changes are told.
    pub(super) fn current(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// How many members there are, and where.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| &*member.endpoint)
    }

    /// A client of one member, whichever is asked now. Must be called in one of our runtimes.
    pub(super) fn client_of(&self, member: usize) -> Client {
        let member = &self.members[member];
        let client = if self.caller_runtime.is_current() { &member.caller } else { &member.engine };
        client.get_or_init(|| Client::new(&member.target)).clone()
    }

    /// Makes a call to the member that is asked now; another one is asked next if it fails us.
    pub(super) async fn call<T, F>(&self, make: impl FnOnce(Client) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let at = *self.current.borrow();
        let limited = timeout(self.limit, make(self.client_of(at))).await;
        let answer = match limited {
            Ok(answer) => answer.map_err(|failure| CallError::of(&failure)),
            Err(_) => Err(CallError::Timeout(self.limit)),
        };
        let answer = answer.map_err(|error| error.at(&self.members[at].endpoint));
        if answer.as_ref().is_err_and(CallError::should_switch_member) {
            self.failed(at);
        }
        answer
    }

    /// Runs a transaction.
    async fn send_txn(&self, txn: TxnRequest) -> Result<TxnReply, CallError> {
        self.check_not_restored()?;
        #[cfg(feature = "conformance")]
        self.pass_gate().await;
        let before = self.observed();
        let answer = self.call(|client: Client| async move { client.txn(txn).await }).await?;
        let revision = self.decode_key(answer.header.as_ref(), before)?;
        #[cfg(feature = "conformance")]
        self.pass_gate().await;
        Ok(TxnReply { succeeded: answer.succeeded, revision, replies: answer.responses })
    }

    /// Reads, all at one revision.
    pub(super) async fn read(&self, ops: Vec<RequestOp>) -> Result<TxnReply, CallError> {
        self.send_txn(TxnRequest { success: ops, ..TxnRequest::default() }).await
    }

    /// Does something under conditions; otherwise reads.
    pub(super) async fn txn(
        &self,
        compares: Vec<Compare>,
        then: Vec<RequestOp>,
        otherwise: Vec<RequestOp>,
    ) -> Result<TxnReply, CallError> {
        self.send_txn(TxnRequest { compare: compares, success: then, failure: otherwise }).await
    }

    /// A call about leases. Its answer may be older than the latest revision.
    pub(super) async fn lease_call<T, F>(
        &self,
        make: impl FnOnce(Client) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        self.check_not_restored()?;
        self.call(make).await
    }

    /// The member that was asked last did not answer as it should: the next one is asked.
    pub(super) fn failed(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        self.current.send_if_modified(|current| {
            let same = *current == member && next != member;
            if same {
                *current = next;
            }
            same
        });
    }

    /// The cluster's number, once it has been heard.
    pub(super) fn cluster(&self) -> Option<u64> {
        self.observed().cluster
    }

    /// The newest raft term that a response has named: it grows with every election.
    pub(super) fn raft_term(&self) -> u64 {
        self.observed().raft_term
    }

    /// Takes in the raft term of a response that says nothing else about the store.
    pub(super) fn observe_term(&self, header: Option<&ResponseHeader>) {
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        observed.raft_term = observed.raft_term.max(header.map_or(0, |header| header.raft_term));
    }

    /// Whether the store was found to be another one than it was.
    pub(super) fn is_restored(&self) -> bool {
        self.restored.load(Ordering::SeqCst)
    }

    /// Returns when the store was found to be another one than it was.
    pub(super) async fn until_restored(&self) {
        self.restored_notify.notified().await;
    }

    fn check_not_restored(&self) -> Result<(), CallError> {
        if self.is_restored() { Err(CallError::Restored(restored())) } else { Ok(()) }
    }

    fn observed(&self) -> ClusterState {
        *self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what an answer says of the store; `before` was seen when the call was made.
    fn decode_key(
        &self,
        header: Option<&ResponseHeader>,
        before: ClusterState,
    ) -> Result<u64, CallError> {
        let Some(header) = header else {
            return Err(CallError::Unavailable("an answer without a header".to_owned()));
        };
        let revision = u64::try_from(header.revision).unwrap_or(0);
        let cluster = header.cluster_id;
        let other = before.cluster.is_some_and(|known| known != cluster);
        if other || revision < before.revision {
            self.restored.store(true, Ordering::SeqCst);
            self.restored_notify.notify_one();
            return Err(CallError::Restored(restored()));
        }
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        observed.cluster = Some(cluster);
        observed.revision = observed.revision.max(revision);
        observed.raft_term = observed.raft_term.max(header.raft_term);
        Ok(revision)
    }
}

/// What to say of a store that went back in time.
pub(super) fn restored() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "the etcd cluster is not the one it was: it was replaced or restored from a backup, and \
         fences would fall",
    )
    .with_help("stop what still runs under old locks, then connect with ?restored=accept")
}

/// Reads the certificates and keys that the URL names.
fn read_tls(files: &TlsFiles) -> Result<Tls, Error> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| {
            let what = format!("a certificate or key cannot be read: {error}");
            Error::new(ErrorKind::InvalidOption, what)
                .with_help(format!("check {}", path.display()))
                .caused_by(error)
        })
    };
    let ca = files.ca.as_deref().map(read).transpose()?;
    let identity = match &files.identity {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    Ok(Tls { ca, identity })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_fails_is_asked_again_only_after_the_others() {
        let location = Location::parse("etcd://a:1,b:1,c:1").unwrap();
        let connection = ClusterConnection::new(&location, CallerRuntime::default()).unwrap();
        let first = *connection.current.borrow();
        connection.failed(first);
        let second = *connection.current.borrow();
        assert_eq!(second, (first + 1) % 3);
        connection.failed(first);
        assert_eq!(*connection.current.borrow(), second, "that was known already");
        let alone = ClusterConnection::new(
            &Location::parse("etcd://a:1").unwrap(),
            CallerRuntime::default(),
        )
        .unwrap();
        alone.failed(0);
        assert_eq!(*alone.current.borrow(), 0);
    }

    #[test]
    fn a_certificate_that_is_not_there_is_named() {
        let location = Location::parse("etcds://a:1?ca=/no/such/file").unwrap();
        let error = ClusterConnection::new(&location, CallerRuntime::default())
            .map(|_| panic!("there is none"))
            .unwrap_err();
        assert!(error.to_string().contains("/no/such/file"), "{error}");
    }
}

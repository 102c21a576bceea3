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
use super::errors::Trouble;
use super::tasks::Front;
#[cfg(feature = "conformance")]
use super::testing::GatePass;
use super::url::Location;
use crate::contract::{Error, ErrorKind};
use crate::engine::common::url::TlsFiles;
use crate::limits;
use crate::sync::{Mutex, PoisonError};

/// How long one member may take where there are others to ask.
const MEMBER: Duration = Duration::from_secs(1);

/// How long a connection attempt may take: shorter than a call, so that a call to a member that
/// cannot be reached is known not to have been sent.
const CONNECT: Duration = Duration::from_millis(800);

/// The members of one cluster.
pub(super) struct Link {
    members: Vec<Member>,
    front: Front,
    current: watch::Sender<usize>,
    limit: Duration,
    sight: Mutex<Sight>,
    /// The store is not the one it was.
    restored: AtomicBool,
    /// Told when that is found.
    notice: Notify,
    /// What the suite lets transactions pass.
    #[cfg(feature = "conformance")]
    gate: Option<GatePass>,
}

/// A member and the connections to it: one that the engine's own thread keeps, and one that the
/// callers' runtime keeps for calls that are made there.
struct Member {
    endpoint: String,
    target: Target,
    own: OnceLock<Client>,
    front: OnceLock<Client>,
}

/// The newest that was seen of a cluster.
#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    cluster: Option<u64>,
    revision: u64,
    raft_term: u64,
}

/// What a transaction came to.
#[derive(Debug)]
pub(super) struct Answer {
    /// Whether its comparisons held.
    pub(super) held: bool,
    /// The store's revision after it.
    pub(super) revision: u64,
    pub(super) replies: Vec<ResponseOp>,
}

impl Link {
    pub(super) fn new(location: &Location, front: Front) -> Result<Self, Error> {
        let login = location.credentials()?;
        let login = login.map(|(user, password)| Arc::new(Login::new(user, password)));
        let tls = location.tls().map(read_tls).transpose()?;
        let options = Options { connect_timeout: Some(CONNECT), tls, login };
        let member = |endpoint: String| {
            let target = Target::new(&endpoint, &options).map_err(|failure| {
                let what = format!("the connection cannot be set up: {failure}");
                Error::new(ErrorKind::InvalidOption, what)
                    .with_help("check the hosts in the URL and the files of ca=, cert= and key=")
            })?;
            let (own, front) = (OnceLock::new(), OnceLock::new());
            Ok::<_, Error>(Member { endpoint, target, own, front })
        };
        let members: Vec<Member> =
            location.endpoints().into_iter().map(member).collect::<Result<_, _>>()?;
        let limit = if members.len() > 1 { MEMBER } else { limits::CALL };
        // Clients that start together should not all ask the same member.
        let first = usize::from(crate::sync::random_bytes()[0]) % members.len();
        let (current, _) = watch::channel(first);
        let (sight, restored) = (Mutex::new(Sight::default()), AtomicBool::new(false));
        let notice = Notify::new();
        Ok(Self {
            members,
            front,
            current,
            limit,
            sight,
            restored,
            notice,
            #[cfg(feature = "conformance")]
            gate: None,
        })
    }

    /// With a time limit that a busy machine does not reach, for tests that count time themselves,
    /// and perhaps with a gate for transactions.
    #[cfg(feature = "conformance")]
    pub(super) fn on_stage(mut self, gate: Option<GatePass>) -> Self {
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
        let client = if self.front.is_here() { &member.front } else { &member.own };
        client.get_or_init(|| Client::new(&member.target)).clone()
    }

    /// Makes a call to the member that is asked now; another one is asked next if it fails us.
    pub(super) async fn call<T, F>(&self, make: impl FnOnce(Client) -> F) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let at = *self.current.borrow();
        let limited = timeout(self.limit, make(self.client_of(at))).await;
        let answer = match limited {
            Ok(answer) => answer.map_err(|failure| Trouble::of(&failure)),
            Err(_) => Err(Trouble::Silence(self.limit)),
        };
        let answer = answer.map_err(|trouble| trouble.at(&self.members[at].endpoint));
        if answer.as_ref().is_err_and(Trouble::is_about_the_member) {
            self.failed(at);
        }
        answer
    }

    /// Runs a transaction.
    async fn txn(&self, txn: TxnRequest) -> Result<Answer, Trouble> {
        self.standing()?;
        #[cfg(feature = "conformance")]
        self.pass_gate().await;
        let before = self.sight();
        let answer = self.call(|client: Client| async move { client.txn(txn).await }).await?;
        let revision = self.see(answer.header.as_ref(), before)?;
        #[cfg(feature = "conformance")]
        self.pass_gate().await;
        Ok(Answer { held: answer.succeeded, revision, replies: answer.responses })
    }

    /// Reads, all at one revision.
    pub(super) async fn read(&self, ops: Vec<RequestOp>) -> Result<Answer, Trouble> {
        self.txn(TxnRequest { success: ops, ..TxnRequest::default() }).await
    }

    /// Does something under conditions; otherwise reads.
    pub(super) async fn when(
        &self,
        compares: Vec<Compare>,
        then: Vec<RequestOp>,
        otherwise: Vec<RequestOp>,
    ) -> Result<Answer, Trouble> {
        self.txn(TxnRequest { compare: compares, success: then, failure: otherwise }).await
    }

    /// A call about leases. Its answer may be older than the latest revision.
    pub(super) async fn lease<T, F>(&self, make: impl FnOnce(Client) -> F) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        self.standing()?;
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
        self.sight().cluster
    }

    /// The newest raft term that a response has named: it grows with every election.
    pub(super) fn raft_term(&self) -> u64 {
        self.sight().raft_term
    }

    /// Takes in the raft term of a response that says nothing else about the store.
    pub(super) fn see_term(&self, header: Option<&ResponseHeader>) {
        let mut sight = self.sight.lock().unwrap_or_else(PoisonError::into_inner);
        sight.raft_term = sight.raft_term.max(header.map_or(0, |header| header.raft_term));
    }

    /// Whether the store was found to be another one than it was.
    pub(super) fn is_restored(&self) -> bool {
        self.restored.load(Ordering::SeqCst)
    }

    /// Returns when the store was found to be another one than it was.
    pub(super) async fn until_restored(&self) {
        self.notice.notified().await;
    }

    fn standing(&self) -> Result<(), Trouble> {
        if self.is_restored() { Err(Trouble::Restored(restored())) } else { Ok(()) }
    }

    fn sight(&self) -> Sight {
        *self.sight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what an answer says of the store; `before` was seen when the call was made.
    fn see(&self, header: Option<&ResponseHeader>, before: Sight) -> Result<u64, Trouble> {
        let Some(header) = header else {
            return Err(Trouble::Away("an answer without a header".to_owned()));
        };
        let revision = u64::try_from(header.revision).unwrap_or(0);
        let cluster = header.cluster_id;
        let other = before.cluster.is_some_and(|known| known != cluster);
        if other || revision < before.revision {
            self.restored.store(true, Ordering::SeqCst);
            self.notice.notify_one();
            return Err(Trouble::Restored(restored()));
        }
        let mut sight = self.sight.lock().unwrap_or_else(PoisonError::into_inner);
        sight.cluster = Some(cluster);
        sight.revision = sight.revision.max(revision);
        sight.raft_term = sight.raft_term.max(header.raft_term);
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
        let link = Link::new(&location, Front::default()).unwrap();
        let first = *link.current.borrow();
        link.failed(first);
        let second = *link.current.borrow();
        assert_eq!(second, (first + 1) % 3);
        link.failed(first);
        assert_eq!(*link.current.borrow(), second, "that was known already");
        let alone = Link::new(&Location::parse("etcd://a:1").unwrap(), Front::default()).unwrap();
        alone.failed(0);
        assert_eq!(*alone.current.borrow(), 0);
    }

    #[test]
    fn a_certificate_that_is_not_there_is_named() {
        let location = Location::parse("etcds://a:1?ca=/no/such/file").unwrap();
        let error =
            Link::new(&location, Front::default()).map(|_| panic!("there is none")).unwrap_err();
        assert!(error.to_string().contains("/no/such/file"), "{error}");
    }
}

//! Calls to the members of a cluster: one at a time is asked, and the next one when it fails us.
//! Knows members and time limits, not what is said.
//!
//! A call is never repeated here: whoever made it knows whether that is harmless. What comes back
//! is compared with what was seen before, because a cluster that was restored from a backup counts
//! its revisions again from an older one, and fences would fall.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, Compare, ConnectOptions, Error as ClientError, Identity, KvClient,
    LeaseClient, ResponseHeader, TlsOptions, Txn, TxnOp, TxnOpResponse,
};
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::timeout;

use super::location::{Location, Tls};
use super::tasks::Front;
use super::trouble::Trouble;
use crate::contract::{Error, ErrorKind};
use crate::limits;
use crate::sync::{Mutex, PoisonError};

/// How long one member may take where there are others to ask.
const MEMBER: Duration = Duration::from_secs(1);

/// How often an idle connection is probed. Members refuse clients that do so more than every 5 s.
const PROBE: Duration = Duration::from_secs(6);

/// The members of one cluster.
pub(super) struct Link {
    members: Vec<Member>,
    options: ConnectOptions,
    front: Front,
    current: watch::Sender<usize>,
    limit: Duration,
    sight: Mutex<Sight>,
    /// The store is not the one it was.
    restored: AtomicBool,
    /// Told when that is found.
    notice: Notify,
}

/// A member and the connections to it: one that the engine's own thread keeps, and one that the
/// callers' runtime keeps for calls that are made there.
struct Member {
    endpoint: String,
    own: OnceCell<Client>,
    front: OnceCell<Client>,
}

/// The newest that was seen of a cluster.
#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    cluster: Option<u64>,
    revision: u64,
}

/// What a transaction came to.
#[derive(Debug)]
pub(super) struct Answer {
    /// Whether its comparisons held.
    pub(super) held: bool,
    /// The store's revision after it.
    pub(super) revision: u64,
    pub(super) replies: Vec<TxnOpResponse>,
}

impl Link {
    pub(super) fn new(location: &Location, front: Front) -> Result<Self, Error> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(MEMBER)
            .with_keep_alive(PROBE, MEMBER)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some((user, password)) = location.credentials()? {
            options = options.with_user(user, password);
        }
        if let Some(tls) = location.tls() {
            options = options.with_tls(tls_options(tls)?);
        }
        let member = |endpoint| Member { endpoint, own: OnceCell::new(), front: OnceCell::new() };
        let members: Vec<Member> = location.endpoints().into_iter().map(member).collect();
        let limit = if members.len() > 1 { MEMBER } else { limits::CALL };
        // Clients that start together should not all ask the same member.
        let first = usize::from(crate::sync::random_bytes()[0]) % members.len();
        let (current, _) = watch::channel(first);
        let (sight, restored) = (Mutex::new(Sight::default()), AtomicBool::new(false));
        let notice = Notify::new();
        Ok(Self { members, options, front, current, limit, sight, restored, notice })
    }

    /// With a time limit that a busy machine does not reach, for tests that count time themselves.
    #[cfg(feature = "conformance")]
    pub(super) fn patient(mut self) -> Self {
        self.limit = Duration::from_secs(60);
        self
    }

    /// Which member is asked; changes are told.
    pub(super) fn current(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// How many members there are, and where.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| &*member.endpoint)
    }

    /// A client of one member, whichever is asked now.
    pub(super) async fn client_of(&self, member: usize) -> Result<Client, Trouble> {
        let member = &self.members[member];
        let connect = || Client::connect([&member.endpoint], Some(self.options.clone()));
        let client = if self.front.is_here() { &member.front } else { &member.own };
        let made = timeout(self.limit, client.get_or_try_init(connect)).await;
        let made = made.map_err(|_| Trouble::Silence(self.limit))?;
        made.cloned().map_err(|error| Trouble::of(&error))
    }

    /// Makes a call to the member that is asked now; another one is asked next if it fails us.
    pub(super) async fn call<T, F>(&self, make: impl FnOnce(Client) -> F) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let at = *self.current.borrow();
        let asking = async {
            let client = self.client_of(at).await?;
            let limited = timeout(self.limit, make(client)).await;
            let answer = limited.map_err(|_| Trouble::Silence(self.limit))?;
            answer.map_err(|error| Trouble::of(&error))
        };
        let answer = asking.await.map_err(|trouble| trouble.at(&self.members[at].endpoint));
        if answer.as_ref().is_err_and(Trouble::is_about_the_member) {
            self.failed(at);
        }
        answer
    }

    /// Runs a transaction.
    pub(super) async fn txn(&self, txn: Txn) -> Result<Answer, Trouble> {
        self.standing()?;
        let before = self.sight();
        let call = |client: Client| async move {
            let mut kv: KvClient = client.kv_client();
            kv.txn(txn).await
        };
        let answer = self.call(call).await?;
        let revision = self.see(answer.header(), before)?;
        Ok(Answer { held: answer.succeeded(), revision, replies: answer.op_responses() })
    }

    /// Reads, all at one revision.
    pub(super) async fn read(&self, ops: Vec<TxnOp>) -> Result<Answer, Trouble> {
        self.txn(Txn::new().and_then(ops)).await
    }

    /// Does something under conditions; otherwise reads.
    pub(super) async fn when(
        &self,
        compares: Vec<Compare>,
        then: Vec<TxnOp>,
        otherwise: Vec<TxnOp>,
    ) -> Result<Answer, Trouble> {
        self.txn(Txn::new().when(compares).and_then(then).or_else(otherwise)).await
    }

    /// A call about leases. Its answer may be older than the latest revision.
    pub(super) async fn lease<T, F>(
        &self,
        make: impl FnOnce(LeaseClient) -> F,
    ) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        self.standing()?;
        self.call(|client| make(client.lease_client())).await
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
        let revision = u64::try_from(header.revision()).unwrap_or(0);
        let cluster = header.cluster_id();
        let other = before.cluster.is_some_and(|known| known != cluster);
        if other || revision < before.revision {
            self.restored.store(true, Ordering::SeqCst);
            self.notice.notify_one();
            return Err(Trouble::Restored(restored()));
        }
        let mut sight = self.sight.lock().unwrap_or_else(PoisonError::into_inner);
        sight.cluster = Some(cluster);
        sight.revision = sight.revision.max(revision);
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
    .next("stop what still runs under old locks, then connect with ?restored=accept")
}

fn tls_options(tls: &Tls) -> Result<TlsOptions, Error> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| {
            let what = format!("a certificate or key cannot be read: {error}");
            Error::new(ErrorKind::InvalidOption, what)
                .next(format!("check {}", path.display()))
                .caused_by(error)
        })
    };
    let mut options = match &tls.ca {
        Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?)),
        None => TlsOptions::new().with_native_roots(),
    };
    if let Some((cert, key)) = &tls.identity {
        options = options.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(options)
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

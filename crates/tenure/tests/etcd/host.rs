//! What the tests share: sessions that are written down, waiters on threads of their own, and keys
//! as an operator sees them. Knows no faults.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use servers::{Etcd, eventually};
use tenure::block_on;
use tenure::conformance::audit::{Recorder, Rules, What, judge};
use tenure::engine::etcd::client::{
    Client, ClientOptions, KeyValue, RequestOp, Target, TxnRequest, WatchCreateRequest,
};
use tenure::time::SystemClock;
use tenure::{Error, LockStatus, MutexGuard, Tenure, Witness};

/// A lease so long that nothing in a test can be its doing.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// How long a test waits for what must happen, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Everything that the sessions of a test do.
#[derive(Clone)]
pub(crate) struct Book {
    recorder: Arc<Recorder>,
    url: String,
}

impl Book {
    /// A namespace of its own in a cluster.
    pub(crate) fn new(url: &str) -> Self {
        Self { recorder: Recorder::new(Arc::new(SystemClock)), url: url.to_owned() }
    }

    /// A session that is written down here, in the namespace of a test.
    pub(crate) fn session(&self, namespace: &str, lease: Duration) -> Tenure {
        let witness = Arc::clone(&self.recorder) as Arc<dyn Witness>;
        let builder = Tenure::builder().lease(lease).witness(witness).namespace(namespace);
        block_on(builder.connect(&self.url)).unwrap()
    }

    /// Writes down that a lock is used now, if its holder may.
    pub(crate) fn used(&self, held: &LockStatus) {
        self.recorder.used(held);
    }

    /// How many events of a kind were recorded.
    pub(crate) fn count(&self, what: impl Fn(&What) -> bool) -> usize {
        self.recorder.history().entries().iter().filter(|entry| what(&entry.what)).count()
    }

    /// Asks for a mutex on a thread of its own, and returns when it stands in line.
    #[track_caller]
    pub(crate) fn waiter(&self, tenure: &Tenure, name: &str) -> Waiter {
        let mutex = tenure.mutex(name).unwrap();
        self.waiter_for(move || block_on(mutex.lock()))
    }

    /// Acquires any lock on a thread of its own, and returns when it is queued.
    #[track_caller]
    pub(crate) fn waiter_for<G: Send + 'static>(
        &self,
        acquire: impl FnOnce() -> Result<G, Error> + Send + 'static,
    ) -> Waiter<G> {
        let queued = || self.count(|what| *what == What::Queued);
        let before = queued();
        let waiter = Waiter::start(acquire);
        eventually("the waiter stands in line", || queued() > before);
        waiter
    }

    /// The auditor finds nothing: two holders at once, a fence that goes back, a use after a loss.
    #[track_caller]
    pub(crate) fn assert_sound(&self, least: usize) {
        let wake_within = PATIENCE;
        let rules = Rules { queue: true, wake_within, lossy: true, at_rest: true };
        let verdicts = judge(&self.recorder.history(), &rules);
        println!("{verdicts}");
        assert!(verdicts.violations.is_empty(), "{verdicts}");
        assert!(verdicts.grants >= least, "{verdicts}");
    }
}

/// A thread that waits for a lock.
pub(crate) struct Waiter<G = MutexGuard>(Receiver<Result<G, Error>>);

impl<G: Send + 'static> Waiter<G> {
    /// Asks for a lock on a thread of its own.
    pub(crate) fn start(ask: impl FnOnce() -> Result<G, Error> + Send + 'static) -> Self {
        let (tell, outcome) = channel();
        std::thread::spawn(move || tell.send(ask()));
        Self(outcome)
    }

    /// It must be served soon.
    #[track_caller]
    pub(crate) fn served(&self) -> G {
        let outcome = self.0.recv_timeout(PATIENCE);
        let outcome = outcome.unwrap_or_else(|_| panic!("the waiter has waited for {PATIENCE:?}"));
        outcome.unwrap_or_else(|error| panic!("the waiter was not served: {error}"))
    }

    /// It waits, and nothing has ended its wait.
    pub(crate) fn still_waits(&self) -> bool {
        self.0.try_recv().is_err()
    }
}

/// The keys of a lock in a namespace, each by its letter: `h` holds, `w` waits.
pub(crate) fn keys(etcd: &Etcd, namespace: &str, name: &str) -> Vec<String> {
    let root = format!("tenure\t{namespace}\ts\t{name}\t");
    let listed = etcd.ctl(&["get", "--prefix", "--keys-only", &root]).unwrap();
    listed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// How many keys of a lock there ever were.
pub(crate) fn ever_used(etcd: &Etcd, namespace: &str, name: &str) -> usize {
    ever_written(etcd, format!("tenure\t{namespace}\ts\t{name}\t"))
}

/// How many keys with a prefix there ever were.
pub(crate) fn ever_written(etcd: &Etcd, root: String) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = format!("http://127.0.0.1:{}", etcd.port(0));
        let client = Client::new(&Target::new(&endpoint, &ClientOptions::default()).unwrap());
        // From the first revision on, until a last event that is only there to be seen.
        let end = format!("{root}~");
        let success = vec![RequestOp::put(&*end, "", 0)];
        let last = client.txn(TxnRequest { success, ..TxnRequest::default() }).await.unwrap();
        let last = last.header.unwrap().revision;
        let range_end = format!("{root}\x7f").into_bytes();
        let (key, start_revision) = (root.into_bytes(), 1);
        let all = WatchCreateRequest { key, range_end, start_revision, ..Default::default() };
        let mut events = client.watch(all).await.unwrap();
        let mut keys = HashSet::new();
        loop {
            let told = events.next().await.unwrap().unwrap().events;
            let told: Vec<KeyValue> = told.into_iter().filter_map(|event| event.kv).collect();
            let seen = told.iter().any(|key| key.mod_revision >= last);
            keys.extend(told.into_iter().map(|key| key.key));
            if seen {
                break;
            }
        }
        client.delete(end.as_bytes()).await.unwrap();
        keys.len() - 1
    })
}

/// The lease on which a key hangs, as `etcdctl` wants it.
pub(crate) fn lease_of(etcd: &Etcd, key: &str) -> String {
    let told = etcd.ctl(&["get", key, "--write-out=json"]).unwrap();
    let (_, rest) = told.split_once("\"lease\":").expect("a key on a lease");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    format!("{:x}", digits.parse::<i64>().unwrap())
}

/// The letter of a key under a slot.
pub(crate) fn letter(key: &str) -> Option<char> {
    key.rsplit('\t').next().and_then(|last| last.chars().next())
}

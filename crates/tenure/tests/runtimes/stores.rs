//! One store of each engine for all tests of this binary, each test in a namespace of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use servers::{Cluster, Etcd, Postgres, Redis, Sentinels};
use tempfile::TempDir;
use tenure::contract::SessionId;
use tenure::{Builder, Tenure};

/// The lease of what must be given back: nothing in a test can be the doing of its end.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// How long giving back may take, on a machine that is busy.
pub(crate) const FREE_WITHIN: Duration = Duration::from_secs(30);

/// Where a test connects to.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    /// What was done with it so far.
    pub(crate) steps: Steps,
    namespace: String,
}

/// Counts steps, by which a use that hangs is told from one that is slow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps(Arc<AtomicUsize>);

impl Steps {
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits for an end, again and again as long as steps are counted meanwhile. The error is the
    /// number of steps after which none came.
    pub(crate) fn until(
        &self,
        limit: Duration,
        mut ends_within: impl FnMut(Duration) -> bool,
    ) -> Result<(), usize> {
        loop {
            let before = self.0.load(Ordering::SeqCst);
            if ends_within(limit) {
                return Ok(());
            }
            if self.0.load(Ordering::SeqCst) == before {
                return Err(before);
            }
        }
    }
}

impl Store {
    fn new(name: &'static str, url: String) -> Self {
        let steps = Steps::default();
        Self { name, url, steps, namespace: SessionId::new().to_hex() }
    }

    /// Short leases, because one use waits for a third of one; calls may take long on a busy
    /// machine.
    pub(crate) fn builder(&self) -> Builder {
        let lease = Duration::from_secs(9);
        let builder = Tenure::builder().namespace(&self.namespace).lease(lease);
        builder.call_limit(Duration::from_secs(20))
    }

    /// Nothing holds a lock any more, or what does gives it back without waiting for its lease,
    /// which must be [`LONG`].
    #[track_caller]
    pub(crate) fn assert_free(&self, name: &str) {
        let tenure = tenure::block_on(self.builder().connect(&self.url)).unwrap();
        let mutex = tenure.mutex(name).unwrap().timeout(FREE_WITHIN);
        match tenure::block_on(mutex.lock()) {
            Ok(guard) => tenure::block_on(guard.release()).unwrap(),
            Err(error) => panic!("{}: {name} was not given back: {error}", self.name),
        }
    }
}

pub(crate) fn memory() -> Store {
    Store::new("memory", "memory:runtimes".to_owned())
}

pub(crate) fn embedded() -> Store {
    static DIRECTORY: OnceLock<TempDir> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| tempfile::tempdir().unwrap());
    let path = directory.path().join(SessionId::new().to_hex());
    Store::new("embedded", format!("embedded://{}", path.display()))
}

pub(crate) fn redis() -> Store {
    Store::new("redis", Redis::shared().url())
}

pub(crate) fn sentinel() -> Store {
    Store::new("sentinel", Sentinels::shared().url())
}

pub(crate) fn cluster() -> Store {
    Store::new("cluster", Cluster::shared().url())
}

pub(crate) fn redlock() -> Store {
    static NODES: OnceLock<Vec<Redis>> = OnceLock::new();
    let nodes = NODES.get_or_init(|| (0..3).map(|_| Redis::start()).collect());
    let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    Store::new("redlock", format!("redlock://{}?new=yes", hosts.join(",")))
}

pub(crate) fn postgres() -> Store {
    Store::new("postgres", Postgres::shared().url())
}

pub(crate) fn etcd() -> Store {
    Store::new("etcd", Etcd::shared().url())
}

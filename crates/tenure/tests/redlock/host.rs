//! What the tests share: sets of nodes behind proxies, and sessions that are written down. Knows no
//! faults.

use std::sync::Arc;
use std::time::Duration;

use servers::{Fsync, Proxy, Redis};
use tenure::block_on;
use tenure::conformance::audit::{Recorder, Rules, judge};
use tenure::time::SystemClock;
use tenure::{Builder, Tenure, Witness};

/// Several servers, each behind a proxy.
pub(crate) struct Nodes {
    pub(crate) servers: Vec<Redis>,
    pub(crate) proxies: Vec<Proxy>,
}

impl Nodes {
    /// So many servers; of those below `kept` a restart loses nothing. All have clocks that can be
    /// moved.
    pub(crate) fn start(count: usize, kept: usize) -> Self {
        let one = |at: usize| {
            let builder = Redis::builder().clock();
            let kept = at < kept;
            if kept { builder.append_only(Fsync::Always) } else { builder }.start()
        };
        let servers: Vec<_> = (0..count).map(one).collect();
        let proxies = servers.iter().map(|server| Proxy::to(("127.0.0.1", server.port())));
        Self { proxies: proxies.collect(), servers }
    }

    /// The URL of the set, through the proxies.
    pub(crate) fn url(&self) -> String {
        url_of(self.proxies.iter().map(Proxy::port))
    }

    /// The same, declared to be new.
    pub(crate) fn new_url(&self) -> String {
        format!("{}?new=yes", self.url())
    }
}

/// The URL of a set of nodes on this host.
pub(crate) fn url_of(ports: impl Iterator<Item = u16>) -> String {
    let hosts: Vec<_> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redlock://{}", hosts.join(","))
}

/// The promise that no two claims hold at once.
const EXCLUSION: u8 = 1;

/// Everything that the sessions of a test do.
#[derive(Clone)]
pub(crate) struct Book {
    pub(crate) recorder: Arc<Recorder>,
}

impl Book {
    pub(crate) fn new() -> Self {
        Self { recorder: Recorder::new(Arc::new(SystemClock)) }
    }

    pub(crate) fn builder(&self, lease: Duration) -> Builder {
        let witness = Arc::clone(&self.recorder) as Arc<dyn Witness>;
        Tenure::builder().lease(lease).witness(witness)
    }

    /// A session that is written down here, on the engine's own thread.
    pub(crate) fn session(&self, url: &str, lease: Duration) -> Tenure {
        block_on(self.builder(lease).connect(url)).unwrap()
    }

    /// The auditor finds nothing: two holders at once, a fence that is equal or goes back, a use
    /// after a loss, a waiter that was forgotten.
    #[track_caller]
    pub(crate) fn assert_sound(&self, context: &str) {
        self.assert_none_but(&[], context);
    }

    /// The same but for two holders at once, which are possible where clocks jump.
    #[track_caller]
    pub(crate) fn assert_fenced(&self, context: &str) {
        self.assert_none_but(&[EXCLUSION], context);
    }

    #[track_caller]
    fn assert_none_but(&self, allowed: &[u8], context: &str) {
        let wake_within = Duration::from_secs(30);
        let rules = Rules { queue: false, wake_within, lossy: true, at_rest: true };
        let verdicts = judge(&self.recorder.history(), &rules);
        println!("{context}: {verdicts}");
        let mut breaches = verdicts.violations.iter().map(|breach| breach.promise);
        assert!(breaches.all(|promise| allowed.contains(&promise)), "{context}: {verdicts}");
        assert!(verdicts.grants > 0, "{context}: {verdicts}");
    }
}

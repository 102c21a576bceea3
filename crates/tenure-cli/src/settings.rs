//! Which store, and how to talk to it: flags, then environment, then profile, then defaults. Knows
//! where words come from.

use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure::contract::{Engine, short};
use tenure::engine::{self, Terms};
use tenure::time::SystemClock;
use tenure::{Builder, DeadlockMode, Error, LockOrder, Namespace, Tenure, limits};

use crate::args::{DeadlocksMode, LockArgs, Shared};
use crate::config::Config;
use crate::ending::{Ending, Session};
use crate::failure::{self, Failure};
use crate::interrupts::{Interrupts, Waited};
use crate::reactor::Reactor;
use crate::signals::Signals;
use crate::wanted::Patience;

/// The default store: this host, no server.
pub(crate) const DEFAULT_URL: &str = "embedded:";

/// Which store, and how to talk to it. Travels from `tenure run` to its guardian.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Settings {
    /// May hold a password: never shown.
    pub(crate) url: String,
    pub(crate) namespace: String,
    pub(crate) max_lease: Duration,
    pub(crate) op_timeout: Duration,
    pub(crate) close_timeout: Duration,
    /// How long to go on connecting while the store is away; none for a few quick attempts.
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    /// The mode of the order checker: off, warn or deny.
    pub(crate) order: Option<String>,
    /// The text of the config file with the settings of the order checker, and its folder.
    pub(crate) order_config: Option<(String, PathBuf)>,
    /// How many replicas shall have a grant before it counts, and how long they have for that.
    pub(crate) replicas: Option<(u32, Duration)>,
    pub(crate) deadlocks: Option<DeadlocksMode>,
}

/// How long replicas have to confirm, by default.
const REPLICAS_WITHIN: Duration = Duration::from_millis(500);

/// How long a store may be away before it is said.
const SILENT_FOR: Duration = Duration::from_secs(1);

impl Settings {
    /// Puts flags, environment, profile and defaults together.
    pub(crate) fn new(shared: &Shared) -> Result<(Self, Config), Failure> {
        let mut config = Config::load(shared.config.as_deref()).map_err(Failure::usage)?;
        let profile = config.profile(shared.profile.as_deref()).map_err(Failure::usage)?;
        let namespace = shared.namespace.clone().or(profile.namespace);
        let settings = Self {
            url: shared.url.clone().or(profile.url).unwrap_or_else(|| DEFAULT_URL.to_owned()),
            namespace: namespace.unwrap_or_else(|| Namespace::default().as_str().to_owned()),
            max_lease: shared.max_lease.or(profile.max_lease).unwrap_or(limits::DEFAULT_MAX_LEASE),
            op_timeout: shared.op_timeout.or(profile.op_timeout).unwrap_or(limits::CALL),
            close_timeout: shared.close_timeout.or(profile.close_timeout).unwrap_or(limits::CLOSE),
            connect_timeout: None,
            quiet: shared.quiet,
            verbose: shared.verbose,
            order: shared.order.map(|mode| mode.word().to_owned()),
            order_config: config.order_source(),
            replicas: None,
            deadlocks: shared.deadlocks,
        };
        config.max_lease = Some(settings.max_lease);
        Ok((settings, config))
    }

    /// Adds the replicas that a command which takes a lock asks for.
    pub(crate) fn asking_replicas(mut self, lock: &LockArgs) -> Result<Self, Failure> {
        let Some(replicas) = lock.replicas else { return Ok(self) };
        let within = lock.replicas_within.unwrap_or(REPLICAS_WITHIN);
        let (most, longest) = (limits::REPLICAS, limits::REPLICAS_WITHIN);
        if !(1..=most).contains(&replicas) {
            return Err(Failure::usage(format!("--replicas is 1 to {most}, not {replicas}")));
        }
        if within < Duration::from_millis(1) || within > longest {
            let message = format!("--replicas-within is 1ms to {longest:?}, not {within:?}");
            return Err(Failure::usage(message));
        }
        self.replicas = Some((replicas, within));
        Ok(self)
    }

    /// Goes on connecting for as long as a command waits for its lock. A command without a wait
    /// limit does not: a store that was never reached is more often a wrong URL than an outage.
    pub(crate) fn waiting(mut self, patience: Patience) -> Self {
        self.connect_timeout = match patience {
            Patience::Limit(limit) => Some(limit),
            Patience::Try | Patience::Forever => None,
        };
        self
    }

    /// A builder of sessions that says all this.
    pub(crate) fn builder(&self) -> Builder {
        let builder = Tenure::builder()
            .namespace(&self.namespace)
            .max_lease(self.max_lease)
            .call_limit(self.op_timeout)
            .close_limit(self.close_timeout)
            .deadlocks(match self.deadlocks {
                Some(DeadlocksMode::Off) => DeadlockMode::Off,
                Some(DeadlocksMode::Observe) => DeadlockMode::Observe,
                Some(DeadlocksMode::Break) | None => DeadlockMode::Break,
            })
            .order(self.lock_order());
        match self.replicas {
            Some((replicas, within)) => builder.replicas(replicas, within),
            None => builder,
        }
    }

    /// The settings of the order checker. The config file was checked when it was read.
    fn lock_order(&self) -> LockOrder {
        let config = self.order_config.as_ref();
        let order = config.and_then(|(text, folder)| LockOrder::from_toml(text, folder).ok());
        let mut order = order.unwrap_or_default();
        if let Some(mode) = self.order.as_deref().and_then(|mode| mode.parse().ok()) {
            order = order.mode(mode);
        }
        if self.quiet {
            return order;
        }
        order.on_report(|report| anstream::eprintln!("tenure: {report}"))
    }

    /// Works in a session with the store, for a command that holds nothing. Signals do what they do
    /// to any process. What went wrong is told before the session is closed.
    pub(crate) fn session<T>(
        &self,
        work: impl FnOnce(&Tenure) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let reactor = Reactor::new(Signals::catch_only(&[])?)?;
        let interrupts = Interrupts::new(&reactor);
        let engine = tenure::block_on(self.engine())?;
        let builder = self.builder().on_behalf_of(std::process::id());
        let session = Session::on(engine, builder)?;
        let done = work(session.tenure()).map_err(Failure::told);
        session.close(&mut Ending::new(&interrupts, self.close_timeout));
        done
    }

    /// The store without a session. If something interrupts the connecting, the answer is an exit
    /// code.
    pub(crate) fn engine_unless(
        &self,
        interrupts: &Interrupts<'_>,
    ) -> Result<Result<Arc<dyn Engine>, u8>, Failure> {
        let mut connecting = pin!(self.engine());
        let mut tell = self.connect_timeout.map(|_| Instant::now() + SILENT_FOR);
        loop {
            let connecting: Pin<&mut dyn Future<Output = _>> = connecting.as_mut();
            match interrupts.wait(connecting, tell)? {
                Waited::Done(engine) => return Ok(Ok(engine?)),
                Waited::Interrupted(code) => return Ok(Err(code)),
                Waited::Gone => return Ok(Err(failure::OWN)),
                Waited::Late => {
                    tell = None;
                    let limit = short(self.connect_timeout.unwrap_or_default());
                    if !self.quiet {
                        anstream::eprintln!("tenure: the store is away; trying for up to {limit}");
                    }
                }
            }
        }
    }

    /// The store without a session.
    pub(crate) async fn engine(&self) -> Result<Arc<dyn Engine>, Failure> {
        let namespace = Namespace::try_from(self.namespace.as_str())?;
        let terms = Terms { namespace, max_lease: self.max_lease, clock: Arc::new(SystemClock) };
        if let Some(limit) = self.connect_timeout {
            return Ok(engine::connect_within(&self.url, terms, limit).await?);
        }
        let (began, mut tries) = (Instant::now(), 1);
        loop {
            // When a hundred processes start at once, the door may be too narrow for a moment. A
            // store that was silent for twice the time of a call has had its chance.
            let last = tries == limits::CLAIM_TRIES;
            let again =
                |error: &Error| !last && error.is_transient() && began.elapsed() < 2 * limits::CALL;
            match engine::connect(&self.url, terms.clone()).await {
                Err(error) if again(&error) => {
                    std::thread::sleep(Duration::from_millis(20 << tries));
                    tries += 1;
                }
                Err(error) => {
                    let failure = Failure::from(error);
                    return Err(if tries > 1 {
                        failure.after(tries, began.elapsed())
                    } else {
                        failure
                    });
                }
                Ok(engine) => return Ok(engine),
            }
        }
    }

    /// The store's scheme, for people: the rest of a URL may hold a password.
    pub(crate) fn scheme(&self) -> &str {
        self.url.split(':').next().unwrap_or_default()
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("scheme", &self.scheme())
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_never_shown() {
        let shared = Shared { url: Some("redis://u:secret@h".to_owned()), ..Shared::default() };
        let (settings, _) = Settings::new(&shared).unwrap();
        assert_eq!(settings.scheme(), "redis");
        assert!(!format!("{settings:?}").contains("secret"));
    }
}

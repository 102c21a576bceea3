//! Which store, and how to talk to it: flags, then environment, then profile, then defaults. Knows
//! where words come from.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::contract::Engine;
use tenure::engine::{self, Terms};
use tenure::time::SystemClock;
use tenure::{Builder, Error, Namespace, Tenure, limits};

use crate::args::{LockArgs, Shared};
use crate::config::Config;
use crate::failure::Failure;

/// The store of those who say nothing: this host, no server.
pub(crate) const DEFAULT_URL: &str = "embedded:";

/// Which store, and how to talk to it. Travels from `tenure run` to its guardian.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Settings {
    /// May hold a password: never shown.
    pub(crate) url: String,
    pub(crate) namespace: String,
    pub(crate) max_lease: Duration,
    pub(crate) op_timeout: Duration,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    /// How many replicas shall have a grant before it counts, and how long they have for that.
    pub(crate) replicas: Option<(u32, Duration)>,
}

/// How long replicas have for those who do not say.
const REPLICAS_WITHIN: Duration = Duration::from_millis(500);

impl Settings {
    /// Puts flags, environment, profile and defaults together.
    pub(crate) fn new(shared: &Shared) -> Result<(Self, Config), Failure> {
        let config = Config::load(shared.config.as_deref()).map_err(Failure::usage)?;
        let profile = config.profile(shared.profile.as_deref()).map_err(Failure::usage)?;
        let namespace = shared.namespace.clone().or(profile.namespace);
        let settings = Self {
            url: shared.url.clone().or(profile.url).unwrap_or_else(|| DEFAULT_URL.to_owned()),
            namespace: namespace.unwrap_or_else(|| Namespace::default().as_str().to_owned()),
            max_lease: shared.max_lease.or(profile.max_lease).unwrap_or(limits::DEFAULT_MAX_LEASE),
            op_timeout: shared.op_timeout.or(profile.op_timeout).unwrap_or(limits::CALL),
            quiet: shared.quiet,
            verbose: shared.verbose,
            replicas: None,
        };
        Ok((settings, config))
    }

    /// Adds what somebody who takes a lock says of replicas.
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

    /// A builder of sessions that says all this.
    pub(crate) fn builder(&self) -> Builder {
        let builder = Tenure::builder()
            .namespace(&self.namespace)
            .max_lease(self.max_lease)
            .call_limit(self.op_timeout);
        match self.replicas {
            Some((replicas, within)) => builder.replicas(replicas, within),
            None => builder,
        }
    }

    /// Works in a session with the store, for the process that people know. Afterwards nothing of
    /// the session stays behind.
    pub(crate) fn session<T>(
        &self,
        pid: u32,
        work: impl FnOnce(&Tenure) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let engine = self.engine()?;
        let tenure = self.builder().on_behalf_of(pid).open(Arc::clone(&engine))?;
        let done = work(&tenure);
        tenure::blocking::wait(tenure.close());
        drop(tenure);
        // The keeper lets go of the store on a thread of its own. If we ended before it did, the
        // session's files would stay; whoever has to hurry was told already.
        let pause = Duration::from_micros(100);
        for _ in 0..100 {
            if Arc::strong_count(&engine) == 1 {
                break;
            }
            std::thread::sleep(pause);
        }
        done
    }

    /// The store without a session, for claims that belong to no process.
    pub(crate) fn engine(&self) -> Result<Arc<dyn Engine>, Error> {
        let namespace = Namespace::try_from(self.namespace.as_str())?;
        let terms = Terms { namespace, max_lease: self.max_lease, clock: Arc::new(SystemClock) };
        let mut tries = 1;
        loop {
            // When a hundred processes start at once, the door may be too narrow for a moment.
            match tenure::blocking::wait(engine::connect(&self.url, terms.clone())) {
                Err(error) if error.is_retryable() && tries < limits::CLAIM_TRIES => {
                    std::thread::sleep(Duration::from_millis(20 << tries));
                    tries += 1;
                }
                opened => return opened,
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

//! The options of a lock, and the methods that set them. Knows limits, not sessions.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::owner::Owner;
use super::preset::{Preset, Presets};
use crate::contract::{
    About, Error, ErrorKind, Label, Lineage, OwnerId, Parts, Place, Shape, short,
};
use crate::limits;
use crate::session::{Ask, Core, Wait};

/// What a lock was told, or takes from its `Tenure`.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) lease: Duration,
    pub(super) wait: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) lock_delay: Duration,
    pub(super) label: Option<Label>,
    pub(super) owner: Option<Owner>,
    pub(super) presets: Arc<Presets>,
    /// The first mistake, told when the lock is asked for.
    pub(super) mistake: Option<Error>,
}

impl Options {
    pub(super) fn new(presets: Arc<Presets>) -> Self {
        Self {
            lease: limits::DEFAULT_LEASE,
            wait: None,
            max_hold: None,
            lock_delay: Duration::ZERO,
            label: None,
            owner: None,
            presets,
            mistake: None,
        }
    }

    pub(super) fn set_label(&mut self, text: &str) {
        match Label::try_from(text) {
            Ok(label) => self.label = Some(label),
            Err(error) => self.mistake(error),
        }
    }

    pub(super) fn set_preset(&mut self, name: &str) {
        match self.presets.get(name) {
            Ok(preset) => {
                let preset = preset.clone();
                self.apply(&preset);
            }
            Err(error) => self.mistake(error),
        }
    }

    pub(super) fn apply(&mut self, preset: &Preset) {
        self.lease = preset.lease;
        self.wait = preset.wait;
        self.max_hold = preset.max_hold;
        self.lock_delay = preset.lock_delay;
    }

    fn mistake(&mut self, error: Error) {
        self.mistake.get_or_insert(error);
    }

    /// Checks everything and makes the request for a session.
    pub(super) fn ask(
        &self,
        core: &Core,
        parts: Parts,
        may_wait: bool,
        place: &'static Location<'static>,
    ) -> Result<Ask, Error> {
        let checked = self.check(core, &parts, may_wait);
        checked.map_err(|error| error.on(parts.first_name()))?;
        let (lineage, scoped) = self.lineage();
        let wait = match (may_wait, self.wait) {
            (false, _) => Wait::Try,
            (true, Some(limit)) => Wait::Limit(limit),
            (true, None) => Wait::Unlimited,
        };
        let about = About {
            host: Arc::clone(core.host()),
            pid: core.pid(),
            place: Some(Place::Here(place)),
            label: self.label.clone(),
        };
        Ok(Ask {
            parts,
            lineage,
            scoped,
            lease: self.lease,
            wait,
            max_hold: self.max_hold,
            lock_delay: self.lock_delay,
            replaces: None,
            about,
        })
    }

    /// The owner that was given, or that of the surrounding scope, or one for this claim alone.
    fn lineage(&self) -> (Lineage, bool) {
        let owner = self.owner.clone().or_else(Owner::current);
        match owner {
            Some(owner) => (owner.lineage().clone(), true),
            None => (Lineage::root(OwnerId::new()), false),
        }
    }

    fn check(&self, core: &Core, parts: &Parts, may_wait: bool) -> Result<(), Error> {
        if let Some(mistake) = &self.mistake {
            return Err(mistake.clone());
        }
        let max_lease = core.settings().max_lease;
        between("lease", self.lease, limits::MIN_LEASE, max_lease)
            .map_err(|error| error.next("set max_lease on every client to allow longer leases"))?;
        if may_wait && let Some(wait) = self.wait {
            between("wait limit", wait, Duration::from_millis(1), limits::MAX_WAIT)
                .map_err(|error| error.next("use the try_ form for no wait, no limit for ever"))?;
        }
        if let Some(most) = self.max_hold {
            between("max_hold", most, Duration::from_millis(1), limits::MAX_HOLD)?;
        }
        between("lock_delay", self.lock_delay, Duration::ZERO, limits::MAX_LOCK_DELAY)?;
        promised(core, parts)
    }
}

/// Refuses what the engine does not promise, before it is asked.
fn promised(core: &Core, parts: &Parts) -> Result<(), Error> {
    let promises = core.engine().promises();
    let shapes = || parts.as_slice().iter().map(crate::contract::Part::shape);
    let missing = if !promises.sharing && shapes().any(|shape| shape == Shape::ReadWrite) {
        "read-write locks"
    } else if !promises.counting && shapes().any(|shape| matches!(shape, Shape::Semaphore(_))) {
        "semaphores"
    } else if !promises.atomic_sets && parts.as_slice().len() > 1 {
        "several locks in one step"
    } else {
        return Ok(());
    };
    let what = format!("the {} engine does not promise {missing}", promises.engine);
    Err(Error::new(ErrorKind::Unsupported, what).next("use an engine that does"))
}

pub(super) fn between(
    what: &str,
    value: Duration,
    least: Duration,
    most: Duration,
) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let text = format!("a {what} is {} to {}, not {value:?}", short(least), short(most));
    Err(Error::new(ErrorKind::InvalidOption, text))
}

/// The methods that set options, the same on every kind of lock.
macro_rules! option_methods {
    () => {
        /// How long the lock lives without a renewal: how soon a crashed holder is replaced.
        /// Default 30 s; at least 100 ms, at most the `max_lease` of the namespace.
        #[must_use]
        pub fn lease(mut self, lease: std::time::Duration) -> Self {
            self.options.lease = lease;
            self
        }

        /// How long to wait at most. Without it: until the lock is ours.
        #[must_use]
        pub fn wait(mut self, limit: std::time::Duration) -> Self {
            self.options.wait = Some(limit);
            self
        }

        /// Wait until the lock is ours, whatever a preset or default says.
        #[must_use]
        pub fn wait_forever(mut self) -> Self {
            self.options.wait = None;
            self
        }

        /// End the hold after this long, even if it could be renewed: a wedged holder then cannot
        /// keep the lock for ever.
        #[must_use]
        pub fn max_hold(mut self, most: std::time::Duration) -> Self {
            self.options.max_hold = Some(most);
            self
        }

        /// Keep the lock closed this long after a holder's lease ran out, for resources that cannot
        /// check fences. Never after a release.
        #[must_use]
        pub fn lock_delay(mut self, delay: std::time::Duration) -> Self {
            self.options.lock_delay = delay;
            self
        }

        /// A short text shown to whoever looks who holds or waits.
        #[must_use]
        pub fn label(mut self, label: &str) -> Self {
            self.options.set_label(label);
            self
        }

        /// Takes lease, wait limit, max hold and lock delay from a preset: `financial`, `cache`,
        /// `batch`, or one of your own.
        #[must_use]
        pub fn preset(mut self, name: &str) -> Self {
            self.options.set_preset(name);
            self
        }

        /// Claims for this owner, whatever the surrounding scope is.
        #[must_use]
        pub fn owner(mut self, owner: &$crate::primitives::Owner) -> Self {
            self.options.owner = Some(owner.clone());
            self
        }
    };
}
pub(super) use option_methods;

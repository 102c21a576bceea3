//! The options of a lock, and the methods that set them. Knows limits, not sessions.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::owner::Owner;
use super::preset::{Preset, Presets};
use crate::contract::{
    About, Conduct, Error, ErrorKind, Label, Lineage, OwnerId, Part, Parts, Place, Promises, Shape,
    short,
};
use crate::engine::built_in;
use crate::limits;
use crate::order::OrderChecker;
use crate::session::{AcquireRequest, Core, DeadlockMode, Wait};

/// What a lock was told, or takes from its `Tenure`.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// What was said explicitly wins over the preset, in whatever order they were said.
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Wait>,
    pub(super) max_hold: Option<Duration>,
    pub(super) lock_delay: Option<Duration>,
    preset: Option<Arc<Preset>>,
    pub(super) label: Option<Label>,
    pub(super) owner: Option<Owner>,
    pub(super) victim_priority: i8,
    pub(super) presets: Arc<Presets>,
    /// The order checker of the `Tenure`, if it has anything to check.
    pub(super) order: Option<OrderChecker>,
    pub(super) level: Option<Arc<str>>,
    /// The first mistake, told when the lock is asked for.
    pub(super) mistake: Option<Error>,
    /// The first option that was set on the lock itself, not on its `Tenure`: a part of a set must
    /// have none, because the set's options count.
    pub(super) set_on_lock: Option<&'static str>,
}

impl Options {
    pub(super) fn new(presets: Arc<Presets>) -> Self {
        Self {
            lease: None,
            wait: None,
            max_hold: None,
            lock_delay: None,
            preset: None,
            label: None,
            owner: None,
            victim_priority: 0,
            presets,
            order: None,
            level: None,
            mistake: None,
            set_on_lock: None,
        }
    }

    /// The options, to set one of them on the lock itself.
    pub(super) fn on_lock(&mut self, option: &'static str) -> &mut Self {
        self.set_on_lock.get_or_insert(option);
        self
    }

    pub(super) fn set_label(&mut self, text: &str) {
        match Label::try_from(text) {
            Ok(label) => self.label = Some(label),
            Err(error) => self.mistake(error),
        }
    }

    pub(super) fn set_victim_priority(&mut self, priority: i8) {
        let most = limits::VICTIM_PRIORITY;
        if (-most..=most).contains(&priority) {
            self.victim_priority = priority;
        } else {
            let what = format!("a victim priority is {} to {most}, not {priority}", -most);
            let help = "of the members of a deadlock, the one with the lowest is refused";
            self.mistake(Error::new(ErrorKind::InvalidOption, what).with_help(help));
        }
    }

    pub(super) fn set_preset(&mut self, name: &str) {
        match self.presets.get(name) {
            Ok(preset) => self.preset = Some(Arc::clone(preset)),
            Err(error) => self.mistake(error),
        }
    }

    pub(super) fn set_level(&mut self, level: &str) {
        let levels = self.order.as_ref().and_then(OrderChecker::levels);
        let found = levels.map_or_else(|| Err(no_levels()), |levels| levels.shared_name(level));
        match found {
            Ok(level) => self.level = Some(level),
            Err(error) => self.mistake(error),
        }
    }

    /// What holds after all: what was said, else the preset, else the default.
    fn resolved(&self) -> Resolved {
        let preset = self.preset.as_deref();
        let wait = preset.map(|preset| preset.wait.map_or(Wait::Unlimited, Wait::Limit));
        Resolved {
            lease: self.lease.or(preset.map(|p| p.lease)).unwrap_or(limits::DEFAULT_LEASE),
            wait: self.wait.or(wait).unwrap_or(Wait::Unlimited),
            max_hold: self.max_hold.or(preset.and_then(|preset| preset.max_hold)),
            lock_delay: self.lock_delay.or(preset.map(|p| p.lock_delay)).unwrap_or_default(),
        }
    }

    /// Whether a wait may time out.
    pub(super) fn has_timeout(&self) -> bool {
        matches!(self.resolved().wait, Wait::Limit(_))
    }

    fn mistake(&mut self, error: Error) {
        self.mistake.get_or_insert(error);
    }

    /// Checks everything and makes the request for a session.
    pub(super) fn ask(
        &self,
        core: &Core,
        parts: Parts,
        wait: Option<Wait>,
        place: &'static Location<'static>,
    ) -> Result<AcquireRequest, Error> {
        let mut resolved = self.resolved();
        resolved.wait = wait.unwrap_or(resolved.wait);
        let checked = self.check(&resolved, core, &parts);
        checked.map_err(|error| error.on(parts.first_name()))?;
        // The owner that was given, or that of the surrounding scope, or one for this claim alone.
        let owner = self.owner.clone().or_else(Owner::current);
        let conduct = self.conduct(core, owner.as_ref());
        let scoped = owner.is_some();
        let alone = || Lineage::root(OwnerId::new());
        let lineage = owner.map_or_else(alone, |owner| owner.lineage().clone());
        let about = About {
            host: Arc::clone(core.host()),
            pid: core.pid(),
            // The place in the code of a helper process would explain nothing.
            place: core.settings().pid.is_none().then_some(Place::Here(place)),
            label: self.label.clone(),
            conduct,
        };
        Ok(AcquireRequest {
            parts,
            lineage,
            scoped,
            lease: resolved.lease,
            wait: resolved.wait,
            max_hold: resolved.max_hold,
            lock_delay: resolved.lock_delay,
            replaces: None,
            about,
        })
    }

    /// How the deadlock detector treats the claim.
    fn conduct(&self, core: &Core, owner: Option<&Owner>) -> Conduct {
        let breaks = core.settings().deadlocks.mode == DeadlockMode::Break;
        Conduct {
            breakable: owner.is_some() && breaks,
            held_up: owner.map_or(0, Owner::waiting_parents),
            priority: self.victim_priority,
            flow: 0,
        }
    }

    fn check(&self, resolved: &Resolved, core: &Core, parts: &Parts) -> Result<(), Error> {
        if let Some(mistake) = &self.mistake {
            return Err(mistake.clone());
        }
        let max_lease = core.settings().max_lease;
        let long = resolved.lease > max_lease;
        let next = if long { "set max_lease on every client to allow longer leases" } else { "" };
        between("lease", resolved.lease, limits::MIN_LEASE, max_lease)
            .map_err(|error| if long { error.with_help(next) } else { error })?;
        if let Wait::Limit(wait) | Wait::TryFor(wait) = resolved.wait {
            between("timeout", wait, Duration::from_millis(1), limits::MAX_WAIT).map_err(
                |error| {
                    error.with_help("use the try_ form for no wait, no timeout to wait for ever")
                },
            )?;
        }
        if let Some(most) = resolved.max_hold {
            between("max_hold", most, Duration::from_millis(1), limits::MAX_HOLD)
                .map_err(|error| error.with_help("leave it out for no limit"))?;
        }
        between("lock_delay", resolved.lock_delay, Duration::ZERO, limits::MAX_LOCK_DELAY)?;
        promised(core, parts)
    }
}

/// Options after presets and defaults.
struct Resolved {
    lease: Duration,
    wait: Wait,
    max_hold: Option<Duration>,
    lock_delay: Duration,
}

/// Refuses what the engine does not promise, before it is asked.
fn promised(core: &Core, parts: &Parts) -> Result<(), Error> {
    type Promised = fn(&Promises) -> bool;
    let promises = core.engine().promises();
    let reads = parts.as_slice().iter().any(Part::is_shared);
    let counts = parts.as_slice().iter().any(|part| matches!(part.shape(), Shape::Semaphore(_)));
    let (missing, has): (_, Promised) = if reads && !promises.sharing {
        ("read-write locks", |promises| promises.sharing)
    } else if counts && !promises.counting {
        ("semaphores", |promises| promises.counting)
    } else {
        return Ok(());
    };
    Err(lacking(promises, missing, has))
}

/// The error for what the engine does not promise, with the engines that do.
pub(super) fn lacking(promises: &Promises, what: &str, has: fn(&Promises) -> bool) -> Error {
    let others: Vec<_> =
        built_in().into_iter().filter(|one| has(one)).map(|one| one.engine).collect();
    promises.lacks(what).with_help(format!("use an engine that does: {}", others.join(", ")))
}

fn no_levels() -> Error {
    Error::new(ErrorKind::InvalidOption, "this Tenure has no levels of locks")
        .with_help("declare them: Tenure::builder().levels(Levels::new([..])?)")
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
    let next = if value < least { "choose a longer one" } else { "choose a shorter one" };
    Err(Error::new(ErrorKind::InvalidOption, text).with_help(next))
}

/// The methods that set options, the same on every kind of lock; `without_owner` for what is not
/// re-entrant.
macro_rules! option_methods {
    () => {
        $crate::primitives::options::option_methods!(without_owner);

        /// Claims for this owner, whatever the surrounding scope is.
        pub fn owner(mut self, owner: &$crate::primitives::Owner) -> Self {
            self.options.on_lock("owner").owner = Some(owner.clone());
            self
        }
    };
    (without_owner) => {
        /// How long the lock lives without a renewal: how soon a crashed holder is replaced.
        /// Default 30 s; at least 100 ms, at most the `max_lease` of the namespace. To enter a lock
        /// again with another lease costs a call.
        pub fn lease(mut self, lease: std::time::Duration) -> Self {
            self.options.on_lock("lease").lease = Some(lease);
            self
        }

        /// How long to wait at most: the call then fails with `TimedOut`. Default: no timeout. The
        /// wait goes on while the store is away; without a timeout, until the store has not
        /// responded for one `max_lease`. For `None` instead of an error, see the `try_..._for`
        /// methods.
        pub fn timeout(mut self, limit: std::time::Duration) -> Self {
            self.options.on_lock("timeout").wait = Some($crate::session::Wait::Limit(limit));
            self
        }

        /// Wait without a timeout, whatever a preset or default says.
        pub fn no_timeout(mut self) -> Self {
            self.options.on_lock("no_timeout").wait = Some($crate::session::Wait::Unlimited);
            self
        }

        /// End the hold after this long, even if it could be renewed: a wedged holder then cannot
        /// keep the lock for ever. If the lock was entered again, this ends the inner guard alone.
        pub fn max_hold(mut self, most: std::time::Duration) -> Self {
            self.options.on_lock("max_hold").max_hold = Some(most);
            self
        }

        /// Keep the lock closed this long after a holder's lease ran out, for resources that cannot
        /// check fences. Never after a release.
        pub fn lock_delay(mut self, delay: std::time::Duration) -> Self {
            self.options.on_lock("lock_delay").lock_delay = Some(delay);
            self
        }

        /// A label shown by [`Tenure::inspect`](crate::Tenure::inspect), `tenure ls` and in error
        /// messages.
        pub fn label(mut self, label: &str) -> Self {
            self.options.on_lock("label").set_label(label);
            self
        }

        /// Who gives way in a deadlock: of its members, the wait with the lowest priority is
        /// refused. From -100 to 100, default 0.
        pub fn victim_priority(mut self, priority: i8) -> Self {
            self.options.on_lock("victim_priority").set_victim_priority(priority);
            self
        }

        /// Puts the lock on a level: it is refused with `Order` while a lock of the same or a lower
        /// level is held. Comes before the levels of patterns. See
        /// [`Levels`](crate::Levels) for an example.
        pub fn level(mut self, level: &str) -> Self {
            self.options.on_lock("level").set_level(level);
            self
        }

        /// Takes lease, timeout, max hold and lock delay from a preset: `financial`, `cache`,
        /// `batch`, or one of your own. What is set explicitly wins, before or after.
        pub fn preset(mut self, name: &str) -> Self {
            self.options.on_lock("preset").set_preset(name);
            self
        }
    };
}
pub(super) use option_methods;

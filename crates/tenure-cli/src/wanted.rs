//! Which lock is wanted: names, kind, patience, lease. Knows arguments and parts of claims, not who
//! asks.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::contract::Parts;
use tenure::{Error, Name, Part, limits};

use crate::args::LockArgs;
use crate::config::Config;
use crate::failure::Failure;

/// Which lock is wanted. Travels from `tenure run` to its guardian.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Wanted {
    /// At least one; the first is the one that was named first.
    pub(crate) names: Vec<String>,
    pub(crate) kind: Kind,
    pub(crate) patience: Patience,
    pub(crate) lease: Duration,
    pub(crate) lock_delay: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) label: Option<String>,
    /// The exit code if it is not obtained.
    pub(crate) conflict: u8,
    /// What a leader publishes.
    pub(crate) value: String,
    /// Who gives way in a deadlock.
    pub(crate) victim_priority: i8,
    /// How many owners above this one wait for the end of this process, see `run/nesting.rs`.
    pub(crate) waiting_parents: u8,
}

/// As what the names are taken.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Kind {
    Shared,
    Exclusive,
    Permit(u32),
    /// The leadership of an election.
    Leader,
}

/// How long to wait.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Patience {
    Try,
    Limit(Duration),
    Forever,
}

impl Wanted {
    /// What the arguments say; what they do not say, the preset; then the defaults.
    pub(crate) fn new(
        args: &LockArgs,
        max_hold: Option<Duration>,
        config: &Config,
    ) -> Result<Self, Failure> {
        let preset = args.preset.as_deref().map(|name| config.preset(name)).transpose();
        let preset = preset.map_err(Failure::usage)?;
        let preset = preset.as_ref();
        let wait = args.wait.or(preset.and_then(tenure::Preset::get_timeout));
        let patience = match wait {
            _ if args.no_wait => Patience::Try,
            Some(Duration::ZERO) => Patience::Try,
            Some(limit) => Patience::Limit(limit),
            None => Patience::Forever,
        };
        let kind = match args.slots {
            Some(slots) => Kind::Permit(slots),
            None if args.shared => Kind::Shared,
            None => Kind::Exclusive,
        };
        let lease = args.lease.or(preset.map(tenure::Preset::get_lease));
        let lock_delay = args.lock_delay.or(preset.map(tenure::Preset::get_lock_delay));
        let mut names = vec![args.name.clone()];
        names.extend(args.also.iter().cloned());
        let wanted = Self {
            names,
            kind,
            patience,
            lease: lease.unwrap_or(limits::DEFAULT_LEASE),
            lock_delay: lock_delay.unwrap_or_default(),
            max_hold: max_hold.or(preset.and_then(tenure::Preset::get_max_hold)),
            label: args.label.clone(),
            conflict: args.conflict_exit_code,
            value: String::new(),
            victim_priority: args.victim_priority,
            waiting_parents: 0,
        };
        // Mistakes are found before anything is started.
        wanted.parts()?;
        Ok(wanted)
    }

    /// The leadership of the election of that name.
    pub(crate) fn leadership(mut self, value: Option<&String>) -> Result<Self, Failure> {
        if self.patience == Patience::Try {
            return Err(Failure::usage("--elect waits: leave --wait out, or say how long"));
        }
        self.kind = Kind::Leader;
        self.value = value.cloned().unwrap_or_default();
        Ok(self)
    }

    /// The name that was named first.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map(String::as_str).unwrap_or_default()
    }

    /// What to ask a store for.
    pub(crate) fn parts(&self) -> Result<Parts, Error> {
        let part = |name: &String| {
            let name = Name::try_from(name.as_str())?;
            match self.kind {
                Kind::Shared => Ok(Part::read(name)),
                Kind::Exclusive | Kind::Leader => Ok(Part::write(name)),
                Kind::Permit(slots) => Part::permits(name, 1, slots),
            }
        };
        Parts::set(self.names.iter().map(part).collect::<Result<Vec<Part>, Error>>()?)
    }
}

impl Kind {
    /// The kind as one word, for `TENURE_MODE`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
            Self::Permit(_) => "permit",
            Self::Leader => "leader",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Command};

    fn wanted(line: &str) -> Result<Wanted, Failure> {
        let words = format!("tenure hold {line}");
        let Command::Hold(args) = Arguments::parse_from(words.split(' ')).command else {
            panic!("{words} is `tenure hold`")
        };
        Wanted::new(&args.lock, args.max_hold, &Config::default())
    }

    #[test]
    fn a_name_alone_is_a_mutex_that_waits_for_ever() {
        let wanted = wanted("reports").unwrap();
        assert_eq!(wanted.kind, Kind::Exclusive);
        assert_eq!(wanted.patience, Patience::Forever);
        assert_eq!(wanted.lease, Duration::from_secs(30));
    }

    #[test]
    fn kinds_and_patience_have_a_flag_each() {
        assert_eq!(wanted("a --shared").unwrap().kind, Kind::Shared);
        assert_eq!(wanted("a -x").unwrap().kind, Kind::Exclusive);
        assert_eq!(wanted("a --slots 3").unwrap().kind, Kind::Permit(3));
        assert_eq!(wanted("a -n").unwrap().patience, Patience::Try);
        assert_eq!(wanted("a -w 0").unwrap().patience, Patience::Try);
        let limit = Patience::Limit(Duration::from_millis(1_500));
        assert_eq!(wanted("a --wait 1.5").unwrap().patience, limit);
        assert_eq!(wanted("a --ttl 10s").unwrap().lease, Duration::from_secs(10));
    }

    #[test]
    fn what_is_said_wins_over_the_preset() {
        let wanted = wanted("a --preset financial --wait 1s").unwrap();
        assert_eq!(wanted.lease, Duration::from_secs(10));
        assert_eq!(wanted.patience, Patience::Limit(Duration::from_secs(1)));
        assert_eq!(wanted.max_hold, Some(Duration::from_secs(60)));
        assert_eq!(wanted.lock_delay, Duration::from_secs(5));
    }

    #[test]
    fn several_names_are_one_set_and_mistakes_are_found_early() {
        let set = wanted("b --also a --also b").unwrap().parts().unwrap();
        let names: Vec<_> = set.names().map(|name| name.as_str().to_owned()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(wanted("a --slots 0").is_err());
        assert!(wanted("a --preset nightly").is_err());
    }
}

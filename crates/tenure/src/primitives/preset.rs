//! Ready sets of options by name: three of ours, and the users' own. Knows values, not locks.
//!
//! | preset | lease | timeout | max hold | lock delay | for |
//! |---|---|---|---|---|---|
//! | `financial` | 10 s | 5 s | 1 min | 5 s | short work that must never overlap |
//! | `cache` | 5 s | 200 ms | 30 s | none | one process refills, the others go on |
//! | `batch` | 60 s | for ever | 12 h | none | long jobs that must not run twice |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::options::between;
use crate::contract::{Error, ErrorKind};
use crate::limits;

/// A named set of options.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// use tenure::{Preset, Tenure};
/// # tenure::block_on(async {
/// let lease = Duration::from_secs(20);
/// let nightly = Preset::new("nightly").lease(lease).max_hold(lease * 360);
/// let tenure = Tenure::builder().preset(nightly).connect("memory:").await?;
/// let guard = tenure.mutex("reports")?.preset("nightly").lock().await?;
/// # guard.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    pub(super) name: String,
    pub(super) lease: Duration,
    pub(super) wait: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) lock_delay: Duration,
    shortened_from: Option<Duration>,
}

impl Preset {
    /// A preset with the default options.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            lease: limits::DEFAULT_LEASE,
            wait: None,
            max_hold: None,
            lock_delay: Duration::ZERO,
            shortened_from: None,
        }
    }

    /// Short and strict: work that must never overlap and must fail rather than wait long.
    #[must_use]
    pub fn financial() -> Self {
        Self::new("financial")
            .lease(Duration::from_secs(10))
            .timeout(Duration::from_secs(5))
            .max_hold(Duration::from_secs(60))
            .lock_delay(Duration::from_secs(5))
    }

    /// Hardly any wait: one refills the cache, the others go on with what they have.
    #[must_use]
    pub fn cache() -> Self {
        Self::new("cache")
            .lease(Duration::from_secs(5))
            .timeout(Duration::from_millis(200))
            .max_hold(Duration::from_secs(30))
    }

    /// Long jobs that must not run twice.
    #[must_use]
    pub fn batch() -> Self {
        Self::new("batch")
            .lease(Duration::from_secs(60))
            .max_hold(Duration::from_secs(12 * 60 * 60))
    }

    /// The built-in presets.
    #[must_use]
    pub fn built_in() -> [Self; 3] {
        [Self::financial(), Self::cache(), Self::batch()]
    }

    /// The preset's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The timeout of a wait.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// The longest hold.
    #[must_use]
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.max_hold = Some(most);
        self
    }

    /// How long the lock stays closed after a holder's lease ran out.
    #[must_use]
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// The lease of the preset.
    #[must_use]
    pub fn get_lease(&self) -> Duration {
        self.lease
    }

    /// The timeout of the preset; `None` waits for ever.
    #[must_use]
    pub fn get_timeout(&self) -> Option<Duration> {
        self.wait
    }

    /// The longest hold of the preset; `None` is no limit.
    #[must_use]
    pub fn get_max_hold(&self) -> Option<Duration> {
        self.max_hold
    }

    /// The lock delay of the preset.
    #[must_use]
    pub fn get_lock_delay(&self) -> Duration {
        self.lock_delay
    }

    /// The lease that a built-in preset would have if the `max_lease` of the namespace were not
    /// shorter. `None` if it has its own lease.
    #[must_use]
    pub fn shortened_from(&self) -> Option<Duration> {
        self.shortened_from
    }

    /// The same preset in a namespace with this `max_lease`.
    #[must_use]
    pub fn shortened_to(mut self, max_lease: Duration) -> Self {
        if self.lease > max_lease {
            self.shortened_from = Some(self.lease);
            self.lease = max_lease;
        }
        self
    }

    /// Checks the values against their limits.
    fn check(&self) -> Result<(), Error> {
        let least = Duration::from_millis(1);
        let checks = [
            between("lease", self.lease, limits::MIN_LEASE, limits::MAX_LEASE),
            self.wait.map_or(Ok(()), |wait| between("timeout", wait, least, limits::MAX_WAIT)),
            self.max_hold.map_or(Ok(()), |hold| between("max_hold", hold, least, limits::MAX_HOLD)),
            between("lock_delay", self.lock_delay, Duration::ZERO, limits::MAX_LOCK_DELAY),
        ];
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(legal) {
            let what = format!("{:?} is no name for a preset", self.name);
            return Err(Error::new(ErrorKind::InvalidOption, what)
                .with_help("use up to 64 letters, digits, - and _"));
        }
        checks
            .into_iter()
            .collect::<Result<(), Error>>()
            .map_err(|error| error.within(&format!("preset {:?}", self.name)))
    }
}

/// All presets a `Tenure` knows.
#[derive(Clone, Debug)]
pub(super) struct Presets(BTreeMap<String, Arc<Preset>>);

impl Default for Presets {
    fn default() -> Self {
        let built_in = Preset::built_in().into_iter();
        Self(built_in.map(|preset| (preset.name.clone(), Arc::new(preset))).collect())
    }
}

impl Presets {
    pub(super) fn add(&mut self, preset: Preset) -> Result<(), Error> {
        preset.check()?;
        self.0.insert(preset.name.clone(), Arc::new(preset));
        Ok(())
    }

    /// The users' own presets must fit the longest lease of their namespace.
    pub(super) fn check(&self, max_lease: Duration) -> Result<(), Error> {
        let ready = Self::default();
        let own = self.0.values().filter(|preset| ready.0.get(&preset.name) != Some(*preset));
        let long = own.into_iter().find(|preset| preset.lease > max_lease);
        long.map_or(Ok(()), |preset| {
            let what = format!(
                "preset {:?} has a lease of {:?}, above the max_lease of {max_lease:?}",
                preset.name, preset.lease
            );
            let next = "shorten its lease, or set a longer max_lease on every client";
            Err(Error::new(ErrorKind::InvalidOption, what).with_help(next))
        })
    }

    /// Shortens the leases that are above `max_lease`. After [`check`](Self::check) these are only
    /// those of built-in presets, which must work in every namespace.
    pub(super) fn fit(&mut self, max_lease: Duration) {
        for preset in self.0.values_mut().filter(|preset| preset.lease > max_lease) {
            tracing::debug!(preset = preset.name, ?max_lease, "the lease of a preset is shortened");
            *preset = Arc::new(Preset::clone(preset).shortened_to(max_lease));
        }
    }

    /// All presets, by name.
    pub(super) fn all(&self) -> impl Iterator<Item = &Preset> {
        self.0.values().map(Arc::as_ref)
    }

    pub(super) fn get(&self, name: &str) -> Result<&Arc<Preset>, Error> {
        self.0.get(name).ok_or_else(|| {
            let known: Vec<_> = self.0.keys().map(String::as_str).collect();
            let what = format!("no preset is called {name:?}");
            Error::new(ErrorKind::InvalidOption, what)
                .with_help(format!("use one of: {}", known.join(", ")))
        })
    }
}

/// Presets from a TOML file.
#[cfg(feature = "config")]
pub(super) mod file {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::Duration;

    use serde::Deserialize;

    use super::Preset;
    use crate::contract::{Error, ErrorKind};

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        presets: BTreeMap<String, Lines>,
        /// Read by `LockOrder::from_file`.
        #[serde(default, rename = "order")]
        _order: serde::de::IgnoredAny,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Lines {
        lease: Option<String>,
        wait: Option<String>,
        max_hold: Option<String>,
        lock_delay: Option<String>,
    }

    /// Reads the presets of a file.
    pub(in crate::primitives) fn read(path: &Path) -> Result<Vec<Preset>, Error> {
        let text = std::fs::read_to_string(path).map_err(|cause| {
            invalid(path, &cause.to_string()).with_help("check the path").caused_by(cause)
        })?;
        parse(&text).map_err(|why| invalid(path, &why))
    }

    fn invalid(path: &Path, why: &str) -> Error {
        let what = format!("cannot read presets from {}: {why}", path.display());
        Error::new(ErrorKind::InvalidOption, what)
    }

    fn parse(text: &str) -> Result<Vec<Preset>, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        file.presets.into_iter().map(|(name, lines)| preset(&name, &lines)).collect()
    }

    fn preset(name: &str, lines: &Lines) -> Result<Preset, String> {
        let mut preset = Preset::new(name);
        let duration = |key: &str, text: &str| -> Result<Duration, String> {
            let parsed = humantime::parse_duration(text);
            parsed.map_err(|why| {
                format!("presets.{name}.{key} = {text:?}: {why}; write it as 500ms, 30s, 5m or 2h")
            })
        };
        if let Some(text) = &lines.lease {
            preset.lease = duration("lease", text)?;
        }
        match lines.wait.as_deref() {
            None | Some("forever") => {}
            Some(text) => preset.wait = Some(duration("wait", text)?),
        }
        if let Some(text) = &lines.max_hold {
            preset.max_hold = Some(duration("max_hold", text)?);
        }
        if let Some(text) = &lines.lock_delay {
            preset.lock_delay = duration("lock_delay", text)?;
        }
        Ok(preset)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_file_names_presets_with_units() {
            let text = "[presets.nightly]\nlease = \"20s\"\nwait = \"forever\"\nmax_hold = \"2h\"\n\
                        [presets.quick]\nlease = \"500ms\"\nwait = \"1s\"\nlock_delay = \"3s\"\n";
            let presets = parse(text).unwrap();
            let nightly = Preset::new("nightly")
                .lease(Duration::from_secs(20))
                .max_hold(Duration::from_secs(7_200));
            let quick = Preset::new("quick")
                .lease(Duration::from_millis(500))
                .timeout(Duration::from_secs(1))
                .lock_delay(Duration::from_secs(3));
            assert_eq!(presets, [nightly, quick]);
        }

        #[test]
        fn mistakes_in_the_file_are_named() {
            let cases = [
                ("[presets.a]\nleese = \"1s\"", "leese"),
                ("[presets.a]\nlease = \"30\"", "presets.a.lease"),
                ("[presets.a]\nlease = 30", "lease"),
                ("[presets.a]\nwait = \"-1s\"", "presets.a.wait"),
                ("[preset.a]\nlease = \"1s\"", "preset"),
                ("[presets.a]\nlease = \"1s\"\nlease = \"2s\"", "lease"),
                ("not toml", "1"),
            ];
            for (text, expected) in cases {
                let error = parse(text).unwrap_err();
                assert!(error.contains(expected), "{text:?}: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_presets_keep_their_own_limits() {
        for preset in Presets::default().0.values() {
            preset.check().unwrap();
        }
    }

    #[test]
    fn an_unknown_preset_names_the_known_ones() {
        let error = Presets::default().get("finacial").unwrap_err();
        assert!(error.to_string().contains("batch, cache, financial"), "{error}");
    }

    #[test]
    fn presets_outside_the_limits_are_refused_when_they_are_added() {
        let bad = [
            Preset::new("zero").lease(Duration::ZERO),
            Preset::new("long").lease(Duration::from_secs(100_000)),
            Preset::new("now").timeout(Duration::ZERO),
            Preset::new("never").max_hold(Duration::ZERO),
            Preset::new("slow").lock_delay(Duration::from_secs(100_000)),
            Preset::new("two words"),
            Preset::new(""),
        ];
        for preset in bad {
            let name = preset.name.clone();
            let error = Presets::default().add(preset).unwrap_err();
            assert!(error.to_string().contains(&name), "{error}");
        }
    }
}

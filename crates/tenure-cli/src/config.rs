//! The config file: profiles of stores, and presets of locks. Knows the file's words, not what
//! they do. Unknown keys are mistakes, and every mistake names its place.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use tenure::{LockOrder, Preset};

/// What a config file says.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The profile to use when none is named.
    profile: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
    #[serde(default)]
    presets: BTreeMap<String, PresetLines>,
    /// Read by the library: see `order`.
    #[serde(default, rename = "order")]
    _order: de::IgnoredAny,
    /// The text of the file, and the folder that files which it names are in.
    #[serde(skip)]
    source: (String, PathBuf),
    /// The longest lease of the namespace, to which built-in presets are shortened.
    #[serde(skip)]
    pub(crate) max_lease: Option<Duration>,
}

/// One store, with how to talk to it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    pub(crate) url: Option<String>,
    pub(crate) namespace: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) max_lease: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) op_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) close_timeout: Option<Duration>,
}

/// One preset: what is left out is the default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PresetLines {
    #[serde(default, deserialize_with = "duration")]
    lease: Option<Duration>,
    #[serde(default, deserialize_with = "patience")]
    wait: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    max_hold: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    lock_delay: Option<Duration>,
}

impl Config {
    /// Reads the file that was named, or the one at the usual place if there is one.
    pub(crate) fn load(named: Option<&Path>) -> Result<Self, String> {
        let Some(path) = named.map(Path::to_owned).or_else(usual_place) else {
            return Ok(Self::default());
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let parsed = Self::parse(&text);
                let mut config = parsed.map_err(|why| format!("{}: {why}", path.display()))?;
                let folder = path.parent().map(Path::to_owned).unwrap_or_default();
                config.source = (text, folder);
                let order = config.order().map(drop);
                order.map_err(|why| format!("{}: {why}", path.display()))?;
                Ok(config)
            }
            Err(error) if named.is_none() && is_absent(&error) => Ok(Self::default()),
            Err(error) => Err(format!("cannot read the config file {}: {error}", path.display())),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
    }

    /// The settings of the order checker.
    fn order(&self) -> Result<LockOrder, tenure::Error> {
        LockOrder::from_toml(&self.source.0, &self.source.1)
    }

    /// Where the settings of the order checker stand, if the file has any.
    pub(crate) fn order_source(&self) -> Option<(String, PathBuf)> {
        self.source.0.contains("[order").then(|| self.source.clone())
    }

    /// The profile that was named, or the file's own choice, or an empty one.
    pub(crate) fn profile(&self, named: Option<&str>) -> Result<Profile, String> {
        let Some(name) = named.or(self.profile.as_deref()) else { return Ok(Profile::default()) };
        self.profiles.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.profiles.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            format!("no profile is called {name:?}; the config file has: {known}")
        })
    }

    /// A preset of the file, or a built-in one.
    pub(crate) fn preset(&self, name: &str) -> Result<Preset, String> {
        let presets = self.presets();
        let names: Vec<String> = presets.iter().map(|preset| preset.name().to_owned()).collect();
        presets.into_iter().find(|preset| preset.name() == name).ok_or_else(|| {
            format!("no preset is called {name:?}; use one of: {}", names.join(", "))
        })
    }

    /// The built-in presets that the file does not replace, and those of the file.
    pub(crate) fn presets(&self) -> Vec<Preset> {
        let fit = |preset: Preset| match self.max_lease {
            Some(max_lease) => preset.shortened_to(max_lease),
            None => preset,
        };
        let built_in = Preset::built_in().into_iter();
        let built_in = built_in.filter(|preset| !self.presets.contains_key(preset.name()));
        let own = self.presets.iter().map(|(name, lines)| lines.preset(name));
        built_in.map(fit).chain(own).collect()
    }

    /// How many profiles and presets there are, for people.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.profiles.len(), self.presets.len())
    }
}

impl PresetLines {
    fn preset(&self, name: &str) -> Preset {
        let mut preset = Preset::new(name).lock_delay(self.lock_delay.unwrap_or_default());
        if let Some(lease) = self.lease {
            preset = preset.lease(lease);
        }
        if let Some(wait) = self.wait {
            preset = preset.timeout(wait);
        }
        if let Some(max_hold) = self.max_hold {
            preset = preset.max_hold(max_hold);
        }
        preset
    }
}

/// Where the file is looked for when none is named.
pub(crate) fn usual_place() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(home.join("tenure/config.toml"))
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    let parsed = humantime::parse_duration(&text);
    parsed.map(Some).map_err(|why| {
        de::Error::custom(format!("{text:?}: {why}; write it as 500ms, 30s, 5m or 2h"))
    })
}

/// As a duration, or `forever`.
fn patience<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    if text == "forever" {
        return Ok(None);
    }
    duration(de::value::StringDeserializer::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
        profile = \"staging\"

        [profiles.staging]
        url = \"embedded:///var/lib/staging\"
        namespace = \"staging\"

        [profiles.production]
        max_lease = \"5m\"
        op_timeout = \"500ms\"
        close_timeout = \"1s\"

        [presets.nightly]
        lease = \"20s\"
        wait = \"forever\"
        max_hold = \"2h\"
        lock_delay = \"10s\"
    ";

    #[test]
    fn a_file_names_profiles_and_presets() {
        let config = Config::parse(FILE).unwrap();
        assert_eq!(config.profile(None).unwrap().namespace.as_deref(), Some("staging"));
        let production = config.profile(Some("production")).unwrap();
        assert_eq!(production.max_lease, Some(Duration::from_secs(300)));
        assert_eq!(production.close_timeout, Some(Duration::from_secs(1)));
        assert_eq!(production.url, None);
        let nightly = Preset::new("nightly")
            .lease(Duration::from_secs(20))
            .max_hold(Duration::from_secs(7_200))
            .lock_delay(Duration::from_secs(10));
        assert_eq!(config.preset("nightly").unwrap(), nightly);
        assert_eq!(config.preset("cache").unwrap(), Preset::cache());
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, expected) in [
            ("[profiles.a]\nulr = \"memory:\"", "ulr"),
            ("[profile.a]\nurl = \"memory:\"", "profile"),
            ("[presets.a]\nlease = 30", "line 2"),
            ("[presets.a]\nlease = \"30\"", "500ms"),
            ("[presets.a]\nleese = \"30s\"", "leese"),
            ("colour = true", "colour"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn what_is_not_there_is_answered_with_what_is() {
        let config = Config::parse(FILE).unwrap();
        let error = config.profile(Some("prod")).unwrap_err();
        assert!(error.contains("production, staging"), "{error}");
        let error = config.preset("nigthly").unwrap_err();
        assert!(error.contains("financial, cache, batch, nightly"), "{error}");
    }

    #[test]
    fn a_file_that_was_named_must_be_there() {
        let error = Config::load(Some(Path::new("/nonexistent/tenure.toml"))).unwrap_err();
        assert!(error.contains("/nonexistent/tenure.toml"), "{error}");
    }
}

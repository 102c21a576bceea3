//! The table `[order]` of a TOML file: mode, levels, templates, silenced edges. Unknown keys are
//! mistakes. Other tables of the file belong to others, and are skipped.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::levels::Levels;
use super::settings::{LockOrder, OrderMode};
use super::silence::SilencedEdges;
use crate::contract::{Error, ErrorKind};

#[derive(Deserialize)]
struct OrderFile {
    #[serde(default)]
    order: OrderTable,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderTable {
    mode: Option<String>,
    service: Option<String>,
    build: Option<String>,
    #[serde(default)]
    levels: Vec<String>,
    /// Patterns of names, and their levels.
    #[serde(default)]
    names: BTreeMap<String, String>,
    /// Templates of classes.
    #[serde(default)]
    classes: Vec<String>,
    /// The file of silenced edges, beside this one.
    silenced: Option<String>,
    shared: Option<bool>,
    long_hold: Option<String>,
}

impl LockOrder {
    /// The settings in the table `[order]` of a TOML file; the defaults if it has none:
    ///
    /// ```toml
    /// [order]
    /// mode = "warn"                  # off, warn or deny
    /// service = "billing"
    /// build = "2.4.1"                # default: the build id of the executable file
    /// levels = ["system", "region", "account", "transaction"]
    /// classes = ["tenant:*:export"]  # templates of names
    /// silenced = "order.silenced"    # a file beside this one
    /// long_hold = "1m"
    ///
    /// [order.names]
    /// "account:*" = "account"        # the level of names; of several patterns, the longest
    /// ```
    ///
    /// # Errors
    /// `InvalidOption` if the file cannot be read, or has a mistake: unknown keys are mistakes too.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::new(ErrorKind::InvalidOption, format!("cannot read {shown}: {error}"))
                .with_help("name a file that exists")
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::from_toml(&text, folder).map_err(|error| error.within(&shown))
    }

    /// The settings in the table `[order]` of a TOML text. Files that it names are in `folder`.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub fn from_toml(text: &str, folder: &Path) -> Result<Self, Error> {
        let mistake = |what: String| {
            Error::new(ErrorKind::InvalidOption, what).with_help("correct the table [order]")
        };
        let file: OrderFile =
            toml::from_str(text).map_err(|error| mistake(error.to_string().trim().to_owned()))?;
        let table = file.order;
        let mode = table.mode.as_deref().map(str::parse).transpose()?;
        let mut order = Self::new(mode.unwrap_or(OrderMode::Off));
        if !table.levels.is_empty() {
            let mut levels = Levels::new(&table.levels)?;
            // A table has no order of its own: the longer pattern is the more exact one.
            let mut names: Vec<_> = table.names.iter().collect();
            names.sort_by_key(|(pattern, _)| (std::cmp::Reverse(pattern.len()), *pattern));
            for (pattern, level) in names {
                levels = levels.names(pattern, level)?;
            }
            order = order.levels(levels);
        } else if !table.names.is_empty() {
            return Err(mistake("[order.names] needs `levels`".to_owned()));
        }
        order = order.classes(table.classes);
        if let Some(service) = table.service {
            order = order.service(service);
        }
        if let Some(build) = table.build {
            order = order.build(build);
        }
        if let Some(file) = table.silenced {
            order = order.silenced(SilencedEdges::from_file(folder.join(file))?);
        }
        if table.shared == Some(false) {
            order = order.not_shared();
        }
        if let Some(text) = table.long_hold {
            order = order.long_hold(duration(&text).map_err(mistake)?);
        }
        Ok(order)
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|why| format!("long_hold {text:?}: {why}; write it as 500ms, 30s, 5m or 2h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_sets_everything_and_other_tables_are_skipped() {
        let text = "
            [presets.nightly]
            lease = \"20s\"

            [order]
            mode = \"deny\"
            service = \"billing\"
            levels = [\"system\", \"account\"]
            classes = [\"tenant:*:export\"]
            long_hold = \"1m\"
            shared = false

            [order.names]
            \"*\" = \"system\"
            \"account:*\" = \"account\"
        ";
        let order = LockOrder::from_toml(text, Path::new("")).unwrap();
        assert_eq!(order.mode, OrderMode::Deny);
        assert_eq!(order.long_hold, Some(Duration::from_secs(60)));
        assert!(!order.shared);
        let levels = order.levels.unwrap();
        let level = |name: &str| levels.level_of(None, &name.parse().unwrap());
        assert_eq!((level("account:1"), level("other")), (Some(1), Some(0)));
        let none = LockOrder::from_toml("", Path::new("")).unwrap();
        assert!(none.is_idle());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("[order]\nmode = \"loud\"", "off, warn or deny"),
            ("[order]\nmood = \"warn\"", "mood"),
            ("[order]\nlong_hold = \"5\"", "500ms"),
            ("[order]\nlevels = [\"a\", \"a\"]", "twice"),
            ("[order]\nlevels = [\"a\"]\n[order.names]\nx = \"b\"", "no level is called \"b\""),
            ("[order.names]\nx = \"b\"", "needs `levels`"),
            ("[order]\nsilenced = \"/nonexistent\"", "/nonexistent"),
        ] {
            let error = LockOrder::from_toml(text, Path::new("")).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}

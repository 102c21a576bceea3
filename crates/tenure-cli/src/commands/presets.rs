//! `tenure presets`: the built-in presets and those of the config file, as rows of a table. Needs
//! no store: a preset is checked against the `max_lease` of the settings.

use std::io::Write;
use std::time::Duration;

use serde::Serialize;
use tenure::Preset;
use tenure::contract::short;

use crate::args::OutputArg;
use crate::config::Config;
use crate::failure::Failure;
use crate::output::{self, millis};

/// `tenure presets`.
pub(super) fn show(config: &Config, form: OutputArg, out: &mut impl Write) -> Result<u8, Failure> {
    let rows: Vec<Row> = config.presets().iter().map(Row::new).collect();
    output::list(form, "presets", &rows, out)?;
    Ok(0)
}

/// One preset. Durations are in milliseconds; what has no limit is null.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    lease_ms: u64,
    wait_ms: Option<u64>,
    max_hold_ms: Option<u64>,
    lock_delay_ms: u64,
    shortened_from_ms: Option<u64>,
}

impl Row {
    fn new(preset: &Preset) -> Self {
        Self {
            name: preset.name().to_owned(),
            lease_ms: millis(preset.get_lease()),
            wait_ms: preset.get_timeout().map(millis),
            max_hold_ms: preset.get_max_hold().map(millis),
            lock_delay_ms: millis(preset.get_lock_delay()),
            shortened_from_ms: preset.shortened_from().map(millis),
        }
    }
}

impl output::Row for Row {
    const HEAD: &'static [&'static str] = &["PRESET", "LEASE", "WAIT", "MAX HOLD", "LOCK DELAY"];
    const NARROW: usize = Self::HEAD.len();

    fn cells(&self) -> Vec<String> {
        let time = |ms: u64| short(Duration::from_millis(ms));
        let lease = match self.shortened_from_ms {
            Some(own) => format!("{} (of {}, by max_lease)", time(self.lease_ms), time(own)),
            None => time(self.lease_ms),
        };
        let limit = |ms: Option<u64>, none: &str| ms.map_or_else(|| none.to_owned(), time);
        let delay = Some(self.lock_delay_ms).filter(|ms| *ms > 0);
        vec![
            self.name.clone(),
            lease,
            limit(self.wait_ms, "forever"),
            limit(self.max_hold_ms, "no limit"),
            limit(delay, "none"),
        ]
    }
}

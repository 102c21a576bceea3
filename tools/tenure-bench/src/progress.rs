//! The progress line. Knows whether somebody watches, not what is measured.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A line on standard error that says what runs now; nothing if standard error is no terminal.
///
/// It never ticks by itself: a thread that draws would disturb what is measured.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(benches: usize) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { bar: None };
        }
        let bar = ProgressBar::new(u64::try_from(benches).unwrap_or(u64::MAX));
        if let Ok(style) = ProgressStyle::with_template("[{pos}/{len}] {msg}") {
            bar.set_style(style);
        }
        Self { bar: Some(bar) }
    }

    /// The next benchmark begins.
    pub(crate) fn begin(&self, names: &[&str]) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
            bar.set_prefix(names.join(", "));
            bar.set_message(names.join(", "));
        }
    }

    /// `done` of `all` steps of the benchmark are behind us. Call it between measurements.
    pub(crate) fn step(&self, done: u32, all: u32) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {done} of {all}", bar.prefix()));
        }
    }

    /// Does something that writes lines of its own.
    pub(crate) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

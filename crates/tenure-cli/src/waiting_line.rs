//! The line on standard error while we wait: who holds, since when, and our place. Knows words and
//! the terminal, not the store.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use tenure::contract::{About, SlotView, WaiterView, short};

use crate::settings::Settings;

/// How long a wait may be before the line is shown, and how often the line is updated.
const PACE: Duration = Duration::from_secs(1);

/// A line that is written over, only on a terminal.
#[derive(Debug)]
pub(crate) struct WaitingLine {
    name: String,
    began: Instant,
    due: Option<Instant>,
    shown: bool,
    verbose: bool,
}

impl WaitingLine {
    pub(crate) fn new(name: &str, settings: &Settings) -> Self {
        let began = Instant::now();
        let wanted = !settings.quiet && io::stderr().is_terminal();
        let due = wanted.then_some(began + PACE);
        Self { name: name.to_owned(), began, due, shown: false, verbose: settings.verbose }
    }

    /// When to inspect next; never if the line would not be shown.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Brings the line up to date.
    pub(crate) fn show(&mut self, slot: Option<&SlotView>, is_me: impl Fn(&WaiterView) -> bool) {
        if self.due.is_none() {
            return;
        }
        self.due = Some(Instant::now() + PACE);
        let text = describe(&self.name, slot, is_me);
        self.shown = true;
        let mut stderr = io::stderr().lock();
        let _ = write!(stderr, "\r\x1b[K{text}");
        let _ = stderr.flush();
    }

    /// Removes the line. With `--verbose` prints how long the wait took.
    pub(crate) fn clear(&mut self, obtained: bool) {
        self.due = None;
        let mut stderr = io::stderr().lock();
        if self.shown {
            let _ = write!(stderr, "\r\x1b[K");
        }
        if self.verbose && obtained {
            let waited = short(self.began.elapsed());
            let _ = writeln!(stderr, "tenure: {}: obtained after {waited}", self.name);
        }
        let _ = stderr.flush();
        self.shown = false;
    }
}

/// The sentence.
fn describe(name: &str, slot: Option<&SlotView>, is_me: impl Fn(&WaiterView) -> bool) -> String {
    let Some(slot) = slot else { return format!("waiting for {name}") };
    let shown = slot.name.user_part();
    let mut words = vec![format!("waiting for {shown}")];
    if let Some(holder) = slot.holders.first() {
        let About { host, pid, label, .. } = &holder.about;
        words.push(format!(": held by {host}:{pid}"));
        words.extend(label.as_ref().map(|label| format!(" '{label}'")));
        words.push(format!(" for {}", short(holder.held_for)));
        let more = slot.holders.len() - 1;
        words.extend((more > 0).then(|| format!(" and {more} more")));
    } else if let Some(closed) = slot.closed_for {
        words.push(format!(": closed for another {} after a crash", short(closed)));
    }
    let place = slot.queue.iter().position(is_me);
    words.extend(place.map(|at| format!(", you are {}", ordinal(at + 1))));
    words.concat()
}

fn ordinal(number: usize) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_as_people_say_them() {
        let said = [1, 2, 3, 4, 11, 12, 13, 21, 102, 112].map(ordinal);
        assert_eq!(
            said,
            ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "112th"]
        );
    }
}

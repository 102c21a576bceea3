//! A deadlock in plain words: one sentence for each member, the same in errors, logs and reports.

use std::fmt::Write;

use super::{Deadlock, DeadlockMember};
use crate::contract::short;
use crate::limits;

impl Deadlock {
    /// Who holds what since when, and waits for what since when. At most
    /// [`limits::NAMED_MEMBERS`] members are named.
    #[must_use]
    pub fn words(&self) -> String {
        let mut text = String::new();
        let named = self.members.iter().take(limits::NAMED_MEMBERS);
        for (at, member) in named.enumerate() {
            let sentence = self.sentence(at, member);
            // Labels and names may be long: what does not fit is counted.
            if text.len() + sentence.len() + 64 > limits::DEADLOCK_WORDS {
                let left = self.members.len() - at;
                let _ = write!(text, "; and {left} more");
                return text;
            }
            text.push_str(if at == 0 { "" } else { "; " });
            text.push_str(&sentence);
        }
        if self.members.len() > limits::NAMED_MEMBERS {
            let _ = write!(text, "; and {} more", self.members.len() - limits::NAMED_MEMBERS);
        }
        text
    }

    /// Why no wait is refused, and what to do so that one is. `None` if one is.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        if self.by_database {
            return Some(
                "it goes through a lock of the database, so no wait is refused: take Tenure's \
                 locks before those of the database, or set a lock_timeout",
            );
        }
        match (self.by_task, self.by_nesting) {
            (true, _) => Some(
                "run each flow in a scope, so that the deadlock can be broken, or take the locks \
                 at once as a set",
            ),
            (false, true) => Some(
                "the outer owner may be doing something else meanwhile, so no wait is refused: \
                 take all locks in one scope, let `tenure run` run the inner `tenure run` itself \
                 (without a shell, or with exec), or take the locks at once as a set",
            ),
            (false, false) if self.victim.is_none() => Some(
                "none of these waits may be refused (their sessions observe, or look for no \
                 deadlocks): take the locks at once as a set, or in one order",
            ),
            (false, false) => None,
        }
    }

    /// One member: who it is, what it holds that others wait for, what it waits for.
    fn sentence(&self, at: usize, member: &DeadlockMember) -> String {
        let mut text = member.about.to_string();
        for (nth, hold) in member.holds.iter().enumerate() {
            let (first, since) = (if nth == 0 { " holds " } else { ", " }, short(hold.held_for));
            let _ = write!(text, "{first}\"{}\" for {since}", hold.name.shown());
        }
        let and = if member.holds.is_empty() { "" } else { " and" };
        match &member.wait {
            Some(wait) => {
                let waited = short(wait.waited_for);
                let _ = write!(text, "{and} waits for \"{}\" for {waited}", wait.name.shown());
            }
            None if member.outside.is_some() => {
                let what = member.outside.as_deref().unwrap_or_default();
                let _ = write!(text, "{and} waits for {what}");
            }
            // Whether it does nothing meanwhile is not known: say only what is.
            None if self.by_nesting => {
                let _ = write!(text, "{and} has an owner nested in it that waits");
            }
            None => {
                let _ = write!(text, "{and} waits for its child process");
            }
        }
        if self.victim == Some(at) {
            text.push_str(" (refused)");
        }
        text
    }
}

//! A `tenure run` whose command is itself a `tenure run`: the outer one does nothing until the
//! inner
//! one has ended. The deadlock detector has to know that, because the outer one holds a lock and
//! waits for none.
//!
//! The guardian puts its own process id into the environment of its command, and how many owners
//! wait for the command's end. The inner `tenure run` counts them only if that process is its
//! parent: below a shell, which may run something else meanwhile, it counts none.

use nix::unistd::getppid;

/// The variable: "PID COUNT".
const VARIABLE: &str = "TENURE_RUN";

/// How many owners above this process wait for its end.
pub(super) fn waiting_parents() -> u8 {
    let value = std::env::var(VARIABLE).unwrap_or_default();
    let mut words = value.split(' ');
    let parent = words.next().and_then(|pid| pid.parse::<i32>().ok());
    let count = words.next().and_then(|count| count.parse().ok());
    if parent == Some(getppid().as_raw()) { count.unwrap_or(0) } else { 0 }
}

/// The variable for the command of this guardian.
pub(super) fn for_child(waiting_parents: u8) -> (&'static str, String) {
    (VARIABLE, format!("{} {}", std::process::id(), waiting_parents.saturating_add(1)))
}

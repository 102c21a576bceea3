//! The tables in the docs are what the code says.

use tenure::contract::{DeadlockHandling, Fencing, Promises, Survives, Wake};
use tenure::engine;

const README: &str = include_str!("../../../README.md");
const CELLS: &str = include_str!("../../../docs/cells.md");
const GUIDE: &str = include_str!("../../../docs/guide.md");

/// The README's row for an engine, all but the column that says what it is for.
fn row(promises: &Promises) -> String {
    let yes = |promised: bool| if promised { "yes" } else { "no" };
    let fences = match promises.fencing {
        Fencing::Strict => "always grow",
        Fencing::ClockBounded => "grow; after a loss of memory as far as clocks agree",
    };
    let wake = match promises.wake {
        Wake::Push => "pushed",
        Wake::Poll => "polled",
    };
    let deadlocks = match promises.deadlocks {
        DeadlockHandling::Broken => "broken",
        DeadlockHandling::Reported => "reported",
        DeadlockHandling::Unseen => "not seen",
    };
    let survives: Vec<_> = promises.survives.iter().copied().map(survives).collect();
    let survives = if survives.is_empty() { "nothing".to_owned() } else { survives.join(", ") };
    [
        fences,
        yes(promises.queue),
        yes(promises.sharing && promises.counting),
        yes(promises.atomic_sets),
        deadlocks,
        wake,
        &survives,
    ]
    .join(" | ")
}

fn survives(what: Survives) -> String {
    let text = match what {
        Survives::ClientCrash => "another client's crash",
        Survives::StoreRestart => "a restart of the store",
        Survives::PowerLoss => "a loss of power",
        Survives::NodeLoss => "the loss of a minority of nodes",
        other => panic!("{other:?} has no words yet"),
    };
    text.to_owned()
}

#[test]
fn the_readme_says_of_each_engine_what_the_engine_says_of_itself() {
    for promises in engine::built_in() {
        let start = format!("| {} |", promises.engine);
        let line = README.lines().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("the README has no row for {}", promises.engine));
        // After the engine's name and what it is for.
        let said = line.splitn(3, " | ").nth(2).unwrap_or_default().trim_end_matches(" |");
        assert_eq!(said, row(promises), "of {}", promises.engine);
    }
}

#[test]
fn the_page_of_cells_says_what_a_list_rests_on() {
    for promises in engine::built_in().into_iter().filter(|promises| promises.cells) {
        let start = format!("| {} |", promises.engine);
        let line = CELLS.lines().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("no row for {}", promises.engine));
        let end = format!("| {} |", promises.lists_rest_on);
        assert!(line.ends_with(&end) && !promises.lists_rest_on.is_empty(), "{line}");
    }
}

#[test]
fn the_guide_tells_the_default_lease_and_the_longest_one() {
    let seconds = tenure::limits::DEFAULT_LEASE.as_secs();
    assert!(GUIDE.contains(&format!("| `lease` | {seconds} s |")));
    let seconds = tenure::limits::DEFAULT_MAX_LEASE.as_secs();
    assert!(GUIDE.contains(&format!("(default {seconds} s)")));
}

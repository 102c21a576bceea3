//! A hundred processes that append to one file under one lock: nothing is interleaved and fences
//! only grow, also when a quarter of them are killed on the way.

mod common;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Place, Running, eventually};
use rustix::process::Signal;

/// Appends in pieces, so that two at once would show. `begin` and `end` frame what one has written.
const APPEND: &str = "\
    echo \"begin $TENURE_FENCE\" >> log
    for piece in 1 2 3; do echo \"$TENURE_FENCE $piece\" >> log; done
    sleep 0.00$(( $$ % 10 ))
    echo \"end $TENURE_FENCE\" >> log";

/// One crowd at a time is enough for a small machine.
static ROOM: Mutex<()> = Mutex::new(());

fn crowd(place: &Place, size: usize) -> Vec<Running> {
    (0..size).map(|_| place.start(&["run", "x", "--kill-after", "100ms", "-c", APPEND])).collect()
}

/// The fences in the order in which they wrote, each with whether it came to its end.
fn written(log: &str) -> Vec<(u64, bool)> {
    let mut seen: Vec<(u64, bool)> = Vec::new();
    let mut open: Option<u64> = None;
    for line in log.lines() {
        let (word, rest) = line.split_once(' ').expect("two words");
        match word {
            "begin" => {
                let fence = rest.parse().expect("a fence");
                open = Some(fence);
                seen.push((fence, false));
            }
            "end" => {
                let fence = rest.parse().expect("a fence");
                assert_eq!(open.take(), Some(fence), "an end without a beginning");
                seen.last_mut().expect("a beginning").1 = true;
            }
            fence => assert_eq!(open, fence.parse().ok(), "{line:?} stands between others"),
        }
    }
    seen
}

fn grow(fences: &[(u64, bool)]) {
    let falls = fences.windows(2).find(|pair| pair[0].0 >= pair[1].0);
    assert!(falls.is_none(), "fences must grow: {falls:?}");
}

#[test]
fn a_hundred_processes_write_one_after_the_other() {
    let _alone = ROOM.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::embedded();
    for mut running in crowd(&place, 100) {
        assert_eq!(running.ends(), 0);
    }
    let written = written(&place.read("log"));
    assert_eq!(written.len(), 100);
    assert!(written.iter().all(|(_, ended)| *ended));
    grow(&written);
}

#[test]
fn a_hundred_processes_of_which_a_quarter_is_killed() {
    let _alone = ROOM.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::embedded();
    let mut crowd = crowd(&place, 100);
    // Killed one after the other, while some wait, some write, and some have written.
    for running in crowd.iter().step_by(4) {
        std::thread::sleep(Duration::from_millis(15));
        let _ = rustix::process::kill_process(running.pid(), Signal::KILL);
    }
    for (at, running) in crowd.iter_mut().enumerate() {
        let code = running.ends();
        assert!(code == 0 || (at % 4 == 0 && code == -1), "number {at} exits with {code}");
    }
    eventually("all is free", || place.code(&["show", "x"]) == 1);
    let written = written(&place.read("log"));
    assert!(written.len() >= 75, "{}", written.len());
    let ended = written.iter().filter(|(_, ended)| *ended).count();
    assert!(ended >= 75, "{ended} of those that were not killed came to their end");
    grow(&written);
}

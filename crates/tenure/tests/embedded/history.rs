//! What each process of a run writes down as it happens, so that a killed one leaves it behind; and
//! how it becomes one history for the auditor.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::conformance::audit::{History, HistoryEntry, Recorder, Rules, Verdicts, What, judge};
use tenure::contract::{Claim, ClaimId};

use tenure::time::{Clock, SystemClock, Tick};
use tenure::{Event, LockStatus, Witness};

/// Writes every event to a file of this process at once.
#[derive(Debug)]
pub(crate) struct Diary(Mutex<File>);

impl Diary {
    pub(crate) fn of_this_process(directory: &Path) -> Arc<Self> {
        let path = file_of(directory, std::process::id());
        Arc::new(Self(Mutex::new(File::create_new(path).unwrap())))
    }

    /// Notes that a holder acts now. Whether it may.
    pub(crate) fn used(&self, held: &LockStatus) -> bool {
        let recorder = Recorder::new(Arc::new(SystemClock));
        let mut file = self.0.lock().unwrap();
        let may = recorder.used(held);
        write(&mut file, &recorder);
        may
    }
}

impl Witness for Diary {
    fn on_event(&self, claim: &Arc<Claim>, at: Tick, event: &Event) {
        // A recorder for one event.
        let recorder = Recorder::new(Arc::new(SystemClock));
        let mut file = self.0.lock().unwrap();
        recorder.on_event(claim, at, event);
        write(&mut file, &recorder);
    }
}

fn write(file: &mut File, recorder: &Recorder) {
    file.write_all(recorder.history().to_string().as_bytes()).unwrap();
}

fn file_of(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("history-{pid}"))
}

/// When processes were killed, as read just before.
#[derive(Debug, Default)]
pub(crate) struct Deaths(BTreeMap<u32, Tick>);

impl Deaths {
    pub(crate) fn about_to_kill(&mut self, pid: u32) {
        self.0.insert(pid, SystemClock.now());
    }
}

/// Judges what the processes of a run left in this directory.
pub(crate) fn judge_all(directory: &Path, deaths: &Deaths) -> Verdicts {
    let mut histories = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let Some(pid) = name.strip_prefix("history-") else { continue };
        let history: History = fs::read_to_string(entry.path()).unwrap().parse().unwrap();
        match deaths.0.get(&pid.parse().unwrap()) {
            None => histories.push(history),
            Some(killed) => histories.push(with_its_end(&history, *killed)),
        }
    }
    let wake_within = Duration::from_secs(5);
    let rules = Rules { queue: true, wake_within, lossy: false, at_rest: true };
    judge(&History::merge(histories), &rules)
}

/// What a killed process held and waited for ended with it. It may have gone on for a moment after
/// the signal was sent, as its last line tells.
fn with_its_end(history: &History, killed: Tick) -> History {
    let mut entries = history.entries().to_vec();
    // Just after the last line, which may tell of a use.
    let end = entries.last().map_or(killed, |last| killed.max(last.at + Duration::from_nanos(1)));
    let mut open: HashSet<ClaimId> = HashSet::new();
    let mut answered: HashSet<ClaimId> = HashSet::new();
    for entry in &entries {
        match entry.what {
            What::Sent { .. } => _ = open.insert(entry.claim),
            What::Lost | What::Refused | What::Released | What::Withdrawn => {
                open.remove(&entry.claim);
            }
            _ => _ = answered.insert(entry.claim),
        }
    }
    // An unanswered claim would excuse others from their promises for a lease; death does not.
    let silent: HashSet<_> = open.difference(&answered).copied().collect();
    entries.retain(|entry| !silent.contains(&entry.claim));
    let ends = open.intersection(&answered);
    entries.extend(ends.map(|claim| HistoryEntry { at: end, claim: *claim, what: What::Released }));
    History::new(entries)
}

//! A candidate: campaigns again and again, acts as the leader, and writes down what it does before
//! it matters, so that a killed process leaves it behind.
//!
//! `won TERM` is written when a campaign returns, `value TERM TEXT` before the text is published,
//! and `acted TERM NANOS` when the leader found itself in office *after* it had read the clock. So
//! at that instant it led.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use servers::Dice;
use tenure::time::{Clock, SystemClock};
use tenure::{Election, Error, ErrorKind, LeaderGuard, Tenure};

/// Set in the processes that a test starts: URL, lease in milliseconds, directory and seed.
pub(crate) const ORDER: &str = "TENURE_TEST_CANDIDATE";

/// The election that all candidates stand for.
pub(crate) const NAME: &str = "e";

/// A process with a candidate, killed when the test ends.
pub(crate) struct Candidate {
    child: Child,
}

impl Candidate {
    pub(crate) fn start(url: &str, lease: Duration, directory: &Path, seed: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "candidate", "--nocapture", "--test-threads=1"]);
        let order = format!("{url} {} {} {seed}", lease.as_millis(), directory.display());
        command.env(ORDER, order).stdin(Stdio::null()).stdout(Stdio::null());
        servers::reset_signals_of_children();
        Self { child: command.spawn().unwrap() }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// `kill -9`, and waits until the process is gone. It must not have ended before: a candidate
    /// ends by itself only if something went wrong.
    pub(crate) fn kill(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert_eq!(ended, None, "a candidate ended by itself");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a candidate writes down what it does.
pub(crate) struct Diary(File);

impl Diary {
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        let path: PathBuf = directory.join(format!("diary-{name}"));
        Self(File::options().create(true).append(true).open(path).unwrap())
    }

    fn write(&mut self, line: &str) {
        // One call for each line: what was written before a `kill -9` stays, and whole.
        self.0.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// Campaigns until it is killed.
pub(crate) fn serve(order: &str) {
    let words: Vec<&str> = order.split(' ').collect();
    let [url, lease, directory, seed] = words[..] else { panic!("what is {order:?}?") };
    let lease = Duration::from_millis(lease.parse().unwrap());
    let tenure = Tenure::builder().lease(lease).blocking_connect(url).unwrap();
    let diary = Diary::new(Path::new(directory), &std::process::id().to_string());
    let dice = Dice(seed.parse().unwrap());
    Campaigner { election: tenure.election(NAME).unwrap(), lease, diary, dice, count: 0 }
        .campaign_until(|| false);
}

/// Stands for election, in this process or another.
pub(crate) struct Campaigner {
    pub(crate) election: Election,
    pub(crate) lease: Duration,
    pub(crate) diary: Diary,
    pub(crate) dice: Dice,
    pub(crate) count: u64,
}

impl Campaigner {
    pub(crate) fn campaign_until(mut self, is_enough: impl Fn() -> bool) {
        while !is_enough() {
            if let Err(error) = self.lead() {
                let expected = [ErrorKind::Lost, ErrorKind::Unavailable];
                assert!(expected.contains(&error.kind()), "{error}");
            }
        }
    }

    /// One term, from the campaign to its end.
    fn lead(&mut self) -> Result<(), Error> {
        self.count += 1;
        // The value is known before the term is: it names the process and the campaign.
        let first = format!("{}-{}-first", std::process::id(), self.count);
        let leader = self.election.blocking_campaign(first.as_str())?;
        let claim = leader.claim_id().to_string();
        let number = leader.term()?;
        self.diary.write(&format!("won {number} {claim}"));
        self.diary.write(&format!("value {number} {first}"));
        for step in 0..self.dice.throw(4) {
            self.act(&leader)?;
            let value = format!("{}-{}-{step}", std::process::id(), self.count);
            self.diary.write(&format!("value {number} {value}"));
            leader.blocking_publish(value.as_str())?;
            self.act(&leader)?;
            std::thread::sleep(Duration::from_micros(self.dice.throw(2_000)));
        }
        self.act(&leader)?;
        match self.dice.throw(32) {
            // Dropped: observers are not told.
            0..4 => drop(leader),
            // Outlasts its lease, which is renewed.
            4 => {
                std::thread::sleep(self.lease * 5 / 4);
                self.act(&leader)?;
                leader.blocking_resign()?;
            }
            _ => leader.blocking_resign()?,
        }
        Ok(())
    }

    fn act(&mut self, leader: &LeaderGuard) -> Result<(), Error> {
        let now = SystemClock.now();
        // Reads the clock once more: a leader that was stopped in between does not act.
        let term = leader.term()?;
        self.diary.write(&format!("acted {term} {}", now.as_nanos()));
        Ok(())
    }
}

//! Room: a server whose disk is full. Who holds goes on holding, who asks hears why not, and all is
//! well again as soon as there is room. A server that dies of it comes back with its locks.

use std::sync::Arc;
use std::time::Duration;

use servers::{Postgres, eventually};
use tenure::block_on;
use tenure::conformance::audit::{Recorder, Rules, judge};
use tenure::time::SystemClock;
use tenure::{Effect, Error, ErrorKind, MutexGuard, Tenure};

use crate::disk::{Disk, may_mount, play_limited, play_on_small};
use crate::host::{Waiter, assert_empty, builder, session};

/// Short enough to be renewed a few times while a disk is full.
const SHORT: Duration = Duration::from_secs(3);
/// More locks than find room between the rows of others.
const MANY: usize = 20_000;

#[test]
fn a_full_disk_refuses_claims_takes_no_lock_away_and_is_over_when_there_is_room() {
    let test =
        "space::a_full_disk_refuses_claims_takes_no_lock_away_and_is_over_when_there_is_room";
    match Disk::inside() {
        Some(disk) => {
            let server = server();
            no_room(&server, &disk);
            if matches!(disk, Disk::Small(_)) {
                no_room_for_the_log_of_writes(&server, &disk);
            }
        }
        None if may_mount() => play_on_small(test),
        None => {
            println!("This user may not mount a small disk. Files that may not grow stand for it.");
            play_limited(test);
        }
    }
}

#[test]
fn a_table_that_may_not_grow_is_as_good_as_a_full_disk() {
    match Disk::inside() {
        Some(disk) => no_room(&server(), &disk),
        None => play_limited("space::a_table_that_may_not_grow_is_as_good_as_a_full_disk"),
    }
}

/// A server that neither hoards nor cleans up behind the test's back.
fn server() -> Postgres {
    let builder = Postgres::builder().set("autovacuum", "off");
    builder.set("min_wal_size", "32MB").set("max_wal_size", "32MB").start()
}

fn no_room(server: &Postgres, disk: &Disk) {
    let (one, two) = (session(&server.url()), session(&server.url()));
    let kept = block_on(one.mutex("kept").unwrap().lock()).unwrap();
    let fence = kept.fence().unwrap();
    let waiter = Waiter::behind(&two, "kept", 0);
    let contest = Contest::begin(&server.url());
    disk.fill(server);
    let (taken, error) = claim_until_refused(&one, "one");
    assert_full(&error);
    let (others, error) = claim_until_refused(&two, "two");
    assert_full(&error);
    contest.go_on();
    assert_eq!(kept.fence().unwrap(), fence, "what was held is held");
    for (nth, guard) in taken.into_iter().chain(others).enumerate() {
        assert!(guard.check().is_ok(), "lock {nth} was taken on the full disk");
        block_on(guard.release()).unwrap_or_else(|error| panic!("lock {nth}: {error}"));
    }
    disk.free(server);
    eventually("claims find room", || {
        block_on(one.mutex("new").unwrap().try_lock()).is_ok_and(|guard| guard.is_some())
    });
    contest.end();
    assert_eq!(kept.fence().unwrap(), fence);
    block_on(kept.release()).unwrap();
    let next = waiter.served();
    assert!(next.fence().unwrap() > fence);
    block_on(next.release()).unwrap();
    assert_empty(&one);
}

/// The server cannot even write down that it did nothing: it dies, and again whenever it starts.
fn no_room_for_the_log_of_writes(server: &Postgres, disk: &Disk) {
    let (one, two) = (session(&server.url()), session(&server.url()));
    let kept = block_on(one.mutex("kept").unwrap().lock()).unwrap();
    let fence = kept.fence().unwrap();
    disk.fill(server);
    // Each turn uses up a piece that was made ahead, until one would have to be made.
    eventually("the server has died", || {
        server.sql("SELECT txid_current(), pg_switch_wal()").is_err()
    });
    let (taken, error) = claim_until_refused(&two, "three");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(kept.fence().unwrap(), fence, "what was held is held");
    disk.free(server);
    server.restart();
    eventually("the server is back", || {
        let seen = block_on(two.mutex("kept").unwrap().try_lock());
        assert!(!matches!(seen, Ok(Some(_))), "it is held");
        seen.is_ok()
    });
    assert_eq!(kept.fence().unwrap(), fence);
    block_on(kept.release()).unwrap();
    let next = block_on(two.mutex("kept").unwrap().lock()).unwrap();
    assert!(next.fence().unwrap() > fence);
    drop((next, taken));
    assert_empty(&one);
}

/// Takes locks until one is refused.
#[track_caller]
fn claim_until_refused(tenure: &Tenure, kind: &str) -> (Vec<MutexGuard>, Error) {
    let mut guards = Vec::new();
    while guards.len() < MANY {
        let name = format!("{kind}-number-{}", guards.len());
        match block_on(tenure.mutex(&name).unwrap().try_lock()) {
            Ok(guard) => guards.push(guard.expect("nobody has it")),
            Err(error) => {
                println!("after {} locks: {error}", guards.len());
                return (guards, error);
            }
        }
    }
    panic!("{MANY} locks found room on a full disk");
}

#[track_caller]
fn assert_full(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.effect(), Effect::None, "{error}");
    let text = error.to_string();
    assert!(text.contains("out of disk space") && text.contains("53100"), "{error}");
}

/// A lock that must be renewed all the time, and a session that waits for it: whether it can be
/// renewed on a full disk or not, the two never hold it at once.
struct Contest {
    recorder: Arc<Recorder>,
    sessions: [Tenure; 2],
    guard: MutexGuard,
}

impl Contest {
    fn begin(url: &str) -> Self {
        let recorder = Recorder::new(Arc::new(SystemClock));
        let sessions = [(); 2].map(|()| {
            let witness = Arc::clone(&recorder);
            block_on(builder().lease(SHORT).witness(witness as _).connect(url)).unwrap()
        });
        let guard = block_on(sessions[0].mutex("contested").unwrap().lock()).unwrap();
        Self { recorder, sessions, guard }
    }

    /// For a few leases.
    fn go_on(&self) {
        let (pause, rounds) = (SHORT / 30, 90);
        for _ in 0..rounds {
            self.recorder.used(&self.guard);
            let got = block_on(self.sessions[1].mutex("contested").unwrap().try_lock());
            if let Ok(Some(other)) = got {
                self.recorder.used(&other);
            }
            std::thread::sleep(pause);
        }
    }

    fn end(self) {
        drop(self.guard);
        for tenure in &self.sessions {
            block_on(tenure.close());
        }
        let wake_within = Duration::from_secs(60);
        let rules = Rules { queue: true, wake_within, lossy: true, at_rest: true };
        let verdicts = judge(&self.recorder.history(), &rules);
        println!("on a full disk: {verdicts}");
        assert!(verdicts.violations.is_empty(), "{verdicts}");
    }
}

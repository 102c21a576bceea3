//! Children that are forked without `exec` and go on with what they inherited as if it were their
//! own. A child says which step went wrong by its exit code: it must not wait for any lock of its
//! parent's, so it prints nothing; a child that hangs is killed by an alarm.
#![allow(unsafe_code, reason = "fork has no safe wrapper; each use is argued")]

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, WaitOptions, waitpid};
use tenure::block_on;
use tenure::contract::SessionId;
use tenure::{Error, ErrorKind, Loss, Lost, MutexGuard, Put, Query, Tenure};

use crate::stores::Store;

/// How long a child may take, on a machine that is busy.
const SECONDS: u32 = 60;
/// How many children are forked while others work.
const CHILDREN: usize = 20;

/// The steps of a child that goes on with a session and a guard of its parent's.
fn misuse(tenure: &Tenure, guard: &mut Option<MutexGuard>, lost: &mut Lost) -> Result<(), u8> {
    let (mutex, name) = (tenure.mutex("free").unwrap(), "cell".parse().unwrap());
    let forked = |error: Error| error.loss() == Some(&Loss::Forked);
    let closed = |error: Error| error.kind() == ErrorKind::Closed;
    let step = |number: u8, well: bool| if well { Ok(()) } else { Err(number) };
    let inherited = guard.take().ok_or(99)?;
    step(1, inherited.fence().is_err_and(forked))?;
    step(2, inherited.check().is_err_and(forked) && inherited.remaining().is_zero())?;
    step(3, block_on(lost) == Loss::Forked && block_on(inherited.lost()) == Loss::Forked)?;
    step(4, block_on(mutex.lock()).is_err_and(closed))?;
    step(5, block_on(mutex.try_lock()).is_err_and(closed))?;
    step(6, block_on(mutex.run(|_| async {})).is_err_and(closed))?;
    step(7, block_on(tenure.inspect(&Query::Slot("free".parse().unwrap()))).is_err_and(closed))?;
    step(8, block_on(tenure.cells().get(&name)).is_err_and(closed))?;
    step(9, block_on(tenure.cells().put(&Put::new(name, *b"child"))).is_err_and(closed))?;
    step(10, tenure.claim_count() == 0)?;
    step(11, block_on(inherited.release()).is_err_and(forked))?;
    block_on(tenure.close());
    Ok(())
}

/// Forks. The child does its work, says by its exit code how it went, and runs nothing else.
fn fork(work: impl FnOnce() -> Result<(), u8>) -> Pid {
    // SAFETY: the child calls the library under test, which takes no lock there, and the allocator,
    // which may be used after a fork; then it ends without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: sets a timer of the child's own, and ends the child, which is all it is for.
        unsafe {
            libc::alarm(SECONDS);
            let done = catch_unwind(AssertUnwindSafe(work));
            libc::_exit(done.map_or(100, |done| done.err().map_or(0, i32::from)));
        }
    }
    Pid::from_raw(child).expect("cannot fork")
}

/// Waits for a child, whose alarm is the limit.
#[track_caller]
fn assert_well(store: &Store, child: Pid) {
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    assert!(!status.signaled(), "{}: the child hangs", store.name);
    assert_eq!(status.exit_status(), Some(0), "{}: the step that went wrong", store.name);
}

pub(crate) fn a_child(store: &Store) {
    let connect = || block_on(store.builder().connect(&store.url)).unwrap();
    let (tenure, other) = (connect(), connect());
    let guard = block_on(tenure.mutex("held").unwrap().lock()).unwrap();
    let (fence, mut lost) = (guard.fence().unwrap(), guard.lost());
    let mut guard = Some(guard);
    let child = fork(|| {
        let done = misuse(&tenure, &mut guard, &mut lost);
        drop(tenure.clone());
        done
    });
    assert_well(store, child);
    // The parent noticed nothing, and others neither.
    let guard = guard.unwrap();
    assert_eq!(guard.fence().unwrap(), fence);
    assert!(block_on(other.mutex("held").unwrap().try_lock()).unwrap().is_none());
    let take = |tenure: &Tenure, name: &str| block_on(tenure.mutex(name).unwrap().lock()).unwrap();
    block_on(take(&tenure, "free").release()).unwrap();
    block_on(guard.release()).unwrap();
    block_on(take(&other, "held").release()).unwrap();
}

/// Threads of the parent take and release locks, and some of its mutexes, while it is forked.
pub(crate) fn many_children(store: &Store) {
    let tenure = block_on(store.builder().connect(&store.url)).unwrap();
    let guard = block_on(tenure.mutex("held").unwrap().lock()).unwrap();
    let (mut lost, mut guard) = (guard.lost(), Some(guard));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (mutex, over) = (tenure.mutex(format!("worker-{worker}")).unwrap(), &over);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    block_on(block_on(mutex.lock()).unwrap().release()).unwrap();
                }
            });
        }
        let children = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..CHILDREN {
                assert_well(store, fork(|| misuse(&tenure, &mut guard, &mut lost)));
            }
        }));
        over.store(true, Ordering::SeqCst);
        assert!(children.is_ok(), "{}: a child went wrong", store.name);
    });
    block_on(guard.unwrap().release()).unwrap();
}

/// A child goes on with a copy of its parent's random generator: their ids must differ all the
/// same, or the store takes the claims of both for one.
#[test]
fn ids_of_parent_and_child_differ() {
    let before = SessionId::new();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let child = fork(|| writer.write_all(&SessionId::new().as_u128().to_le_bytes()).map_err(|_| 1));
    drop(writer);
    let ours = SessionId::new();
    let mut theirs = [0; 16];
    reader.read_exact(&mut theirs).unwrap();
    waitpid(Some(child), WaitOptions::empty()).unwrap();
    assert_ne!(u128::from_le_bytes(theirs), ours.as_u128());
    assert_ne!(before, ours);
}

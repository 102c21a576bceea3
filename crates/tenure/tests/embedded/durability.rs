//! What was replied to is on disk: the tests keep what a power cut at that instant would leave of
//! the synced file, and open that.
//!
//! LMDB writes pages, calls `fdatasync`, and then writes the page that makes them valid through a
//! descriptor with `O_DSYNC`. This binary has functions of these names, which are called instead of
//! those of the C library: they do the same, and keep a copy of what is certain to be on disk.
#![allow(unsafe_code, reason = "functions of the C library are replaced by ours")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{LazyLock, Mutex};

use tenure::block_on;
use tenure::contract::Engine;
use tenure::engine::embedded::Location;
use tenure::{Put, PutVerdict};

use crate::host::{Host, open};

/// What is certain to be on disk of a file, and how often it was synced.
#[derive(Clone, Default)]
struct OnDisk {
    bytes: Vec<u8>,
    syncs: usize,
}

/// By device and inode.
static FILES: LazyLock<Mutex<HashMap<(u64, u64), OnDisk>>> = LazyLock::new(Mutex::default);

fn with_file(fd: c_int, change: impl FnOnce(&mut OnDisk, &std::fs::File)) {
    // SAFETY: the caller of the system call has the descriptor open meanwhile.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let Ok(file) = fd.try_clone_to_owned().map(std::fs::File::from) else { return };
    let Ok(about) = file.metadata() else { return };
    // Small files alone: those of other tests may be large.
    if about.is_file() && about.len() < 16 << 20 {
        let mut files = FILES.lock().unwrap();
        change(files.entry((about.dev(), about.ino())).or_default(), &file);
    }
}

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: the same call.
    let result = unsafe { libc::syscall(libc::SYS_fdatasync, fd) };
    if result == 0 {
        with_file(fd, |on_disk, _| {
            // LMDB writes with `pwrite`, so another descriptor may be write-only: read by path.
            let path = format!("/proc/self/fd/{fd}");
            if let Ok(bytes) = std::fs::read(path) {
                *on_disk = OnDisk { bytes, syncs: on_disk.syncs + 1 };
            }
        });
    }
    c_int::try_from(result).unwrap_or(-1)
}

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, count: usize, at: i64) -> isize {
    // SAFETY: the same call.
    let written = unsafe { libc::syscall(libc::SYS_pwrite64, fd, from, count, at) };
    // SAFETY: asks for flags alone.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if written > 0 && flags & libc::O_DSYNC != 0 {
        let (at, count) = (usize::try_from(at).unwrap(), usize::try_from(written).unwrap());
        // SAFETY: so many bytes were just written from there.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count) };
        with_file(fd, |on_disk, _| {
            if on_disk.bytes.len() < at + count {
                on_disk.bytes.resize(at + count, 0);
            }
            on_disk.bytes[at..at + count].copy_from_slice(bytes);
        });
    }
    isize::try_from(written).unwrap_or(-1)
}

fn on_disk(host: &Host) -> OnDisk {
    let about = std::fs::metadata(host.path().join("durable/data.mdb")).unwrap();
    FILES.lock().unwrap().get(&(about.dev(), about.ino())).cloned().unwrap_or_default()
}

/// Opens what a power cut would have left, and returns the value of a cell.
fn after_power_cut(left: &OnDisk, cell: &str) -> Option<Vec<u8>> {
    let host = Host::new();
    let durable = host.path().join("durable");
    std::fs::create_dir_all(&durable).unwrap();
    let modes = |path: &Path, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).unwrap();
    };
    modes(&host.path(), 0o700);
    let file = std::fs::File::create(durable.join("data.mdb")).unwrap();
    file.write_all_at(&left.bytes, 0).unwrap();
    std::fs::write(durable.join("made"), "").unwrap();
    let engine = open(&Location::at(host.path())).unwrap();
    let cell = block_on(engine.cells().unwrap().get(&cell.parse().unwrap())).unwrap();
    cell.map(|cell| cell.value)
}

#[test]
fn every_write_that_was_replied_to_outlives_a_power_cut() {
    let host = Host::new();
    let tenure = host.tenure();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let (tasks, each) = (32, 10);
    let syncs = on_disk(&host).syncs;
    let replied = runtime.block_on(async {
        let put = |task: usize| {
            let (tenure, path) = (tenure.clone(), host.path());
            tokio::spawn(async move {
                let mut replied = Vec::new();
                for at in 0..each {
                    let cell = format!("{task}-{at}");
                    let put = Put::new(cell.parse().unwrap(), cell.clone());
                    let verdict = tenure.cells().put(&put).await.unwrap();
                    assert!(matches!(verdict, PutVerdict::Done(_)));
                    // At this instant. Opening it takes long, so a few must do.
                    if task.is_multiple_of(16) && at % 5 == 0 {
                        let about = std::fs::metadata(path.join("durable/data.mdb")).unwrap();
                        let files = FILES.lock().unwrap();
                        replied.push((cell, files[&(about.dev(), about.ino())].clone()));
                    }
                }
                replied
            })
        };
        let all: Vec<_> = (0..tasks).map(put).collect();
        let mut replied = Vec::new();
        for task in all {
            replied.extend(task.await.unwrap());
        }
        replied
    });
    assert_eq!(replied.len(), 4);
    for (cell, left) in &replied {
        assert_eq!(after_power_cut(left, cell), Some(cell.clone().into_bytes()));
    }
    // Tasks that wait share a sync: with 32 of them far fewer syncs than writes.
    let syncs = on_disk(&host).syncs - syncs;
    let writes = tasks * each;
    assert!(syncs > 0 && syncs * 4 <= writes, "{syncs} syncs for {writes} writes");
}

#[test]
fn a_write_alone_is_one_sync() {
    let host = Host::new();
    let tenure = host.tenure();
    let put = |at: u32| {
        let put = Put::new(format!("c{at}").parse().unwrap(), at.to_string());
        assert!(matches!(block_on(tenure.cells().put(&put)).unwrap(), PutVerdict::Done(_)));
    };
    put(0);
    let before = on_disk(&host).syncs;
    (1..=5).for_each(put);
    assert_eq!(on_disk(&host).syncs - before, 5);
}

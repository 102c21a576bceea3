//! Letters that do not arrive: a box that is full, a process that dies before it has written. What
//! comes within the patience of these tests was not the doing of a renewal.

use std::time::Duration;

use tenure::contract::{
    ClaimRef, Engine, HolderView, Name, Part, Parts, Query, Release, Released, WaiterView,
};
use tenure::engine::Terms;
use tenure::engine::embedded::{EmbeddedEngine, Location};

use crate::host::{Host, Worker, terms};

/// More than a box has room for: the system's limit is 10 datagrams by default, or 512.
const MANY: usize = 600;

/// A third of it, after which waiters ask by themselves, is longer than a test waits for a line.
const LEASE: Duration = Duration::from_secs(180);

fn worker(host: &Host) -> Worker {
    let lease = LEASE.as_millis();
    host.worker_with(&format!("lease={lease} max_lease={lease}"))
}

/// Who holds and who waits for a name.
fn look(engine: &EmbeddedEngine, name: &Name) -> (Vec<HolderView>, Vec<WaiterView>) {
    let seen = tenure::block_on(engine.inspect(&Query::Slot(name.clone()))).unwrap();
    let slot = seen.slots.into_iter().next();
    slot.map(|slot| (slot.holders, slot.queue)).unwrap_or_default()
}

/// A process holds locks for which tasks of another one wait, which is stopped when all of them are
/// let go: its box fills, and what did not fit must be kept for it.
#[test]
fn letters_to_a_stopped_process_with_a_full_box_arrive_when_it_goes_on() {
    let host = Host::new();
    let (mut holder, mut waiter) = (worker(&host), worker(&host));
    holder.ask(&format!("many-take {MANY}"), "taken");
    waiter.ask(&format!("many-wait {MANY}"), "queued");
    waiter.stop();
    holder.ask("many-release", "released");
    waiter.go_on();
    waiter.hear("all held");
}

/// A process lets go of a lock, and is killed before it has written to the next holder. A third one
/// deals with its end, so that the next holder finds no trace of it.
#[test]
fn a_letter_that_a_killed_process_owes_is_asked_for() {
    let host = Host::new();
    let terms = Terms { max_lease: LEASE, ..terms() };
    let engine = EmbeddedEngine::open(&Location::at(host.path()), terms).unwrap();
    let (mut dies, mut next) = (worker(&host), worker(&host));
    dies.take("a");
    next.wait_for("a");
    next.stop();
    let name = Name::try_from("a").unwrap();
    let (held, waits) = look(&engine, &name);
    // The box is out of reach for a moment: the letter is lost, as if it had not been written.
    let session = waits[0].session.expect("a session").to_hex();
    let here = host.file_set().join("sessions").join(format!("{session}.socket"));
    let away = here.with_extension("away");
    std::fs::rename(&here, &away).unwrap();
    let parts = Parts::set([Part::write(name.clone())]).unwrap();
    let claim = ClaimRef { id: held[0].claim, parts, lease: LEASE };
    let released = tenure::block_on(engine.release(&[Release { claim, uncertain: false }]));
    assert_eq!(released.unwrap(), [Released::Done]);
    std::fs::rename(&away, &here).unwrap();
    dies.kill();
    // What a process does that has dealt with the end of another one.
    let dead = held[0].session.expect("a session").to_hex();
    std::fs::remove_file(host.file_set().join("sessions").join(dead)).unwrap();
    next.go_on();
    next.hear_held();
}

//! A process is killed: what waits for it goes on at once, not when its lease is over. And one
//! that is told to let go hears it at once.

use crate::host::Host;

#[test]
fn a_waiter_takes_over_from_a_killed_holder_long_before_its_lease_ends() {
    let host = Host::new();
    let (mut holder, mut waiter) = (host.worker(), host.worker());
    let fence = holder.take("a");
    waiter.wait_for("a");
    holder.kill();
    let next: u64 = waiter.hear("held").parse().unwrap();
    assert!(next > fence);
}

#[test]
fn a_try_succeeds_as_soon_as_the_holder_was_killed() {
    let host = Host::new();
    let (mut holder, mut other) = (host.worker(), host.worker());
    let fence = holder.take("a");
    other.ask("try a", "busy");
    holder.kill();
    let next: u64 = other.ask("try a", "held").parse().unwrap();
    assert!(next > fence);
}

#[test]
fn whoever_connects_after_the_death_takes_over_too() {
    let host = Host::new();
    let mut holder = host.worker();
    let fence = holder.take("a");
    holder.kill();
    let mut next = host.worker();
    next.say("lock a");
    assert!(next.hear_held() > fence);
}

#[test]
fn a_killed_waiter_is_passed_over() {
    let host = Host::new();
    let [mut holder, mut first, mut second] = [(); 3].map(|()| host.worker());
    holder.take("a");
    first.wait_for("a");
    second.wait_for("a");
    first.kill();
    holder.ask("release a", "released");
    second.hear("held");
    second.ask("release a", "released");
    host.assert_empty();
}

#[test]
fn a_line_of_killed_processes_is_passed_over() {
    let host = Host::new();
    let mut workers: Vec<_> = (0..6).map(|_| host.worker()).collect();
    workers[0].take("a");
    workers[1..].iter_mut().for_each(|worker| worker.wait_for("a"));
    workers[..5].iter_mut().for_each(crate::host::Worker::kill);
    workers[5].hear("held");
}

#[test]
fn a_lock_delay_keeps_the_slot_closed_after_a_death() {
    let host = Host::new();
    let (mut holder, mut other) = (host.worker(), host.worker());
    holder.ask("lock a delay=3000", "held");
    holder.kill();
    // Closed, though every process can see that its holder is dead.
    other.ask("try a", "busy");
    other.ask("try a", "busy");
    other.wait_for("a");
    other.hear("held");
}

#[test]
fn a_lock_delay_is_for_deaths_not_for_releases() {
    let host = Host::new();
    let (mut holder, mut other) = (host.worker(), host.worker());
    holder.ask("lock a delay=60000", "held");
    holder.ask("release a", "released");
    other.ask("try a", "held");
}

#[test]
fn an_eviction_reaches_a_holder_in_another_process_with_its_reason() {
    let host = Host::new();
    let (mut holder, mut other) = (host.worker(), host.worker());
    let fence = holder.take("a");
    holder.say("lost a");
    other.ask(&format!("evict a {fence} maintenance"), "evicted");
    assert!(holder.hear("lost").ends_with("released by force: maintenance"));
    let error = holder.ask("fence a", "error");
    assert!(error.starts_with("Lost") && error.contains("maintenance"), "{error}");
    other.ask("try a", "held");
}

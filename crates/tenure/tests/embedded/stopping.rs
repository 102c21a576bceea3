//! Processes that are stopped (SIGSTOP) and go on later (SIGCONT): with a lock, and inside the
//! store.

use crate::host::Host;

#[test]
fn a_holder_stopped_past_its_lease_learns_of_the_loss_before_it_acts() {
    let host = Host::new();
    let (mut holder, mut other) = (host.worker_with("lease=400"), host.worker());
    let fence = holder.take("a");
    holder.stop();
    let next = {
        other.say("lock a");
        other.hear_held()
    };
    assert!(next > fence);
    holder.say("fence a");
    holder.say("check a");
    holder.say("lost a");
    holder.go_on();
    let error = holder.hear("error");
    assert!(error.starts_with("Lost"), "{error}");
    assert!(holder.hear("error").starts_with("Lost"));
    holder.hear("lost");
    // What it does not hold it cannot give back.
    holder.say("release a");
    let answer = holder.hear("");
    assert!(answer.starts_with("error") || answer.starts_with("released"), "{answer}");
    assert_eq!(other.ask("fence a", "fence"), next.to_string());
    other.ask("release a", "released");
    host.assert_empty();
}

#[test]
fn a_waiter_stopped_past_its_lease_is_passed_over_and_asks_again() {
    let host = Host::new();
    let (mut holder, mut sleeper) = (host.worker(), host.worker_with("lease=400"));
    let mut last = host.worker_with("lease=1000");
    holder.take("a");
    sleeper.wait_for("a");
    last.wait_for("a");
    sleeper.stop();
    holder.ask("release a", "released");
    let fence: u64 = last.hear("held").parse().unwrap();
    sleeper.go_on();
    last.ask("release a", "released");
    assert!(sleeper.hear_held() > fence);
}

#[test]
fn a_process_stopped_inside_the_store_is_named_to_the_others() {
    let host = Host::new();
    let (mut sleeper, mut other) = (host.worker(), host.worker());
    sleeper.say("stop-inside");
    sleeper.until_stopped();
    let error = other.ask("try a", "error");
    assert!(error.starts_with("Unavailable"), "{error}");
    assert!(error.contains(&format!("process {}", sleeper.pid())), "{error}");
    sleeper.go_on();
    sleeper.hear("went on");
    other.ask("try a", "held");
    sleeper.ask("try a", "busy");
}

/// LMDB's lock of its table of readers has no timeout. A process that was stopped while it had that
/// lock blocked the reads of all others for as long as it was stopped.
#[test]
fn a_process_stopped_at_the_beginning_of_a_read_is_named_to_readers() {
    let host = Host::new();
    let (mut sleeper, mut other) = (host.worker(), host.worker());
    other.ask("put c 1", "put");
    sleeper.say("stop-in-read");
    sleeper.until_stopped();
    let error = other.ask("get c", "error");
    assert!(error.starts_with("Unavailable"), "{error}");
    assert!(error.contains(&format!("process {}", sleeper.pid())), "{error}");
    let mut late = crate::host::Worker::start();
    late.ask(&format!("connect {}", host.path().display()), "connected");
    let error = late.ask("get c", "error");
    assert!(error.contains(&format!("process {}", sleeper.pid())), "{error}");
    sleeper.go_on();
    sleeper.hear("went on");
    other.ask("get c", "cell");
}

#[test]
fn a_process_killed_inside_the_store_is_in_nobodys_way() {
    let host = Host::new();
    let (mut sleeper, mut other) = (host.worker(), host.worker());
    sleeper.take("a");
    sleeper.say("stop-inside");
    sleeper.until_stopped();
    other.say("lock a");
    sleeper.kill();
    other.hear_held();
    other.ask("release a", "released");
    host.assert_empty();
}

#[test]
fn nobody_can_connect_past_a_stopped_process_but_hears_its_name() {
    let host = Host::new();
    let mut sleeper = host.worker();
    sleeper.say("stop-inside");
    sleeper.until_stopped();
    let mut late = crate::host::Worker::start();
    let connect = format!("connect {}", host.path().display());
    let error = late.ask(&connect, "error");
    assert!(error.contains(&format!("process {}", sleeper.pid())), "{error}");
    sleeper.go_on();
    sleeper.hear("went on");
    late.ask(&connect, "connected");
}

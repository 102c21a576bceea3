//! Requests to one rate that come at the same time. Each test stops a request at the lock of the
//! rate, which another transaction has.

use crate::stand::Stand;

/// Takes the only permit of an hour. Says whether it was taken: a refusal begins with 0.
const TAKE: &str =
    "SELECT (r[1] <> 0)::text FROM tenure.take(1, 'a', ARRAY[3600000000], ARRAY[1], 1, 0) r";
const RESET: &str = "SELECT tenure.reset(1, 'a')::text";

#[test]
fn a_request_waits_for_the_one_that_takes_the_last_permit() {
    let stand = Stand::new();
    stand.run("BEGIN");
    assert_eq!(stand.ask(TAKE), "true");
    let late = stand.call_that_waits(TAKE);
    stand.run("COMMIT");
    assert_eq!(late.join().unwrap(), "false", "it saw the permit that was taken meanwhile");
}

#[test]
fn a_reset_waits_for_a_request_and_a_request_for_a_reset() {
    let stand = Stand::new();
    stand.run("BEGIN");
    assert_eq!(stand.ask(TAKE), "true");
    let reset = stand.call_that_waits(RESET);
    stand.run("COMMIT");
    assert_eq!(reset.join().unwrap(), "true");
    assert_eq!(stand.ask(TAKE), "true", "the reset came last");
    stand.run("BEGIN");
    assert_eq!(stand.ask(RESET), "true");
    let take = stand.call_that_waits(TAKE);
    stand.run("COMMIT");
    assert_eq!(take.join().unwrap(), "true", "the request came last");
}

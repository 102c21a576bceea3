//! Transactions that wait for each other's rows. Each test stops a verb at a row that another
//! transaction has locked, looks which rows the verb has locked by then, or ends a lease before it
//! goes on. The verbs are called as SQL, so that one call is one transaction.

use servers::{Postgres, eventually};
use tenure::block_on;
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

use crate::host::{micros, session};
use crate::stand::{LONG, Stand, uuid};

/// The weight of a mutex: all of a lock.
const ALL: u32 = tenure::limits::FULL_WEIGHT;

/// One claim for a mutex; answers its kind.
fn claim_one(id: u32, name: &str, lease: u64, waits: bool) -> String {
    let (id, owner) = (uuid(id), uuid(id + 1_000));
    format!(
        "SELECT kind FROM tenure.claim_one(1, false, '{id}', '{name}', -1, {ALL}, {lease}, 0, \
         {waits}, NULL, NULL, ARRAY['{owner}'::uuid], 'h', 1, NULL, NULL, 0)"
    )
}

/// A claim for the mutexes a and b, which waits.
fn claim_both(id: u32) -> String {
    let (id, owner) = (uuid(id), uuid(id + 1_000));
    format!(
        "SELECT kind FROM tenure.claim(1, false, ARRAY['{id}'::uuid], ARRAY[2], ARRAY['a', 'b'], \
         ARRAY[-1, -1], ARRAY[{ALL}, {ALL}], ARRAY[{LONG}], ARRAY[0], ARRAY[true], \
         ARRAY[NULL]::uuid[], ARRAY[NULL]::uuid[], ARRAY['{{{owner}}}'], ARRAY['h'], ARRAY[1], \
         ARRAY[NULL]::text[], ARRAY[NULL]::text[], ARRAY[0])"
    )
}

fn release_one(id: u32, name: &str, uncertain: bool) -> String {
    let id = uuid(id);
    format!(
        "SELECT kind FROM tenure.release_one(1, false, '{id}', '{name}', {LONG}, {uncertain}, \
         false)"
    )
}

fn renew_both(ids: [u32; 2]) -> String {
    let [a, b] = ids.map(uuid);
    format!(
        "SELECT kind FROM tenure.renew(1, false, ARRAY['{b}', '{a}']::uuid[], ARRAY[1, 1], \
         ARRAY['b', 'a'], ARRAY[{LONG}, {LONG}])"
    )
}

fn release_both(ids: [u32; 2]) -> String {
    let [a, b] = ids.map(uuid);
    format!(
        "SELECT kind FROM tenure.release(1, false, ARRAY['{b}', '{a}']::uuid[], ARRAY[1, 1], \
         ARRAY['b', 'a'], ARRAY[{LONG}, {LONG}], ARRAY[false, false])"
    )
}

#[test]
fn rows_are_locked_in_the_order_of_their_names() {
    let stand = Stand::new();
    for (id, name) in [(1, "a"), (2, "b")] {
        assert_eq!(stand.call(&claim_one(id, name, LONG, false)).join().unwrap(), "g");
    }
    for (verb, said) in
        [(renew_both([1, 2]), "g g"), (claim_both(3), "q"), (release_both([1, 2]), "d d")]
    {
        stand.lock_row("a");
        let call = stand.call_that_waits(&verb);
        // Who locks b first and waits for a meets another call the other way round.
        stand.assert_row_is_free("b");
        stand.run("COMMIT");
        assert_eq!(call.join().unwrap(), said, "{verb}");
    }
}

#[test]
fn a_release_locks_all_slots_of_a_set_that_waits_for_it() {
    let stand = Stand::new();
    for (id, name) in [(1, "a"), (2, "b")] {
        assert_eq!(stand.call(&claim_one(id, name, LONG, false)).join().unwrap(), "g");
    }
    assert_eq!(stand.call(&claim_both(3)).join().unwrap(), "q");
    // Its hand-off changes what the set has in a.
    stand.lock_row("a");
    let call = stand.call_that_waits(&release_one(2, "b", false));
    stand.assert_row_is_free("b");
    stand.run("COMMIT");
    assert_eq!(call.join().unwrap(), "d");
    assert_eq!(stand.call(&release_one(1, "a", false)).join().unwrap(), "d");
    let holds = stand.server.done("SELECT count(*) FROM tenure.claims WHERE held");
    assert_eq!(holds.trim(), "2", "the set holds both");
}

#[test]
fn a_claim_that_waited_for_a_row_goes_by_the_time_at_which_it_got_it() {
    let stand = Stand::new();
    assert_eq!(stand.call(&claim_one(1, "a", LONG, false)).join().unwrap(), "g");
    stand.lock_row("a");
    let call = stand.call_that_waits(&claim_one(2, "a", LONG, false));
    stand.end_and_commit("a");
    assert_eq!(call.join().unwrap(), "g", "the holder's time was over by then");
}

#[test]
fn a_release_that_waited_for_a_row_goes_by_the_time_at_which_it_got_it() {
    let stand = Stand::new();
    assert_eq!(stand.call(&claim_one(1, "a", LONG, false)).join().unwrap(), "g");
    assert_eq!(stand.call(&claim_one(2, "a", LONG, true)).join().unwrap(), "q");
    stand.lock_row("a");
    let call = stand.call_that_waits(&release_one(1, "a", false));
    stand.end_and_commit("a");
    assert_eq!(call.join().unwrap(), "o", "it had ended by itself");
    let held = stand.server.done("SELECT id FROM tenure.claims WHERE held");
    assert_eq!(held.trim(), uuid(2), "and the next one holds");
}

#[test]
fn a_lease_counts_from_the_time_at_which_a_claim_got_its_place() {
    let stand = Stand::new();
    stand.run("BEGIN; INSERT INTO tenure.slots (ns, name) VALUES (1, 'a')");
    let call = stand.call_that_waits(&claim_one(1, "a", LONG, false));
    let before = micros(&stand.server);
    stand.run("ROLLBACK");
    assert_eq!(call.join().unwrap(), "g");
    let since = stand.server.done("SELECT since, expires, fence FROM tenure.claims");
    let numbers: Vec<u64> = since.trim().split('|').map(|one| one.parse().unwrap()).collect();
    assert!(numbers[0] >= before && numbers[1] >= before + LONG, "{numbers:?}, not {before}");
    assert!(numbers[2] >= before, "the fence follows the clock: {numbers:?}, not {before}");
}

#[test]
fn a_copy_that_arrives_during_its_withdrawal_finds_the_tombstone() {
    let stand = Stand::new();
    // The withdrawal stops where it writes its tombstone.
    let id = uuid(1);
    stand.run(&format!("BEGIN; INSERT INTO tenure.tombs VALUES (1, '{id}', 0, NULL)"));
    let withdrawal = stand.call_that_waits(&release_one(1, "a", true));
    let copy = stand.call_that_waits(&claim_one(1, "a", LONG, true));
    stand.run("ROLLBACK");
    assert_eq!(withdrawal.join().unwrap(), "o");
    assert_eq!(copy.join().unwrap(), "w", "it was withdrawn");
}

#[test]
fn a_first_client_waits_for_another_that_makes_the_schema() {
    let server = Postgres::start();
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(7236847, 0)").await.unwrap();
        client
    });
    let url = server.url();
    let first = std::thread::spawn(move || block_on(session(&url).close()));
    eventually("the first client waits", || {
        assert!(!first.is_finished(), "it did not wait");
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        server.done(waits).trim() == "1"
    });
    let made = "SELECT to_regclass('tenure.slots') IS NULL";
    assert_eq!(server.done(made).trim(), "t", "nothing was made meanwhile");
    runtime.block_on(client.batch_execute("COMMIT")).unwrap();
    first.join().unwrap();
}

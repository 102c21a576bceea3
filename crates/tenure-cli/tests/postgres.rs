//! The command on a PostgreSQL: its schema, what the doctor finds, and what becomes of passwords.
//! What works on every store is in `shared.rs`.

mod common;

use common::report::Report;
use common::{Place, stderr, stdout};
use servers::{Direction, PgBouncer, Postgres};

/// Never to be seen, except where the user put it.
const CANARY: &str = "c4n4ry";

#[test]
fn a_durable_server_is_fine() {
    let place = Place::on_postgres(Postgres::builder().durable().start());
    let report = Report::of(&place);
    report.has("server", "ok", "PostgreSQL ");
    report.has("role", "ok", "takes writes");
    report.has("schema", "ok", "version 2");
    report.has("access", "ok", "postgres may do all");
    report.has("pooler", "ok", "direct");
    report.has("durability", "ok", "on disk before it is returned");
    report.has("store clock", "ok", "of this host's");
    report.has("connections", "ok", "are in use");
    report.has("lock", "ok", "acquired and released");
    assert!(stdout(&place.run(&["doctor"])).contains("a round trip takes"));
    assert_eq!(report.code, 0);
}

#[test]
fn a_pooler_a_clock_and_a_server_that_syncs_nothing_are_told() {
    let server = Postgres::builder().clock().start();
    server.step_clock(std::time::Duration::from_secs(3_600), Direction::Forward);
    let bouncer = PgBouncer::before(&server, 5);
    let url = format!("{}?durability=grace", bouncer.url());
    let report = Report::of(&Place::on_postgres(server).reached_by(url));
    report.has("pooler", "note", "waiters poll");
    report.has("store clock", "note", "ahead of this host's");
    report.has("durability", "note", "fsync");
    assert_eq!(report.code, 0);
}

#[test]
fn a_role_that_lacks_rights_is_told_which() {
    let server = Postgres::start();
    server.done("CREATE ROLE app LOGIN PASSWORD 'c4n4ry'");
    let place = Place::on_postgres(server);
    place.says(&["migrate"]);
    let server = place.postgres_server();
    server.done("GRANT USAGE ON SCHEMA tenure TO app");
    server.done("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenure TO app");
    server.done("GRANT USAGE, SELECT, UPDATE ON SEQUENCE tenure.numbers TO app");
    server.done("REVOKE UPDATE ON tenure.cells FROM app");
    let url = server.url_as("app", CANARY);
    let report = Report::of(&place.reached_by(url));
    report.has("access", "bad", "app may not use cells");
    assert!(!report.findings.to_string().contains(CANARY));
    assert_eq!(report.code, 1);
}

#[test]
fn a_standby_is_said_to_take_no_writes() {
    let first = Postgres::start();
    let place = Place::on_postgres(first.standby());
    let output = place.run(&["doctor"]);
    let said = stdout(&output) + &stderr(&output);
    assert!(said.contains("takes no writes") || said.contains("takes writes"), "{said}");
    assert_ne!(output.status.code(), Some(0));
}

#[test]
fn a_wrong_password_is_said_and_not_shown() {
    let server = Postgres::start();
    server.done("CREATE ROLE pw; CREATE ROLE app LOGIN PASSWORD 'right' IN ROLE pw");
    let url = server.url_as("app", CANARY);
    let place = Place::on_postgres(server).reached_by(url);
    for arguments in [&["ls", "-v"][..], &["run", "x", "-v", "--", "true"], &["doctor"]] {
        let output = place.run(arguments);
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        let said = stdout(&output) + &stderr(&output);
        assert!(said.contains("check user and password"), "{said}");
        assert!(!said.contains(CANARY), "{said}");
    }
}

#[test]
fn the_schema_is_made_once_and_printed_without_a_server() {
    let place = Place::postgres();
    let printed = place.says(&["migrate", "--print"]);
    assert!(printed.contains("CREATE SCHEMA IF NOT EXISTS \"tenure\""), "{printed}");
    place.postgres_server().done(&printed);
    place.says(&["migrate"]);
    assert_eq!(place.code(&["run", "x", "--", "true"]), 0);
    assert_eq!(place.postgres_server().done("SELECT count(*) FROM tenure.migrations"), "2\n");
    assert_eq!(Place::memory().code(&["migrate"]), 2);
}

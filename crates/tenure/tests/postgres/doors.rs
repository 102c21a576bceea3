//! Who is let in: roles, schemas, terms, certificates.

use std::time::Duration;

use servers::Postgres;
use tenure::block_on;
use tenure::{ErrorKind, Tenure};

use crate::host::session;

const PAGE: &str = include_str!("../../../../docs/postgres.md");

/// The statements of the page's chapter on rights.
fn grants() -> String {
    let (_, rest) = PAGE.split_once("## Rights").expect("a chapter");
    let (_, rest) = rest.split_once("```sql\n").expect("statements");
    rest.split_once("```").expect("their end").0.to_owned()
}

#[test]
fn the_rights_on_the_page_are_enough_and_the_schema_is_not_made_without() {
    let server = Postgres::start();
    server.done("CREATE ROLE pw; CREATE ROLE app LOGIN PASSWORD 'c4n4ry' IN ROLE pw");
    server.done("REVOKE CREATE ON DATABASE postgres FROM PUBLIC");
    let url = server.url_as("app", "c4n4ry");
    let error = block_on(Tenure::connect(&url)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("tenure migrate"), "{error}");
    block_on(tenure::engine::postgres::migrate(&server.url())).unwrap();
    block_on(tenure::engine::postgres::migrate(&server.url())).unwrap();
    let error = block_on(Tenure::connect(&url)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    server.done(&grants());
    let tenure = session(&url);
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    assert!(block_on(tenure.mutex("a").unwrap().try_lock()).unwrap().is_none());
    block_on(guard.release()).unwrap();
    let name = "cell".parse().unwrap();
    block_on(tenure.cells().put(&tenure::contract::Put::new(name, "x"))).unwrap();
    let wrong = block_on(Tenure::connect(&server.url_as("app", "other"))).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidOption, "{wrong}");
    assert!(!format!("{wrong:?} {tenure:?}").contains("c4n4ry"));
}

#[test]
fn the_printed_statements_make_the_schema() {
    let server = Postgres::start();
    let url = format!("{}?schema=my%20locks", server.url());
    server.done(&tenure::engine::postgres::statements(&url).unwrap());
    let tenure = session(&url);
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    assert_eq!(
        server.done("SELECT count(*) FROM \"my locks\".migrations"),
        "2\n",
        "a row for each version"
    );
}

#[test]
fn a_newer_schema_and_other_terms_are_refused() {
    let server = Postgres::start();
    let _first = session(&server.url());
    let other = Tenure::builder().max_lease(Duration::from_secs(90));
    let error = block_on(other.connect(&server.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    let process = format!(":{} is connected", std::process::id());
    assert!(error.to_string().contains(&process), "names who is there: {error}");
    let error =
        block_on(Tenure::connect(&format!("{}?durability=grace", server.url()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("durability=commit"), "{error}");
    server.done("INSERT INTO tenure.migrations (version) VALUES (99)");
    let error = block_on(Tenure::connect(&server.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("version 99"), "{error}");
}

#[test]
fn tls_is_spoken_and_the_certificate_is_checked() {
    let server = Postgres::builder().tls().start();
    let ca = server.certificates().ca().display().to_string();
    let url = format!("postgres://postgres@localhost:{}/postgres?sslmode=require", server.port());
    let error = block_on(Tenure::connect(&url)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "a stranger's certificate: {error}");
    let tenure = session(&format!("{url}&sslrootcert={ca}"));
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    let spoken = server.done(
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity \
                              USING (pid) WHERE application_name LIKE 'tenure %'",
    );
    assert_eq!(spoken, "t\n");
}

/// The login is tied to the TLS connection: a server that cannot do that is refused if the URL asks
/// for it, here one that is reached without TLS.
#[test]
fn a_login_is_bound_to_its_channel() {
    let server = Postgres::builder().tls().start();
    server.done("CREATE ROLE pw; CREATE ROLE app LOGIN SUPERUSER PASSWORD 'c4n4ry' IN ROLE pw");
    let ca = server.certificates().ca().display().to_string();
    let url = format!(
        "postgres://app:c4n4ry@localhost:{}/postgres?channel_binding=require&sslrootcert={ca}",
        server.port()
    );
    let tenure = session(&format!("{url}&sslmode=require"));
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    let error = block_on(Tenure::connect(&format!("{url}&sslmode=disable"))).unwrap_err();
    assert!(error.to_string().contains("channel binding"), "{error}");
    assert!(!format!("{error:?}").contains("c4n4ry"), "{error:?}");
}

#[test]
fn a_table_that_is_away_is_named_and_had_no_effect() {
    let server = Postgres::start();
    let tenure = session(&server.url());
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    server.done("ALTER TABLE tenure.slots RENAME TO slots_away");
    let error = block_on(tenure.mutex("b").unwrap().lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.effect(), tenure::Effect::None, "{error}");
    server.done("ALTER TABLE tenure.slots_away RENAME TO slots");
    block_on(block_on(tenure.mutex("b").unwrap().lock()).unwrap().release()).unwrap();
}

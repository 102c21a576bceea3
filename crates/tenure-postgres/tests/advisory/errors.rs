//! What errors of advisory locks say.

use std::time::Duration;

use servers::Postgres;
use tenure::ErrorKind;
use tenure_postgres::advisory::{Advisory, InTransaction, Session};

use crate::host::{client, soon};

/// A name, and the number that `pg_locks` knows it by.
const SHOWN: &str = "\"reports\" (9162028425427799623)";
const LIMIT: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_named_is_shown_by_its_name_and_its_number() {
    let server = Postgres::start();
    let one = Advisory::connect(&server.patient_url()).await.unwrap();
    let held = one.exclusive("reports").lock().await.unwrap();
    assert_eq!(held.key().to_string(), SHOWN);
    let mut errors = vec![soon(one.shared("reports").timeout(LIMIT).lock()).await.unwrap_err()];
    let mut session = Session::new(client(&server.url()).await);
    errors.push(soon(session.exclusive("reports").timeout(LIMIT).lock()).await.unwrap_err());
    let mut other = client(&server.url()).await;
    let transaction = other.transaction().await.unwrap();
    let scope = InTransaction::of(&transaction);
    errors.push(soon(scope.exclusive("reports").timeout(LIMIT).lock()).await.unwrap_err());
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains(SHOWN), "{error}");
    }
    held.release().await.unwrap();
    let mut held = session.exclusive("reports").lock().await.unwrap();
    let error = held.session().shared("reports").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains(SHOWN), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_a_check_finds_is_not_told_as_a_release() {
    let server = Postgres::start();
    let one = Advisory::connect(&server.patient_url()).await.unwrap();
    let guard = one.exclusive("reports").lock().await.unwrap();
    let mut session = Session::new(client(&server.url()).await);
    let mut own = session.exclusive((0, 7)).lock().await.unwrap();
    server.terminate_all();
    soon(guard.lost()).await;
    soon(async {
        while own.check().is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let said = |error: tenure::Error| error.to_string();
    let found = (said(guard.check().unwrap_err()), said(own.check().unwrap_err()));
    assert!(found.0.starts_with(&format!("the lock {SHOWN} was lost: ")), "{}", found.0);
    assert!(found.1.starts_with("the lock (0, 7) was lost: "), "{}", found.1);
    let found = (guard.release().await.unwrap_err(), own.release().await.unwrap_err());
    for error in [found.0, found.1] {
        assert!(error.to_string().starts_with("release: the lock "), "{error}");
    }
}

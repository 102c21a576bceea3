//! Behind a pooler that lends connections for one transaction at a time.

use servers::{PgBouncer, Postgres};
use tenure::ErrorKind;
use tenure_postgres::advisory::{Advisory, InTransaction, Session};

use crate::host::{assert_locks, client, locks};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_a_session_are_refused_and_none_is_left() {
    let server = Postgres::start();
    for connections in [1, 5] {
        let bouncer = PgBouncer::before(&server, connections);
        let error = Advisory::connect(&bouncer.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("pooler"), "{error}");
        let mut session = Session::new(client(&bouncer.url()).await);
        for _ in 0..2 {
            let error = session.exclusive("a").lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let error = session.shared("a").try_lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        session.into_client().await.batch_execute("SELECT 1").await.unwrap();
        assert_eq!(locks(&server), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_of_a_transaction_work() {
    let server = Postgres::start();
    let bouncer = PgBouncer::before(&server, 2);
    let (mut one, mut two) = (client(&bouncer.url()).await, client(&bouncer.url()).await);
    for _ in 0..20 {
        let first = one.transaction().await.unwrap();
        InTransaction::of(&first).exclusive("a").lock().await.unwrap();
        let second = two.transaction().await.unwrap();
        assert!(!InTransaction::of(&second).exclusive("a").try_lock().await.unwrap());
        first.commit().await.unwrap();
        assert!(InTransaction::of(&second).exclusive("a").try_lock().await.unwrap());
        second.commit().await.unwrap();
        assert_locks(&server, 0, 0);
    }
}

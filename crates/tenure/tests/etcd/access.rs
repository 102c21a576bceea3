//! TLS, client certificates, users: which logins are accepted, and that no password is shown.

use std::time::Duration;

use servers::{Etcd, Proxy, eventually};
use tenure::block_on;
use tenure::contract::Query;
use tenure::engine::etcd::client::{Client, ClientOptions, Target};
use tenure::{Effect, ErrorKind, Tenure};

use crate::host::Waiter;

#[test]
fn a_connection_without_streams_is_kept_while_it_is_idle() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(("127.0.0.1", etcd.port(0)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let target = Target::new(&format!("http://{}", proxy.addr()), &ClientOptions::default());
        let client = Client::new(&target.unwrap());
        client.status().await.unwrap();
        // etcd closes a connection after four probes that it did not want, which took 25 s.
        tokio::time::sleep(Duration::from_secs(28)).await;
        client.status().await.unwrap();
    });
    assert_eq!(proxy.counts().connections, 1);
}

#[test]
fn a_cluster_with_certificates_and_users_lets_in_who_has_both() {
    let etcd = Etcd::builder().tls().root_password("s3cret").start();
    let certificates = etcd.certificates();
    let (ca, cert, key) =
        (certificates.ca(), certificates.client_cert(), certificates.client_key());
    let options = format!("ca={}&cert={}&key={}", ca.display(), cert.display(), key.display());
    let url = |password: &str| format!("{}?{options}", etcd.url_as("root", password));
    let tenure = block_on(Tenure::connect(&url("s3cret"))).unwrap();
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    block_on(guard.release()).unwrap();
    assert!(!format!("{tenure:?}").contains("s3cret"));

    let error = block_on(Tenure::connect(&url("wr0ng"))).map(|_| panic!("let in")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
    assert!(error.help().contains("password"), "{error}");

    let without = format!("{}?ca={}", etcd.url_as("root", "s3cret"), ca.display());
    let error = block_on(Tenure::connect(&without)).map(|_| panic!("let in")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "no certificate: {error}");
}

#[test]
fn a_cluster_that_is_not_there_is_an_error_and_no_hang() {
    let error =
        block_on(Tenure::connect("etcd://127.0.0.1:1")).map(|_| panic!("who?")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.help().contains("majority"), "{error}");
    assert_eq!(error.effect(), Effect::None, "nothing was sent: {error}");
}

#[test]
fn a_claim_at_a_cluster_that_refuses_connections_has_had_no_effect() {
    let etcd = Etcd::start();
    let tenure = block_on(Tenure::connect(&etcd.url())).unwrap();
    etcd.kill(0);
    // The connection that there was breaks first, with whatever was under way.
    eventually("the connection is refused", || {
        let error = block_on(tenure.mutex("a").unwrap().try_lock()).map(|_| panic!("by whom?"));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        error.effect() == Effect::None
    });
}

#[test]
fn waiters_are_woken_by_push_after_the_token_of_their_watches_has_ended() {
    let etcd = Etcd::builder().root_password("s3cret").arg("--auth-token-ttl=2").start();
    // Renewals come only every twenty minutes: a waiter that wakes sooner was woken by an event.
    let hour = Duration::from_secs(3_600);
    let session = || {
        let builder = Tenure::builder().max_lease(hour).lease(hour).namespace("tokens");
        block_on(builder.connect(&etcd.url_as("root", "s3cret"))).unwrap()
    };
    let (one, two) = (session(), session());
    // The second round needs the stream that replaced the one of the first.
    for name in ["a", "b"] {
        let guard = block_on(one.mutex(name).unwrap().lock()).unwrap();
        // Longer than an unused token lives.
        std::thread::sleep(Duration::from_secs(5));
        let mutex = two.mutex(name).unwrap();
        let waiter = Waiter::start(move || block_on(mutex.lock()));
        eventually("the waiter stands in the queue", || {
            let seen = block_on(one.inspect(&Query::Slot(name.try_into().unwrap()))).unwrap();
            seen.slots.first().is_some_and(|slot| slot.queue.len() == 1)
        });
        block_on(guard.release()).unwrap();
        block_on(waiter.served().release()).unwrap();
    }
}

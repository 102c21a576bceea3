//! TLS, client certificates, users: who is let in, and that nobody's password is told.

use servers::Etcd;
use tenure::blocking::wait;
use tenure::{ErrorKind, Tenure};

#[test]
fn a_cluster_with_certificates_and_users_lets_in_who_has_both() {
    let etcd = Etcd::builder().tls().root_password("s3cret").start();
    let certificates = etcd.certificates();
    let (ca, cert, key) =
        (certificates.ca(), certificates.client_cert(), certificates.client_key());
    let options = format!("ca={}&cert={}&key={}", ca.display(), cert.display(), key.display());
    let url = |password: &str| format!("{}?{options}", etcd.url_as("root", password));
    let tenure = wait(Tenure::connect(&url("s3cret"))).unwrap();
    let guard = wait(tenure.mutex("a").unwrap().lock()).unwrap();
    wait(guard.release()).unwrap();
    assert!(!format!("{tenure:?}").contains("s3cret"));

    let error = wait(Tenure::connect(&url("wr0ng"))).map(|_| panic!("let in")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
    assert!(error.next_step().contains("password"), "{error}");

    let without = format!("{}?ca={}", etcd.url_as("root", "s3cret"), ca.display());
    let error = wait(Tenure::connect(&without)).map(|_| panic!("let in")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "no certificate: {error}");
}

#[test]
fn a_cluster_that_is_not_there_is_an_error_and_no_hang() {
    let error = wait(Tenure::connect("etcd://127.0.0.1:1")).map(|_| panic!("who?")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.next_step().contains("majority"), "{error}");
}

#[test]
fn clients_that_state_different_longest_leases_are_refused() {
    let url = Etcd::shared().url();
    let builder = || Tenure::builder().namespace("terms");
    wait(builder().connect(&url)).unwrap();
    let other = builder().max_lease(std::time::Duration::from_secs(30));
    let error = wait(other.connect(&url)).map(|_| panic!("they differ")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    let said = error.to_string();
    assert!(said.contains("1m") && said.contains("30s"), "it names both: {said}");
}

//! A cluster with TLS and passwords: every node is reached, wrong logins are refused.

use servers::{Cluster, Redis};
use tenure::{ErrorKind, Tenure};

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_speak_tls_and_ask_for_a_password_are_all_reached() {
    let user = "user app on >s3cret ~* &* +@all";
    let cluster = Cluster::start_with_tls(|| Redis::builder().acl_line(user));
    let (hosts, ca) = (cluster.tls_hosts(), cluster.certificates().ca().display().to_string());
    let url = |login: &str| format!("rediss+cluster://{login}@{hosts}?ca={ca}");
    let right = url("app:s3cret");
    let one = Tenure::connect(&right).await.unwrap();
    let other = Tenure::connect(&right).await.unwrap();
    // More names than nodes: each node keeps some of them.
    for number in 0..12 {
        let name = format!("guarded-{number}");
        let held = one.mutex(&*name).unwrap().lock().await.unwrap();
        let theirs = other.mutex(&*name).unwrap();
        let waiter = tokio::spawn(async move { theirs.lock().await });
        while other.claim_count() == 0 {
            tokio::task::yield_now().await;
        }
        let fence = held.fence().unwrap();
        held.release().await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        assert!(next.fence().unwrap() > fence);
        next.release().await.unwrap();
    }
    let error = Tenure::connect(&url("app:wr0ng")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(!format!("{error} {error:?}").contains("wr0ng"), "{error:?}");
    // Without the authority no certificate is trusted.
    let stranger = format!("rediss+cluster://app:s3cret@{hosts}");
    let error = Tenure::connect(&stranger).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

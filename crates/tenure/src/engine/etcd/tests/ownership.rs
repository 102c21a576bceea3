//! The engine beside a plain client of etcd: what a comparison with a hold is worth.

use servers::Etcd;

use crate::contract::Ownership;
use crate::engine::etcd::client::{
    Client, ClientOptions, Compare, CompareResult, RequestOp, Target, TxnRequest,
};
use crate::primitives::Tenure;

#[tokio::test]
async fn what_is_written_under_a_lock_is_not_written_after_it() {
    let etcd = Etcd::shared();
    let tenure = Tenure::connect(&etcd.url()).await.unwrap();
    let endpoint = format!("http://127.0.0.1:{}", etcd.port(0));
    let client = Client::new(&Target::new(&endpoint, &ClientOptions::default()).unwrap());
    let guard = tenure.mutex("balance").unwrap().lock().await.unwrap();
    let Ownership { key, revision } = guard.ownership().await.unwrap();
    let write = |value: &str| {
        let held = Compare::create_revision(key.clone(), CompareResult::Equal, revision);
        let success = vec![RequestOp::put("balance", value, 0)];
        TxnRequest { compare: vec![held], success, failure: Vec::new() }
    };
    assert!(client.txn(write("17")).await.unwrap().succeeded);
    guard.release().await.unwrap();
    let next = tenure.mutex("balance").unwrap().lock().await.unwrap();
    assert!(!client.txn(write("18")).await.unwrap().succeeded, "another one holds it");
    next.release().await.unwrap();
    let read = vec![RequestOp::get("balance")];
    let kept = client.txn(TxnRequest { success: read, ..TxnRequest::default() }).await.unwrap();
    assert_eq!(kept.responses[0].clone().into_kvs()[0].value, b"17");
}

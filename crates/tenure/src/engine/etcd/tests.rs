//! The engine beside a client of etcd's own: what a comparison with a hold is worth. Knows both.

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use servers::Etcd;

use crate::contract::Ownership;
use crate::primitives::Tenure;

#[tokio::test]
async fn what_is_written_under_a_lock_is_not_written_after_it() {
    let etcd = Etcd::shared();
    let tenure = Tenure::connect(&etcd.url()).await.unwrap();
    let endpoint = format!("127.0.0.1:{}", etcd.port(0));
    let mut client = Client::connect([endpoint], None).await.unwrap();
    let guard = tenure.mutex("balance").unwrap().lock().await.unwrap();
    let Ownership { key, revision } = guard.ownership().await.unwrap();
    let write = |value: &str| {
        let held = Compare::create_revision(key.clone(), CompareOp::Equal, revision);
        Txn::new().when([held]).and_then([TxnOp::put("balance", value, None)])
    };
    assert!(client.txn(write("17")).await.unwrap().succeeded());
    guard.release().await.unwrap();
    let next = tenure.mutex("balance").unwrap().lock().await.unwrap();
    assert!(!client.txn(write("18")).await.unwrap().succeeded(), "another one holds it");
    next.release().await.unwrap();
    let kept = client.get("balance", None).await.unwrap();
    assert_eq!(kept.kvs()[0].value(), b"17");
}

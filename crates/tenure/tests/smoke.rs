//! smoke
use std::time::Duration;
use tenure::*;

#[tokio::test]
async fn smoke() {
    let t = Tenure::connect("memory:").await.unwrap();
    let g = t.mutex("a").unwrap().lock().await.unwrap();
    println!("{g:?}");
    assert!(t.mutex("a").unwrap().try_lock().await.unwrap().is_none());
    let e = t.mutex("a").unwrap().wait(Duration::from_millis(30)).lock().await.unwrap_err();
    println!("{e}");
    let t2 = t.clone();
    let w = tokio::spawn(async move { t2.mutex("a").unwrap().lock().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(20)).await;
    g.release().await.unwrap();
    let g = w.await.unwrap();
    drop(g);
    let g = t.mutex("a").unwrap().wait(Duration::from_secs(1)).lock().await.unwrap();
    t.close().await;
    println!("{:?}", g.fence());
    println!("{:?}", g.lost().await);
}

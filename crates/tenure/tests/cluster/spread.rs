//! Names in different slots, on different nodes, behind one front.

use std::time::Duration;

use servers::{Cluster, Proxy, Redis, Reply};
use tenure::contract::{Expect, Name, Page, Pattern, Put, PutVerdict, Query};
use tenure::{ErrorKind, Tenure};

async fn connect(url: &str, namespace: &str) -> Tenure {
    Tenure::builder().namespace(namespace).connect(url).await.unwrap()
}

/// A session of another process would have it.
async fn pair(namespace: &str) -> (Tenure, Tenure) {
    let url = Cluster::shared().url();
    (connect(&url, namespace).await, connect(&url, namespace).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn names_with_braces_and_odd_characters_are_locked_waited_for_and_handed_on() {
    let (one, other) = pair("odd/{names}*").await;
    assert_eq!(one.promises().engine, "redis+cluster");
    for name in ["plain", "{", "}", "a}b{c", "{}", "{a}{b}", "ünï cödé", "a:to:b", "x:top", "%7B"]
    {
        let (mine, theirs) = (one.mutex(name).unwrap(), other.mutex(name).unwrap());
        let held = mine.lock().await.unwrap();
        assert!(theirs.try_lock().await.unwrap().is_none(), "{name}");
        let waiter = tokio::spawn(async move { theirs.lock().await });
        while other.claim_count() == 0 {
            tokio::task::yield_now().await;
        }
        let fence = held.fence().unwrap();
        held.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        assert!(guard.fence().unwrap() > fence, "{name}");
        guard.release().await.unwrap();
    }
}

/// A node had 0.4 s for a handshake and an answer: over a slow link, or on a busy host, all of them
/// counted as absent, and connecting failed for good.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_answer_late_are_waited_for() {
    let slow = |node: &Redis| {
        let proxy = Proxy::to(("127.0.0.1", node.port()));
        // A handshake and an answer: two round trips.
        proxy.delay(Duration::from_millis(125), Duration::from_millis(125));
        proxy
    };
    let proxies: Vec<Proxy> = Cluster::shared().nodes().iter().map(slow).collect();
    let hosts: Vec<_> = proxies.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
    let tenure = connect(&format!("redis+cluster://{}", hosts.join(",")), "late").await;
    tenure.mutex("a").unwrap().lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_spans_nodes_is_taken_one_by_one_and_given_back_whole() {
    let (one, other) = pair("sets").await;
    let parts = |tenure: &Tenure| {
        (0..8).map(|n| tenure.mutex(format!("part-{n}")).unwrap().part()).collect::<Vec<_>>()
    };
    let held = one.lock_set(parts(&one)).unwrap().lock().await.unwrap();
    assert!(other.lock_set(parts(&other)).unwrap().try_lock().await.unwrap().is_none());
    held.release().await.unwrap();
    let taken = other.lock_set(parts(&other)).unwrap().try_lock().await.unwrap();
    taken.expect("all are free").release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_shows_the_locks_of_all_nodes_in_the_order_of_names() {
    let (one, other) = pair("pages").await;
    let mut guards = Vec::new();
    for n in 0..60 {
        guards.push(one.mutex(format!("lock-{n:02}")).unwrap().lock().await.unwrap());
    }
    let page = Page { limit: 40, ..Page::default() };
    let first = other.inspect(&Query::Page(page.clone())).await.unwrap();
    let names = |slots: &[tenure::contract::SlotView]| -> Vec<String> {
        slots.iter().map(|slot| slot.name.to_string()).collect()
    };
    let wanted: Vec<String> = (0..60).map(|n| format!("lock-{n:02}")).collect();
    assert_eq!(names(&first.slots), wanted[..40]);
    let rest = Page { after: first.more_after, ..page };
    let rest = other.inspect(&Query::Page(rest)).await.unwrap();
    assert_eq!((names(&rest.slots), rest.more_after), (wanted[40..].to_vec(), None));
    let cluster = Cluster::shared();
    for node in cluster.masters() {
        let Reply::List(keys) = node.read(&["KEYS", "tenure:{pages/*"]) else { panic!() };
        assert!(keys.len() > 10, "{} keys on one node of three", keys.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_are_written_where_their_names_are_and_listed_from_everywhere() {
    let (one, other) = pair("cells").await;
    for n in 0..20 {
        let name = Name::try_from(&*format!("cell-{n:02}")).unwrap();
        let put = Put::new(name, n.to_string().into_bytes()).expect(Expect::Absent);
        assert!(matches!(one.cells().put(&put).await.unwrap(), PutVerdict::Done(_)));
        assert!(matches!(other.cells().put(&put).await.unwrap(), PutVerdict::Refused(Some(_))));
    }
    let all = other.cells().list(&Pattern::all(), None, 100).await.unwrap();
    let values: Vec<_> = all.iter().map(|(_, cell)| String::from_utf8_lossy(&cell.value)).collect();
    assert_eq!(values, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_clients_of_a_namespace_agree_on_the_longest_lease() {
    let url = Cluster::shared().url();
    let with = |seconds| {
        let builder = Tenure::builder().namespace("terms");
        builder.max_lease(Duration::from_secs(seconds)).connect(&url)
    };
    let _first = with(90).await.unwrap();
    let error = with(91).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("max_lease"), "{error}");
    with(90).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_seed_that_answers_is_enough_and_one_that_is_no_node_is_told_apart() {
    let port = Cluster::shared().nodes()[4].port();
    // No server listens on the first; the second is a replica.
    let url = format!("redis+cluster://127.0.0.1:1,127.0.0.1:{port}");
    let tenure = connect(&url, "seeds").await;
    for n in 0..10 {
        tenure.mutex(format!("a-{n}")).unwrap().lock().await.unwrap().release().await.unwrap();
    }
    let error = Tenure::connect("redis+cluster://127.0.0.1:1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let alone = Redis::start();
    let url = alone.url().replace("redis://", "redis+cluster://");
    let error = Tenure::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("not a node of a cluster"), "{error}");
    for wrong in ["redis+cluster://h/1", "redis+cluster://h?grace=yes", "redis+cluster://"] {
        let error = Tenure::connect(wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_costs_one_subscription_and_a_lock_that_nobody_waits_for_two_calls() {
    let cluster = Cluster::start();
    let tenure = connect(&cluster.url(), "calls").await;
    let mutex = tenure.mutex("a").unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    let node = cluster.keeper(cluster.slot_of("tenure:{calls/a}"));
    let count = || (node.commands("ssubscribe"), node.commands("evalsha"));
    let before = count();
    for _ in 0..10 {
        mutex.lock().await.unwrap().release().await.unwrap();
    }
    assert_eq!(count(), (before.0, before.1 + 20));
}

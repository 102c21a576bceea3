//! Cells in a cluster: ids of writes, and watches that follow a slot to another node.

use std::time::Duration;

use servers::{Cluster, eventually};
use tenure::contract::{Page, Query};
use tenure::{
    Batch, CellChange, CellRange, CellWatch, ErrorKind, Name, Put, PutVerdict, Tenure, WriteId,
};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn put(tenure: &Tenure, cell: &str, value: &str) {
    // A write that meets the move of its slot had no effect, or is recognized by its id.
    let put = Put::new(name(cell), value).id(WriteId::new());
    while let Err(error) = tenure.cells().put(&put).await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

/// Waits until the watch returns this value.
async fn until(watch: &mut CellWatch, value: &str) {
    let reading = async {
        loop {
            if let CellChange::Put(_, cell) = watch.next().await.unwrap()
                && cell.value == value.as_bytes()
            {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("{value}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_with_an_id_is_made_once_and_one_of_several_cells_is_refused() {
    let tenure = Tenure::builder().namespace("ids").connect(&Cluster::shared().url()).await;
    let tenure = tenure.unwrap();
    let write = Put::new(name("a"), "1").id(WriteId::new());
    let first = tenure.cells().put(&write).await.unwrap();
    let PutVerdict::Done(version) = tenure.cells().put(&Put::new(name("a"), "2")).await.unwrap()
    else {
        panic!("nothing was expected")
    };
    assert_eq!(tenure.cells().put(&write).await.unwrap(), first);
    assert_eq!(tenure.cells().get(&name("a")).await.unwrap().unwrap().version, version);
    let both = Batch::new().put(Put::new(name("a"), "3")).put(Put::new(name("b"), "3"));
    let error = tenure.cells().write(&both).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_one_cell_follows_its_slot_to_other_nodes() {
    let cluster = Cluster::start();
    let (one, two) = (
        Tenure::connect(&cluster.url()).await.unwrap(),
        Tenure::connect(&cluster.url()).await.unwrap(),
    );
    let slot = cluster.slot_of("tenure:{default/a}");
    put(&two, "a", "0").await;
    let mut watch = one.cells().watch(CellRange::One(name("a"))).await.unwrap();
    until(&mut watch, "0").await;
    put(&two, "a", "1").await;
    until(&mut watch, "1").await;
    let changes: [(&str, &(dyn Fn() + Sync)); 2] = [
        ("moved", &|| cluster.move_slot(slot, cluster.another(slot), || ())),
        ("failed over", &|| cluster.failover(slot)),
    ];
    for (what, change) in changes {
        tokio::task::block_in_place(change);
        put(&two, "a", what).await;
        until(&mut watch, what).await;
        put(&two, "a", "again").await;
        until(&mut watch, "again").await;
    }
    // The first change after the last watcher ends the subscription.
    drop(watch);
    put(&two, "a", "unwatched").await;
    let channel = "tenure:{default/a}:changed";
    tokio::task::block_in_place(|| {
        eventually("it is subscribed no more", || {
            let count = cluster.keeper(slot).read(&["PUBSUB", "SHARDNUMSUB", channel]);
            count.list()[1].int() == Some(0)
        });
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_is_read_again_and_again_because_its_cells_are_on_many_nodes() {
    let tenure = Tenure::builder().namespace("prefix").connect(&Cluster::shared().url()).await;
    let tenure = tenure.unwrap();
    let mut watch = tenure.cells().watch(CellRange::prefix("a").unwrap()).await.unwrap();
    for (cell, value) in [("a1", "1"), ("a2", "2"), ("a1", "3")] {
        put(&tenure, cell, value).await;
        until(&mut watch, value).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_slots_of_all_nodes_are_found() {
    let url = Cluster::shared().url();
    let connect = || Tenure::builder().namespace("contended").connect(&url);
    let (one, two) = (connect().await.unwrap(), connect().await.unwrap());
    let mut guards = Vec::new();
    for n in 0..12 {
        guards.push(one.mutex(format!("lock-{n:02}")).unwrap().lock().await.unwrap());
    }
    let wanted: Vec<String> = (0..12).step_by(3).map(|n| format!("lock-{n:02}")).collect();
    let wait = |name: &String| {
        let mutex = two.mutex(&**name).unwrap();
        tokio::spawn(async move { mutex.lock().await })
    };
    let waiters: Vec<_> = wanted.iter().map(wait).collect();
    let looking = async {
        loop {
            let page = Page { contended: true, limit: 3, ..Page::default() };
            let first = one.inspect(&Query::Page(page.clone())).await.unwrap();
            let rest = Page { after: first.more_after, ..page };
            let rest = one.inspect(&Query::Page(rest)).await.unwrap();
            let slots = first.slots.iter().chain(&rest.slots);
            let names: Vec<String> = slots.map(|slot| slot.name.to_string()).collect();
            if names == wanted {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap();
    for guard in guards {
        guard.release().await.unwrap();
    }
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

//! Nodes that die, stop, are cut off and forget: what a hold survives, and how its end is told.

use std::time::Duration;

use servers::{Direction, eventually};
use tenure::block_on;
use tenure::{ErrorKind, Loss, Tenure};

use crate::host::{Book, Nodes};

/// Long enough that nothing ends by itself.
const LONG: Duration = Duration::from_secs(60);
/// A lease for tests that wait for its end.
const SHORT: Duration = Duration::from_secs(3);

#[test]
fn with_two_of_five_nodes_gone_locks_are_granted_and_with_three_gone_it_is_an_error() {
    let nodes = Nodes::start(5, 0);
    let tenure = block_on(Tenure::builder().lease(LONG).connect(&nodes.new_url())).unwrap();
    let mutex = tenure.mutex("a").unwrap().timeout(Duration::from_secs(30));
    nodes.servers[0].kill();
    nodes.servers[1].stop();
    let guard = block_on(mutex.lock()).expect("three nodes are a majority");
    block_on(guard.release()).unwrap();
    nodes.servers[2].kill();
    let error = block_on(mutex.clone().timeout(Duration::from_secs(3)).lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("of 5 nodes answered, 3 must"), "{error}");
    nodes.servers[1].cont();
    // Nodes 1, 3 and 4 are a majority, and none of them was restarted.
    eventually("locks are granted again", || {
        block_on(mutex.try_lock()).is_ok_and(|got| got.is_some())
    });
}

#[test]
fn clocks_that_are_put_back_close_nodes_for_no_longer_than_a_restart_does() {
    let nodes = Nodes::start(3, 0);
    let lease = Duration::from_secs(1);
    let builder = Tenure::builder().lease(lease).max_lease(lease);
    let tenure = block_on(builder.connect(&nodes.new_url())).unwrap();
    let mutex = tenure.mutex("a").unwrap();
    let first = block_on(mutex.try_lock()).unwrap().expect("it is free");
    let before = first.fence().unwrap();
    block_on(first.release()).unwrap();
    for server in &nodes.servers {
        server.step_clock(Duration::from_secs(600), Direction::Back);
    }
    // For a node that was closed not long ago, time runs again from there: it cannot tell a clock
    // that was wrong from one that is wrong now.
    let mut second = None;
    eventually("nodes are open again, long before their clocks are back", || {
        second = block_on(mutex.try_lock()).ok().flatten();
        second.is_some()
    });
    assert!(second.unwrap().fence().unwrap() > before);
}

#[test]
fn whoever_waits_in_vain_hears_who_holds_and_which_nodes_are_away() {
    let nodes = Nodes::start(5, 0);
    let (one, two) = (Book::new(), Book::new());
    let (one, two) = (one.session(&nodes.new_url(), LONG), two.session(&nodes.url(), LONG));
    let guard = block_on(one.mutex("a").unwrap().label("the first").lock()).unwrap();
    let error =
        block_on(two.mutex("a").unwrap().timeout(Duration::from_millis(300)).lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains("the first"), "{error}");

    let mutex = two.mutex("a").unwrap().timeout(Duration::from_secs(8));
    let waiter = std::thread::spawn(move || block_on(mutex.lock()));
    std::thread::sleep(Duration::from_millis(200));
    for server in &nodes.servers[..3] {
        server.kill();
    }
    let error = waiter.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("of 5 nodes answered, 3 must"), "{error}");
    drop(guard);
}

#[test]
fn a_hold_survives_the_loss_of_a_minority_and_its_loss_is_told() {
    let nodes = Nodes::start(5, 0);
    let book = Book::new();
    // A busy machine must not cost it either.
    let tenure = book.session(&nodes.new_url(), Duration::from_secs(9));
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    let holds = |server: &servers::Redis| {
        server.read(&["HGET", "tenure:{default/a}:q", "i"]).text().is_some()
    };
    eventually("all nodes have it", || nodes.servers.iter().all(holds));
    nodes.servers[0].kill();
    nodes.proxies[1].black_hole(true);
    let renewed = || {
        let history = book.recorder.history();
        let renewals = history
            .entries()
            .iter()
            .filter(|entry| matches!(entry.what, tenure::conformance::audit::What::Renewed(_)));
        renewals.count()
    };
    let before = renewed();
    eventually("it is renewed by three nodes", || renewed() >= before + 2);
    guard.check().unwrap();
    nodes.servers[2].kill();
    let loss = block_on(guard.lost());
    assert_eq!(loss, Loss::Expired, "no majority extends it, and none says that it is gone");
}

#[test]
fn a_majority_that_has_forgotten_a_hold_is_an_early_loss() {
    let nodes = Nodes::start(3, 0);
    let tenure = block_on(Tenure::builder().lease(SHORT).connect(&nodes.new_url())).unwrap();
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    nodes.servers[0].restart();
    nodes.servers[1].restart();
    assert_eq!(block_on(guard.lost()), Loss::Forgotten);
    // They may have forgotten others as well, so nothing is granted for as long as a lease may
    // last.
    let error = block_on(tenure.mutex("b").unwrap().try_lock()).unwrap_err();
    assert!(error.to_string().contains("lost their memory"), "{error}");
}

#[test]
fn nodes_that_keep_their_memory_keep_the_hold_through_a_restart() {
    let nodes = Nodes::start(3, 3);
    let book = Book::new();
    let tenure = book.session(&nodes.new_url(), Duration::from_secs(20));
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    for server in &nodes.servers {
        server.restart();
    }
    let other = book.session(&nodes.url(), SHORT);
    let seen = || {
        let query = tenure::Query::Slot("a".parse().unwrap());
        let seen = block_on(other.inspect(&query)).ok()?;
        seen.slots.first()?.holders.first().map(|holder| holder.fence)
    };
    eventually("all nodes show the hold", || seen() == Some(fence));
    guard.check().unwrap();
    block_on(guard.release()).unwrap();
}

#[test]
fn a_node_that_was_away_hears_of_the_release_all_the_same() {
    let nodes = Nodes::start(3, 0);
    let tenure = block_on(Tenure::builder().lease(LONG).connect(&nodes.new_url())).unwrap();
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    let stands = || nodes.servers[2].read(&["HGET", "tenure:{default/a}:q", "i"]);
    eventually("the third node has it too", || stands().text().is_some());
    nodes.proxies[2].refuse(true);
    nodes.proxies[2].cut();
    block_on(guard.release()).expect("two nodes have confirmed");
    assert!(stands().text().is_some(), "it could not know");
    nodes.proxies[2].refuse(false);
    eventually("the node hears of it", || stands().text().is_none());
}

#[test]
fn whoever_waits_is_woken_when_the_holder_lets_go() {
    let nodes = Nodes::start(3, 0);
    let book = Book::new();
    let (one, two) = (book.session(&nodes.new_url(), LONG), book.session(&nodes.url(), LONG));
    let first = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let mutex = two.mutex("a").unwrap().timeout(Duration::from_secs(30));
    let waiter = std::thread::spawn(move || block_on(mutex.lock()));
    eventually("it waits", || {
        let history = book.recorder.history();
        let queued = tenure::conformance::audit::What::Queued;
        history.entries().iter().any(|entry| entry.what == queued)
    });
    let before = first.fence().unwrap();
    block_on(first.release()).unwrap();
    let second = waiter.join().unwrap().expect("it is served long before the lease would end");
    assert!(second.fence().unwrap() > before);
    drop(second);
    block_on(two.close());
    book.assert_sound("a hand-over");
}

#[test]
fn raised_fences_hold_with_any_majority_and_need_one_to_be_raised() {
    let nodes = Nodes::start(3, 0);
    let tenure = block_on(Tenure::builder().lease(LONG).connect(&nodes.new_url())).unwrap();
    let mutex = tenure.mutex("a").unwrap().timeout(Duration::from_secs(30));
    block_on(block_on(mutex.lock()).unwrap().release()).unwrap();
    let to = block_on(tenure.highest_fence()).unwrap().get() + 3_600_000_000;
    // One node misses it, and another that has it is gone afterwards.
    nodes.servers[0].stop();
    block_on(tenure.raise_fences(to)).expect("two nodes are a majority");
    nodes.servers[0].cont();
    nodes.servers[1].stop();
    for name in ["a", "b"] {
        let mutex = tenure.mutex(name).unwrap().timeout(Duration::from_secs(30));
        let mut guard = None;
        eventually("the node is back", || {
            guard = block_on(mutex.try_lock()).ok().flatten();
            guard.is_some()
        });
        let guard = guard.unwrap();
        assert!(guard.fence().unwrap().get() > to, "{name}: {:?}", guard.fence());
        block_on(guard.release()).unwrap();
    }
    nodes.servers[2].stop();
    let error = block_on(tenure.raise_fences(to * 2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

//! Idempotence and tombstones: repeating a claim is harmless, and what was withdrawn stays so.

use std::sync::Arc;

use super::{Ask, Raw, RequestGate, Waiting, World, list};
use crate::contract::{Claim, Refusal, Release, Released, Renewed, Verdict};

list! { Idempotence:
    repeating_a_held_claim_gives_the_same_answer cites [5] needs [];
    repeating_a_held_claim_renews_it cites [5] needs [];
    repeating_a_waiting_claim_keeps_its_place cites [5, 2] needs [Queue];
    a_copy_that_arrives_after_the_withdrawal_is_refused cites [6] needs [];
    a_withdrawal_crosses_its_claim_at_a_free_lock_in_every_order cites [6] needs [];
    a_withdrawal_crosses_its_claim_in_a_queue_in_every_order cites [6] needs [];
    a_withdrawal_crosses_its_claim_of_a_set_in_every_order cites [6] needs [AtomicSets];
    a_tombstone_lasts_for_a_lease_and_no_longer_matters_then cites [6] needs [];
    releasing_twice_touches_nobody_else cites [9] needs [];
    a_late_release_cannot_touch_a_successor cites [9] needs [];
    a_claim_that_comes_back_after_expiry_is_another_arrival cites [5] needs [];
}

fn repeating_a_held_claim_gives_the_same_answer(world: &World) {
    let raw = world.raw();
    let (claim, grant) = raw.granted(world, Ask::mutex(world, "a"));
    for _ in 0..3 {
        assert_eq!(raw.send(world, &claim), Verdict::Granted(grant.clone()));
    }
    assert_eq!(world.slot("a").unwrap().holders.len(), 1, "one hold, however often it was asked");
}

fn repeating_a_held_claim_renews_it(world: &World) {
    let raw = world.raw();
    let (claim, _) = raw.granted(world, Ask::mutex(world, "a"));
    world.pass(world.lease() * 2 / 3);
    raw.send(world, &claim);
    world.pass(world.lease() * 2 / 3);
    let holders = world.slot("a").map(|slot| slot.holders.len());
    assert_eq!(holders, Some(1), "alive by its repetition");
}

fn repeating_a_waiting_claim_keeps_its_place(world: &World) {
    let raw = world.raw();
    let (held, _) = raw.granted(world, Ask::mutex(world, "a"));
    let (first, before) = raw.queued(world, Ask::mutex(world, "a"));
    let (_second, _) = raw.queued(world, Ask::mutex(world, "a"));
    match raw.send(world, &first) {
        Verdict::Queued(again) => {
            assert_eq!((again.place, again.arrival), (before.place, before.arrival));
        }
        other => panic!("should still wait: {other:?}"),
    }
    raw.release(world, &held);
    assert!(matches!(raw.renew(world, &first), Renewed::Held(_)), "it was first");
}

fn a_copy_that_arrives_after_the_withdrawal_is_refused(world: &World) {
    let raw = world.raw();
    let claim = raw.make(Ask::mutex(world, "a"));
    assert_eq!(raw.withdraw(world, &claim), Released::Gone, "the copy overtook the claim");
    assert_eq!(raw.send(world, &claim), Verdict::Refused(Refusal::Withdrawn));
    let (claim, _) = raw.granted(world, Ask::mutex(world, "a"));
    assert_eq!(raw.withdraw(world, &claim), Released::Done);
    assert_eq!(raw.send(world, &claim), Verdict::Refused(Refusal::Withdrawn));
    world.assert_free("a");
}

fn a_withdrawal_crosses_its_claim_at_a_free_lock_in_every_order(world: &World) {
    cross(world, |_, _| Vec::new(), |name| vec![name.to_owned()]);
}

fn a_withdrawal_crosses_its_claim_in_a_queue_in_every_order(world: &World) {
    let take = |raw: &Raw, name: &str| {
        vec![raw.granted(world, Ask::mutex(world, name).lease(world.long_lease())).0]
    };
    cross(world, take, |name| vec![name.to_owned()]);
}

fn a_withdrawal_crosses_its_claim_of_a_set_in_every_order(world: &World) {
    let take = |raw: &Raw, name: &str| {
        vec![raw.granted(world, Ask::mutex(world, name).lease(world.long_lease())).0]
    };
    cross(world, take, |name| vec![name.to_owned(), format!("{name}-too")]);
}

/// Lets a claim on some names and its withdrawal cross in every order, after `take` has taken what
/// the claim has to wait for. Nothing may be left of the claim, and its id stays refused.
fn cross(
    world: &World,
    take: impl Fn(&Raw, &str) -> Vec<Arc<Claim>>,
    names: impl Fn(&str) -> Vec<String>,
) {
    let raw = world.raw();
    let gates = [Arc::new(RequestGate::default()), Arc::new(RequestGate::default())];
    let [claims, releases] = world.stage().gated([&gates[0], &gates[1]]);
    let orders = RequestGate::orders([&*gates[0], &*gates[1]], |number, order| {
        let name = format!("a{number}");
        let holders = take(&raw, &name);
        let names = names(&name);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let claim = raw.make(Ask::mutexes(world, &names).lease(world.long_lease()));
        let (answer, withdrawn) = order.drive(|| {
            let (engine, sent) = (Arc::clone(&claims), Arc::clone(&claim));
            let claimed = Waiting::start(async move { engine.claim(&sent).await });
            let (engine, claim) = (Arc::clone(&releases), claim.to_ref());
            let batch = vec![Release { claim, uncertain: true }];
            (claimed, Waiting::start(async move { engine.release(&batch).await }))
        });
        withdrawn.done(world.stage()).expect("the withdrawal is answered");
        let claimed = answer.done(world.stage());
        let said = format!("order {number}, the claim was answered {claimed:?}");
        let again = raw.send(world, &claim);
        assert_eq!(again, Verdict::Refused(Refusal::Withdrawn), "{said}");
        for holder in &holders {
            raw.release(world, holder);
        }
        for name in names {
            world.settle();
            let view = world.slot(name);
            let free = view.as_ref().is_none_or(|v| v.holders.is_empty() && v.queue.is_empty());
            assert!(free, "{said}, and this was left: {view:?}");
        }
    });
    assert!(orders >= 6, "a request and a reply each cross in six orders, not in {orders}");
}

fn a_tombstone_lasts_for_a_lease_and_no_longer_matters_then(world: &World) {
    let raw = world.raw();
    let (claim, _) = raw.granted(world, Ask::mutex(world, "a"));
    raw.withdraw(world, &claim);
    world.pass(world.lease() / 2);
    assert_eq!(raw.send(world, &claim), Verdict::Refused(Refusal::Withdrawn));
    world.pass(world.lease());
    assert!(matches!(raw.send(world, &claim), Verdict::Granted(_)), "no copy lives that long");
}

fn releasing_twice_touches_nobody_else(world: &World) {
    let raw = world.raw();
    let (first, _) = raw.granted(world, Ask::mutex(world, "a"));
    let (second, _) = raw.queued(world, Ask::mutex(world, "a"));
    assert_eq!(raw.release(world, &first), Released::Done);
    assert_eq!(raw.release(world, &first), Released::Gone);
    assert!(matches!(raw.renew(world, &second), Renewed::Held(_)), "the successor is untouched");
}

fn a_late_release_cannot_touch_a_successor(world: &World) {
    let raw = world.raw();
    let (first, _) = raw.granted(world, Ask::mutex(world, "a"));
    world.pass(world.lease() * 2);
    let (second, _) = raw.granted(world, Ask::mutex(world, "a"));
    assert_eq!(raw.release(world, &first), Released::Gone);
    assert!(matches!(raw.renew(world, &first), Renewed::Gone(_)));
    assert!(matches!(raw.renew(world, &second), Renewed::Held(_)));
}

fn a_claim_that_comes_back_after_expiry_is_another_arrival(world: &World) {
    let raw = world.raw();
    let (claim, old) = raw.granted(world, Ask::mutex(world, "a"));
    world.pass(world.lease() * 2);
    match raw.send(world, &claim) {
        Verdict::Granted(new) => {
            assert_ne!(new.arrival, old.arrival, "a push of the first life must not count");
            assert!(new.fences.as_slice() > old.fences.as_slice());
        }
        other => panic!("the name is free: {other:?}"),
    }
}

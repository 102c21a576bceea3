//! Two calls whose requests and replies cross, in every order in which they can reach the store and
//! come back. A store that needs several requests for a verb looks first and writes later: what it
//! has seen may have changed in between, and each comparison of its writes is decided here by some
//! order. Withdrawals that cross their claims are in `idempotence`.

use std::sync::Arc;

use super::{Ask, Raw, RequestGate, Waiting, World, fence, list, name};
use crate::contract::{
    Arrival, Claim, Engine, Error, Evicted, Eviction, Release, Released, Verdict,
};

list! { Crossing:
    two_that_come_to_a_queue_at_once_both_stand_in_it cites [2] needs [Queue];
    a_reader_never_passes_a_writer_that_came_before_it cites [2] needs [Queue, Sharing];
    two_writers_that_come_at_once_never_hold_together cites [1, 3] needs [];
    two_sets_that_come_at_once_never_hold_together cites [1, 2] needs [AtomicSets];
    a_claim_that_crosses_the_release_it_waits_for_is_served cites [2, 8] needs [Queue];
    a_forced_release_never_ends_a_successor cites [9] needs [];
}

/// Plays every order of two claims on a fresh name; `take` takes what they meet there.
fn claims_cross(
    world: &World,
    take: impl Fn(&Raw, &str) -> Vec<Arc<Claim>>,
    asks: [&dyn Fn(&str) -> Ask; 2],
    check: impl Fn(&Raw, &str, [(&Arc<Claim>, Verdict); 2], &[Arc<Claim>]),
) {
    let raw = world.raw();
    let gates = [Arc::new(RequestGate::default()), Arc::new(RequestGate::default())];
    let [one, other] = world.stage().gated([&gates[0], &gates[1]]);
    let orders = RequestGate::orders([&*gates[0], &*gates[1]], |number, order| {
        let name = format!("a{number}");
        let holders = take(&raw, &name);
        let claims = asks.map(|ask| raw.make(ask(&name).lease(world.long_lease())));
        let (first, second) = order.drive(|| (send(&one, &claims[0]), send(&other, &claims[1])));
        let answers = [first, second].map(|answer| answer.done(world.stage()).expect("an answer"));
        let [first, second] = answers;
        check(&raw, &name, [(&claims[0], first), (&claims[1], second)], &holders);
    });
    assert!(orders >= 6, "a request and a reply each cross in six orders, not in {orders}");
}

fn send(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> Waiting<Result<Verdict, Error>> {
    let (engine, claim) = (Arc::clone(engine), Arc::clone(claim));
    Waiting::start(async move { engine.claim(&claim).await })
}

/// The number of the arrival that a claim was granted or queued with.
fn arrival(verdict: &Verdict) -> Arrival {
    match verdict {
        Verdict::Granted(grant) => grant.arrival,
        Verdict::Queued(queued) => queued.arrival,
        Verdict::Refused(refusal) => panic!("should not be refused: {refusal:?}"),
    }
}

fn is_granted(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Granted(_))
}

fn two_that_come_to_a_queue_at_once_both_stand_in_it(world: &World) {
    let ask = |name: &str| Ask::mutex(world, name);
    let take = |raw: &Raw, name: &str| vec![raw.granted(world, long(world, ask(name))).0];
    claims_cross(world, take, [&ask, &ask], |raw, name, answers, holders| {
        let mut line = answers.map(|(claim, verdict)| {
            assert!(!is_granted(&verdict), "{name}: one holds already: {verdict:?}");
            (arrival(&verdict), claim)
        });
        line.sort_by_key(|(arrival, _)| *arrival);
        assert_eq!(world.line(name), line.map(|(_, claim)| claim.id), "{name}");
        raw.release(world, &holders[0]);
        for (_, next) in line {
            world.assert_served(name, next.id);
            raw.release(world, next);
        }
        world.assert_free(name);
    });
}

fn a_reader_never_passes_a_writer_that_came_before_it(world: &World) {
    let read = |name: &str| Ask::read(world, name);
    let write = |name: &str| Ask::write(world, name);
    let take = |raw: &Raw, name: &str| vec![raw.granted(world, long(world, read(name))).0];
    claims_cross(world, take, [&write, &read], |raw, name, answers, holders| {
        let [(writer, of_writer), (reader, of_reader)] = answers;
        assert!(!is_granted(&of_writer), "{name}: a reader holds: {of_writer:?}");
        let before = arrival(&of_reader) < arrival(&of_writer);
        assert_eq!(is_granted(&of_reader), before, "{name}: {of_reader:?} beside {of_writer:?}");
        raw.release(world, &holders[0]);
        raw.release(world, if before { reader } else { writer });
        raw.held(world, if before { writer } else { reader });
    });
}

fn two_writers_that_come_at_once_never_hold_together(world: &World) {
    let ask = |name: &str| Ask::mutex(world, name).at_once();
    claims_cross(
        world,
        |_, _| Vec::new(),
        [&ask, &ask],
        |raw, name, answers, _| {
            let won = answers.iter().filter(|(_, verdict)| is_granted(verdict));
            let won: Vec<&Arc<Claim>> = won.map(|(claim, _)| *claim).collect();
            // Where nodes vote apart, two that come at once may both go away with nothing.
            assert!(won.len() <= 1, "{name}: {answers:?}");
            let ids: Vec<_> = won.iter().map(|claim| claim.id).collect();
            assert_eq!(world.holders(name), ids, "{name}: {answers:?}");
            for claim in won {
                raw.release(world, claim);
            }
            world.assert_free(name);
        },
    );
}

fn two_sets_that_come_at_once_never_hold_together(world: &World) {
    let ask = |name: &str| Ask::mutexes(world, &[name, &format!("{name}-too")]);
    claims_cross(
        world,
        |_, _| Vec::new(),
        [&ask, &ask],
        |raw, name, answers, _| {
            let mut line = answers.map(|(claim, verdict)| (arrival(&verdict), claim, verdict));
            line.sort_by_key(|(arrival, ..)| *arrival);
            let [(_, first, holds), (_, second, waits)] = line;
            assert!(is_granted(&holds) && !is_granted(&waits), "{name}: {holds:?}, {waits:?}");
            for name in [name, &format!("{name}-too")] {
                assert_eq!(
                    (world.holders(name), world.line(name)),
                    (vec![first.id], vec![second.id])
                );
            }
            raw.release(world, first);
            raw.held(world, second);
            raw.release(world, second);
            world.assert_free(name);
        },
    );
}

fn a_claim_that_crosses_the_release_it_waits_for_is_served(world: &World) {
    let raw = world.raw();
    let gates = [Arc::new(RequestGate::default()), Arc::new(RequestGate::default())];
    let [one, other] = world.stage().gated([&gates[0], &gates[1]]);
    RequestGate::orders([&*gates[0], &*gates[1]], |number, order| {
        let name = format!("a{number}");
        let ask = || long(world, Ask::mutex(world, &name));
        let (holder, next) = (raw.granted(world, ask()).0, raw.make(ask()));
        let (answer, released) = order.drive(|| (send(&one, &next), give_back(&other, &holder)));
        assert_eq!(released.done(world.stage()).expect("an answer"), [Released::Done], "{name}");
        answer.done(world.stage()).expect("an answer");
        // By itself: no renewal of the waiter asks for it.
        world.assert_served(&name, next.id);
        raw.release(world, &next);
    });
}

fn a_forced_release_never_ends_a_successor(world: &World) {
    let raw = world.raw();
    let gates = [Arc::new(RequestGate::default()), Arc::new(RequestGate::default())];
    let [evicts, others] = world.stage().gated([&gates[0], &gates[1]]);
    RequestGate::orders([&*gates[0], &*gates[1]], |number, order| {
        let text = format!("a{number}");
        let ask = || long(world, Ask::mutex(world, &text));
        let (holder, successor) = (raw.make(ask()), raw.make(ask().at_once()));
        let grant = match send(&others, &holder).done(world.stage()) {
            Ok(Verdict::Granted(grant)) => grant,
            other => panic!("should be granted: {other:?}"),
        };
        let eviction = Eviction::new(name(&text), fence(&grant), "stuck").expect("a reason");
        let (evicted, followed) = order.drive(|| {
            let engine = Arc::clone(&evicts);
            let evicted = Waiting::start(async move { engine.evict(&eviction).await });
            let (engine, successor) = (Arc::clone(&others), Arc::clone(&successor));
            let batch = vec![Release { claim: holder.to_ref(), uncertain: false }];
            let followed = async move {
                let released = engine.release(&batch).await?;
                Ok::<_, Error>((released, engine.claim(&successor).await?))
            };
            (evicted, Waiting::start(followed))
        });
        let evicted = evicted.done(world.stage()).expect("an answer");
        let (released, verdict) = followed.done(world.stage()).expect("an answer");
        let said = format!("{text}: evicted {evicted:?}, released {released:?}, then {verdict:?}");
        assert!(is_granted(&verdict), "{said}");
        if let Evicted::Done(ended) = &evicted {
            assert!(ended.iter().all(|view| view.claim == holder.id), "{said}");
        }
        assert_eq!(world.holders(&text), [successor.id], "{said}");
        raw.release(world, &successor);
    });
}

fn give_back(
    engine: &Arc<dyn Engine>,
    claim: &Arc<Claim>,
) -> Waiting<Result<Vec<Released>, Error>> {
    let batch = vec![Release { claim: claim.to_ref(), uncertain: false }];
    let engine = Arc::clone(engine);
    Waiting::start(async move { engine.release(&batch).await })
}

/// With a lease that outlives any number of calls.
fn long(world: &World, ask: Ask) -> Ask {
    ask.lease(world.long_lease())
}

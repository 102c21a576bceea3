//! Hostile: odd names, strange batches, ids that the store does not know, and limits. Nothing is
//! mixed up.

use std::sync::Arc;

use super::{Ask, World, fence, list, name};
use crate::contract::{
    Claim, ClaimId, ClaimRef, Evicted, Fence, Lineage, Loss, OwnerId, Part, Release, Released,
    Renewed, Verdict,
};
use crate::limits;

list! { Hostile:
    every_printable_character_makes_a_name_of_its_own cites [1, 9] needs [];
    names_that_look_alike_never_meet cites [1, 9] needs [];
    lines_of_odd_names_are_served_and_told cites [2, 8] needs [Queue];
    names_as_long_as_the_limit_are_told_apart cites [1] needs [];
    a_set_of_odd_names_is_one_claim cites [1] needs [AtomicSets];
    a_set_as_large_as_the_limit_is_one_claim cites [1] needs [AtomicSets, Queue];
    an_eviction_ends_exactly_the_fence_it_names cites [9] needs [];
    evicting_a_name_that_nobody_holds_finds_nobody cites [9] needs [Queue];
    ids_that_nobody_knows_are_gone cites [9] needs [];
    another_claims_names_with_an_unknown_id_touch_nobody cites [9] needs [];
    a_claim_that_was_never_sent_is_released_without_effect cites [6, 9] needs [Queue];
    empty_batches_have_empty_answers cites [10] needs [];
    a_full_batch_is_answered_in_its_order cites [4, 9] needs [];
    a_batch_of_the_living_and_the_dead_is_answered_one_by_one cites [9] needs [Queue];
    the_longest_lease_is_a_lease cites [4] needs [];
    owners_nest_as_deep_as_the_limit cites [1, 3] needs [Queue];
}

/// Names that a careless store takes for one another, or for something else.
const ALIKE: &[&str] = &[
    "a", "A", "a ", " a", "a  ", "aa", "\u{ff41}", "a.", "a\\", "a\\\\", "'a'", "\"a\"", "{a}",
    "{a", "a}", "{a}{b}", "{{a}}", "{}a", "{}", "}{", "a:b", "a::b", "a:b:", ":a:b", ":", "::",
    "a/b", "a//b", "/a/b", "a/b/", "a/../a", "..", ".", "./a", "a*", "*", "**", "a?", "?", "[a]",
    "[^a]", "a%", "%", "%%", "%41", "%2F", "a%2Fb", "a%3Ab", "a+b", "a b", "a_b", "_", "__", "a-b",
    "a,b", "a;b", "$1", "${a}", "`a`", "a|b", "a&b", "<a>", "a=b", "a@b", "a#b", "a!b", "é",
    "e\u{301}", "ß", "ss", "\u{fb01}", "fi", "\u{c5}", "\u{212b}", "0", "00", "+0", "-0", "1",
    "1.0", "1e0", "0x1", "null", "NULL", "nil", "None", "true", "tenure", "tenure:a", "default",
    "a:line", "a:fence", "a:q", "a/slot", "a/claims", "slot", "claim", "floor", "cells",
];

/// More of them.
const LONGER: &[&str] =
    &["a\u{200b}", "a'; drop table x; --", "undefined", "tenure:{a}", "a:holders"];

/// Takes every name at once and checks that each stands for itself alone.
fn all_stand_apart(world: &World, names: &[String]) {
    let (raw, other) = (world.raw(), world.raw());
    let ask = |name: &String| Ask::mutex(world, name).lease(world.long_lease());
    let claims: Vec<Arc<Claim>> = names.iter().map(|name| raw.make(ask(name))).collect();
    for (name, verdict) in names.iter().zip(raw.send_all(world, &claims)) {
        assert!(matches!(verdict, Verdict::Granted(_)), "{name:?} met another: {verdict:?}");
    }
    let tries: Vec<_> = names.iter().map(|name| other.make(ask(name).at_once())).collect();
    for (name, verdict) in names.iter().zip(other.send_all(world, &tries)) {
        assert!(matches!(verdict, Verdict::Refused(_)), "{name:?} was not held: {verdict:?}");
    }
    // Every other one is released; the rest must not notice.
    let refs = claims.iter().map(|claim| Release { claim: claim.to_ref(), uncertain: false });
    let released = raw.release_all(world, refs.step_by(2).collect());
    assert!(released.iter().all(|answer| *answer == Released::Done));
    let answers = raw.renew_all(world, claims.iter().map(|claim| claim.to_ref()).collect());
    for (at, (name, answer)) in names.iter().zip(answers).enumerate() {
        let held = matches!(answer, Renewed::Held(_));
        assert_eq!(held, at % 2 == 1, "{name:?}: {answer:?}");
    }
}

fn every_printable_character_makes_a_name_of_its_own(world: &World) {
    let printable =
        (' '..='~').chain(['é', 'ß', 'ı', 'İ', '\u{a0}', '\u{200b}', '名', '🔒', '\u{fffd}']);
    all_stand_apart(world, &printable.clone().map(String::from).collect::<Vec<_>>());
    all_stand_apart(world, &printable.map(|c| format!("x{c}y")).collect::<Vec<_>>());
}

fn names_that_look_alike_never_meet(world: &World) {
    let names = ALIKE.iter().chain(LONGER).map(|text| (*text).to_owned());
    all_stand_apart(world, &names.collect::<Vec<_>>());
}

fn lines_of_odd_names_are_served_and_told(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    for name in ["{a}:b", "a*", "a b\"c'd", "%41/..", "名前 🔒", "\\"] {
        let guard = world.now(one.tenure.mutex(name).unwrap().lock()).unwrap();
        let waiting = world.waits(two.tenure.mutex(name).unwrap().lock());
        world.now(guard.release()).unwrap();
        let guard = world.served(waiting).unwrap();
        assert_eq!(guard.name().as_str(), name);
        assert_eq!(world.holders(name), [guard.claim_id()]);
        world.now(guard.release()).unwrap();
        world.assert_free(name);
    }
}

fn names_as_long_as_the_limit_are_told_apart(world: &World) {
    let stem = "x".repeat(limits::NAME_BYTES - 1);
    let wide = "é".repeat(limits::NAME_BYTES / 2);
    let names = [
        format!("{stem}a"),
        format!("{stem}b"),
        format!("b{stem}"),
        stem,
        format!("{wide}x"),
        wide,
    ];
    all_stand_apart(world, &names);
}

fn a_set_of_odd_names_is_one_claim(world: &World) {
    let raw = world.raw();
    let names = ["{a}", "{b}", "a:b", "*", "%", "é"];
    let (set, grant) = raw.granted(world, Ask::mutexes(world, &names));
    assert_eq!(grant.fences.as_slice().len(), names.len());
    for name in names {
        assert_eq!(world.holders(name), [set.id], "{name:?}");
    }
    raw.granted(world, Ask::mutexes(world, &["a", "b", "{a}{b}"]).at_once());
    assert_eq!(raw.release(world, &set), Released::Done);
    for name in names {
        world.assert_free(name);
    }
}

fn a_set_as_large_as_the_limit_is_one_claim(world: &World) {
    let raw = world.raw();
    let names: Vec<String> = (0..limits::SET_NAMES).map(|n| format!("name {n}")).collect();
    let parts = || names.iter().map(|text| Part::write(name(text))).collect::<Vec<_>>();
    let ask = || Ask::set(world, parts()).lease(world.long_lease());
    let (first, grant) = raw.granted(world, ask());
    assert_eq!(grant.fences.as_slice().len(), limits::SET_NAMES);
    let (second, queued) = raw.queued(world, ask());
    assert_eq!(queued.place, 1);
    raw.refused(world, ask().at_once());
    raw.release(world, &first);
    let next = raw.held(world, &second);
    let pairs = grant.fences.as_slice().iter().zip(next.fences.as_slice());
    assert!(pairs.into_iter().all(|(old, new)| new > old));
    raw.release(world, &second);
    for name in &names {
        world.assert_free(name);
    }
}

fn an_eviction_ends_exactly_the_fence_it_names(world: &World) {
    let raw = world.raw();
    let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
    let number = fence(&grant).get();
    let far = [0, 1, number - 1, number + 1, limits::FENCE - 1, limits::FENCE, u64::MAX];
    for wrong in far {
        match raw.evict(world, "a", Fence::new(wrong), "a wrong guess") {
            Evicted::NoSuchGrant(by) => {
                assert_eq!((by.len(), by[0].fence), (1, fence(&grant)), "{wrong}");
            }
            done @ Evicted::Done(_) => panic!("{wrong} is not {number}: {done:?}"),
        }
    }
    assert_eq!(raw.held(world, &held), grant);
    let reason = format!("{}é", "x".repeat(limits::REASON_BYTES - 2));
    raw.evict(world, "a", fence(&grant), &reason);
    assert_eq!(raw.gone(world, &held), Loss::Evicted { reason: Arc::from(reason) });
}

fn evicting_a_name_that_nobody_holds_finds_nobody(world: &World) {
    let raw = world.raw();
    let nobody = Evicted::NoSuchGrant(vec![]);
    assert_eq!(raw.evict(world, "a", Fence::new(1), "a wrong name"), nobody);
    let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
    raw.release(world, &held);
    assert_eq!(raw.evict(world, "a", fence(&grant), "too late"), nobody);
    // Nor is the next one ended by the fence of the one before.
    let (_held, _) = raw.granted(world, Ask::mutex(world, "a"));
    let (next, _) = raw.queued(world, Ask::mutex(world, "a"));
    raw.evict(world, "a", fence(&grant), "too late");
    raw.waits(world, &next);
}

fn ids_that_nobody_knows_are_gone(world: &World) {
    let raw = world.raw();
    let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
    for id in [ClaimId::new(), ClaimId::from_u128(0), ClaimId::from_u128(u128::MAX)] {
        let stranger = ClaimRef { id, ..held.to_ref() };
        let answers = raw.renew_all(world, vec![stranger.clone()]);
        assert!(matches!(answers[..], [Renewed::Gone(_)]), "{answers:?}");
        for uncertain in [false, true] {
            let release = Release { claim: stranger.clone(), uncertain };
            assert_eq!(raw.release_all(world, vec![release]), [Released::Gone]);
        }
    }
    assert_eq!(raw.held(world, &held), grant);
}

fn another_claims_names_with_an_unknown_id_touch_nobody(world: &World) {
    let raw = world.raw();
    let (mine, _) = raw.granted(world, Ask::mutex(world, "a"));
    let (theirs, grant) = raw.granted(world, Ask::mutex(world, "b"));
    let crossed = ClaimRef { parts: theirs.parts.clone(), ..mine.to_ref() };
    raw.renew_all(world, vec![crossed.clone()]);
    raw.release_all(world, vec![Release { claim: crossed, uncertain: false }]);
    assert_eq!(raw.held(world, &theirs), grant);
    assert_eq!(world.holders("b"), [theirs.id]);
}

fn a_claim_that_was_never_sent_is_released_without_effect(world: &World) {
    let raw = world.raw();
    let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
    let (next, queued) = raw.queued(world, Ask::mutex(world, "a"));
    for _ in 0..5 {
        let never = raw.make(Ask::mutex(world, "a"));
        assert_eq!(raw.release(world, &never), Released::Gone);
        assert_eq!(raw.withdraw(world, &never), Released::Gone);
    }
    assert_eq!(raw.held(world, &held), grant);
    assert_eq!(raw.waits(world, &next).place, queued.place);
}

fn empty_batches_have_empty_answers(world: &World) {
    let raw = world.raw();
    assert!(raw.renew_all(world, vec![]).is_empty());
    assert!(raw.release_all(world, vec![]).is_empty());
}

fn a_full_batch_is_answered_in_its_order(world: &World) {
    let raw = world.raw();
    let ask = |n: usize| Ask::mutex(world, &format!("n{n}")).lease(world.long_lease());
    let claims: Vec<_> = (0..limits::BATCH).map(|n| raw.make(ask(n))).collect();
    let granted = raw.send_all(world, &claims);
    let refs = || claims.iter().map(|claim| claim.to_ref());
    for (verdict, renewed) in granted.into_iter().zip(raw.renew_all(world, refs().collect())) {
        match (verdict, renewed) {
            (Verdict::Granted(grant), Renewed::Held(again)) => assert_eq!(grant, again),
            other => panic!("should hold: {other:?}"),
        }
    }
    let releases = || refs().map(|claim| Release { claim, uncertain: true }).collect();
    let done = raw.release_all(world, releases());
    assert!(done.iter().all(|answer| *answer == Released::Done));
    let again = raw.release_all(world, releases());
    assert!(again.iter().all(|answer| *answer == Released::Gone));
}

fn a_batch_of_the_living_and_the_dead_is_answered_one_by_one(world: &World) {
    use Released as R;
    use Renewed::{Gone, Held, Waiting};
    let raw = world.raw();
    let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
    let (waits, _) = raw.queued(world, Ask::mutex(world, "a"));
    let (dead, _) = raw.granted(world, Ask::mutex(world, "b"));
    raw.release(world, &dead);
    let never = raw.make(Ask::mutex(world, "a"));
    let all = [&never, &waits, &dead, &held, &waits];
    let answers = raw.renew_all(world, all.iter().map(|claim| claim.to_ref()).collect());
    assert!(matches!(&answers[..], [Gone(_), Waiting(_), Gone(_), Held(_), Waiting(_)]));
    assert_eq!(answers[3], Held(grant));
    let release = |claim: &&Arc<Claim>| Release { claim: claim.to_ref(), uncertain: false };
    let all = [&dead, &held, &held, &waits, &never];
    let answers = raw.release_all(world, all.iter().map(release).collect());
    assert_eq!(answers, [R::Gone, R::Done, R::Gone, R::Done, R::Gone]);
    world.assert_free("a");
}

fn the_longest_lease_is_a_lease(world: &World) {
    let raw = world.raw();
    let longest = limits::DEFAULT_MAX_LEASE;
    let (held, _) = raw.granted(world, Ask::mutex(world, "a").lease(longest));
    world.pass((world.lease() * 2).min(longest / 2));
    let left = world.slot("a").unwrap().holders[0].expires_in;
    assert!(left > longest / 4 && left < longest, "{left:?}");
    raw.held(world, &held);
    assert!(world.slot("a").unwrap().holders[0].expires_in > left, "renewed by the whole of it");
    raw.release(world, &held);
    world.assert_free("a");
}

fn owners_nest_as_deep_as_the_limit(world: &World) {
    let raw = world.raw();
    let ancestors: Vec<OwnerId> = (0..limits::ANCESTORS).map(|_| OwnerId::new()).collect();
    let deepest = Lineage::nested(OwnerId::new(), &ancestors).unwrap();
    let eldest = Lineage::root(ancestors[limits::ANCESTORS - 1]);
    let (_, outer) = raw.granted(world, Ask::mutex(world, "a").of(&eldest));
    let (_, inner) = raw.granted(world, Ask::mutex(world, "a").of(&deepest));
    assert_eq!(fence(&outer), fence(&inner));
    let shown = world.slot("a").unwrap().holders.remove(1).lineage;
    assert_eq!(shown, deepest, "shown as it is");
    let cousin = Lineage::nested(OwnerId::new(), &ancestors[..1]).unwrap();
    raw.queued(world, Ask::mutex(world, "a").of(&cousin));
}

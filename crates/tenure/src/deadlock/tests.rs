//! The solver against an oracle, and a few pictures by hand.
//!
//! The oracle does not know the solver's rules. It takes a real ledger and lets every owner that
//! can
//! run release all it holds, again and again; the ledger grants by its own rules. A waiter that is
//! not granted after all that is deadlocked, or stuck behind a deadlock.
//! `TENURE_TEST_SCALE=nightly`
//! compares a million pictures, otherwise a hundred thousand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::contract::{
    Claim, Label, Lineage, Page, Part, Parts, Patience, Query, Release, Shape, Verdict,
    VictimVerdict, concurrency_marker,
};
use crate::ledger::seam::{Line, Shelf};
use crate::ledger::{Ledger, Now};
use crate::limits;
use crate::time::Tick;

const NOW: Now = Now { tick: Tick::ZERO, wall_micros: 1_000_000 };

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn owner_id(number: u128) -> OwnerId {
    OwnerId::from_u128(number << 96)
}

/// A ledger, and the claims that were made in it.
struct RandomStore {
    ledger: Ledger,
    claims: BTreeMap<ClaimId, Arc<Claim>>,
}

/// Whether ancestors that can run release what they hold before all others that can. What they hold
/// lets their descendants in ahead of others, and keeps others waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ancestors {
    ReleaseFirst,
    ReleaseLast,
}

/// What a claim of a picture says beside its parts.
#[derive(Clone, Copy, Default)]
struct How {
    patience: Option<Patience>,
    conduct: Conduct,
}

impl RandomStore {
    fn new() -> Self {
        Self { ledger: Ledger::default(), claims: BTreeMap::new() }
    }

    fn claim(&mut self, lineage: &Lineage, parts: Vec<Part>, how: How) -> bool {
        let id = ClaimId::from_u128((self.claims.len() as u128 + 1) << 96);
        let claim = Arc::new(Claim {
            id,
            session: None,
            lineage: lineage.clone(),
            parts: Parts::set(parts).unwrap(),
            lease: Duration::from_secs(60),
            lock_delay: Duration::ZERO,
            patience: how.patience.unwrap_or(Patience::Wait),
            replaces: None,
            about: About {
                host: "host".into(),
                pid: 7,
                place: None,
                label: Some(Label::try_from(&*format!("claim {}", self.claims.len())).unwrap()),
                conduct: how.conduct,
            },
        });
        let verdict = self.ledger.claim(&claim, NOW);
        if !matches!(verdict, Verdict::Refused(_)) {
            self.claims.insert(id, claim);
        }
        matches!(verdict, Verdict::Granted(_))
    }

    fn snapshot(&mut self) -> Snapshot {
        let page = Page { reserved: true, limit: limits::PAGE, ..Page::default() };
        self.ledger.inspect(&Query::Page(page), NOW)
    }

    fn reach(&mut self, owner: OwnerId) -> Snapshot {
        self.ledger.inspect(&Query::Reach(owner), NOW)
    }

    fn waits(&mut self, claim: &Claim) -> bool {
        let shelf = self.ledger.shelf();
        let mut names = claim.parts.names();
        names.any(|name| shelf.peek(name).is_some_and(|slot| slot.line.get(claim.id).is_some()))
    }

    fn release(&mut self, claim: &Claim) {
        let release = Release { claim: claim.to_ref(), uncertain: false };
        self.ledger.release(&[release], NOW);
    }

    /// Whether the facts of a case are enough: in a ledger that has nothing else, all its waits are
    /// still waits. So it is a deadlock whatever all other claims do.
    fn is_closed(&self, case: &DeadlockCase) -> bool {
        let mut alone = Self::new();
        let mut parts: BTreeMap<(bool, ClaimId), Vec<Part>> = BTreeMap::new();
        for (facts, waits) in [(&case.holds, false), (&case.waits, true)] {
            for fact in facts {
                let all = self.claims[&fact.claim].parts.as_slice().iter();
                let here = all.filter(|part| *part.name() == fact.name).cloned();
                parts.entry((waits, fact.claim)).or_default().extend(here);
            }
        }
        // Holds come first; then, while strangers keep all slots closed, the waits in the order in
        // which they were made; then the strangers leave, and the ledger grants what it can.
        let (holds, waits): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|((waits, _), _)| !waits);
        let try_now = How { patience: Some(Patience::Try), conduct: Conduct::default() };
        for ((_, id), parts) in holds {
            assert!(alone.claim(&self.claims[&id].lineage, parts, try_now), "{id}");
        }
        let stranger = Lineage::root(owner_id(1_000));
        let shapes: BTreeMap<&Name, Shape> = waits
            .iter()
            .flat_map(|(_, parts)| parts.iter().map(|part| (part.name(), part.shape())))
            .collect();
        for (name, shape) in shapes {
            let whole = match shape {
                Shape::Semaphore(permits) => Part::permits(name.clone(), permits, permits).unwrap(),
                Shape::Lock => Part::write(name.clone()),
            };
            alone.claim(&stranger, vec![whole], How::default());
        }
        let expected = waits.len();
        for ((_, id), parts) in waits {
            alone.claim(&self.claims[&id].lineage, parts, How::default());
        }
        let strangers = alone.claims.values().filter(|claim| claim.lineage == stranger);
        for claim in strangers.cloned().collect::<Vec<_>>() {
            alone.release(&claim);
            alone.claims.remove(&claim.id);
        }
        alone.waiting().values().map(|(_, claims)| claims.len()).sum::<usize>() == expected
    }

    /// The owners that are not freed when all that can run release what they hold: the oracle.
    fn stuck(&self, order: Ancestors) -> BTreeSet<OwnerId> {
        let mut world = Self { ledger: self.ledger.clone(), claims: self.claims.clone() };
        let mut gone: BTreeSet<OwnerId> = BTreeSet::new();
        let first = world.waiting();
        let two_flows = |owner: &OwnerId| {
            let nested = |(other, (lineage, _)): (&OwnerId, &(Lineage, Vec<ClaimId>))| {
                let mine = lineage.ancestors().contains(owner);
                let theirs = first.get(owner).is_some_and(|(own, _)| own.includes(*other));
                other != owner && (mine || theirs)
            };
            first.get(owner).is_some_and(|(_, claims)| claims.len() > 1 || first.iter().any(nested))
        };
        let all = world.owners();
        let marked: BTreeSet<OwnerId> = world.marked();
        let free: BTreeSet<OwnerId> = world
            .owners()
            .into_iter()
            .filter(|owner| two_flows(owner) || marked.contains(owner))
            .collect();
        loop {
            let waiting = world.waiting();
            let held_up = world.held_up(&waiting, &free, &gone);
            let runs = |owner: &OwnerId| {
                !gone.contains(owner)
                    && (free.contains(owner)
                        || !waiting.contains_key(owner) && !held_up.contains(owner))
            };
            let able: Vec<OwnerId> = world.owners().into_iter().filter(runs).collect();
            let above = |owner: &OwnerId| {
                let stuck = waiting.iter().filter(|(other, _)| !free.contains(other));
                stuck.into_iter().any(|(_, (lineage, _))| lineage.ancestors().contains(owner))
            };
            let is_next = |owner: &&OwnerId| above(owner) == (order == Ancestors::ReleaseFirst);
            let next = able.iter().find(is_next).or(able.first()).copied();
            let Some(next) = next else { break };
            gone.insert(next);
            let own = world.claims.values().filter(|claim| claim.lineage.owner() == next);
            for claim in own.cloned().collect::<Vec<_>>() {
                world.release(&claim);
                world.claims.remove(&claim.id);
            }
        }
        all.difference(&gone).copied().collect()
    }

    fn owners(&self) -> BTreeSet<OwnerId> {
        self.claims.values().map(|claim| claim.lineage.owner()).collect()
    }

    fn waiting(&mut self) -> BTreeMap<OwnerId, (Lineage, Vec<ClaimId>)> {
        let mut waiting: BTreeMap<OwnerId, (Lineage, Vec<ClaimId>)> = BTreeMap::new();
        let claims: Vec<_> = self.claims.values().cloned().collect();
        for claim in claims {
            if self.waits(&claim) {
                let lineage = claim.lineage.clone();
                let entry = waiting.entry(lineage.owner()).or_insert((lineage, Vec::new()));
                entry.1.push(claim.id);
            }
        }
        waiting
    }

    fn marked(&mut self) -> BTreeSet<OwnerId> {
        let names: BTreeSet<Name> =
            self.snapshot().slots.into_iter().map(|slot| slot.name).collect();
        let marked = |owner: &OwnerId| names.contains(&concurrency_marker(*owner));
        self.owners().into_iter().filter(marked).collect()
    }

    /// The owners that do nothing until a stuck descendant has ended.
    fn held_up(
        &self,
        waiting: &BTreeMap<OwnerId, (Lineage, Vec<ClaimId>)>,
        free: &BTreeSet<OwnerId>,
        gone: &BTreeSet<OwnerId>,
    ) -> BTreeSet<OwnerId> {
        let mut held_up = BTreeSet::new();
        for (owner, (lineage, claims)) in waiting {
            if !free.contains(owner) && !gone.contains(owner) {
                let conduct = self.claims[&claims[0]].about.conduct;
                let above = lineage.ancestors().iter().take(usize::from(conduct.held_up));
                held_up.extend(above.copied());
            }
        }
        held_up
    }
}

/// A small generator of random numbers: a failure is found again by its seed.
struct SeededDice(u64);

impl SeededDice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % most
    }
}

fn random_part(dice: &mut SeededDice) -> Part {
    match dice.below(4) {
        0 => Part::write(name("m1")),
        1 => Part::write(name("m2")),
        2 if dice.below(2) == 0 => Part::read(name("m1")),
        2 => Part::read(name("m3")),
        _ if dice.below(2) == 0 => {
            let wanted = u32::try_from(1 + dice.below(2)).unwrap();
            Part::permits(name("s2"), wanted, 2).unwrap()
        }
        _ => Part::permits(name("s3"), u32::try_from(1 + dice.below(3)).unwrap(), 3).unwrap(),
    }
}

fn random_store(seed: u64) -> RandomStore {
    let mut dice = SeededDice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut store = RandomStore::new();
    let owners = 2 + dice.below(4);
    let mut lineages: Vec<Lineage> = Vec::new();
    for number in 0..owners {
        let own = owner_id(u128::from(number) + 1);
        let parent = (dice.below(5) == 0).then(|| lineages.last().cloned()).flatten();
        let above: Vec<OwnerId> =
            parent.iter().flat_map(|one| one.all().collect::<Vec<_>>()).collect();
        lineages.push(Lineage::nested(own, &above).unwrap());
    }
    let how = |dice: &mut SeededDice, patience| {
        let held_up = if dice.below(2) == 0 { 2 } else { 0 };
        let conduct = Conduct { breakable: true, held_up, ..Conduct::default() };
        How { patience: Some(patience), conduct }
    };
    for _ in 0..owners * 2 {
        let lineage = &lineages[usize::try_from(dice.below(owners)).unwrap()];
        let part = random_part(&mut dice);
        let how = how(&mut dice, Patience::Try);
        store.claim(lineage, vec![part], how);
    }
    for lineage in &lineages {
        if dice.below(6) == 0 {
            continue;
        }
        let mut parts = vec![random_part(&mut dice)];
        let second = random_part(&mut dice);
        if dice.below(4) == 0 && second.name() != parts[0].name() {
            parts.push(second);
        }
        let (first, again) = (how(&mut dice, Patience::Wait), how(&mut dice, Patience::Wait));
        store.claim(lineage, parts, first);
        if dice.below(12) == 0 {
            let another = random_part(&mut dice);
            store.claim(lineage, vec![another], again);
        }
        if dice.below(12) == 0 {
            let marker = Part::read(concurrency_marker(lineage.owner()));
            store.claim(&Lineage::root(owner_id(99)), vec![marker], How::default());
        }
    }
    store
}

/// Compares one picture with the oracle. Returns how many deadlocks it has, and how many were
/// broken.
fn compare(seed: u64) -> (u32, u32) {
    let mut store = random_store(seed);
    let snapshot = store.snapshot();
    let [expected, otherwise] = [Ancestors::ReleaseLast, Ancestors::ReleaseFirst].map(|order| {
        let mut stuck = store.stuck(order);
        stuck.remove(&owner_id(99));
        stuck
    });
    let found: BTreeSet<OwnerId> = stuck_owners(&snapshot).into_iter().collect();
    assert_eq!(found, expected, "seed {seed}: {snapshot:#?}");
    let deadlocks = find(&snapshot);
    // Stuck whatever ancestors do first: only that is a deadlock, and all of that is.
    assert_eq!(deadlocks.is_empty(), expected.is_disjoint(&otherwise), "seed {seed}");
    let members = || deadlocks.iter().flat_map(|deadlock| &deadlock.members);
    assert!(members().all(|one| otherwise.contains(&one.owner)), "seed {seed}: {deadlocks:#?}");
    let waiting = store.waiting();
    for owner in expected.iter().filter(|owner| waiting.contains_key(owner)) {
        let reached = stuck_owners(&store.reach(*owner));
        assert!(reached.contains(owner), "seed {seed}: {owner} is not found by reach");
    }
    let mut broken = 0;
    for deadlock in &deadlocks {
        let Some(case) = deadlock.case() else { continue };
        assert!(store.is_closed(&case), "seed {seed}: {case:#?} in {snapshot:#?}");
        assert_eq!(store.ledger.refuse_victim(&case, NOW), VictimVerdict::Refused, "{seed}");
        assert_eq!(store.ledger.refuse_victim(&case, NOW), VictimVerdict::Changed, "{seed}");
        broken += 1;
    }
    (u32::try_from(deadlocks.len()).unwrap(), broken)
}

#[test]
fn random_pictures_are_solved_as_the_ledger_plays_them_out() {
    let nightly = std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly");
    let pictures: u64 = if nightly { 1_000_000 } else { 100_000 };
    let threads = 4;
    let part = |from: u64| {
        let seeds = (1..=pictures).filter(move |seed| seed % threads == from);
        seeds.map(compare).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    let (found, broken) = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|from| scope.spawn(move || part(from))).collect();
        let sums = parts.into_iter().map(|one| one.join().unwrap());
        sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    assert!(found > 1_000 && broken > 1_000, "{found} deadlocks, {broken} broken");
}

/// Pictures in which the ticket before another one is ahead of the queue by a hold of an ancestor
/// that can run. It arrived first, so it stays there: once no deadlock was named.
#[test]
fn a_ticket_that_arrived_first_stays_first_when_its_ancestor_releases() {
    for seed in [157_483, 552_754, 676_169] {
        let (found, broken) = compare(seed);
        assert!(found > 0 && broken > 0, "seed {seed}: {found} deadlocks, {broken} broken");
    }
}

/// An ancestor that can run keeps a set ahead of a writer that arrived before it. If it releases
/// first, the writer is served, and then the set.
#[test]
fn a_ticket_that_is_ahead_for_a_while_makes_no_deadlock() {
    assert_eq!(compare(340_568), (0, 0));
}

/// Two owners, each holding what the other waits for, and a third that waits behind them.
fn crossed() -> RandomStore {
    let mut store = RandomStore::new();
    let breakable = Conduct { breakable: true, ..Conduct::default() };
    let how = How { patience: None, conduct: breakable };
    let [one, two, three] = [1, 2, 3].map(|number| Lineage::root(owner_id(number)));
    assert!(store.claim(&one, vec![Part::write(name("a"))], how));
    assert!(store.claim(&two, vec![Part::write(name("b"))], how));
    assert!(!store.claim(&one, vec![Part::write(name("b"))], how));
    assert!(!store.claim(&three, vec![Part::write(name("a"))], how));
    assert!(!store.claim(&two, vec![Part::write(name("a"))], how));
    store
}

#[test]
fn a_waiter_behind_a_deadlock_is_stuck_and_no_member() {
    let mut store = crossed();
    let found = find(&store.snapshot());
    assert_eq!(found.len(), 1);
    let deadlock = &found[0];
    assert_eq!(deadlock.members.len(), 2, "{deadlock:?}");
    assert!(!deadlock.includes(owner_id(3)));
    assert_eq!(stuck_owners(&store.snapshot()).len(), 3);
    let case = deadlock.case().unwrap();
    assert_eq!((case.holds.len(), case.waits.len(), case.owners.len()), (2, 2, 2));
    assert!(case.fits());
}

#[test]
fn the_words_name_members_holds_and_waits() {
    let mut store = crossed();
    let words = find(&store.snapshot())[0].words();
    for part in
        ["host:7 'claim 2' holds \"a\" for 0ms and waits for \"b\"", "'claim 4' holds \"b\""]
    {
        assert!(words.contains(part), "{words}");
    }
    assert_eq!(words.matches("(refused)").count(), 1, "{words}");
}

#[test]
fn the_victim_has_the_lowest_priority_then_the_fewest_holds_then_the_youngest_claim() {
    let chosen = |priorities: [i8; 2], breakable: [bool; 2]| {
        let mut store = RandomStore::new();
        let [one, two] = [1, 2].map(|number| Lineage::root(owner_id(number)));
        let how = [0, 1].map(|at| {
            let (priority, breakable) = (priorities[at], breakable[at]);
            How { patience: None, conduct: Conduct { breakable, priority, ..Conduct::default() } }
        });
        store.claim(&one, vec![Part::write(name("a"))], how[0]);
        store.claim(&two, vec![Part::write(name("b"))], how[1]);
        store.claim(&one, vec![Part::write(name("b"))], how[0]);
        store.claim(&two, vec![Part::write(name("a"))], how[1]);
        let found = find(&store.snapshot()).remove(0);
        found.victim.map(|at| found.members[at].owner)
    };
    assert_eq!(chosen([0, 0], [true, true]), Some(owner_id(2)), "the youngest claim");
    assert_eq!(chosen([-1, 0], [true, true]), Some(owner_id(1)), "the lowest priority");
    assert_eq!(chosen([-1, 0], [false, true]), Some(owner_id(2)), "only one may be refused");
    assert_eq!(chosen([0, 0], [false, false]), None);
}

#[test]
fn claims_without_a_scope_are_grouped_by_task_for_reports_only() {
    let mut store = RandomStore::new();
    let session = crate::contract::SessionId::from_u128(5);
    for (number, flow, part) in
        [(1, 1, "a"), (2, 2, "b"), (3, 1, "b"), (4, 2, "a")].map(|(n, f, p)| (n, f, name(p)))
    {
        let conduct = Conduct { flow, ..Conduct::default() };
        let lineage = Lineage::root(owner_id(number));
        store.claim(&lineage, vec![Part::write(part)], How { patience: None, conduct });
    }
    let mut snapshot = store.snapshot();
    for slot in &mut snapshot.slots {
        slot.holders.iter_mut().for_each(|one| one.session = Some(session));
        slot.queue.iter_mut().for_each(|one| one.session = Some(session));
    }
    assert_eq!(find(&snapshot), []);
    let found = find_suspected(&snapshot);
    assert_eq!(found.len(), 1);
    assert!(found[0].by_task && found[0].case().is_none());
}

#[test]
fn a_parent_waits_for_its_own_child_process_and_no_other() {
    let run = |held_up: u8| {
        let mut store = RandomStore::new();
        let plain =
            How { patience: None, conduct: Conduct { breakable: true, ..Conduct::default() } };
        let nested = How { conduct: Conduct { held_up, ..plain.conduct }, ..plain };
        let [one, two] = [1, 2].map(|number| Lineage::root(owner_id(number)));
        let child =
            |number, parent| Lineage::nested(owner_id(number), &[owner_id(parent)]).unwrap();
        store.claim(&one, vec![Part::write(name("a"))], plain);
        store.claim(&two, vec![Part::write(name("b"))], plain);
        store.claim(&child(3, 1), vec![Part::write(name("b"))], nested);
        store.claim(&child(4, 2), vec![Part::write(name("a"))], nested);
        let seen = store.reach(owner_id(3));
        (find(&seen), find_suspected_around(&seen, owner_id(3)))
    };
    let (found, suspected) = run(1);
    assert_eq!((found.len(), suspected.len()), (1, 0));
    assert_eq!(found[0].members.len(), 4);
    assert!(found[0].words().contains("waits for its child process"), "{}", found[0].words());
    let (found, suspected) = run(0);
    assert_eq!(found, []);
    let [deadlock] = &suspected[..] else { panic!("{suspected:?}") };
    assert_eq!((deadlock.members.len(), deadlock.by_nesting), (4, true));
    assert!(deadlock.case().is_none() && !deadlock.by_task);
    assert!(deadlock.words().contains("has an owner nested in it that waits"));
    assert!(deadlock.advice().unwrap().contains("outer owner"));
}

#[test]
fn a_ring_beyond_the_limit_does_not_fit_a_verdict() {
    let ring = |length: u128| {
        let mut store = RandomStore::new();
        let conduct = Conduct { breakable: true, ..Conduct::default() };
        let how = How { patience: None, conduct };
        let fork = |number: u128| vec![Part::write(name(&format!("fork {:03}", number % length)))];
        for number in 0..length {
            store.claim(&Lineage::root(owner_id(number + 1)), fork(number), how);
        }
        for number in 0..length {
            store.claim(&Lineage::root(owner_id(number + 1)), fork(number + 1), how);
        }
        let found = find(&store.snapshot());
        assert_eq!(found[0].members.len() as u128, length);
        found[0].case().unwrap().fits()
    };
    let most = limits::DEADLOCK_FACTS as u128 / 2;
    assert!(ring(most) && !ring(most + 1));
}

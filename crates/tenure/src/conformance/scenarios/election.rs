//! Elections: one leader at a time, terms that grow, and observers that never see a leader which
//! does not lead, nor a value of another term.

use std::sync::{Arc, Mutex};

use super::{Actor, Ask, Fault, Waiting, World, cells_of, list};
use crate::contract::{
    Batch, BatchVerdict, ClaimId, Error, ErrorKind, Expect, Fence, Loss, Name, Part, Put, Query,
    SlotView, Snapshot, Wake,
};
use crate::primitives::{Election, Leader, LeaderGuard, Observed, Observer, Term};

list! { Election:
    a_candidate_wins_and_is_seen_with_its_value cites [1] needs [Cells];
    a_resignation_hands_over_to_the_next_candidate cites [2] needs [Queue];
    terms_grow_through_resignation_drop_and_loss cites [3] needs [];
    an_election_and_a_lock_of_one_name_never_meet cites [9] needs [];
    a_campaign_inside_a_scope_does_not_enter_again cites [1] needs [];
    observers_see_leaders_values_and_vacancy_in_order cites [3, 8] needs [Cells];
    a_leader_that_dies_is_shown_no_longer_than_its_lease cites [4] needs [Cells];
    a_record_without_its_claim_shows_no_leader cites [3] needs [Cells];
    a_winner_that_has_not_published_is_not_shown_with_an_older_value cites [3] needs [Cells];
    an_expired_candidate_is_never_told_that_it_leads cites [4, 5] needs [];
    a_late_publish_does_not_undo_a_later_one cites [5, 9] needs [Cells];
    trouble_with_the_first_value_costs_neither_leadership_nor_value cites [5, 10] needs [Cells];
    a_dropped_campaign_leaves_the_queue cites [7] needs [Queue];
    candidates_are_listed_in_order cites [2] needs [Queue];
    a_lost_leader_hears_it_and_publishes_nothing cites [4] needs [Cells];
    a_forced_release_ends_a_term cites [9] needs [Cells];
    work_begins_again_after_a_loss_in_a_later_term cites [3, 4] needs [];
    closing_ends_campaigns_terms_and_observers cites [7, 10] needs [Cells];
    values_are_refused_where_they_cannot_be_kept cites [10] needs [];
}

fn election(actor: &Actor) -> Election {
    actor.tenure.election("e").unwrap()
}

/// The slot and the cell of the election.
fn slot() -> Name {
    Name::reserved("election", &super::name("e")).unwrap()
}

/// Fails unless the slot is free.
#[track_caller]
fn assert_vacant(world: &World) {
    let is_free = |slot: &SlotView| slot.holders.is_empty() && slot.queue.is_empty();
    world
        .until("the slot is free", || world.inspect(Query::Slot(slot())).slots.iter().all(is_free));
}

#[track_caller]
fn lead(world: &World, actor: &Actor, value: &str) -> LeaderGuard {
    world.now(campaign(actor, value)).unwrap()
}

/// A campaign. Engines without cells elect leaders that publish nothing.
fn campaign(
    actor: &Actor,
    value: &str,
) -> impl Future<Output = Result<LeaderGuard, Error>> + use<> {
    let cells = actor.tenure.promises().cells;
    election(actor).campaign(if cells { value } else { "" }.to_owned())
}

#[track_caller]
fn leader(world: &World, actor: &Actor) -> Option<Leader> {
    let election = election(actor);
    world.now(async move { election.leader().await }).unwrap()
}

/// An observer under a scenario's hand.
struct Watching<'a> {
    world: &'a World,
    polls: bool,
    next: Option<Waiting<(Observer, Result<Observed, Error>)>>,
}

impl<'a> Watching<'a> {
    #[track_caller]
    fn begin(world: &'a World, actor: &Actor) -> Self {
        let election = election(actor);
        let observer = world.now(async move { election.observe().await }).unwrap();
        let polls = actor.tenure.promises().wake == Wake::Poll;
        Self { world, polls, next: Some(Self::start(observer)) }
    }

    fn start(mut observer: Observer) -> Waiting<(Observer, Result<Observed, Error>)> {
        Waiting::start(async move {
            let observed = observer.next().await;
            (observer, observed)
        })
    }

    fn finish(&mut self, done: (Observer, Result<Observed, Error>)) -> Result<Observed, Error> {
        self.next = Some(Self::start(done.0));
        done.1
    }

    /// What is pushed, without any time passing; where nothing is pushed, what it sees later.
    #[track_caller]
    fn pushed(&mut self) -> Observed {
        let (next, stage) = (self.next.take().unwrap(), self.world.stage());
        let done = if self.polls { self.world.served(next) } else { next.done(stage) };
        self.finish(done).unwrap()
    }

    /// What it sees as time goes by.
    #[track_caller]
    fn later(&mut self) -> Observed {
        let done = self.world.served(self.next.take().unwrap());
        self.finish(done).unwrap()
    }

    #[track_caller]
    fn sees(&mut self, term: Fence, value: &str) {
        match self.pushed() {
            Observed::Leader(seen) => assert_eq!((seen.term, seen.value), (term, value.into())),
            Observed::Vacant => panic!("should see term {term}"),
        }
    }

    /// What it sees from here on until it sees this term; nothing of it may be another leader.
    #[track_caller]
    fn sees_after_vacancy(&mut self, term: Fence, value: &str) {
        match self.pushed() {
            Observed::Vacant => self.sees(term, value),
            Observed::Leader(seen) => assert_eq!((seen.term, seen.value), (term, value.into())),
        }
    }

    #[track_caller]
    fn sees_nothing_new(&mut self) {
        self.world.still_waits(self.next.as_mut().unwrap());
    }
}

fn a_candidate_wins_and_is_seen_with_its_value(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    assert_eq!(leader(world, &two), None);
    let guard = lead(world, &one, "one");
    let seen = leader(world, &two).expect("there is a leader");
    assert_eq!((seen.term, &*seen.value), (guard.term().unwrap(), &b"one"[..]));
    assert_eq!((seen.holder.claim, seen.term), (guard.claim_id(), guard.fence().unwrap()));
    assert_eq!(seen.holder.session, Some(one.tenure.session_id()));
    let guard = world.now(async move { guard.publish("more").await.map(|()| guard) }).unwrap();
    assert_eq!(leader(world, &two).unwrap().value, b"more");
    world.now(guard.resign()).unwrap();
    assert_eq!(leader(world, &two), None);
    assert_vacant(world);
}

fn a_resignation_hands_over_to_the_next_candidate(world: &World) {
    let actors = [(); 3].map(|()| world.actor());
    let guard = lead(world, &actors[0], "0");
    let second = world.waits(campaign(&actors[1], "1"));
    let mut third = world.waits(campaign(&actors[2], "2"));
    world.now(guard.resign()).unwrap();
    let guard = world.served(second).unwrap();
    world.still_waits(&mut third);
    // Dropping it hands over as well.
    drop(guard);
    world.served(third).unwrap().check().unwrap();
}

fn terms_grow_through_resignation_drop_and_loss(world: &World) {
    let actors = [(); 4].map(|()| world.actor());
    let mut terms = Vec::new();
    for (at, actor) in actors.iter().enumerate() {
        let guard = world.served(Waiting::start(campaign(actor, "x"))).unwrap();
        terms.push(guard.term().unwrap());
        match at {
            0 => world.now(guard.resign()).unwrap(),
            1 => drop(guard),
            _ => world.stage().end_session(actor.tenure.session_id()),
        }
    }
    assert!(terms.is_sorted_by(|one, next| one < next), "{terms:?}");
}

fn an_election_and_a_lock_of_one_name_never_meet(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let lock = world.now(one.tenure.mutex("e").unwrap().lock()).unwrap();
    let guard = lead(world, &two, "x");
    assert_eq!(world.holders("e"), [lock.claim_id()]);
    assert_ne!(guard.claim_id(), lock.claim_id());
    world.now(lock.release()).unwrap();
    guard.check().unwrap();
    let free = world.now(one.tenure.mutex("e").unwrap().try_lock()).unwrap();
    assert!(free.is_some(), "the leader does not hold the lock of that name");
}

fn a_campaign_inside_a_scope_does_not_enter_again(world: &World) {
    let actor = world.actor();
    let (first, second) = (campaign(&actor, "x"), campaign(&actor, "y"));
    let mut both = world.waits(crate::primitives::scope(async move {
        let _leads = first.await;
        second.await
    }));
    world.pass(world.lease() * 2);
    world.still_waits(&mut both);
}

fn observers_see_leaders_values_and_vacancy_in_order(world: &World) {
    let actors = [(); 3].map(|()| world.actor());
    let mut watching = Watching::begin(world, &actors[2]);
    assert_eq!(watching.pushed(), Observed::Vacant);
    let guard = lead(world, &actors[0], "one");
    let first = guard.term().unwrap();
    watching.sees(first, "one");
    let guard = world.now(async move { guard.publish("more").await.map(|()| guard) }).unwrap();
    watching.sees(first, "more");
    let mut late = Watching::begin(world, &actors[1]);
    late.sees(first, "more");
    let next = world.waits(campaign(&actors[1], "two"));
    world.now(guard.resign()).unwrap();
    let guard = world.served(next).unwrap();
    let second = guard.term().unwrap();
    assert!(second > first);
    for watching in [&mut watching, &mut late] {
        watching.sees_after_vacancy(second, "two");
        watching.sees_nothing_new();
    }
    // A leader that renews for several leases changes nothing.
    world.pass(world.lease() * 3);
    guard.check().unwrap();
    watching.sees_nothing_new();
    world.now(guard.resign()).unwrap();
    assert_eq!(watching.pushed(), Observed::Vacant);
    assert_eq!(late.pushed(), Observed::Vacant);
}

fn a_leader_that_dies_is_shown_no_longer_than_its_lease(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let mut watching = Watching::begin(world, &two);
    assert_eq!(watching.pushed(), Observed::Vacant);
    let guard = lead(world, &one, "one");
    watching.sees(guard.term().unwrap(), "one");
    world.stage().end_session(one.tenure.session_id());
    assert_eq!(leader(world, &two), None, "who asks is told at once");
    assert_eq!(watching.later(), Observed::Vacant);
    let guard = lead(world, &two, "two");
    watching.sees(guard.term().unwrap(), "two");
}

/// The record that a leader's cell has now, as another client reads it.
#[track_caller]
fn record(world: &World) -> Vec<u8> {
    let engine = world.raw().engine().clone();
    let cell = world.now(async move { cells_of(&*engine).get(&slot()).await });
    cell.unwrap().expect("there is a record").value
}

fn write(world: &World, put: Put) -> BatchVerdict {
    let engine = world.raw().engine().clone();
    world.now(async move { cells_of(&*engine).write(&Batch::from(&put)).await }).unwrap()
}

fn a_record_without_its_claim_shows_no_leader(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = lead(world, &one, "one");
    let (term, old) = (guard.term().unwrap(), record(world));
    world.now(guard.resign()).unwrap();
    let mut watching = Watching::begin(world, &two);
    assert_eq!(watching.pushed(), Observed::Vacant);
    // The write of a leader that was paused arrives when there is no leader.
    let late = Put::new(slot(), old).fenced(term);
    assert!(matches!(write(world, late.clone()), BatchVerdict::Done(_)));
    assert_eq!(leader(world, &two), None);
    watching.sees_nothing_new();
    // Once there is a later leader, it is refused.
    let guard = lead(world, &two, "two");
    assert!(matches!(write(world, late), BatchVerdict::Refused(_)));
    assert_eq!(leader(world, &one).unwrap().value, b"two");
    watching.sees(guard.term().unwrap(), "two");
}

fn a_winner_that_has_not_published_is_not_shown_with_an_older_value(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = lead(world, &one, "one");
    let term = guard.term().unwrap();
    let mut watching = Watching::begin(world, &two);
    watching.sees(term, "one");
    world.stage().end_session(one.tenure.session_id());
    // The next one holds the slot, but not a word is written yet.
    let ask = Ask::part(world, Part::write(slot())).lease(world.long_lease());
    let (claim, _) = world.raw().granted(world, ask);
    assert_eq!(leader(world, &two), None);
    assert_eq!(watching.later(), Observed::Vacant);
    let holders = |seen: Snapshot| seen.slots[0].holders[0].claim;
    assert_eq!(holders(world.inspect(Query::Slot(slot()))), claim.id);
    watching.sees_nothing_new();
}

fn an_expired_candidate_is_never_told_that_it_leads(world: &World) {
    let [one, two, three] = [(); 3].map(|()| world.actor());
    let guard = lead(world, &one, "one");
    let mut cut_off = world.waits(campaign(&two, "two"));
    two.link.cut(true);
    world.now(guard.resign()).unwrap();
    // The store may have elected the candidate that cannot be reached; then its lease ends.
    world.pass(world.lease() * 2);
    let leads = world.served(Waiting::start(campaign(&three, "three"))).unwrap();
    two.link.cut(false);
    world.pass_watching(world.lease() * 2, || {
        leads.check().unwrap();
        assert!(!cut_off.is_done(world.stage()), "two lead");
    });
    let term = leads.term().unwrap();
    world.now(leads.resign()).unwrap();
    assert!(world.served(cut_off).unwrap().term().unwrap() > term);
}

fn a_late_publish_does_not_undo_a_later_one(world: &World) {
    let actor = world.actor();
    let guard = lead(world, &actor, "0");
    let term = Term::clone(&guard);
    let published = |value: &'static str| {
        let term = term.clone();
        world.now(async move { term.publish(value).await }).unwrap();
    };
    let engine = world.raw().engine().clone();
    let before = world.now(async move { cells_of(&*engine).get(&slot()).await }).unwrap().unwrap();
    // The first copy of a publish whose caller gave up: it expects what was there then.
    let mut bytes = record(world);
    bytes.extend_from_slice(b" late");
    let late = Put::new(slot(), bytes).expect(Expect::Version(before.version));
    published("1");
    assert!(matches!(write(world, late.clone()), BatchVerdict::Refused(_)));
    assert_eq!(leader(world, &actor).unwrap().value, b"1");
    // One that arrives in time is overwritten by the next.
    let engine = world.raw().engine().clone();
    let now = world.now(async move { cells_of(&*engine).get(&slot()).await }).unwrap().unwrap();
    assert!(matches!(
        write(world, late.clone().expect(Expect::Version(now.version))),
        BatchVerdict::Done(_)
    ));
    published("2");
    assert_eq!(leader(world, &actor).unwrap().value, b"2");
    world.now(guard.resign()).unwrap();
    assert!(matches!(write(world, late), BatchVerdict::Refused(_)), "nor undo a resignation");
}

fn trouble_with_the_first_value_costs_neither_leadership_nor_value(world: &World) {
    let observer = world.actor();
    let mut terms = Vec::new();
    for trouble in Fault::CALLS {
        let actor = world.actor();
        // The claim is the first call, the record the second.
        actor.link.trouble_call(1, trouble);
        let guard = world.served(Waiting::start(campaign(&actor, "x"))).unwrap();
        let seen = leader(world, &observer).expect("there is a leader");
        assert_eq!((seen.term, &*seen.value), (guard.term().unwrap(), &b"x"[..]), "{trouble:?}");
        terms.push(seen.term);
        world.now(guard.resign()).unwrap();
        assert_eq!(leader(world, &observer), None, "{trouble:?}");
    }
    assert!(terms.is_sorted_by(|one, next| one < next), "{terms:?}");
}

fn a_dropped_campaign_leaves_the_queue(world: &World) {
    let [one, two, three] = [(); 3].map(|()| world.actor());
    let guard = lead(world, &one, "one");
    let dropped = world.waits(campaign(&two, "two"));
    let next = world.waits(campaign(&three, "three"));
    drop(dropped);
    world.now(guard.resign()).unwrap();
    let guard = world.served(next).unwrap();
    assert_eq!(two.tenure.claim_count(), 0);
    world.now(guard.resign()).unwrap();
    // A leadership that was won while the future was dropped is given up.
    two.link.hold_replies(true);
    let winning = world.waits(campaign(&two, "two"));
    drop(winning);
    two.link.hold_replies(false);
    world.served(Waiting::start(campaign(&one, "one"))).unwrap().check().unwrap();
}

fn candidates_are_listed_in_order(world: &World) {
    let actors = [(); 4].map(|()| world.actor());
    let guard = lead(world, &actors[0], "0");
    let label = |at: usize| format!("candidate {at}");
    let waiting: Vec<_> = (1..4)
        .map(|at| world.waits(election(&actors[at]).label(&label(at)).campaign("")))
        .collect();
    let election = election(&actors[0]);
    let listed = world.now(async move { election.candidates().await }).unwrap();
    let labels = listed.iter().map(|one| one.about.label.as_ref().unwrap().to_string());
    assert_eq!(labels.collect::<Vec<_>>(), [label(1), label(2), label(3)]);
    world.now(guard.resign()).unwrap();
    for candidate in waiting {
        world.now(world.served(candidate).unwrap().resign()).unwrap();
    }
}

fn a_lost_leader_hears_it_and_publishes_nothing(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = lead(world, &one, "one");
    let mut lost = Waiting::start(guard.lost());
    world.still_waits(&mut lost);
    one.link.cut(true);
    let mut next = Waiting::start(campaign(&two, "two"));
    world.pass_watching(world.lease() * 3, || {
        assert!(!next.is_done(world.stage()) || guard.check().is_err(), "two lead");
    });
    let leads = world.served(next).unwrap();
    assert_eq!(world.served(lost), Loss::Expired);
    assert_eq!(guard.term().unwrap_err().kind(), ErrorKind::Lost);
    one.link.cut(false);
    let term = Term::clone(&guard);
    let error = world.now(async move { term.publish("late").await }).unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(&Loss::Expired)));
    assert_eq!(world.now(guard.resign()).unwrap_err().kind(), ErrorKind::Lost);
    let seen = leader(world, &one).unwrap();
    assert_eq!((seen.term, &*seen.value), (leads.term().unwrap(), &b"two"[..]));
}

fn a_forced_release_ends_a_term(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = lead(world, &one, "one");
    let term = guard.term().unwrap();
    let mut next = world.waits(campaign(&two, "two"));
    world.raw().evict_name(world, &slot(), term, "by hand");
    world.until("the next one leads", || next.is_done(world.stage()));
    let leads = world.served(next).unwrap();
    world.until("the loss is told", || guard.check().is_err());
    let term = Term::clone(&guard);
    let error = world.now(async move { term.publish("late").await }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(leader(world, &one).unwrap().term, leads.term().unwrap());
}

fn work_begins_again_after_a_loss_in_a_later_term(world: &World) {
    let actor = world.actor();
    let terms = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&terms);
    let work = move |term: Term| {
        let mut seen = seen.lock().unwrap();
        seen.push((term.term().unwrap(), term.claim_id()));
        let is_last = seen.len() == 3;
        async move { if is_last { "done" } else { std::future::pending().await } }
    };
    let mut running = world.waits(election(&actor).run_as_leader("", work));
    for round in 1..=2 {
        let count = || terms.lock().unwrap().len();
        assert_eq!(count(), round);
        let (term, _): (Fence, ClaimId) = terms.lock().unwrap()[round - 1];
        world.raw().evict_name(world, &slot(), term, "by hand");
        world.until("it leads again", || {
            running.poll();
            count() > round
        });
    }
    assert_eq!(world.served(running).unwrap(), "done");
    let terms = terms.lock().unwrap();
    assert!(terms.is_sorted_by(|one, next| one.0 < next.0 && one.1 != next.1), "{terms:?}");
    drop(terms);
    assert_vacant(world);
}

fn closing_ends_campaigns_terms_and_observers(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = lead(world, &one, "one");
    let campaign = world.waits(campaign(&two, "two"));
    let mut watching = Watching::begin(world, &two);
    watching.sees(guard.term().unwrap(), "one");
    let (tenure, other) = (one.tenure.clone(), two.tenure.clone());
    world.now(async move { other.close().await });
    assert_eq!(world.served(campaign).unwrap_err().kind(), ErrorKind::Closed);
    let (_, seen) = watching.next.take().unwrap().done(world.stage());
    assert_eq!(seen.unwrap_err().kind(), ErrorKind::Closed);
    world.now(async move { tenure.close().await });
    assert_eq!(guard.term().unwrap_err().loss(), Some(&Loss::Closed));
    let three = world.actor();
    assert_eq!(leader(world, &three), None, "its record does not outlive it");
    let refused = world.now(election(&one).campaign("")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
}

fn values_are_refused_where_they_cannot_be_kept(world: &World) {
    let actor = world.actor();
    let large = vec![0; crate::limits::CELL_BYTES];
    let error = world.now(election(&actor).campaign(large)).unwrap_err();
    assert_eq!((error.kind(), error.name().cloned()), (ErrorKind::InvalidOption, Some(slot())));
    if actor.tenure.promises().cells {
        return;
    }
    let error = world.now(election(&actor).campaign("x")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let guard = lead(world, &actor, "");
    let (seen, term) = (leader(world, &actor).unwrap(), Term::clone(&guard));
    assert_eq!((seen.term, seen.value), (term.term().unwrap(), vec![]));
    let error = world.now(async move { term.publish("x").await }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let election = election(&actor);
    let error = world.now(async move { election.observe().await }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

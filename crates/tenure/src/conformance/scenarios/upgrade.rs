//! Upgrade and downgrade: one claim takes the place of another, and no other writer is granted in
//! between.

use super::{Ask, World, fence, list, owner};
use crate::contract::ErrorKind;
use crate::contract::{Evicted, Loss, Refusal, Released};

list! { Upgrade:
    a_lone_reader_becomes_the_writer_at_once cites [1] needs [Sharing];
    an_upgrade_stands_ahead_of_the_line cites [2] needs [Sharing, Queue];
    nobody_writes_between_reading_and_writing cites [1, 3] needs [Sharing, Queue];
    the_second_upgrade_is_refused_at_once_with_who cites [10] needs [Sharing, Queue];
    once_the_first_has_finished_another_may cites [10] needs [Sharing, Queue];
    a_waiting_upgrade_ends_with_its_read_hold cites [9] needs [Sharing, Queue];
    a_waiting_upgrade_ends_with_its_evicted_read_hold cites [9] needs [Sharing, Queue];
    a_try_to_upgrade_beside_another_reader_changes_nothing cites [1] needs [Sharing];
    what_was_replaced_is_gone_and_touches_nobody cites [9] needs [Sharing];
    what_is_not_held_cannot_be_replaced cites [9] needs [Sharing];
    an_owner_that_reads_may_write_beside_it cites [1] needs [Sharing, Queue];
    dropping_a_waiting_upgrade_gives_both_up cites [7] needs [Sharing, Queue];
    an_upgraded_guard_lives_on_its_own_renewals cites [4] needs [Sharing, Queue];
}

fn a_lone_reader_becomes_the_writer_at_once(world: &World) {
    let raw = world.raw();
    let (reader, old) = raw.granted(world, Ask::read(world, "a"));
    let (writer, new) = raw.granted(world, Ask::write(world, "a").instead_of(&reader));
    assert!(fence(&new) > fence(&old));
    assert_eq!(world.holders("a"), [writer.id]);
    raw.refused(world, Ask::read(world, "a").at_once());
}

fn an_upgrade_stands_ahead_of_the_line(world: &World) {
    let raw = world.raw();
    let (one, _) = raw.granted(world, Ask::read(world, "a"));
    let (two, _) = raw.granted(world, Ask::read(world, "a"));
    let (stranger, before) = raw.queued(world, Ask::write(world, "a"));
    let (upgrade, queued) = raw.queued(world, Ask::write(world, "a").instead_of(&one));
    assert_eq!((before.place, queued.place), (1, 1));
    assert_eq!(world.line("a"), [upgrade.id, stranger.id]);
    assert!(world.slot("a").unwrap().queue[0].ahead);
    raw.release(world, &two);
    raw.held(world, &upgrade);
    raw.waits(world, &stranger);
    raw.release(world, &upgrade);
    raw.held(world, &stranger);
}

fn nobody_writes_between_reading_and_writing(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let (mine, theirs) = (one.tenure.rwlock("a").unwrap(), two.tenure.rwlock("a").unwrap());
    let (reader, other) = (world.now(mine.read()).unwrap(), world.now(theirs.read()).unwrap());
    let seen = reader.fence().unwrap().max(other.fence().unwrap());
    let mut stranger = world.waits(theirs.write());
    let upgrading = world.waits(reader.upgrade());
    drop(other);
    let writer = world.served(upgrading).unwrap();
    world.still_waits(&mut stranger);
    let written = writer.fence().unwrap();
    drop(writer);
    let stranger = world.served(stranger).unwrap();
    assert!(stranger.fence().unwrap() > written && written > seen);
}

fn the_second_upgrade_is_refused_at_once_with_who(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let mine = one.tenure.rwlock("a").unwrap().label("the first");
    let theirs = two.tenure.rwlock("a").unwrap();
    let (reader, other) = (world.now(mine.read()).unwrap(), world.now(theirs.read()).unwrap());
    let upgrading = world.waits(reader.upgrade());
    let refused = world.now(other.upgrade()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::UpgradeConflict);
    assert!(refused.error.to_string().contains("the first"), "{}", refused.error);
    refused.guard.check().unwrap();
    let raw = world.raw();
    let (third, _) = raw.granted(world, Ask::mutex(world, "b"));
    raw.release(world, &third);
    drop(refused);
    world.served(upgrading).unwrap().check().unwrap();
}

fn once_the_first_has_finished_another_may(world: &World) {
    let raw = world.raw();
    let (one, _) = raw.granted(world, Ask::read(world, "a"));
    let (two, _) = raw.granted(world, Ask::read(world, "a"));
    let (first, _) = raw.queued(world, Ask::write(world, "a").instead_of(&one));
    let refused = raw.refused(world, Ask::write(world, "a").instead_of(&two));
    let Refusal::Upgrade { by } = refused else { panic!("should conflict: {refused:?}") };
    assert_eq!(by, first.about);
    raw.withdraw(world, &first);
    let (second, _) = raw.queued(world, Ask::write(world, "a").instead_of(&two));
    raw.refused(world, Ask::write(world, "a").instead_of(&one));
    raw.release(world, &one);
    raw.held(world, &second);
    let (reader, _) = raw.granted(world, Ask::read(world, "a").instead_of(&second));
    raw.granted(world, Ask::write(world, "a").instead_of(&reader));
}

fn a_waiting_upgrade_ends_with_its_read_hold(world: &World) {
    // Between reading and writing another owner might write: the upgrade would be a lie.
    let raw = world.raw();
    let (one, _) = raw.granted(world, Ask::read(world, "a"));
    let (two, _) = raw.granted(world, Ask::read(world, "a"));
    let (upgrade, _) = raw.queued(world, Ask::write(world, "a").instead_of(&one));
    assert_eq!(raw.release(world, &one), Released::Done);
    raw.gone(world, &upgrade);
    assert_eq!((world.holders("a"), world.line("a")), (vec![two.id], vec![]));
    raw.release(world, &two);
    world.assert_free("a");
}

fn a_waiting_upgrade_ends_with_its_evicted_read_hold(world: &World) {
    let raw = world.raw();
    let (one, grant) = raw.granted(world, Ask::read(world, "a"));
    let (two, _) = raw.granted(world, Ask::read(world, "a"));
    let (upgrade, _) = raw.queued(world, Ask::write(world, "a").instead_of(&one));
    let evicted = raw.evict(world, "a", fence(&grant), "stuck");
    assert!(matches!(evicted, Evicted::Done(ended) if ended.len() == 1));
    assert!(matches!(raw.gone(world, &one), Loss::Evicted { .. }));
    raw.gone(world, &upgrade);
    assert_eq!(world.holders("a"), [two.id]);
}

fn a_try_to_upgrade_beside_another_reader_changes_nothing(world: &World) {
    let raw = world.raw();
    let (one, _) = raw.granted(world, Ask::read(world, "a"));
    let (two, _) = raw.granted(world, Ask::read(world, "a"));
    let refused = raw.refused(world, Ask::write(world, "a").instead_of(&one).at_once());
    assert!(matches!(refused, Refusal::Held { .. }), "{refused:?}");
    raw.held(world, &one);
    raw.held(world, &two);
    raw.release(world, &two);
    raw.granted(world, Ask::write(world, "a").instead_of(&one).at_once());
}

fn what_was_replaced_is_gone_and_touches_nobody(world: &World) {
    let raw = world.raw();
    let (reader, _) = raw.granted(world, Ask::read(world, "a"));
    let (writer, grant) = raw.granted(world, Ask::write(world, "a").instead_of(&reader));
    raw.gone(world, &reader);
    assert_eq!(raw.release(world, &reader), Released::Gone);
    assert_eq!(raw.held(world, &writer), grant);
    raw.release(world, &writer);
    world.assert_free("a");
}

fn what_is_not_held_cannot_be_replaced(world: &World) {
    let raw = world.raw();
    let (gone, _) = raw.granted(world, Ask::read(world, "a"));
    raw.release(world, &gone);
    let refused = raw.refused(world, Ask::write(world, "a").instead_of(&gone));
    assert_eq!(refused, Refusal::NothingToReplace);
    let (theirs, _) = raw.granted(world, Ask::read(world, "a"));
    let stolen = Ask::write(world, "a").instead_of(&theirs).of(&owner());
    assert_eq!(raw.refused(world, stolen), Refusal::NothingToReplace, "it is another owner's");
    raw.held(world, &theirs);
}

fn an_owner_that_reads_may_write_beside_it(world: &World) {
    let raw = world.raw();
    let me = owner();
    let (reader, _) = raw.granted(world, Ask::read(world, "a").of(&me));
    let (writer, new) = raw.granted(world, Ask::write(world, "a").of(&me));
    let (stranger, _) = raw.queued(world, Ask::read(world, "a"));
    assert_eq!(fence(&raw.held(world, &reader)), fence(&new), "one fence per owner and slot");
    raw.release(world, &writer);
    raw.held(world, &stranger);
    raw.held(world, &reader);
}

fn dropping_a_waiting_upgrade_gives_both_up(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let reader = world.now(one.tenure.rwlock("a").unwrap().read()).unwrap();
    let other = world.now(two.tenure.rwlock("a").unwrap().read()).unwrap();
    let upgrading = world.waits(reader.upgrade());
    drop(upgrading);
    world.until("only the other reads", || world.holders("a") == [other.claim_id()]);
    assert!(world.line("a").is_empty());
    let writer = world.now(other.upgrade()).unwrap();
    writer.check().unwrap();
}

fn an_upgraded_guard_lives_on_its_own_renewals(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let reader = world.now(one.tenure.rwlock("a").unwrap().read()).unwrap();
    let other = world.now(two.tenure.rwlock("a").unwrap().read()).unwrap();
    let upgrading = world.waits(reader.upgrade());
    world.pass(world.lease() * 2);
    drop(other);
    let writer = world.served(upgrading).unwrap();
    world.pass_watching(world.lease() * 2, || writer.check().unwrap());
    let reader = world.now(writer.downgrade()).unwrap();
    world.pass_watching(world.lease() * 2, || reader.check().unwrap());
    world.now(reader.release()).unwrap();
    world.assert_free("a");
}

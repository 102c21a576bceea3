//! Sharing: many readers or one writer, in one line, so that neither starves the other.

use super::{Ask, World, list};
use crate::contract::Refusal;

list! { Sharing:
    readers_hold_together cites [1] needs [Sharing];
    a_writer_is_alone cites [1] needs [Sharing, Queue];
    readers_that_come_behind_a_waiting_writer_wait cites [2] needs [Sharing, Queue];
    writers_that_come_behind_a_waiting_reader_wait cites [2] needs [Sharing, Queue];
    neighbouring_readers_are_served_together cites [1, 2] needs [Sharing, Queue];
    the_last_reader_lets_the_writer_in cites [1] needs [Sharing, Queue];
    a_dead_reader_does_not_keep_the_writer_out cites [2] needs [Sharing, Queue];
    a_writer_that_gives_up_lets_the_readers_behind_it_in cites [2, 7] needs [Sharing, Queue];
    a_reader_is_notified_when_the_writer_before_it_leaves cites [2, 7] needs [Sharing, Queue, Push];
    a_downgrade_lets_readers_in_and_keeps_writers_out cites [1] needs [Sharing, Queue];
    a_try_to_read_behind_a_waiting_writer_is_refused cites [2] needs [Sharing, Queue];
    readers_and_writers_of_many_sessions_take_turns cites [1, 2] needs [Sharing, Queue];
    a_mutex_is_the_exclusive_side_of_a_read_write_lock cites [1] needs [Sharing, Queue];
    a_mutex_that_is_released_lets_all_waiting_readers_in cites [1, 2] needs [Sharing, Queue];
}

fn a_reader_is_notified_when_the_writer_before_it_leaves(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let held = world.now(one.tenure.rwlock("a").unwrap().read()).unwrap();
    let writer = world.waits(two.tenure.rwlock("a").unwrap().write());
    let reader = world.waits(two.tenure.rwlock("a").unwrap().read());
    drop(writer);
    reader.done(world.stage()).unwrap().check().unwrap();
    held.check().unwrap();
}

fn a_mutex_is_the_exclusive_side_of_a_read_write_lock(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let mutex = || one.tenure.mutex("a").unwrap();
    let lock = || two.tenure.rwlock("a").unwrap();
    let held = world.now(mutex().lock()).unwrap();
    assert!(world.now(lock().try_read()).unwrap().is_none());
    assert!(world.now(lock().try_write()).unwrap().is_none());
    let reader = world.waits(lock().read());
    let before = held.fence().unwrap();
    world.now(held.release()).unwrap();
    let reader = world.served(reader).unwrap();
    assert!(reader.fence().unwrap() > before, "one counter of fences for both");
    assert!(world.now(mutex().try_lock()).unwrap().is_none());
    let second = world.now(one.tenure.rwlock("a").unwrap().read()).unwrap();
    let waiting = world.waits(mutex().lock());
    drop((reader, second));
    let held = world.served(waiting).unwrap();
    world.now(held.release()).unwrap();
    world.assert_free("a");
}

fn a_mutex_that_is_released_lets_all_waiting_readers_in(world: &World) {
    let raw = world.raw();
    let (mutex, _) = raw.granted(world, Ask::mutex(world, "a"));
    let readers = [(); 3].map(|()| raw.queued(world, Ask::read(world, "a")).0);
    let (behind, _) = raw.queued(world, Ask::mutex(world, "a"));
    raw.release(world, &mutex);
    for reader in &readers {
        raw.held(world, reader);
    }
    assert_eq!(raw.waits(world, &behind).place, 1);
    for reader in &readers {
        raw.release(world, reader);
    }
    raw.held(world, &behind);
}

fn readers_hold_together(world: &World) {
    let raw = world.raw();
    let readers: Vec<_> =
        (0..5).map(|_| raw.granted(world, Ask::read(world, "a").at_once()).0).collect();
    assert_eq!(world.holders("a").len(), 5);
    let weights: Vec<u32> =
        world.slot("a").unwrap().holders.iter().map(|holder| holder.weight).collect();
    assert_eq!(weights, [1; 5]);
    match raw.refused(world, Ask::write(world, "a").at_once()) {
        Refusal::Held { by, waiting } => assert_eq!((by.len(), waiting), (5, 0)),
        other => panic!("should name the readers: {other:?}"),
    }
    for reader in &readers {
        raw.release(world, reader);
    }
    raw.granted(world, Ask::write(world, "a").at_once());
}

fn a_writer_is_alone(world: &World) {
    let raw = world.raw();
    let (writer, _) = raw.granted(world, Ask::write(world, "a"));
    raw.refused(world, Ask::read(world, "a").at_once());
    raw.refused(world, Ask::write(world, "a").at_once());
    let (second, _) = raw.queued(world, Ask::write(world, "a"));
    let (reader, _) = raw.queued(world, Ask::read(world, "a"));
    raw.release(world, &writer);
    raw.held(world, &second);
    raw.waits(world, &reader);
    raw.release(world, &second);
    raw.held(world, &reader);
}

fn readers_that_come_behind_a_waiting_writer_wait(world: &World) {
    let raw = world.raw();
    let (reader, _) = raw.granted(world, Ask::read(world, "a"));
    let (writer, _) = raw.queued(world, Ask::write(world, "a"));
    let late: Vec<_> = (0..3).map(|_| raw.queued(world, Ask::read(world, "a")).0).collect();
    raw.release(world, &reader);
    raw.held(world, &writer);
    for reader in &late {
        raw.waits(world, reader);
    }
    raw.release(world, &writer);
    for reader in &late {
        raw.held(world, reader);
    }
}

fn writers_that_come_behind_a_waiting_reader_wait(world: &World) {
    let raw = world.raw();
    let (first, _) = raw.granted(world, Ask::write(world, "a"));
    let (reader, _) = raw.queued(world, Ask::read(world, "a"));
    let (second, _) = raw.queued(world, Ask::write(world, "a"));
    raw.release(world, &first);
    raw.held(world, &reader);
    assert_eq!(raw.waits(world, &second).place, 1);
    raw.release(world, &reader);
    raw.held(world, &second);
}

fn neighbouring_readers_are_served_together(world: &World) {
    let raw = world.raw();
    let (writer, _) = raw.granted(world, Ask::write(world, "a"));
    let (one, _) = raw.queued(world, Ask::read(world, "a"));
    let (two, _) = raw.queued(world, Ask::read(world, "a"));
    let (next, _) = raw.queued(world, Ask::write(world, "a"));
    let (three, _) = raw.queued(world, Ask::read(world, "a"));
    raw.release(world, &writer);
    raw.held(world, &one);
    raw.held(world, &two);
    raw.waits(world, &next);
    raw.waits(world, &three);
    assert_eq!(world.holders("a").len(), 2);
}

fn the_last_reader_lets_the_writer_in(world: &World) {
    let raw = world.raw();
    let readers: Vec<_> = (0..3).map(|_| raw.granted(world, Ask::read(world, "a")).0).collect();
    let (writer, _) = raw.queued(world, Ask::write(world, "a"));
    for reader in &readers {
        raw.waits(world, &writer);
        raw.release(world, reader);
    }
    raw.held(world, &writer);
}

fn a_dead_reader_does_not_keep_the_writer_out(world: &World) {
    let (living, dying) = (world.raw(), world.raw());
    let (reader, _) = living.granted(world, Ask::read(world, "a"));
    dying.granted(world, Ask::read(world, "a"));
    let (writer, _) = living.queued(world, Ask::write(world, "a"));
    world.stage().end_session(dying.session());
    living.waits(world, &writer);
    living.release(world, &reader);
    living.held(world, &writer);
}

fn a_writer_that_gives_up_lets_the_readers_behind_it_in(world: &World) {
    let raw = world.raw();
    raw.granted(world, Ask::read(world, "a"));
    let (writer, _) = raw.queued(world, Ask::write(world, "a"));
    let (late, _) = raw.queued(world, Ask::read(world, "a"));
    raw.withdraw(world, &writer);
    raw.held(world, &late);
    assert_eq!((world.holders("a").len(), world.line("a").len()), (2, 0));
}

fn a_downgrade_lets_readers_in_and_keeps_writers_out(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let (mine, theirs) = (one.tenure.rwlock("a").unwrap(), two.tenure.rwlock("a").unwrap());
    let writer = world.now(mine.write()).unwrap();
    let reading = world.waits(theirs.read());
    let mut writing = world.waits(theirs.write());
    let reader = world.now(writer.downgrade()).unwrap();
    let second = world.served(reading).unwrap();
    world.still_waits(&mut writing);
    reader.check().unwrap();
    drop((reader, second));
    world.served(writing).unwrap().check().unwrap();
}

fn a_try_to_read_behind_a_waiting_writer_is_refused(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let (mine, theirs) = (one.tenure.rwlock("a").unwrap(), two.tenure.rwlock("a").unwrap());
    let reader = world.now(mine.read()).unwrap();
    assert!(world.now(theirs.try_read()).unwrap().is_some(), "nobody waits yet");
    let waiting = world.waits(theirs.write());
    assert!(world.now(mine.try_read()).unwrap().is_none(), "it would fit, but somebody waits");
    drop(reader);
    let writer = world.served(waiting).unwrap();
    assert!(world.now(mine.try_read()).unwrap().is_none());
    drop(writer);
    world.assert_free("a");
}

fn readers_and_writers_of_many_sessions_take_turns(world: &World) {
    let actors: Vec<_> = (0..3).map(|_| world.actor()).collect();
    let lock = |n: usize| actors[n % 3].tenure.rwlock("a").unwrap();
    let mut writer = world.now(lock(0).write()).unwrap();
    for round in 0..3 {
        let readers: Vec<_> = (0..3).map(|n| world.waits(lock(n).read())).collect();
        let mut next = world.waits(lock(round).write());
        let last = writer.fence().unwrap();
        drop(writer);
        let readers: Vec<_> = world.all_served(readers).into_iter().map(Result::unwrap).collect();
        assert!(readers.iter().all(|reader| reader.fence().unwrap() > last));
        world.still_waits(&mut next);
        drop(readers);
        writer = world.served(next).unwrap();
        assert_eq!(world.holders("a"), [writer.claim_id()]);
    }
    drop(writer);
    world.assert_free("a");
}

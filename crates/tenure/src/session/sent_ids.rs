//! The ids of the writes that a session has sent lately: whether a write may be a repeat.
//!
//! A store drops ids of writes, and decides by the age of an id whether it may be one of those
//! that were dropped. The age is taken when a call is sent, and the call then travels for up to
//! the timeout of a call. The id looks younger to the store by that time: if a repeat travels
//! longer than the first attempt did, it seems to be made after the first attempt was recorded,
//! and is written twice. So a repeat adds the timeout to its age. A first attempt must not: the
//! store would refuse it wherever 128 other ids wrote the cell within the timeout.
//!
//! [`SentIds`] tells the two apart: it has the last [`limits::SENT_IDS`] ids, and knows since when
//! it has all of them. An id of another session of this process is not in it; of such an id the
//! age itself is added, up to the timeout, which is too little only if the call travels for longer
//! than the id is old.

use std::collections::VecDeque;
use std::time::Duration;

use crate::contract::WriteId;
use crate::limits;
use crate::time::Tick;

/// The ids of the last writes of a session.
#[derive(Debug, Default)]
pub(super) struct SentIds {
    ids: VecDeque<(u128, Tick)>,
    /// When the youngest id was sent that is not in `ids` any more.
    dropped: Option<Tick>,
}

impl SentIds {
    /// Records that a write is sent now. Returns the age of its id as the store has to count it
    /// when the call arrives, which is at most `call` later.
    pub(super) fn age_on_arrival(&mut self, id: WriteId, now: Tick, call: Duration) -> Duration {
        let (age, value) = (id.age(now), id.as_u128());
        let made = now - age;
        let sent = self.ids.iter().any(|(sent, _)| *sent == value);
        let may_be_sent = sent || self.dropped.is_some_and(|dropped| dropped >= made);
        if !sent {
            self.ids.push_back((value, now));
            if self.ids.len() > limits::SENT_IDS {
                self.dropped = self.ids.pop_front().map(|(_, at)| at);
            }
        }
        age + if may_be_sent { call } else { age.min(call) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Duration = Duration::from_secs(2);

    fn at(millis: u64) -> Tick {
        Tick::from_nanos(millis * 1_000_000)
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_first_attempt_counts_its_own_age_and_a_repeat_the_whole_timeout() {
        let (mut ids, id) = (SentIds::default(), WriteId::made_at(at(100)));
        assert_eq!(ids.age_on_arrival(id, at(100), CALL), Duration::ZERO);
        assert_eq!(ids.age_on_arrival(id, at(101), CALL), ms(1) + CALL);
        // Made long ago, and perhaps sent by another session.
        assert_eq!(ids.age_on_arrival(WriteId::made_at(at(90)), at(100), CALL), ms(20));
        assert_eq!(ids.age_on_arrival(WriteId::made_at(at(0)), at(9_000), CALL), ms(11_000));
    }

    #[test]
    fn an_id_that_may_have_been_forgotten_counts_as_sent() {
        let (mut ids, first) = (SentIds::default(), WriteId::made_at(at(1)));
        ids.age_on_arrival(first, at(1), CALL);
        for _ in 0..limits::SENT_IDS {
            ids.age_on_arrival(WriteId::made_at(at(2)), at(2), CALL);
        }
        assert_eq!(ids.ids.len(), limits::SENT_IDS);
        assert_eq!(ids.age_on_arrival(first, at(3), CALL), ms(2) + CALL);
        // Made after all that were dropped: it was not sent before.
        let fresh = WriteId::made_at(at(5));
        assert_eq!(ids.age_on_arrival(fresh, at(5), CALL), Duration::ZERO);
    }
}

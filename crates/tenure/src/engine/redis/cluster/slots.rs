//! Which node of a cluster keeps which slot, and which slot a key is in. Pure.
//!
//! A map holds, beside the address of each master, its node id and its config epoch. In a Redis
//! Cluster a slot belongs to the master that claims it with the highest config epoch: every
//! fail-over and every move of a slot gives the new keeper an epoch above all others. So two maps
//! that differ on a slot can be put in order by the epochs of the keepers they name.

use redis::Value;

use crate::engine::redis::client::{list, number, text};

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The host and the port of a node.
pub(super) type NodeAddress = (String, u16);

/// A master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotKeeper {
    pub(super) address: NodeAddress,
    /// Empty if only its address is known.
    pub(super) id: String,
    /// Its config epoch; 0 if that is not known.
    pub(super) epoch: u64,
}

impl SlotKeeper {
    /// Returns true if both are the same node: by id, or by address where one has no id.
    pub(super) fn is(&self, other: &Self) -> bool {
        if self.id.is_empty() || other.id.is_empty() {
            return self.address == other.address;
        }
        self.id == other.id
    }
}

/// Which node keeps which slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotMap {
    masters: Vec<SlotKeeper>,
    /// For each slot one of them, or `UNASSIGNED`.
    keepers: Vec<u16>,
}

/// A slot that no node keeps.
const UNASSIGNED: u16 = u16::MAX;

impl SlotMap {
    /// A map in which no slot has a keeper.
    pub(super) fn empty() -> Self {
        Self { masters: Vec::new(), keepers: vec![UNASSIGNED; usize::from(SLOTS)] }
    }

    /// Parses the reply to `CLUSTER SLOTS`: ranges, each with its master and then its replicas. A
    /// node that does not know its own host leaves it empty: then it is the one that was asked.
    /// `epoch_of` returns the config epoch of a node id.
    pub(super) fn read(reply: &Value, asked: &str, epoch_of: impl Fn(&str) -> u64) -> Option<Self> {
        let mut map = Self::empty();
        for range in list(reply)? {
            let [first, last, master, ..] = list(range)? else { return None };
            let slot = |value: &Value| u16::try_from(number(value)?).ok().filter(|at| *at < SLOTS);
            let (first, last) = (slot(first)?, slot(last)?);
            let [host, port, rest @ ..] = list(master)? else { return None };
            let host = text(host).filter(|host| !matches!(*host, "" | "?")).unwrap_or(asked);
            let address = (host.to_owned(), u16::try_from(number(port)?).ok()?);
            let id = rest.first().and_then(text).unwrap_or_default();
            let keeper = SlotKeeper { address, id: id.to_owned(), epoch: epoch_of(id) };
            let keeper = map.number_of(&keeper);
            map.keepers.get_mut(usize::from(first)..=usize::from(last))?.fill(keeper);
        }
        Some(map)
    }

    /// Returns the node that keeps a slot.
    pub(super) fn keeper(&self, slot: u16) -> Option<&SlotKeeper> {
        self.masters.get(usize::from(self.keepers[usize::from(slot)]))
    }

    /// Returns the number of the node that keeps a slot. Another map may number nodes otherwise.
    pub(super) fn keeper_number(&self, slot: u16) -> u16 {
        self.keepers[usize::from(slot)]
    }

    /// A node redirected a call for the slot to this one.
    pub(super) fn moved(&mut self, slot: u16, to: &NodeAddress) {
        let keeper = SlotKeeper { address: to.clone(), id: String::new(), epoch: 0 };
        self.keepers[usize::from(slot)] = self.number_of(&keeper);
    }

    /// Uses this address for a node, whatever address maps name that are merged later.
    pub(super) fn prefer(&mut self, keeper: &SlotKeeper) {
        self.number_of(&SlotKeeper { epoch: 0, ..keeper.clone() });
    }

    /// Takes over every slot that `other` claims with a higher epoch, or that has no keeper here.
    /// `epochs` has the epoch of each slot's claim so far: that of a master in one map must not
    /// apply to the claim of another map. Masters of `other` that do not count are left out.
    pub(super) fn merge(
        &mut self,
        other: &Self,
        epochs: &mut [u64],
        counts: impl Fn(&SlotKeeper) -> bool,
    ) {
        let mut numbers: Vec<Option<u16>> = vec![None; other.masters.len()];
        for (number, keeper) in numbers.iter_mut().zip(&other.masters) {
            *number = counts(keeper).then(|| self.number_of(keeper));
        }
        for (slot, theirs) in other.keepers.iter().enumerate() {
            let at = usize::from(*theirs);
            let (Some(Some(number)), Some(keeper)) = (numbers.get(at), other.masters.get(at))
            else {
                continue;
            };
            if self.keepers[slot] == UNASSIGNED || epochs[slot] < keeper.epoch {
                self.keepers[slot] = *number;
                epochs[slot] = keeper.epoch;
            }
        }
    }

    /// Returns all nodes that keep a slot.
    pub(super) fn keepers(&self) -> impl Iterator<Item = &SlotKeeper> {
        let kept = |at: usize| self.keepers.iter().any(|keeper| usize::from(*keeper) == at);
        self.masters.iter().enumerate().filter(move |(at, _)| kept(*at)).map(|(_, keeper)| keeper)
    }

    /// Returns the addresses of all nodes that keep a slot.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &NodeAddress> {
        self.keepers().map(|keeper| &keeper.address)
    }

    /// Returns how many slots have no keeper.
    pub(super) fn uncovered(&self) -> usize {
        self.keepers.iter().filter(|keeper| **keeper == UNASSIGNED).count()
    }

    /// Returns true if both maps name the same keeper of every slot.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let here = |theirs: &SlotKeeper| self.masters.iter().position(|ours| ours.is(theirs));
        let here: Vec<Option<usize>> = other.masters.iter().map(here).collect();
        let both = self.keepers.iter().zip(&other.keepers);
        both.map(|(ours, theirs)| (usize::from(*ours), here.get(usize::from(*theirs)))).all(
            |(ours, theirs)| match theirs {
                Some(theirs) => *theirs == Some(ours),
                None => ours == usize::from(UNASSIGNED),
            },
        )
    }

    /// Returns the number of a master, and raises its epoch to the highest that was reported.
    fn number_of(&mut self, keeper: &SlotKeeper) -> u16 {
        let at = self.masters.iter().position(|known| known.is(keeper)).unwrap_or_else(|| {
            self.masters.push(keeper.clone());
            self.masters.len() - 1
        });
        self.masters[at].epoch = self.masters[at].epoch.max(keeper.epoch);
        u16::try_from(at).unwrap_or(UNASSIGNED)
    }
}

/// The slot of a key: that of its tag, if it has one.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % SLOTS
}

/// CRC-16 in the variant of XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < table.len() {
        #[allow(clippy::cast_possible_truncation, reason = "there are 256")]
        let mut crc = (at as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use servers::{Redis, Reply};

    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), bulk(&format!("id-{port}"))]);
        let replica = Value::Array(vec![bulk("10.0.0.9"), Value::Int(1), bulk("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node, replica])
    }

    #[test]
    fn slots_are_those_that_others_have_written_down() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of("{foo}:bar"), 12_182);
        assert_eq!(slot_of("a{foo}b{bar}"), 12_182);
        assert_eq!(slot_of("{}foo"), slot_of("{}foo"));
        assert_ne!(slot_of("{}foo"), slot_of("foo"));
        assert_eq!(slot_of(""), 0);
    }

    #[test]
    fn a_server_computes_the_same_slots() {
        let redis = Redis::builder().arg("cluster-enabled", "yes").start();
        let odd = ["", "a", "{a}", "{}a", "a{", "a}b{c}", "{{a}}", "ünïcödé", "%7B/%7D"];
        let keys = odd.into_iter().map(str::to_owned);
        for key in keys.chain((0..200).map(|n| format!("tenure:{{ns/lock-{n}}}:top"))) {
            let answer = redis.cmd(&["CLUSTER", "KEYSLOT", &key]).unwrap();
            assert_eq!(answer, Reply::Int(i64::from(slot_of(&key))), "{key:?}");
        }
    }

    #[test]
    fn a_map_names_masters_and_what_nobody_keeps() {
        let answer = Value::Array(vec![
            range(0, 99, bulk("10.0.0.1"), 7000),
            range(100, 16_000, bulk(""), 7001),
            range(16_001, 16_382, bulk("10.0.0.1"), 7000),
        ]);
        let mut map = SlotMap::read(&answer, "here", |_| 0).unwrap();
        let (first, second) = (("10.0.0.1".to_owned(), 7000), ("here".to_owned(), 7001));
        let keeper = |map: &SlotMap, slot| map.keeper(slot).map(|keeper| keeper.address.clone());
        assert_eq!(keeper(&map, 99), Some(first.clone()));
        assert_eq!(keeper(&map, 100), Some(second.clone()));
        assert_eq!((map.keeper(16_383), map.uncovered()), (None, 1));
        assert_eq!(map.addresses().collect::<Vec<_>>(), [&first, &second]);
        let third = ("10.0.0.3".to_owned(), 1);
        map.moved(99, &third);
        assert_eq!(keeper(&map, 99), Some(third));
        assert_ne!(map.keeper_number(98), map.keeper_number(99));
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_no_map() {
        for answer in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16_384, bulk("h"), 1)]),
            Value::Array(vec![range(9, 3, bulk("h"), 1)]),
            Value::Array(vec![range(0, 1, bulk("h"), 99_999)]),
        ] {
            assert_eq!(SlotMap::read(&answer, "h", |_| 0), None, "{answer:?}");
        }
    }
}

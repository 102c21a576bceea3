//! The holders of a slot, as the store keeps them: a few in the slot's own row, many in rows of
//! their own with indexes (`long.rs`).
//!
//! They get rows of their own when one more would exceed `Sizes::few_holders`, and are kept in
//! the slot's row again after the last of them has left. Admission rules are the ledger's: this
//! file implements its trait [`Holders`].

mod long;

use std::sync::atomic::Ordering;

use self::long::LongHolders;
use super::codec::{HoldersHead, HoldersRow};
use super::queue::RowRef;
use super::slots::RowContext;
use crate::contract::{ClaimId, Fence, OwnerId};
use crate::engine::common::paths;
use crate::ledger::seam::{Hold, Holders, Holds};
use crate::time::Tick;

/// The holders of a slot within one transaction.
pub(super) struct StoredHolders<'t, 'e> {
    context: RowContext<'t, 'e>,
    /// The weights of one owner's claims add up.
    additive: bool,
    form: HoldersForm<'t, 'e>,
}

enum HoldersForm<'t, 'e> {
    Few(Holds),
    Many(LongHolders<'t, 'e>),
}

impl<'t, 'e> StoredHolders<'t, 'e> {
    /// Makes an empty set of holders.
    pub(super) fn empty(context: RowContext<'t, 'e>) -> Self {
        Self { context, additive: false, form: HoldersForm::Few(Holds::new(false)) }
    }

    /// Makes the holders that a slot's row describes.
    pub(super) fn new(context: RowContext<'t, 'e>, row: HoldersRow, additive: bool) -> Self {
        let form = match row {
            HoldersRow::Few(holds) => HoldersForm::Few(holds),
            HoldersRow::Many(head) => {
                HoldersForm::Many(LongHolders::new(context.txn, head, additive))
            }
        };
        Self { context, additive, form }
    }

    /// Returns what goes into the slot's row: a few holders, or the head of many.
    pub(super) fn row(&self) -> Result<&Holds, HoldersHead> {
        match &self.form {
            HoldersForm::Few(holds) => Ok(holds),
            HoldersForm::Many(many) => Err(many.head()),
        }
    }

    /// Moves every holder into a row of its own.
    fn lengthen(&mut self) {
        let HoldersForm::Few(few) = &self.form else { return };
        let id = self.context.counters.arrivals.fetch_add(1, Ordering::Relaxed) + 1;
        let head = HoldersHead { id, ..HoldersHead::default() };
        let mut many = LongHolders::new(self.context.txn, head, self.additive);
        for hold in few.iter() {
            many.insert(hold);
        }
        self.form = HoldersForm::Many(many);
        paths::take("embedded holders: become many");
    }
}

impl HoldersForm<'_, '_> {
    /// Counts the path that either form takes.
    fn take(&self, few: &'static str, many: &'static str) {
        paths::take(match self {
            Self::Few(_) => few,
            Self::Many(_) => many,
        });
    }
}

impl Holders for StoredHolders<'_, '_> {
    type Seen<'a>
        = RowRef<'a, Hold>
    where
        Self: 'a;

    fn len(&self) -> usize {
        match &self.form {
            HoldersForm::Few(few) => few.len(),
            HoldersForm::Many(many) => many.head().len as usize,
        }
    }

    fn iter(&self) -> impl Iterator<Item = RowRef<'_, Hold>> {
        let (few, many) = match &self.form {
            HoldersForm::Few(few) => (Some(few.iter().map(RowRef::Cached)), None),
            HoldersForm::Many(many) => (None, Some(many.iter().map(RowRef::decoded))),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    fn get(&self, id: ClaimId) -> Option<RowRef<'_, Hold>> {
        match &self.form {
            HoldersForm::Few(few) => few.get(id).map(RowRef::Cached),
            HoldersForm::Many(many) => many.get(id).map(RowRef::decoded),
        }
    }

    fn heaviest_of(&self, owner: OwnerId) -> Option<RowRef<'_, Hold>> {
        match &self.form {
            HoldersForm::Few(few) => few.heaviest_of(owner).map(RowRef::Cached),
            HoldersForm::Many(many) => many.heaviest_of(owner).map(RowRef::decoded),
        }
    }

    fn owner_weight(&self, owner: OwnerId) -> u64 {
        match &self.form {
            HoldersForm::Few(few) => few.owner_weight(owner),
            HoldersForm::Many(many) => many.owner_weight(owner),
        }
    }

    fn weight(&self) -> u64 {
        match &self.form {
            HoldersForm::Few(few) => few.weight(),
            HoldersForm::Many(many) => many.head().weight,
        }
    }

    fn first_end(&self, delayed: bool) -> Option<Tick> {
        match &self.form {
            HoldersForm::Few(few) => few.first_end(delayed),
            HoldersForm::Many(many) => many.first_end(delayed),
        }
    }

    fn insert(&mut self, hold: Hold) {
        let most = self.context.sizes.few_holders;
        if matches!(&self.form, HoldersForm::Few(few) if few.len() >= most) {
            self.lengthen();
        }
        self.form.take("embedded holders: insert, few", "embedded holders: insert, many");
        match &mut self.form {
            HoldersForm::Few(few) => few.insert(hold),
            HoldersForm::Many(many) => many.insert(&hold),
        }
    }

    fn remove(&mut self, id: ClaimId) -> Option<Hold> {
        self.form.take("embedded holders: remove, few", "embedded holders: remove, many");
        let removed = match &mut self.form {
            HoldersForm::Few(few) => few.remove(id),
            HoldersForm::Many(many) => many.remove(id),
        };
        if matches!(&self.form, HoldersForm::Many(many) if many.head().len == 0) {
            self.form = HoldersForm::Few(Holds::new(self.additive));
            paths::take("embedded holders: become few");
        }
        removed
    }

    fn change(&mut self, id: ClaimId, change: impl FnOnce(&mut Hold)) {
        match &mut self.form {
            HoldersForm::Few(few) => few.change(id, change),
            HoldersForm::Many(many) => many.change(id, change),
        }
    }

    fn renew(&mut self, id: ClaimId, expires: Tick) -> Option<(Fence, Option<u64>)> {
        self.form.take("embedded holders: renew, few", "embedded holders: renew, many");
        match &mut self.form {
            HoldersForm::Few(few) => few.renew(id, expires),
            HoldersForm::Many(many) => many.renew(id, expires),
        }
    }

    fn dead(&mut self, now: Tick) -> Option<ClaimId> {
        let dead = match &mut self.form {
            HoldersForm::Few(few) => few.dead(now),
            HoldersForm::Many(many) => many.dead(now),
        };
        if dead.is_some() {
            self.form.take("embedded holders: dead, few", "embedded holders: dead, many");
        }
        dead
    }

    /// Only called for a slot without holders, so no rows are left behind.
    fn reset(&mut self, additive: bool) {
        self.additive = additive;
        self.form = HoldersForm::Few(Holds::new(additive));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::files::{FIRST_MAP, open_env};
    use super::super::gate::Counters;
    use super::super::sizes::Sizes;
    use super::super::txn::Txn;
    use super::*;
    use crate::contract::{About, Arrival, Claim, Lineage, Name, Part, Parts, Patience};

    /// Pseudo-random numbers, the same in every run.
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888);
            (self.0 >> 33) % limit
        }
    }

    fn hold(chance: &mut Chance, number: u64) -> Hold {
        let claim = Claim {
            id: ClaimId::from_u128(u128::from(number) + 1),
            session: None,
            lineage: Lineage::root(OwnerId::from_u128(u128::from(chance.below(9)) + 1)),
            parts: Parts::one(Part::read(Name::try_from("a").unwrap())),
            lease: Duration::from_secs(1),
            lock_delay: Duration::from_millis(if chance.below(8) == 0 { 50 } else { 0 }),
            patience: Patience::Try,
            replaces: None,
            about: About {
                host: "h".into(),
                pid: 1,
                place: None,
                label: None,
                conduct: crate::contract::Conduct::default(),
            },
        };
        Hold {
            claim: Arc::new(claim),
            weight: u32::try_from(chance.below(3)).unwrap() + 1,
            fence: Fence::new(number + 1),
            group: None,
            arrival: Arrival(number),
            since: Tick::ZERO,
            expires: Tick::from_nanos(chance.below(1_000) + 1),
            reserved: chance.below(4) == 0,
        }
    }

    /// Compares everything that the rules can ask.
    #[track_caller]
    fn compare(kept: &mut StoredHolders<'_, '_>, model: &mut Holds, last: u64) {
        assert_eq!((kept.len(), kept.weight()), (model.len(), model.weight()));
        let facts = |hold: &Hold| (hold.claim.id, hold.fence, hold.expires, hold.reserved);
        let all: Vec<_> = kept.iter().map(|hold| facts(&hold)).collect();
        assert_eq!(all, model.iter().map(facts).collect::<Vec<_>>());
        for delayed in [false, true] {
            assert_eq!(kept.first_end(delayed), model.first_end(delayed));
        }
        for owner in (0..=10).map(OwnerId::from_u128) {
            let heaviest = kept.heaviest_of(owner).map(|hold| hold.claim.id);
            assert_eq!(heaviest, model.heaviest_of(owner).map(|hold| hold.claim.id));
            assert_eq!(kept.owner_weight(owner), model.owner_weight(owner));
        }
        let id = ClaimId::from_u128(u128::from(last) + 1);
        assert_eq!(kept.get(id).map(|hold| facts(&hold)), model.get(id).map(facts));
        let at = Tick::from_nanos(500);
        // Two may expire at one instant: either is a right answer.
        let expires = |id: Option<ClaimId>, model: &Holds| model.get(id?).map(|hold| hold.expires);
        let (ours, theirs) = (kept.dead(at), model.dead(at));
        assert_eq!(expires(ours, model), expires(theirs, model));
    }

    #[test]
    fn holders_in_rows_answer_as_those_in_memory_do_and_leave_no_row_behind() {
        let directory = tempfile::tempdir().unwrap();
        let (env, table) = open_env(directory.path(), FIRST_MAP).unwrap();
        let counters = Counters::default();
        for (seed, additive) in [(1, false), (2, true), (3, false)] {
            let txn = Txn::new(env.write_txn().unwrap(), table);
            let context = RowContext { txn: &txn, counters: &counters, sizes: &Sizes::SMALL };
            let mut kept = StoredHolders::empty(context);
            let mut model = Holds::new(additive);
            kept.reset(additive);
            let mut chance = Chance(seed);
            let mut most = 0;
            for number in 0..300 {
                let id = ClaimId::from_u128(u128::from(chance.below(number + 1)) + 1);
                match chance.below(if number < 150 { 5 } else { 9 }) {
                    0..3 => {
                        let new = hold(&mut chance, number);
                        kept.insert(new.clone());
                        model.insert(new);
                    }
                    3 => {
                        let expires = Tick::from_nanos(chance.below(1_000) + 1);
                        assert_eq!(kept.renew(id, expires), model.renew(id, expires));
                        kept.change(id, |hold| hold.reserved = true);
                        model.change(id, |hold| hold.reserved = true);
                    }
                    _ => {
                        let gone = |hold: Option<Hold>| hold.map(|hold| hold.claim.id);
                        assert_eq!(gone(kept.remove(id)), gone(model.remove(id)));
                    }
                }
                compare(&mut kept, &mut model, number);
                most = most.max(kept.len());
            }
            assert!(most > Sizes::SMALL.few_holders, "{most} were not many");
            assert!(kept.row().is_err(), "many are not kept in the slot's row");
            let left: Vec<ClaimId> = model.iter().map(|hold| hold.claim.id).collect();
            for id in left {
                assert!(kept.remove(id).is_some() && model.remove(id).is_some());
                compare(&mut kept, &mut model, 0);
            }
            assert!(kept.row().is_ok_and(|few| few.len() == 0));
            for kind in [b"H", b"D", b"E", b"O"] {
                assert!(txn.from(kind, kind, |_, _| ()).is_none(), "{kind:?}");
            }
            drop(kept);
            txn.commit().unwrap();
        }
    }

    /// Each reader once read and wrote all others: 0.7 ms beside 1,000.
    #[cfg(feature = "conformance")]
    #[test]
    fn a_reader_touches_as_many_rows_beside_a_thousand_as_beside_forty() {
        use super::super::txn::rows;
        use crate::conformance::{Ask, EmbeddedHarness, Harness, World};
        let cost = |others: usize| {
            let world = World::new(EmbeddedHarness.open().unwrap());
            let raw = world.raw();
            for _ in 0..others {
                raw.granted(&world, Ask::read(&world, "a"));
            }
            let before = rows::touched();
            let (claim, _) = raw.granted(&world, Ask::read(&world, "a"));
            raw.release(&world, &claim);
            rows::touched() - before
        };
        let (few, many) = (cost(40), cost(1_000));
        assert!(few > 0 && many <= few + 4, "{few} rows beside 40, {many} beside 1,000");
    }
}

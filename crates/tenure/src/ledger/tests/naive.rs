//! A second ledger for one slot, slow and obviously right: two lists, walked through for every
//! question. Owners are not nested here. Long random programs must find both ledgers alike.

use proptest::prelude::*;

use super::programs::config;
use super::*;

#[derive(Clone, Debug)]
struct Entry {
    number: u128,
    owner: u128,
    weight: u64,
    expires: u64,
}

/// One slot of this capacity. Permits add up; otherwise an owner weighs as much as its heaviest.
#[derive(Clone, Debug)]
struct Naive {
    capacity: u64,
    add_up: bool,
    holders: Vec<Entry>,
    /// In order of arrival.
    line: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Held,
    Place(usize),
    No,
}

impl Naive {
    fn of_owner(&self, owner: u128) -> u64 {
        let own = self.holders.iter().filter(|entry| entry.owner == owner);
        own.map(|entry| entry.weight).max().unwrap_or(0)
    }

    /// What all others weigh.
    fn others(&self, owner: u128) -> u64 {
        if self.add_up {
            return self.holders.iter().map(|entry| entry.weight).sum();
        }
        let mut owners: Vec<u128> = self.holders.iter().map(|entry| entry.owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.into_iter().filter(|other| *other != owner).map(|other| self.of_owner(other)).sum()
    }

    /// First those whose owner holds, then the others.
    fn order(&self) -> Vec<Entry> {
        let ahead = |entry: &&Entry| !self.add_up && self.of_owner(entry.owner) > 0;
        let (first, then): (Vec<&Entry>, Vec<&Entry>) = self.line.iter().partition(ahead);
        first.into_iter().chain(then).cloned().collect()
    }

    fn may_come_in(&self, entry: &Entry, before: &[Entry]) -> bool {
        let again = !self.add_up && self.of_owner(entry.owner) >= entry.weight;
        let fits = self.others(entry.owner) + entry.weight <= self.capacity;
        let behind = before.iter().any(|other| self.add_up || other.owner != entry.owner);
        again || fits && !behind
    }

    fn serve(&mut self, now: u64) {
        self.holders.retain(|entry| now < entry.expires);
        self.line.retain(|entry| now < entry.expires);
        loop {
            let order = self.order();
            let next = (0..order.len()).find(|at| self.may_come_in(&order[*at], &order[..*at]));
            let Some(next) = next.map(|at| order[at].clone()) else { return };
            self.line.retain(|entry| entry.number != next.number);
            self.holders.push(next);
        }
    }

    fn standing(&self, number: u128) -> Answer {
        if self.holders.iter().any(|entry| entry.number == number) {
            return Answer::Held;
        }
        let place = self.order().iter().position(|entry| entry.number == number);
        place.map_or(Answer::No, |place| Answer::Place(place + 1))
    }

    fn claim(&mut self, entry: Entry, trying: bool, now: u64) -> Answer {
        self.serve(now);
        if self.standing(entry.number) != Answer::No {
            return self.renew(entry.number, entry.expires, now);
        }
        let held = self.of_owner(entry.owner);
        let upgrade = |held: u64, weight: u64| !self.add_up && held > 0 && held < weight;
        let rival = |other: &Entry| {
            other.owner != entry.owner && upgrade(self.of_owner(other.owner), other.weight)
        };
        if upgrade(held, entry.weight) && self.line.iter().any(rival) {
            return Answer::No;
        }
        let number = entry.number;
        let mut tried = self.clone();
        tried.line.push(entry);
        tried.serve(now);
        if tried.standing(number) == Answer::Held || !trying {
            *self = tried;
        }
        self.standing(number)
    }

    fn renew(&mut self, number: u128, expires: u64, now: u64) -> Answer {
        self.serve(now);
        for entry in self.holders.iter_mut().chain(&mut self.line) {
            if entry.number == number {
                entry.expires = expires;
            }
        }
        self.standing(number)
    }

    fn release(&mut self, number: u128, now: u64) -> Answer {
        self.holders.retain(|entry| now < entry.expires);
        self.line.retain(|entry| now < entry.expires);
        let answer = self.standing(number);
        self.holders.retain(|entry| entry.number != number);
        self.line.retain(|entry| entry.number != number);
        self.serve(now);
        if answer == Answer::No { Answer::No } else { Answer::Held }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Claim { number: u128, trying: bool },
    Renew(u128),
    Release(u128),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let number = 1..=12_u128;
    prop_oneof![
        6 => (number.clone(), prop::bool::weighted(0.2))
            .prop_map(|(number, trying)| Step::Claim { number, trying }),
        2 => number.clone().prop_map(Step::Renew),
        4 => number.prop_map(Step::Release),
        2 => (1..=10_u64).prop_map(|tenths| Step::Pass(tenths * LEASE / 10)),
    ]
}

/// The claim of this number: owner and weight follow from it.
fn claim_of(number: u128, parts: &[Part]) -> (u128, Ask) {
    let owner_number = number % 5;
    let part = parts[usize::try_from(number).unwrap() % parts.len()].clone();
    (owner_number, ask(number, &owner(owner_number), [part]))
}

fn both_agree(parts: &[Part], steps: &[Step]) -> Result<(), TestCaseError> {
    let shape = parts[0].shape();
    let (capacity, add_up) = (u64::from(shape.capacity()), !shape.reentrant());
    let mut naive = Naive { capacity, add_up, holders: vec![], line: vec![] };
    let mut world = World::new();
    let mut now = LEASE;
    for (at, step) in steps.iter().enumerate() {
        let (expected, found) = match *step {
            Step::Pass(passed) => {
                world.pass(passed);
                now += passed;
                continue;
            }
            Step::Claim { number, trying } => {
                let (owner, ask) = claim_of(number, parts);
                let ask = if trying { ask.trying() } else { ask };
                let weight = u64::from(ask.parts.as_slice()[0].weight());
                let entry = Entry { number, owner, weight, expires: now + LEASE };
                let found = match world.claim(&ask) {
                    Verdict::Granted(_) => Answer::Held,
                    Verdict::Queued(queued) => Answer::Place(queued.place),
                    Verdict::Refused(_) => Answer::No,
                };
                (naive.claim(entry, trying, now), found)
            }
            Step::Renew(number) => {
                let found = match world.renew(&claim_of(number, parts).1) {
                    Renewed::Held(_) => Answer::Held,
                    Renewed::Waiting(queued) => Answer::Place(queued.place),
                    Renewed::Gone(_) | Renewed::Unanswered(_) => Answer::No,
                };
                (naive.renew(number, now + LEASE, now), found)
            }
            Step::Release(number) => {
                let found = match world.release(&claim_of(number, parts).1) {
                    Released::Done => Answer::Held,
                    Released::Gone => Answer::No,
                };
                (naive.release(number, now), found)
            }
        };
        prop_assert_eq!(expected, found, "the answer to the last of {:?}", &steps[..=at]);
        let holders: Vec<u128> = naive.holders.iter().map(|entry| entry.number).collect();
        let line: Vec<u128> = naive.order().iter().map(|entry| entry.number).collect();
        let name = parts[0].name().as_str();
        prop_assert_eq!(
            (holders, line),
            (world.holders(name), world.line(name)),
            "holders and line after {:?}",
            &steps[..=at]
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_mutex_is_as_the_naive_one(steps in prop::collection::vec(step(), 10..=80)) {
        both_agree(&[mutex("a")], &steps)?;
    }

    #[test]
    fn a_read_write_lock_is_as_the_naive_one(steps in prop::collection::vec(step(), 10..=80)) {
        both_agree(&[read("a"), write("a"), read("a")], &steps)?;
    }

    #[test]
    fn a_semaphore_is_as_the_naive_one(steps in prop::collection::vec(step(), 10..=80)) {
        both_agree(&[permits("a", 1, 4), permits("a", 3, 4), permits("a", 2, 4)], &steps)?;
    }
}

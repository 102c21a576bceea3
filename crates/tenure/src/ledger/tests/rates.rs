//! Rates against brute force: a list of everything that was ever taken, searched for each request.

use super::*;
use crate::contract::{Name, samples};

/// Everything that was granted, and how far entries are merged.
struct BruteForce {
    limits: Vec<RateLimit>,
    taken: Vec<RateEntry>,
    seen: u64,
}

impl BruteForce {
    fn new(limits: &[RateLimit]) -> Self {
        Self { limits: limits.to_vec(), taken: Vec::new(), seen: 0 }
    }

    fn used(&self, limit: &RateLimit, at: u64) -> u64 {
        let counts = |entry: &&RateEntry| at < entry.0 + limit.window_micros();
        self.taken.iter().filter(counts).map(|entry| entry.1).sum()
    }

    fn fits(&self, at: u64, cost: u64) -> bool {
        self.limits.iter().all(|limit| self.used(limit, at) + cost <= limit.permits)
    }

    /// The earliest instant for a request, by trying each at which something ends to count.
    fn earliest(&self, cost: u64, now: u64) -> u64 {
        let from = self.taken.iter().map(|entry| entry.0).fold(now.max(self.seen), u64::max);
        let ends = self
            .taken
            .iter()
            .flat_map(|entry| self.limits.iter().map(|limit| entry.0 + limit.window_micros()));
        let mut candidates: Vec<u64> = ends.filter(|at| *at > from).chain([from]).collect();
        candidates.sort_unstable();
        candidates.into_iter().find(|at| self.fits(*at, cost)).expect("it fits in the end")
    }

    /// No window has more than its limit, wherever it begins.
    fn check_windows(&self) {
        for limit in &self.limits {
            for (begin, _) in &self.taken {
                let inside =
                    |entry: &&RateEntry| (*begin..begin + limit.window_micros()).contains(&entry.0);
                let sum: u64 = self.taken.iter().filter(inside).map(|entry| entry.1).sum();
                assert!(sum <= limit.permits, "{sum} in a window of {limit:?} from {begin}");
            }
        }
    }
}

/// `SplitMix64`.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        samples::random(&mut self.0) % bound
    }
}

fn nightly() -> bool {
    std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly")
}

fn limit(permits: u64, micros: u64) -> RateLimit {
    RateLimit { permits, window: Duration::from_micros(micros) }
}

fn windows(limits: &[RateLimit]) -> RateShape {
    RateShape::Windows(limits.into())
}

fn request(shape: &RateShape, cost: u64, wait: u64) -> Take {
    let (name, wait) = (Name::try_from("a").unwrap(), Duration::from_micros(wait));
    Take { name, shape: shape.clone(), cost, wait, probe: false }
}

type State = Option<RateState<VecDeque<RateEntry>>>;

fn take(state: &mut State, take: &Take, now: u64) -> TakeReply {
    match RateState::take(state, take, now, |_| VecDeque::new()).0 {
        TakeVerdict::Told(reply) => reply,
        TakeVerdict::OtherWindows(windows) => panic!("in use with {windows:?}"),
    }
}

fn settle(
    state: &mut State,
    shape: &RateShape,
    reply: &TakeReply,
    taken: u64,
    actual: u64,
    now: u64,
) -> Settled {
    let name = Name::try_from("a").unwrap();
    let settle = Settle { name, shape: shape.clone(), stamp: reply.stamp, taken, actual };
    state.as_mut().map_or(Settled::Past, |state| state.settle(&settle, now))
}

#[test]
fn random_programs_are_never_over_a_limit_and_never_later_than_they_must_be() {
    for seed in 0..if nightly() { 3_000 } else { 250 } {
        let mut chance = Chance(seed);
        let limits: Vec<RateLimit> = (0..=chance.below(3))
            .map(|nth| limit(1 + chance.below(12), 1_000 + 5_000 * nth + chance.below(4_000)))
            .collect();
        let shape = windows(&limits);
        let mut brute = BruteForce::new(&limits);
        let (mut state, mut now): (State, u64) = (None, 1_000_000);
        for step in 0..60 {
            // One step in nine sets the clock back: the time of a rate must not follow.
            now = if chance.below(9) == 0 {
                now - chance.below(2_000)
            } else {
                now + chance.below(900)
            };
            let cost = 1 + chance.below(shape.most_at_once());
            let wait = [0, 0, chance.below(9_000)][usize::try_from(chance.below(3)).unwrap()];
            let present = now.max(brute.seen);
            let expected = brute.earliest(cost, now);
            let reply = take(&mut state, &request(&shape, cost, wait), now);
            assert_eq!(reply.stamp, expected, "seed {seed}, step {step}");
            assert_eq!(reply.wait.as_micros(), u128::from(expected - present), "seed {seed}");
            assert_eq!(reply.taken, expected - present <= wait, "seed {seed}, step {step}");
            if reply.taken {
                brute.taken.push((expected, cost));
                brute.seen = present;
                for (limit, level) in limits.iter().zip(&*reply.levels) {
                    assert_eq!(level.used, brute.used(limit, expected), "seed {seed}");
                }
            }
            if reply.taken && chance.below(4) == 0 {
                let actual = chance.below(cost + 1);
                let settled = settle(&mut state, &shape, &reply, cost, actual, now);
                assert_eq!(settled, Settled::Counted, "seed {seed}, step {step}");
                brute.taken.last_mut().unwrap().1 = actual;
            }
        }
        brute.check_windows();
    }
}

#[test]
fn many_entries_are_merged_and_cost_at_most_one_grain() {
    let (shape, grain) = (windows(&[limit(1_500, 1_024_000)]), 1_000);
    let RateShape::Windows(limits) = &shape else { unreachable!() };
    let (mut brute, mut chance) = (BruteForce::new(limits), Chance(7));
    let (mut state, mut now): (State, u64) = (None, 1);
    let mut merged = 0;
    for _ in 0..if nightly() { 9_000 } else { 2_600 } {
        now += chance.below(600);
        let exact = brute.earliest(1, now);
        let reply = take(&mut state, &request(&shape, 1, 0), now);
        assert!((exact..=exact + grain).contains(&reply.stamp), "{exact} {}", reply.stamp);
        if reply.taken {
            brute.taken.push((reply.stamp, 1));
            brute.taken.retain(|entry| entry.0 + 1_100_000 > now);
        }
        let Some(RateState::Windows(_, logs)) = &state else { panic!() };
        let head = logs[0].head;
        assert!(head.count <= 2_100 && logs[0].older.len() as u64 + 1 == head.count);
        merged = merged.max(head.used - head.count);
    }
    brute.check_windows();
    assert!(merged > 300, "{merged}");
}

#[test]
fn a_reservation_is_never_overtaken_and_too_long_a_wait_takes_nothing() {
    let shape = windows(&[limit(2, 1_000)]);
    let mut state: State = None;
    assert!(take(&mut state, &request(&shape, 2, 0), 100).taken);
    let refused = take(&mut state, &request(&shape, 1, 899), 200);
    assert_eq!((refused.taken, refused.wait.as_micros()), (false, 900));
    let reserved = take(&mut state, &request(&shape, 2, 900), 200);
    assert_eq!((reserved.taken, reserved.stamp), (true, 1_100));
    // It would fit at 1,100 alone, but the other one came first.
    assert_eq!(take(&mut state, &request(&shape, 1, 0), 1_100).wait.as_micros(), 1_000);
}

#[test]
fn the_windows_of_a_rate_in_use_stand_and_numbers_may_change() {
    let mut state: State = None;
    let shape = windows(&[limit(2, 1_000)]);
    take(&mut state, &request(&shape, 2, 0), 100);
    let other = windows(&[limit(2, 1_000), limit(9, 5_000)]);
    let answer = RateState::take(&mut state, &request(&other, 1, 0), 101, |_| VecDeque::new());
    let stands = vec![Duration::from_millis(1)];
    assert_eq!(answer, (TakeVerdict::OtherWindows(stands), false));
    assert!(take(&mut state, &request(&windows(&[limit(3, 1_000)]), 1, 0), 102).taken);
    // Of a lower limit, what was taken before counts too.
    let low = request(&windows(&[limit(1, 1_000)]), 1, 0);
    assert_eq!(take(&mut state, &low, 103).wait.as_micros(), 999);
    // When nothing counts any more, other windows may be stated.
    assert!(take(&mut state, &request(&other, 1, 0), 1_102).taken);
}

#[test]
fn a_correction_counts_once_and_never_for_another_entry() {
    let shape = windows(&[limit(10, 1_000)]);
    let mut state: State = None;
    let first = take(&mut state, &request(&shape, 4, 0), 100);
    let second = take(&mut state, &request(&shape, 4, 0), 200);
    assert_eq!(settle(&mut state, &shape, &first, 4, 1, 300), Settled::Counted);
    assert_eq!(take(&mut state, &request(&shape, 1, 0), 300).levels[0].used, 6);
    // More than was taken is a debt.
    assert_eq!(settle(&mut state, &shape, &second, 4, 9, 300), Settled::Counted);
    let refused = take(&mut state, &request(&shape, 1, 0), 301);
    assert_eq!((refused.wait.as_micros(), refused.levels[0].used), (899, 11));
    // What is in no window any more, and what was taken before a reset.
    assert_eq!(settle(&mut state, &shape, &first, 4, 0, 1_100), Settled::Past);
    state = None;
    take(&mut state, &request(&shape, 9, 0), 400);
    assert_eq!(settle(&mut state, &shape, &second, 4, 0, 400), Settled::Past);
    assert_eq!(take(&mut state, &request(&shape, 1, 0), 400).levels[0].used, 10);
}

#[test]
fn a_pace_keeps_its_rate_and_its_burst() {
    for seed in 0..if nightly() { 3_000 } else { 150 } {
        let mut chance = Chance(seed);
        let (permits, burst) = (1 + chance.below(5), 1 + chance.below(6));
        let pace = RatePace { permits, per: Duration::from_millis(1), burst };
        let shape = RateShape::Pace(pace);
        let (mut state, mut now): (State, u64) = (None, 1_000);
        let (mut taken, mut corrected): (Vec<RateEntry>, bool) = (Vec::new(), false);
        for _ in 0..60 {
            now += chance.below(700);
            let (cost, wait) = (1 + chance.below(burst), chance.below(3) * 500);
            let reply = take(&mut state, &request(&shape, cost, wait), now);
            let at = now + u64::try_from(reply.wait.as_micros()).unwrap();
            assert_eq!(reply.taken, at - now <= wait);
            if reply.taken {
                // What was given back may be taken before an instant that was promised later.
                let last = taken.last().map_or(0, |entry| entry.0);
                assert!(corrected || at >= last, "seed {seed}: first come, first served");
                let actual = if chance.below(3) == 0 { chance.below(cost + 1) } else { cost };
                if actual != cost {
                    corrected = true;
                    let settled = settle(&mut state, &shape, &reply, cost, actual, now);
                    assert_eq!(settled, Settled::Counted, "seed {seed}");
                }
                taken.push((at, actual));
            }
        }
        taken.sort_unstable();
        for (from, (begin, _)) in taken.iter().enumerate() {
            let mut sum = 0;
            for (at, cost) in &taken[from..] {
                sum += cost;
                // In so long a time the burst and what flows, rounded by a microsecond each.
                let flows = (at - begin) * permits;
                assert!(
                    sum * 1_000 <= burst * 1_000 + flows,
                    "seed {seed}: {sum} in {}",
                    at - begin
                );
            }
        }
    }
}

#[test]
fn a_correction_of_a_pace_gives_back_only_what_is_still_to_come() {
    let pace = RatePace { permits: 1, per: Duration::from_millis(1), burst: 10 };
    let shape = RateShape::Pace(pace);
    let mut state: State = None;
    let first = take(&mut state, &request(&shape, 4, 0), 10_000);
    assert_eq!(settle(&mut state, &shape, &first, 4, 0, 14_000), Settled::Past);
    let second = take(&mut state, &request(&shape, 4, 0), 20_000);
    take(&mut state, &request(&shape, 5, 0), 23_000);
    // Three of the four have flowed: one is given back, and the five stay.
    assert_eq!(settle(&mut state, &shape, &second, 4, 0, 23_000), Settled::Counted);
    let Some(RateState::Pace { busy_until, .. }) = state else { panic!() };
    assert_eq!(busy_until, 28_000);
}

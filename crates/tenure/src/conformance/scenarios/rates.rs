//! Rates: limits that hold in every window, replies that are exact, and the same replies from every
//! engine. Random programs are compared with the rule step by step, which `ledger/tests/rates.rs`
//! compares with brute force.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{Fault, Waiting, World, list, name};
use crate::conformance::rate_link::rates_of;
use crate::contract::{
    Effect, Engine, ErrorKind, RateLimit, RatePace, RateShape, Settle, Settled, Take, TakeReply,
    TakeVerdict, samples,
};
use crate::ledger::rates::{RateEntry, RateState};
use crate::limits;
use crate::primitives::TakeOutcome;

list! { Rates:
    a_limit_holds_and_the_reply_says_when_this_cost_fits cites [10] needs [Rates];
    all_limits_count_or_none_does cites [10] needs [Rates];
    a_reservation_names_its_instant_and_is_not_overtaken cites [2] needs [Rates];
    a_caller_that_waits_is_served_at_its_instant cites [2] needs [Rates];
    more_than_was_taken_is_a_debt_and_less_is_given_back cites [10] needs [Rates];
    a_flow_gives_back_no_more_than_is_still_to_come cites [10] needs [Rates];
    a_reset_forgets_all_and_late_corrections_find_nothing cites [9] needs [Rates];
    other_windows_are_refused_while_the_rate_is_in_use cites [10] needs [Rates];
    rates_and_locks_of_odd_names_never_meet cites [9] needs [Rates];
    of_many_at_once_no_more_than_the_limit_win cites [1] needs [Rates];
    a_rate_in_use_stays_when_others_are_new cites [1] needs [Rates];
    a_lost_reply_is_not_repeated_and_a_lost_call_is cites [5] needs [Rates];
    random_programs_get_the_replies_of_the_rule cites [1, 2] needs [Rates];
    programs_of_many_entries_get_the_replies_of_the_rule cites [1, 10] needs [Rates];
    programs_of_few_and_then_many_entries_get_the_replies_of_the_rule cites [1] needs [Rates];
    bad_limits_are_refused_before_anything_is_sent cites [10] needs [Rates];
    an_engine_without_rates_says_why_and_where cites [10] needs [NoRates];
}

type State = Option<RateState<VecDeque<RateEntry>>>;

/// A client of the rates, and the rule beside it.
struct RateClient<'a> {
    world: &'a World,
    engine: Arc<dyn Engine>,
}

impl<'a> RateClient<'a> {
    fn new(world: &'a World) -> Self {
        Self { world, engine: Arc::clone(world.raw().engine()) }
    }

    #[track_caller]
    fn verdict(&self, take: &Take) -> TakeVerdict {
        let (engine, take) = (Arc::clone(&self.engine), take.clone());
        self.world.now(async move { rates_of(&*engine).take(&take).await }).unwrap()
    }

    #[track_caller]
    fn take(&self, take: &Take) -> TakeReply {
        match self.verdict(take) {
            TakeVerdict::Told(reply) => reply,
            TakeVerdict::OtherWindows(windows) => panic!("in use with {windows:?}"),
        }
    }

    #[track_caller]
    fn settle(&self, take: &Take, stamp: u64, actual: u64) -> Settled {
        let (engine, settle) = (Arc::clone(&self.engine), settle(take, stamp, actual));
        self.world.now(async move { rates_of(&*engine).settle(&settle).await }).unwrap()
    }

    fn reset(&self, rate: &str) {
        let (engine, rate) = (Arc::clone(&self.engine), name(rate));
        self.world.now(async move { rates_of(&*engine).reset(&rate).await }).unwrap();
    }
}

fn limit(permits: u64, window: Duration) -> RateLimit {
    RateLimit { permits, window }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn take(rate: &str, limits: &[RateLimit], cost: u64) -> Take {
    let shape = RateShape::Windows(limits.into());
    Take { name: name(rate), shape, cost, wait: Duration::ZERO, probe: false }
}

fn settle(take: &Take, stamp: u64, actual: u64) -> Settle {
    let (name, shape) = (take.name.clone(), take.shape.clone());
    Settle { name, shape, stamp, taken: take.cost, actual }
}

fn a_limit_holds_and_the_reply_says_when_this_cost_fits(world: &World) {
    let client = RateClient::new(world);
    let limits = [limit(5, secs(10))];
    let request = |cost| take("a", &limits, cost);
    let first = client.take(&request(2));
    assert_eq!((first.taken, first.wait, first.levels[0].used), (true, Duration::ZERO, 2));
    assert_eq!(first.levels[0].clear_after, secs(10));
    world.pass(secs(4));
    assert!(client.take(&request(3)).taken);
    // Two fit when the first two leave the window, three not before the others do.
    for (cost, wait) in [(1, 6), (2, 6), (3, 10)] {
        let refused = client.take(&request(cost));
        assert_eq!((refused.taken, refused.wait), (false, secs(wait)), "{cost}");
        assert_eq!(refused.levels[0].used, 5);
    }
    let probe = client.take(&Take { probe: true, ..request(1) });
    assert_eq!((probe.taken, probe.wait), (false, secs(6)));
    world.pass(Duration::from_micros(5_999_999));
    assert_eq!(client.take(&request(1)).wait, Duration::from_micros(1), "exact");
    world.pass(Duration::from_micros(1));
    assert!(client.take(&request(2)).taken);
}

fn all_limits_count_or_none_does(world: &World) {
    let client = RateClient::new(world);
    let limits = [limit(2, secs(1)), limit(3, secs(10))];
    assert!(client.take(&take("a", &limits, 2)).taken);
    let refused = client.take(&take("a", &limits, 1));
    assert_eq!((refused.limit, refused.wait), (0, secs(1)));
    world.pass(secs(1));
    assert!(client.take(&take("a", &limits, 1)).taken);
    let refused = client.take(&take("a", &limits, 1));
    assert_eq!((refused.limit, refused.wait), (1, secs(9)));
    assert_eq!(refused.levels.iter().map(|level| level.used).collect::<Vec<_>>(), [1, 3]);
}

fn a_reservation_names_its_instant_and_is_not_overtaken(world: &World) {
    let client = RateClient::new(world);
    let limits = [limit(2, secs(10))];
    assert!(client.take(&take("a", &limits, 2)).taken);
    let ahead = |wait, cost| client.take(&Take { wait: secs(wait), ..take("a", &limits, cost) });
    assert!(!ahead(9, 1).taken);
    let reserved = ahead(10, 2);
    assert_eq!((reserved.taken, reserved.wait), (true, secs(10)));
    world.pass(secs(10));
    assert_eq!(ahead(0, 1).wait, secs(10), "it came later");
    let third = ahead(60, 1);
    assert_eq!((third.taken, third.wait), (true, secs(10)));
}

fn a_caller_that_waits_is_served_at_its_instant(world: &World) {
    let (actor, lease) = (world.actor(), world.lease());
    let rate = actor.tenure.rate("a").unwrap().limit(1, lease / 2);
    let (first, second) = (rate.clone(), rate.clone());
    assert!(world.now(async move { first.take(1).await }).unwrap().is_allowed());
    let wait = async move { second.take_within(1, lease * 5).await };
    let mut waiting = world.waits(wait);
    world.pass(lease / 4);
    world.still_waits(&mut waiting);
    assert!(world.served(waiting).unwrap().is_allowed());
    let TakeOutcome::Refused(refusal) = world.now(async move { rate.take(1).await }).unwrap()
    else {
        panic!("the window is full again")
    };
    assert!(refusal.retry_after() <= lease / 2);
}

fn more_than_was_taken_is_a_debt_and_less_is_given_back(world: &World) {
    let client = RateClient::new(world);
    let limits = [limit(10, secs(10))];
    let first = client.take(&take("a", &limits, 4));
    world.pass(secs(1));
    let second = client.take(&take("a", &limits, 1));
    world.pass(secs(1));
    assert!(client.take(&take("a", &limits, 1)).taken);
    assert_eq!(client.settle(&take("a", &limits, 4), first.stamp, 0), Settled::Counted);
    assert_eq!(client.take(&take("a", &limits, 1)).levels[0].used, 3);
    assert_eq!(client.settle(&take("a", &limits, 1), second.stamp, 9), Settled::Counted);
    let refused = client.take(&take("a", &limits, 1));
    assert_eq!((refused.wait, refused.levels[0].used), (secs(9), 11));
    assert_eq!(client.settle(&take("a", &limits, 1), second.stamp, 9), Settled::Counted, "again");
    world.pass(secs(8));
    assert_eq!(client.settle(&take("a", &limits, 4), first.stamp, 0), Settled::Past);
}

fn a_flow_gives_back_no_more_than_is_still_to_come(world: &World) {
    let client = RateClient::new(world);
    let pace = RatePace { permits: 1, per: secs(1), burst: 10 };
    let flow = |cost| Take { shape: RateShape::Pace(pace), ..take("a", &[], cost) };
    let first = client.take(&flow(5));
    assert_eq!(client.take(&flow(3)).levels[0].clear_after, secs(8));
    world.pass(secs(2));
    // Two seconds of the first five have flowed, three have not.
    assert_eq!(client.settle(&flow(5), first.stamp, 0), Settled::Counted);
    let probe = client.take(&Take { probe: true, ..flow(1) });
    assert_eq!(probe.levels[0].clear_after, secs(3));
    world.pass(secs(3));
    assert_eq!(client.settle(&flow(5), first.stamp, 0), Settled::Past);
}

fn a_reset_forgets_all_and_late_corrections_find_nothing(world: &World) {
    let client = RateClient::new(world);
    let limits = [limit(3, secs(10)), limit(9, secs(60))];
    let first = client.take(&take("a", &limits, 3));
    client.reset("a");
    client.reset("never-used");
    assert_eq!(client.settle(&take("a", &limits, 3), first.stamp, 0), Settled::Past);
    world.pass(secs(1));
    assert_eq!(client.take(&take("a", &limits, 3)).levels[1].used, 3);
    assert_eq!(client.settle(&take("a", &limits, 3), first.stamp, 0), Settled::Past);
    assert!(!client.take(&take("a", &limits, 1)).taken);
}

fn other_windows_are_refused_while_the_rate_is_in_use(world: &World) {
    let client = RateClient::new(world);
    let (one, two) = ([limit(3, secs(10))], [limit(3, secs(5)), limit(9, secs(60))]);
    assert!(client.take(&take("a", &one, 2)).taken);
    assert_eq!(client.verdict(&take("a", &two, 1)), TakeVerdict::OtherWindows(vec![secs(10)]));
    world.pass(Duration::from_millis(1));
    for other in [limit(3, secs(5)), limit(2, secs(5)), limit(3, secs(20))] {
        let verdict = client.verdict(&take("a", &[other], 1));
        assert_eq!(verdict, TakeVerdict::OtherWindows(vec![secs(10)]), "{other:?}");
    }
    let pace = RatePace { permits: 1, per: secs(1), burst: 20 };
    let flow = Take { shape: RateShape::Pace(pace), ..take("a", &one, 5) };
    assert_eq!(client.verdict(&flow), TakeVerdict::OtherWindows(vec![secs(10)]));
    // The number may change: it holds from the next request on.
    assert!(!client.take(&take("a", &[limit(2, secs(10))], 1)).taken);
    assert!(client.take(&take("a", &[limit(5, secs(10))], 3)).taken);
    world.pass(secs(10));
    assert!(client.take(&take("a", &two, 1)).taken);
    world.pass(secs(60));
    assert!(client.take(&flow).taken);
    assert_eq!(client.verdict(&take("a", &one, 1)), TakeVerdict::OtherWindows(vec![]));
    world.pass(secs(5));
    assert!(client.take(&take("a", &one, 1)).taken);

    let actor = world.actor();
    let rate = actor.tenure.rate("a").unwrap().limit(1, secs(77));
    let error = world.now(async move { rate.take(1).await }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(error.to_string().contains("limits per 10s"), "{error}");
}

fn rates_and_locks_of_odd_names_never_meet(world: &World) {
    let (client, actor) = (RateClient::new(world), world.actor());
    let limits = [limit(1, secs(10))];
    let names = ["a", "a:0", "a:1", "a\\", "{a}", "a%3A0", "名", &"x".repeat(limits::NAME_BYTES)];
    for rate in names {
        assert!(client.take(&take(rate, &limits, 1)).taken, "{rate:?}");
        let (tenure, lock) = (actor.tenure.clone(), rate.to_owned());
        let held = world.now(async move { tenure.mutex(&lock)?.try_lock().await }).unwrap();
        assert!(held.is_some(), "{rate:?}");
        assert!(!client.take(&take(rate, &limits, 1)).taken, "{rate:?}");
    }
}

fn of_many_at_once_no_more_than_the_limit_win(world: &World) {
    let limits = [limit(10, secs(600))];
    let start = |_| {
        let (engine, take) = (Arc::clone(world.raw().engine()), take("a", &limits, 1));
        Waiting::start(async move {
            let mut taken = 0;
            for _ in 0..4 {
                let verdict = rates_of(&*engine).take(&take).await.expect("an answer");
                taken += u32::from(matches!(verdict, TakeVerdict::Told(reply) if reply.taken));
            }
            taken
        })
    };
    let all: Vec<_> = (0..8).map(start).collect();
    let taken: u32 = all.into_iter().map(|one| one.done(world.stage())).sum();
    assert_eq!(taken, 10);
}

/// Where a new rate removes what is needed no more: not what was used again and again.
fn a_rate_in_use_stays_when_others_are_new(world: &World) {
    let client = RateClient::new(world);
    let limits = [limit(9, secs(100))];
    for pause in [99, 99, 7] {
        assert!(client.take(&take("a", &limits, 1)).taken);
        world.pass(secs(pause));
    }
    for other in ["b", "c"] {
        assert!(client.take(&take(other, &limits, 1)).taken);
    }
    let probe = Take { probe: true, ..take("a", &limits, 1) };
    assert_eq!(client.take(&probe).levels[0].used, 1);
}

fn a_lost_reply_is_not_repeated_and_a_lost_call_is(world: &World) {
    let limits = [limit(9, secs(600))];
    let used = |client: &RateClient<'_>| {
        client.take(&Take { probe: true, ..take("a", &limits, 1) }).levels[0].used
    };
    let (actor, client) = (world.actor(), RateClient::new(world));
    let start = || {
        let rate = actor.tenure.rate("a").unwrap().limit(9, secs(600));
        Waiting::start(async move { rate.take(1).await })
    };
    actor.link.trouble_call(actor.link.calls(), Fault::LoseReply);
    let error = world.served(start()).unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert_eq!(used(&client), 1, "what was taken counts");
    actor.link.cut(true);
    let mut waiting = start();
    assert!(!waiting.is_done(world.stage()), "it pauses and tries again");
    actor.link.cut(false);
    assert!(world.served(waiting).unwrap().is_allowed());
    assert_eq!(used(&client), 2);
}

/// `SplitMix64`.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        samples::random(&mut self.0) % bound
    }
}

/// A rate of the store and the same one under the rule, at the same instants.
struct Twins<'a> {
    client: RateClient<'a>,
    rule: State,
    now: u64,
    /// How far the stamps of the store are ahead of those of the rule.
    offset: Option<u64>,
    takes: Vec<(Take, u64)>,
}

impl Twins<'_> {
    fn pass(&mut self, micros: u64) {
        self.client.world.pass(Duration::from_micros(micros));
        self.now += micros;
    }

    #[track_caller]
    fn take(&mut self, take: Take, context: &str) {
        let (rule, _) = RateState::take(&mut self.rule, &take, self.now, |_| VecDeque::new());
        let (TakeVerdict::Told(mut rule), TakeVerdict::Told(store)) =
            (rule, self.client.verdict(&take))
        else {
            panic!("{context}: the windows are the same")
        };
        let stamp = rule.stamp;
        // The clocks of the rule and of the store begin at different instants.
        if store.taken {
            let offset = *self.offset.get_or_insert_with(|| store.stamp.wrapping_sub(stamp));
            rule.stamp = rule.stamp.wrapping_add(offset);
        } else {
            rule.stamp = store.stamp;
        }
        assert_eq!(store, rule, "{context}: {take:?}");
        if store.taken {
            self.takes.push((take, stamp));
        }
    }

    fn settle(&mut self, nth: usize, actual: u64, context: &str) {
        let (take, stamp) = self.takes.swap_remove(nth);
        let rule = self
            .rule
            .as_mut()
            .map_or(Settled::Past, |state| state.settle(&settle(&take, stamp, actual), self.now));
        let stamp = stamp.wrapping_add(self.offset.unwrap_or(0));
        assert_eq!(self.client.settle(&take, stamp, actual), rule, "{context}");
    }
}

fn play(world: &World, seed: u64, steps: u64) {
    let mut chance = Chance(seed);
    let shape = if chance.below(4) == 0 {
        let per = Duration::from_micros(1_000 + chance.below(9_000));
        RateShape::Pace(RatePace { permits: 1 + chance.below(7), per, burst: 1 + chance.below(9) })
    } else {
        let limits = (0..=chance.below(3)).map(|nth| {
            let window = Duration::from_micros(2_000 + 8_000 * nth + chance.below(7_000));
            limit(1 + chance.below(12), window)
        });
        RateShape::Windows(limits.collect())
    };
    let client = RateClient::new(world);
    let mut twins = Twins { client, rule: None, now: 1 << 40, offset: None, takes: Vec::new() };
    let rate = name(&format!("r{seed}"));
    for step in 0..steps {
        let context = format!("seed {seed}, step {step}, {shape:?}");
        if chance.below(3) > 0 {
            twins.pass(1 + chance.below(3_000));
        }
        if chance.below(40) == 0 {
            twins.pass(60_000);
        }
        let (wait, probe) = (chance.below(3) * chance.below(9_000), chance.below(9) == 0);
        let cost = 1 + chance.below(shape.most_at_once());
        let wait = Duration::from_micros(wait);
        twins.take(Take { name: rate.clone(), shape: shape.clone(), cost, wait, probe }, &context);
        if !twins.takes.is_empty() && chance.below(4) == 0 {
            let nth = chance.below(twins.takes.len() as u64);
            let actual = chance.below(2 * cost + 1);
            twins.settle(usize::try_from(nth).expect("small"), actual, &context);
        }
    }
}

fn random_programs_get_the_replies_of_the_rule(world: &World) {
    let nightly = std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly");
    for seed in 0..if nightly { 400 } else { 12 } {
        play(world, seed, 40);
    }
}

/// More entries than are kept one by one, so that they are merged; and rings that grow.
fn programs_of_many_entries_get_the_replies_of_the_rule(world: &World) {
    let limits = [limit(2_400, Duration::from_millis(1_024)), limit(9_000, secs(20))];
    play_many(world, "two", &limits);
    play_many(world, "one", &limits[..1]);
}

fn play_many(world: &World, rate: &str, limits: &[RateLimit]) {
    let (client, mut chance) = (RateClient::new(world), Chance(3));
    let mut twins = Twins { client, rule: None, now: 1 << 40, offset: None, takes: Vec::new() };
    for step in 0..1_450 {
        twins.pass(1 + chance.below(300));
        twins.take(take(rate, limits, 1 + chance.below(2)), &format!("{rate}, step {step}"));
        if step % 90 == 0 {
            let nth = usize::try_from(chance.below(twins.takes.len() as u64)).expect("small");
            twins.settle(nth, chance.below(4), &format!("{rate}, step {step}"));
        }
    }
    assert!(twins.takes.len() > 1_100, "{}", twins.takes.len());
    // Entries that were merged leave the short window together, at the instant of the last.
    twins.pass(990_000);
    for step in 0..40 {
        twins.pass(1 + chance.below(300));
        twins.take(take(rate, limits, 1), &format!("{rate}, step {step}, merged entries end"));
    }
    twins.pass(1_300_000);
    twins.take(take(rate, limits, 1), "when the short window is empty");
}

/// Old entries leave, new ones come, and then more of them than there were before: where entries
/// are in a ring, it has turned when it grows. Where they come to the ring in groups, it takes more
/// of them until it has.
fn programs_of_few_and_then_many_entries_get_the_replies_of_the_rule(world: &World) {
    let programs: [(&str, &[(u64, u64)]); 2] = [
        ("few", &[(6, 1_000), (1, 6_500), (24, 50), (30, 400)]),
        ("groups", &[(26, 100), (1, 9_300), (70, 10), (40, 200)]),
    ];
    for (rate, program) in programs {
        let client = RateClient::new(world);
        let mut twins = Twins { client, rule: None, now: 1 << 40, offset: None, takes: Vec::new() };
        let permits = if rate == "few" { 100 } else { 300 };
        let limits = [limit(permits, Duration::from_millis(10))];
        for (steps, micros) in program {
            for step in 0..*steps {
                twins.pass(*micros);
                let context = format!("{rate}, step {step}, {micros} microseconds apart");
                twins.take(take(rate, &limits, 1 + step % 3), &context);
            }
        }
    }
}

fn bad_limits_are_refused_before_anything_is_sent(world: &World) {
    let actor = world.actor();
    let rate = || actor.tenure.rate("a").unwrap();
    let cases = [
        (rate(), 1, "without a limit"),
        (rate().limit(0, secs(1)), 1, "a limit of 0"),
        (rate().limit(1, Duration::ZERO), 1, "a window is"),
        (rate().limit(u64::MAX, secs(1)), 1, "a limit is at most"),
        (rate().limit(1, secs(1)).limit(2, secs(1)), 1, "two limits have the window 1s"),
        (rate().limit(1, secs(1)).pace(1, secs(1), 1), 1, "not both"),
        (rate().limit(5, secs(1)), 6, "never fits a limit of 5"),
        (rate().limit(5, secs(1)), 0, "a cost of 0"),
        (rate().pace(5, secs(1), 2), 3, "never fits a limit of 2"),
    ];
    for (rate, cost, says) in cases {
        let error = world.now(async move { rate.take(cost).await }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        assert!(error.to_string().contains(says), "{error}");
    }
    assert!(actor.tenure.rate("a\nb").is_err());
    assert_eq!(actor.link.calls(), 0, "no call was made");
}

fn an_engine_without_rates_says_why_and_where(world: &World) {
    let actor = world.actor();
    let rate = actor.tenure.rate("a").unwrap().limit(1, secs(1));
    let error = world.now(async move { rate.take(1).await }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let because = actor.tenure.promises().no_rates_because;
    assert!(error.to_string().contains(because) && because.contains("use the"), "{error}");
}

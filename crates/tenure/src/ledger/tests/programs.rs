//! Long random programs over three names, nested owners, sets, all shapes and two clocks, each
//! step audited (promises 1 to 6 and 9). A failure is made small and printed as a program.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::audit::{Step, run};
use super::*;

/// The same programs every time; others, and many more, when the long run was asked for.
pub(super) fn config() -> ProptestConfig {
    let (cases, rng_seed) =
        if nightly() { (20_000, RngSeed::Random) } else { (256, RngSeed::Fixed(17)) };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

/// Four owners: 1, 2 in 1, 3 in 2 in 1, and 4.
fn lineages() -> [Lineage; 4] {
    [owner(1), nested(2, &[1]), nested(3, &[2, 1]), owner(4)]
}

/// What the slot of a name is asked for. The shape belongs to the name, but for a few claims that
/// take it for something else.
fn part() -> impl Strategy<Value = (usize, Part)> {
    let stray = prop_oneof![20 => Just(0_usize), 1 => Just(1)];
    (0..3_usize, stray, any::<bool>(), 1..=3_u32).prop_map(|(at, stray, heavy, weight)| {
        let text = ["a", "b", "c"][at];
        let part = match (at + stray) % 3 {
            0 => mutex(text),
            1 if heavy => write(text),
            1 => read(text),
            _ => permits(text, weight, 3),
        };
        (at, part)
    })
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let several = prop::collection::vec(part(), 2..=3).prop_map(|mut parts| {
        parts.sort_by_key(|(at, _)| *at);
        parts.dedup_by_key(|(at, _)| *at);
        parts.into_iter().map(|(_, part)| part).collect()
    });
    prop_oneof![3 => part().prop_map(|(_, part)| vec![part]), 1 => several]
}

#[derive(Clone, Debug)]
struct Draft {
    lineage: usize,
    parts: Vec<Part>,
    lease: u64,
    delay: u64,
    session: Option<u128>,
    trying: bool,
    /// Replaces the latest claim before it that it can.
    replaces: bool,
}

fn draft() -> impl Strategy<Value = Draft> {
    let lease = prop::sample::select(vec![300, 600, 1_000]);
    let delay = prop_oneof![5 => Just(0_u64), 1 => Just(250), 1 => Just(700)];
    let session = prop::sample::select(vec![None, Some(1), Some(2)]);
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.4));
    (0..4_usize, parts(), lease, delay, session, flags).prop_map(
        |(lineage, parts, lease, delay, session, (trying, replaces))| Draft {
            lineage,
            parts,
            lease,
            delay,
            session,
            trying,
            replaces,
        },
    )
}

fn cast() -> impl Strategy<Value = Vec<Ask>> {
    prop::collection::vec(draft(), 4..=14).prop_map(|drafts| {
        let mut cast: Vec<Ask> = Vec::new();
        for (number, draft) in (1..).zip(drafts) {
            let lineage = &lineages()[draft.lineage];
            let mut new = ask(number, lineage, draft.parts).lease(draft.lease).delay(draft.delay);
            if let Some(session) = draft.session {
                new = new.session(session);
            }
            if draft.trying {
                new = new.trying();
            }
            let same = |old: &&Ask| {
                let single = new.parts.as_slice().len() == 1 && old.parts.as_slice().len() == 1;
                let names = new.parts.first_name() == old.parts.first_name();
                single && names && old.lineage == new.lineage
            };
            if let (true, Some(old)) = (draft.replaces, cast.iter().rfind(same)) {
                new = new.replaces(old);
            }
            cast.push(new);
        }
        cast
    })
}

fn step(claims: usize) -> impl Strategy<Value = Step> {
    let one = 0..claims;
    prop_oneof![
        8 => one.clone().prop_map(Step::Claim),
        3 => one.clone().prop_map(Step::Renew),
        4 => (one.clone(), any::<bool>())
            .prop_map(|(at, uncertain)| Step::Release { at, uncertain }),
        1 => one.clone().prop_map(Step::Evict),
        1 => (1..=2_u128).prop_map(Step::EndSession),
        1 => one.prop_map(Step::Look),
        4 => prop::sample::select(vec![1, 99, 250, 300, 600, 1_000]).prop_map(Step::Pass),
        1 => (0..3_000_000_u64).prop_map(Step::Wall),
    ]
}

fn program() -> impl Strategy<Value = (Vec<Ask>, Vec<Step>)> {
    cast().prop_flat_map(|cast| {
        let steps = prop::collection::vec(step(cast.len()), 10..=80);
        (Just(cast), steps)
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn long_random_programs_keep_the_promises((cast, steps) in program()) {
        run(&cast, &steps).map_err(TestCaseError::fail)?;
    }
}

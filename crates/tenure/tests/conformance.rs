//! Every engine of this build against every scenario, one named test each.

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use tenure::conformance::{Group, Harness, MemoryHarness, Standing, all, cases};
use tenure::engine;

/// A harness for each engine of this build.
fn harnesses() -> Vec<Arc<dyn Harness>> {
    vec![Arc::new(MemoryHarness)]
}

fn main() {
    let mut trials = vec![
        Trial::test("suite::every_engine_of_this_build_is_judged", || every_engine_is_judged()),
        Trial::test("suite::every_promise_is_cited", || every_promise_is_cited()),
        Trial::test("suite::every_group_has_scenarios_with_names_of_their_own", || every_group()),
    ];
    let mut not_promised = 0;
    for harness in harnesses() {
        for case in cases(&*harness) {
            if let Standing::NotPromised(needs) = &case.standing {
                println!("not promised: {} ({needs:?})", case.name);
                not_promised += 1;
                continue;
            }
            let harness = Arc::clone(&harness);
            let name = case.name.clone();
            trials.push(Trial::test(name, move || Ok(case.play(&*harness)?)));
        }
    }
    println!("{} scenarios, {} cases, {not_promised} not promised", all().len(), trials.len() - 3);
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// The matrix of scenarios and engines is complete: every engine has a harness that speaks for it,
/// and every scenario has a standing with it.
fn every_engine_is_judged() -> Result<(), libtest_mimic::Failed> {
    let harnesses = harnesses();
    for promises in engine::built_in() {
        let harness = harnesses.iter().find(|harness| harness.promises() == *promises);
        let harness = harness.ok_or_else(|| format!("{} has no harness", promises.engine))?;
        let named: Vec<_> = cases(&**harness).into_iter().map(|case| case.name).collect();
        for scenario in all() {
            let name = format!("{}::{scenario:?}", promises.engine);
            if named.iter().filter(|other| **other == name).count() != 1 {
                return Err(format!("{name} stands not exactly once").into());
            }
        }
    }
    Ok(())
}

fn every_promise_is_cited() -> Result<(), libtest_mimic::Failed> {
    let cited: Vec<u8> = all().iter().flat_map(|scenario| scenario.cites).copied().collect();
    match (1..=11).find(|promise| !cited.contains(promise)) {
        Some(promise) => Err(format!("no scenario cites promise {promise}").into()),
        None => Ok(()),
    }
}

fn every_group() -> Result<(), libtest_mimic::Failed> {
    for group in Group::ALL {
        let names: Vec<_> = all().into_iter().filter(|s| s.group == group).collect();
        if names.is_empty() {
            return Err(format!("group {group} is empty").into());
        }
        for scenario in &names {
            if names.iter().filter(|other| other.name == scenario.name).count() > 1 {
                return Err(format!("{scenario:?} stands twice").into());
            }
        }
    }
    Ok(())
}

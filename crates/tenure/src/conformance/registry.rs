//! The list of all scenarios, who must pass which, and the report. Knows names and outcomes.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::harness::Harness;
use super::promises::sentence;
use super::scenarios;
use super::world::World;
use crate::contract::{DeadlockHandling, Promises, Wake};

/// What a scenario is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ScenarioGroup {
    Exclusion,
    Expiry,
    Fencing,
    Sharing,
    Upgrade,
    Counting,
    Sets,
    Fairness,
    Reentry,
    Idempotence,
    Crossing,
    Waiting,
    Loss,
    Inspection,
    Deadlocks,
    Cells,
    Rates,
    Election,
    Jobs,
    Hostile,
}

impl ScenarioGroup {
    /// All groups.
    pub const ALL: [Self; 20] = [
        Self::Exclusion,
        Self::Expiry,
        Self::Fencing,
        Self::Sharing,
        Self::Upgrade,
        Self::Counting,
        Self::Sets,
        Self::Fairness,
        Self::Reentry,
        Self::Idempotence,
        Self::Crossing,
        Self::Waiting,
        Self::Loss,
        Self::Inspection,
        Self::Deadlocks,
        Self::Cells,
        Self::Rates,
        Self::Election,
        Self::Jobs,
        Self::Hostile,
    ];
}

impl fmt::Display for ScenarioGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// One scenario.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// What it is about.
    pub group: ScenarioGroup,
    /// A sentence.
    pub name: &'static str,
    /// The numbers of the promises it checks.
    pub cites: &'static [u8],
    /// What an engine must promise for it.
    pub needs: &'static [Need],
    /// Plays it. Panics if the engine fails.
    pub play: fn(&World),
}

/// Something an engine may or may not promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A fair line.
    Queue,
    /// Read-write locks.
    Sharing,
    /// Semaphores.
    Counting,
    /// Sets in one step. What callers see of sets needs no promise: where the engine cannot take
    /// them in one step, the session takes them one by one.
    AtomicSets,
    /// Wake-ups by push.
    Push,
    /// Cells.
    Cells,
    /// Queues of jobs.
    Jobs,
    /// Rates.
    Rates,
    /// No rates: a refusal with the reason.
    NoRates,
    /// A floor of fences that can be raised.
    FenceFloor,
    /// Verdicts on deadlocks.
    Deadlocks,
}

impl Need {
    /// Whether an engine promises it.
    #[must_use]
    pub fn promised_by(self, promises: &Promises) -> bool {
        match self {
            Self::Queue => promises.queue,
            Self::Sharing => promises.sharing,
            Self::Counting => promises.counting,
            Self::AtomicSets => promises.atomic_sets,
            Self::Push => promises.wake == Wake::Push,
            Self::Cells => promises.cells,
            Self::Jobs => promises.jobs,
            Self::Rates => promises.rates,
            Self::NoRates => !promises.rates,
            Self::FenceFloor => promises.fence_floor,
            Self::Deadlocks => promises.deadlocks == DeadlockHandling::Broken,
        }
    }
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.group, self.name)
    }
}

/// Every scenario there is.
#[must_use]
pub fn all() -> Vec<Scenario> {
    scenarios::LISTS.iter().flat_map(|list| list.iter().copied()).collect()
}

/// How a scenario stands with an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applicability {
    /// It is to be played.
    Due,
    /// The engine does not promise what it needs.
    NotPromised(Vec<Need>),
}

/// One scenario for one engine.
#[derive(Clone, Debug)]
pub struct Case {
    /// `engine::group::scenario`.
    pub name: String,
    /// The scenario.
    pub scenario: Scenario,
    /// Whether it is to be played.
    pub standing: Applicability,
}

impl Case {
    /// Plays the scenario on a fresh namespace.
    ///
    /// # Errors
    /// What went wrong; also if the store is absent.
    pub fn play(&self, harness: &dyn Harness) -> Result<(), String> {
        let stage = harness.open().map_err(|absent| absent.to_string())?;
        let world = World::new(stage);
        let played = catch_unwind(AssertUnwindSafe(|| (self.scenario.play)(&world)));
        played.map_err(|panic| {
            let cited = |number: &u8| format!("\n  promise {number}: {}", sentence(*number));
            let cited: String = self.scenario.cites.iter().map(cited).collect();
            text_of(&*panic) + &cited
        })
    }
}

/// All scenarios for one engine, none left out.
#[must_use]
pub fn cases(harness: &dyn Harness) -> Vec<Case> {
    let promises = harness.promises();
    let case = |scenario: Scenario| {
        let missing = scenario.needs.iter().copied().filter(|need| !need.promised_by(&promises));
        let missing: Vec<Need> = missing.collect();
        let standing = if missing.is_empty() {
            Applicability::Due
        } else {
            Applicability::NotPromised(missing)
        };
        Case { name: format!("{}::{scenario:?}", promises.engine), scenario, standing }
    };
    all().into_iter().map(case).collect()
}

/// Plays every scenario that the engine's promises ask for.
///
/// # Panics
/// If one of them fails, with the report.
#[must_use]
pub fn check(harness: &dyn Harness) -> Report {
    let mut report = Report::default();
    if let Err(absent) = harness.open() {
        report.absent = Some(absent.to_string());
        return report;
    }
    for case in cases(harness) {
        if let Applicability::NotPromised(_) = case.standing {
            report.not_promised.push(case.name);
            continue;
        }
        match case.play(harness) {
            Ok(()) => report.passed.push(case.name),
            Err(why) => report.failed.push((case.name, why)),
        }
    }
    assert!(report.failed.is_empty(), "{report}");
    report
}

/// What came of a suite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// These ran and passed.
    pub passed: Vec<String>,
    /// These ran and failed.
    pub failed: Vec<(String, String)>,
    /// The engine does not promise what these need.
    pub not_promised: Vec<String>,
    /// The store was not there, and nothing ran.
    pub absent: Option<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(absent) = &self.absent {
            return f.write_str(absent);
        }
        let ran = self.passed.len() + self.failed.len();
        write!(f, "{ran} ran, {} failed, ", self.failed.len())?;
        write!(f, "{} not promised", self.not_promised.len())?;
        for (name, why) in &self.failed {
            write!(f, "\n  FAILED {name}: {why}")?;
        }
        for name in &self.not_promised {
            write!(f, "\n  not promised: {name}")?;
        }
        Ok(())
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "panicked".to_owned())
}

//! Random programs of cells: batches with conditions, ids that are repeated and values that expire,
//! run step by step against an engine and against the rules of `ledger::cells` in the memory
//! engine.
//!
//! Versions are numbers of each store, so they are compared by their order: the rules' version of a
//! write is mapped to the engine's, and the map must stay increasing. A condition on a version
//! names the step that wrote it. Where an engine has no sets, each cell has versions of its own,
//! and they are compared cell by cell. After every step, all cells are read on both sides. A
//! difference is printed with the seed and the steps up to it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::play::Difference;
use super::play_seeds;
use super::program::Dice;
use crate::conformance::harness::Harness;
use crate::conformance::memory::MemoryHarness;
use crate::conformance::world::{Raw, World, cells_of, name};
use crate::contract::{
    Batch, BatchVerdict, Cell, CellAction, CellPart, Conflict, ConflictCause, Error, Expect, Fence,
    Version, WriteId,
};
use crate::limits;
use crate::time::Tick;

/// The cells of a program.
const CELLS: [&str; 3] = ["a", "b", "c"];

/// A version that no cell gets.
const NO_VERSION: Version = Version(limits::FENCE - 1);

/// Runs the programs of these seeds, each of this many steps. Returns the number of steps.
///
/// # Errors
/// The first difference, with the seed and the steps before it.
pub fn run_cells(
    harness: &dyn Harness,
    seeds: impl IntoIterator<Item = u64>,
    steps: usize,
) -> Result<usize, String> {
    play_seeds(seeds, |seed| {
        let program = CellProgram::from_seed(seed, steps, harness.promises().atomic_sets);
        let shown = |step: usize| program.0[..=step].iter().map(ToString::to_string).collect();
        program.play(harness).map_err(|found| (shown(found.step), found))?;
        Ok(program.0.len())
    })
}

/// The steps of a program.
struct CellProgram(Vec<CellStep>);

#[derive(Clone, Debug)]
enum CellStep {
    /// Writes a batch, under the id of this number if there is one.
    Write { parts: Vec<PartPlan>, id: Option<usize> },
    /// Lets so many hundredths of a lease pass.
    Pass(u32),
}

/// One part of a batch: a cell by its number, the condition and the action.
type PartPlan = (usize, Condition, Action);

#[derive(Clone, Copy, Debug)]
enum Condition {
    Anything,
    Absent,
    /// The version that this step wrote; one that no cell has if it wrote nothing.
    WrittenBy(usize),
    Fence(u64),
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Check,
    Remove,
    /// Puts a value that names the step; it expires after a lease if so asked.
    Put {
        expires: bool,
    },
}

impl CellProgram {
    fn from_seed(seed: u64, steps: usize, sets: bool) -> Self {
        let mut dice = Dice(seed);
        Self((0..steps).map(|at| CellStep::from_dice(&mut dice, at, sets)).collect())
    }

    fn play(&self, harness: &dyn Harness) -> Result<(), Difference> {
        let absent = |why: &dyn fmt::Display| Difference { step: 0, what: why.to_string() };
        let theirs = harness.open().map_err(|why| absent(&why))?;
        let ours = MemoryHarness.open().map_err(|why| absent(&why))?;
        let sets = harness.promises().atomic_sets;
        let mut duel = CellDuel::new(World::new(theirs), World::new(ours), sets);
        for (at, step) in self.0.iter().enumerate() {
            let compared = duel.step(at, step);
            compared.map_err(|what| Difference { step: at, what: format!("{step}: {what}") })?;
        }
        Ok(())
    }
}

impl CellStep {
    fn from_dice(dice: &mut Dice, at: usize, sets: bool) -> Self {
        if dice.roll(8) == 0 {
            // No sum of these is a lease, so that nothing expires at the instant of a step.
            return Self::Pass([30, 60, 110][dice.below(3)]);
        }
        let count = if sets && dice.roll(3) == 0 { 1 + dice.below(CELLS.len()) } else { 1 };
        let first = dice.below(CELLS.len());
        let parts = (0..count).map(|next| {
            let condition = match dice.roll(8) {
                0 | 1 => Condition::Anything,
                2 => Condition::Absent,
                3..=5 => Condition::WrittenBy(at.saturating_sub(1 + dice.below(4))),
                _ => Condition::Fence(1 + dice.roll(6)),
            };
            let action = match dice.roll(8) {
                0 => Action::Check,
                1 => Action::Remove,
                other => Action::Put { expires: other == 2 },
            };
            ((first + next) % CELLS.len(), condition, action)
        });
        let parts = parts.collect();
        // Few ids, so that some are used again.
        let id = (dice.roll(2) == 0).then(|| at / 6 * 2 + dice.below(2));
        Self::Write { parts, id }
    }
}

impl fmt::Display for CellStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass(time) => write!(f, "pass {time}"),
            Self::Write { parts, id } => {
                f.write_str("write")?;
                for (cell, condition, action) in parts {
                    write!(f, " {}:{condition:?}:{action:?}", CELLS[*cell])?;
                }
                id.map_or(Ok(()), |id| write!(f, " id{id}"))
            }
        }
    }
}

/// Whose versions are compared with each other: all, or those of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum VersionGroup {
    All,
    Cell(usize),
}

impl VersionGroup {
    /// The group of a cell.
    fn of(cell: usize, sets: bool) -> Self {
        if sets { Self::All } else { Self::Cell(cell) }
    }
}

/// One side of a program: a store with a client, and the versions that steps wrote.
struct CellSide {
    world: World,
    client: Raw,
    /// The engine has sets.
    sets: bool,
    versions: BTreeMap<(usize, VersionGroup), Version>,
    /// The ids, with the time at which each was made.
    ids: BTreeMap<usize, (WriteId, Duration)>,
    elapsed: Duration,
}

/// An engine and the rules, side by side.
struct CellDuel {
    theirs: CellSide,
    ours: CellSide,
    /// The engine's versions by those of the rules.
    versions: BTreeMap<VersionGroup, BTreeMap<Version, Version>>,
}

impl CellSide {
    fn new(world: World, sets: bool) -> Self {
        let client = world.raw();
        let (versions, ids) = (BTreeMap::new(), BTreeMap::new());
        Self { world, client, sets, versions, ids, elapsed: Duration::ZERO }
    }

    fn pass(&mut self, hundredths: u32) {
        let time = self.world.lease() * hundredths / 100;
        self.world.pass(time);
        self.elapsed += time;
    }

    /// How long ago this time was.
    fn age(&self, made: Duration) -> Duration {
        self.elapsed.saturating_sub(made)
    }

    /// Whether an id is so old that a store need not know it any more.
    fn is_old(&self, id: usize) -> bool {
        let made = self.ids.get(&id).map(|(_, made)| *made);
        made.is_some_and(|made| self.age(made) >= limits::DEFAULT_MAX_LEASE / 2)
    }

    fn write(
        &mut self,
        at: usize,
        parts: &[PartPlan],
        id: Option<usize>,
    ) -> Result<BatchVerdict, Error> {
        let mut batch = Batch::new();
        batch.parts = parts.iter().map(|part| self.part(at, *part)).collect();
        if let Some(id) = id {
            let fresh = || (WriteId::made_at(Tick::ZERO), self.elapsed);
            let (id, made) = *self.ids.entry(id).or_insert_with(fresh);
            (batch.id, batch.age) = (Some(id), self.age(made));
        }
        let engine = std::sync::Arc::clone(self.client.engine());
        let verdict = self.world.now(async move { cells_of(&*engine).write(&batch).await })?;
        // The reply to a batch that only checks has no version of its own.
        let writes = parts.iter().any(|(.., action)| !matches!(action, Action::Check));
        if let BatchVerdict::Done(version) = &verdict
            && writes
        {
            for (cell, ..) in parts {
                self.versions.insert((at, VersionGroup::of(*cell, self.sets)), *version);
            }
        }
        Ok(verdict)
    }

    fn part(&self, at: usize, (cell, condition, action): PartPlan) -> CellPart {
        let expect = match condition {
            Condition::Anything => Expect::Anything,
            Condition::Absent => Expect::Absent,
            Condition::WrittenBy(step) => {
                let written = self.versions.get(&(step, VersionGroup::of(cell, self.sets)));
                Expect::Version(written.copied().unwrap_or(NO_VERSION))
            }
            Condition::Fence(fence) => Expect::Fence(Fence::new(fence)),
        };
        let action = match action {
            Action::Check => CellAction::Check,
            Action::Remove => CellAction::Remove,
            Action::Put { expires } => CellAction::Put {
                value: format!("step {at}").into_bytes(),
                time_to_live: expires.then(|| self.world.lease()),
            },
        };
        CellPart { name: name(CELLS[cell]), expect, action }
    }

    fn get(&self, cell: &str) -> Result<Option<Cell>, Error> {
        let (engine, name) = (std::sync::Arc::clone(self.client.engine()), name(cell));
        self.world.now(async move { cells_of(&*engine).get(&name).await })
    }
}

impl CellDuel {
    fn new(theirs: World, ours: World, sets: bool) -> Self {
        let (theirs, ours) = (CellSide::new(theirs, sets), CellSide::new(ours, sets));
        Self { theirs, ours, versions: BTreeMap::new() }
    }

    fn step(&mut self, at: usize, step: &CellStep) -> Result<(), String> {
        match step {
            CellStep::Pass(time) => {
                self.theirs.pass(*time);
                self.ours.pass(*time);
            }
            CellStep::Write { parts, id } => {
                let known = id.filter(|id| !self.theirs.is_old(*id) && !self.ours.is_old(*id));
                let theirs = self.theirs.write(at, parts, known).map_err(|why| why.to_string())?;
                let ours = self.ours.write(at, parts, known).map_err(|why| why.to_string())?;
                // A batch of more than one part is of an engine with sets.
                let group = VersionGroup::of(parts[0].0, self.theirs.sets);
                self.compare_verdicts((at, group), &theirs, &ours)?;
            }
        }
        for (nth, cell) in CELLS.into_iter().enumerate() {
            let theirs = self.theirs.get(cell).map_err(|why| why.to_string())?;
            let ours = self.ours.get(cell).map_err(|why| why.to_string())?;
            let group = VersionGroup::of(nth, self.theirs.sets);
            self.compare_cells(group, theirs.as_ref(), ours.as_ref())
                .map_err(|why| format!("cell {cell}: {why}"))?;
        }
        Ok(())
    }

    fn compare_verdicts(
        &mut self,
        at: (usize, VersionGroup),
        theirs: &BatchVerdict,
        ours: &BatchVerdict,
    ) -> Result<(), String> {
        match (theirs, ours) {
            (BatchVerdict::Done(_), BatchVerdict::Done(_)) => {
                let sides = [&self.theirs, &self.ours];
                match sides.map(|side| side.versions.get(&at).copied()) {
                    [Some(theirs), Some(ours)] => self.compare_versions(at.1, theirs, ours),
                    _ => Ok(()),
                }
            }
            (BatchVerdict::Refused(theirs), BatchVerdict::Refused(ours))
                if theirs.len() == ours.len() =>
            {
                let mut pairs = theirs.iter().zip(ours);
                pairs.try_for_each(|(one, two)| self.compare_conflicts(at.1, one, two))
            }
            _ => Err(differ(theirs, ours)),
        }
    }

    fn compare_conflicts(
        &mut self,
        group: VersionGroup,
        theirs: &Conflict,
        ours: &Conflict,
    ) -> Result<(), String> {
        match (&theirs.cause, &ours.cause) {
            _ if theirs.name != ours.name => Err(differ(theirs, ours)),
            (ConflictCause::Changed(theirs), ConflictCause::Changed(ours)) => {
                self.compare_cells(group, theirs.as_ref(), ours.as_ref())
            }
            (one, two) if one == two => Ok(()),
            _ => Err(differ(theirs, ours)),
        }
    }

    fn compare_cells(
        &mut self,
        group: VersionGroup,
        theirs: Option<&Cell>,
        ours: Option<&Cell>,
    ) -> Result<(), String> {
        let (Some(one), Some(two)) = (theirs, ours) else {
            return if theirs.is_none() && ours.is_none() {
                Ok(())
            } else {
                Err(differ(&theirs, &ours))
            };
        };
        self.compare_versions(group, one.version, two.version)?;
        let shown = |cell: &Cell| (cell.value.clone(), cell.fence, cell.expires_in.is_some());
        if shown(one) == shown(two) { Ok(()) } else { Err(differ(one, two)) }
    }

    /// Equal versions on one side are equal on the other, and larger ones are larger.
    fn compare_versions(
        &mut self,
        group: VersionGroup,
        theirs: Version,
        ours: Version,
    ) -> Result<(), String> {
        let versions = self.versions.entry(group).or_default();
        let before = versions.range(..ours).next_back();
        let after = versions.range(ours..).find(|(other, _)| **other != ours);
        let is_between = before.is_none_or(|(_, version)| *version < theirs)
            && after.is_none_or(|(_, version)| theirs < *version);
        let is_same = *versions.entry(ours).or_insert(theirs) == theirs;
        if is_between && is_same { Ok(()) } else { Err(differ(&theirs, &ours)) }
    }
}

fn differ(theirs: &dyn fmt::Debug, ours: &dyn fmt::Debug) -> String {
    format!("engine {theirs:?}, rules {ours:?}")
}

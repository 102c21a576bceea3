//! The differential driver: random programs of verbs, run step by step against an engine and
//! against the ledger. Knows what must be equal, not why.
//!
//! A difference is shrunk to the fewest steps that still show it and printed as text that can be
//! replayed with [`replay`]. Programs that once found a bug are kept as files and run for ever.

mod cells;
mod jobs;
mod play;
mod program;
mod shrink;

use std::fmt;

pub use cells::run_cells;
pub use jobs::run_jobs;
pub use play::Difference;
pub use program::{Program, ProgramStep};

use super::harness::Harness;

/// What a difference looks like: the seed, the shortest program, and where it parts.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed, if the program was made from one.
    pub seed: Option<u64>,
    /// The shortest program that still shows it.
    pub program: Program,
    /// Where engine and ledger part.
    pub difference: Difference,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seed) = self.seed {
            writeln!(f, "seed {seed}")?;
        }
        writeln!(f, "{}", self.difference)?;
        write!(f, "replay with this program:\n{}", self.program)
    }
}

/// Runs the programs of these seeds, each of this many steps.
///
/// # Errors
/// The first difference, shrunk.
pub fn run(
    harness: &dyn Harness,
    seeds: impl IntoIterator<Item = u64>,
    steps: usize,
) -> Result<usize, Box<Failure>> {
    let promises = harness.promises();
    let mut ran = 0;
    for seed in seeds {
        let program = Program::from_seed(seed, steps, &promises);
        if let Err(difference) = play::play(&program, harness) {
            let (program, difference) = shrink::shrink(program, difference, harness);
            return Err(Box::new(Failure { seed: Some(seed), program, difference }));
        }
        ran += program.steps().len();
    }
    Ok(ran)
}

/// Plays the programs of these seeds with `play`, which returns how many steps it took, or the
/// difference behind the steps that led to it. Returns the number of all steps.
fn play_seeds(
    seeds: impl IntoIterator<Item = u64>,
    play: impl Fn(u64) -> Result<usize, (Vec<String>, Difference)>,
) -> Result<usize, String> {
    seeds.into_iter().try_fold(0, |ran, seed| match play(seed) {
        Ok(steps) => Ok(ran + steps),
        Err((shown, found)) => Err(format!("seed {seed}, {found}\n{}", shown.join("\n"))),
    })
}

/// Runs a program that was printed before.
///
/// # Errors
/// If the text is no program, or engine and ledger part.
pub fn replay(harness: &dyn Harness, text: &str) -> Result<(), String> {
    let program: Program = text.parse()?;
    play::play(&program, harness).map_err(|difference| {
        Failure { seed: None, program: program.clone(), difference }.to_string()
    })
}

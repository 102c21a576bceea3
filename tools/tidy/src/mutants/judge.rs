//! Judges one mutant: puts it where the tests find it and runs the suites, the narrowest first,
//! until one fails.
//!
//! What counts as caught: a test failed, and it fails again when it runs alone, or the suite fails
//! a second time; a failure that comes once is chance. Each suite is first run without any mutant,
//! where it must pass; the time that takes says when a run has hung. A run that hung is judged
//! again later, when nothing else runs, and counts as caught if it hangs again.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::cargo::{Trouble, Workspace};
use super::list::Mutant;
use super::results::{Verdict, digest};
use super::suite::{Outcome, Run, Suite};

/// No run is ended before.
const LEAST_LIMIT: Duration = Duration::from_secs(180);
/// How much longer than without a mutant a run may take.
const LIMIT: u32 = 5;

/// Where mutants are put and judged.
#[derive(Debug)]
pub struct Judge {
    /// The workspace as it stands for mutants of Lua and SQL; a copy of it for those of Rust.
    pub workspace: Workspace,
    /// The narrowest first.
    pub suites: &'static [Suite],
    /// Whether these are all suites of the engine.
    pub all: bool,
    known: Mutex<HashMap<Suite, (PathBuf, Duration)>>,
}

impl Judge {
    /// A judge who has not run anything yet.
    #[must_use]
    pub fn new(workspace: Workspace, suites: &'static [Suite], all: bool) -> Self {
        Self { workspace, suites, all, known: Mutex::default() }
    }

    /// Judges a mutant. `scratch` is a directory that no other mutant uses meanwhile. No verdict if
    /// it hung and is not alone.
    ///
    /// # Errors
    /// If a suite fails without any mutant, or something cannot be read, written or run.
    pub fn judge(
        &self,
        mutant: &Mutant,
        scratch: &Path,
        alone: bool,
    ) -> io::Result<Option<Verdict>> {
        let path = self.workspace.source(&mutant.file);
        let whole = fs::read_to_string(&path)?;
        let changed = mutant.apply(&whole).map_err(io::Error::other)?;
        if mutant.is_text() {
            let below = mutant.file.strip_prefix("engine/").unwrap_or(&mutant.file);
            // A run that was killed leaves its mutant behind.
            if scratch.exists() {
                fs::remove_dir_all(scratch)?;
            }
            let put = scratch.join(below);
            fs::create_dir_all(put.parent().expect("below scratch"))?;
            fs::write(&put, changed)?;
            let verdict = self.run_suites(alone, |suite| {
                let (binary, limit) = self.baseline(suite)?;
                Ok(Ok((binary, limit, Some(scratch))))
            });
            fs::remove_file(&put)?;
            verdict
        } else {
            let verdict = self.run_suites(alone, |suite| {
                // Limits come from runs without the mutant.
                if !self.known.lock().expect("no panic").contains_key(&suite) {
                    fs::write(&path, &whole)?;
                }
                let (_, limit) = self.baseline(suite)?;
                fs::write(&path, &changed)?;
                match self.workspace.build(suite.target) {
                    Ok(binary) => Ok(Ok((binary, limit, None))),
                    Err(Trouble::Code(why)) => Ok(Err(why)),
                    Err(Trouble::Io(error)) => Err(error),
                }
            });
            fs::write(&path, &whole)?;
            verdict
        }
    }

    /// Runs suites until one catches the mutant. `ready` makes a suite ready, or says why the
    /// mutant is no program.
    #[allow(clippy::type_complexity, reason = "said once, used twice")]
    fn run_suites<'a>(
        &self,
        alone: bool,
        mut ready: impl FnMut(
            Suite,
        )
            -> io::Result<Result<(PathBuf, Duration, Option<&'a Path>), String>>,
    ) -> io::Result<Option<Verdict>> {
        for suite in self.suites {
            let (binary, limit, texts) = match ready(*suite)? {
                Ok(ready) => ready,
                Err(why) => return Ok(Some(Verdict::Unbuildable(why))),
            };
            let package = self.workspace.package();
            let run = Run { binary: &binary, package: &package, texts, limit };
            match run.until_failure(suite.filter, false)? {
                Outcome::Passed => {}
                Outcome::Hung(_) if !alone => return Ok(None),
                Outcome::Hung(test) => {
                    return Ok(Some(Verdict::Caught(format!("{test}, which hangs"))));
                }
                Outcome::Failed(test, _) => {
                    if let Some(verdict) = confirm(&run, suite.filter, &test)? {
                        return Ok(Some(verdict));
                    }
                }
            }
        }
        Ok(Some(Verdict::Survived))
    }

    /// The binary of a suite as it stands and the limit of its runs; the first time, after a run
    /// that must pass.
    fn baseline(&self, suite: Suite) -> io::Result<(PathBuf, Duration)> {
        let mut known = self.known.lock().expect("no panic");
        if let Some(known) = known.get(&suite) {
            return Ok(known.clone());
        }
        let binary = self.workspace.build(suite.target).map_err(|trouble| match trouble {
            Trouble::Code(why) => io::Error::other(format!("{}: {why}", suite.target)),
            Trouble::Io(error) => error,
        })?;
        // A binary that has passed passes: an interrupted run need not wait for it again.
        let built = fs::metadata(&binary)?.modified()?;
        let key = format!("{suite:?} {} {built:?}", binary.display());
        let kept =
            self.workspace.target.join("mutants").join(format!("passed-{:016x}", digest(&[&key])));
        fs::create_dir_all(kept.parent().expect("below the target directory"))?;
        let known_time = fs::read_to_string(&kept).ok().and_then(|text| text.parse().ok());
        let took = if let Some(seconds) = known_time {
            Duration::from_secs(seconds)
        } else {
            let took = self.pass(suite, &binary)?;
            fs::write(&kept, took.as_secs().to_string())?;
            took
        };
        let answer = (binary, LEAST_LIMIT.max(took * LIMIT));
        known.insert(suite, answer.clone());
        Ok(answer)
    }

    /// Runs a suite without any mutant, which must pass, and says how long that took.
    fn pass(&self, suite: Suite, binary: &Path) -> io::Result<Duration> {
        let (package, limit) = (self.workspace.package(), Duration::from_secs(1800));
        let run = Run { binary, package: &package, texts: None, limit };
        let began = Instant::now();
        if let Outcome::Failed(test, _) | Outcome::Hung(test) =
            run.until_failure(suite.filter, false)?
        {
            return Err(io::Error::other(format!("{test} fails without any mutant")));
        }
        let took = began.elapsed();
        println!("{} {}: {} s without a mutant", suite.target, suite.filter, took.as_secs());
        Ok(took)
    }
}

/// A failure counts if it comes again: of that test alone, or of any test of the suite.
fn confirm(run: &Run<'_>, filter: &str, test: &str) -> io::Result<Option<Verdict>> {
    match run.until_failure(test, true)? {
        Outcome::Failed(_, said) => {
            let broken = ["Error compiling script", "syntax error at or near"];
            Ok(Some(match broken.into_iter().find(|words| said.contains(words)) {
                Some(words) => Verdict::Unbuildable(words.to_owned()),
                None => Verdict::Caught(test.to_owned()),
            }))
        }
        Outcome::Hung(_) => Ok(Some(Verdict::Caught(format!("{test}, which hangs alone")))),
        Outcome::Passed => match run.until_failure(filter, false)? {
            Outcome::Failed(again, _) => {
                Ok(Some(Verdict::Caught(format!("{again} (and {test}, not every time)"))))
            }
            _ => Ok(None),
        },
    }
}

//! Judges one mutant: puts it where the tests find it and runs the suites until one fails. First
//! come the tests that caught its neighbours, since most mistakes in a file are noticed by the same
//! few tests; then the parts of the suites that are about the file; then the suites, the narrowest
//! first. A suite that has passed with a mutant is not run with it again by a later run, which so
//! goes on with the wider ones, unless survivors are judged anew.
//!
//! What counts as caught: a test failed, and it fails again when it runs alone, or the suite fails
//! a second time; a failure that comes once is chance. Each suite is first run without any mutant,
//! where it must pass; the time that takes says when a run has hung. A run that hung counts as
//! caught if the test that hung does so again, alone, when nothing else runs.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::cargo::{Trouble, Workspace};
use super::engines::Engine;
use super::list::Mutant;
use super::results::{Verdict, digest, key};
use super::suite::{Outcome, Run, Suite};

/// No run is ended before.
const LEAST_LIMIT: Duration = Duration::from_secs(300);
/// How much longer than without a mutant a run may take.
const LIMIT: u32 = 5;
/// When a single test has hung.
const ALONE_LIMIT: Duration = Duration::from_secs(240);
/// How many tests that caught neighbours are run first.
const LIKELY: usize = 6;

/// Where mutants are put and judged.
#[derive(Debug)]
pub struct Judge {
    /// A copy of the workspace.
    pub workspace: Workspace,
    /// Whose mutants are judged.
    pub engine: &'static Engine,
    /// Those of its suites that are run, the narrowest first.
    pub suites: &'static [Suite],
    /// Whether these are all suites of the engine.
    pub all: bool,
    /// Whether mutants of Rust are in the copy already, to be switched on.
    pub switched: bool,
    /// Whether suites are run again that passed with a mutant in an earlier run.
    pub redo: bool,
    known: Mutex<HashMap<Suite, (PathBuf, Duration)>>,
    /// The files of mutants that were caught, and by what: a target and a test.
    catches: Mutex<Vec<(String, String)>>,
}

/// A binary, when its runs have hung, and what it is given.
struct Ready<'a> {
    binary: PathBuf,
    limit: Duration,
    texts: Option<&'a Path>,
    mutant: Option<u64>,
}

impl Judge {
    /// A judge who has not run anything yet, and runs no more than this many suites.
    #[must_use]
    pub fn new(
        workspace: Workspace,
        engine: &'static Engine,
        most: usize,
        switched: bool,
        redo: bool,
        catches: Vec<(String, String)>,
    ) -> Self {
        let suites = &engine.suites[..most.min(engine.suites.len())];
        let (all, catches) = (suites.len() == engine.suites.len(), Mutex::new(catches));
        Self { workspace, engine, suites, all, switched, redo, known: Mutex::default(), catches }
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
        let verdict = if mutant.is_text() {
            self.judge_text(mutant, scratch, alone)?
        } else if self.switched {
            self.run_suites(mutant, alone, |suite| {
                let (binary, limit) = self.baseline(suite)?;
                Ok(Ok(Ready { binary, limit, texts: None, mutant: Some(key(mutant)) }))
            })?
        } else {
            self.judge_built(mutant, alone)?
        };
        if let Some(Verdict::Caught(by)) = &verdict {
            self.catches.lock().expect("no panic").push((mutant.file.clone(), by.clone()));
        }
        Ok(verdict)
    }

    /// Judges a mutant of Lua or SQL: its file is put where the binaries look for it.
    fn judge_text(
        &self,
        mutant: &Mutant,
        scratch: &Path,
        alone: bool,
    ) -> io::Result<Option<Verdict>> {
        let whole = fs::read_to_string(self.workspace.source(&mutant.file))?;
        let changed = mutant.apply(&whole).map_err(io::Error::other)?;
        let below = mutant.file.strip_prefix("engine/").unwrap_or(&mutant.file);
        // A run that was killed leaves its mutant behind.
        if scratch.exists() {
            fs::remove_dir_all(scratch)?;
        }
        let put = scratch.join(below);
        fs::create_dir_all(put.parent().expect("below scratch"))?;
        fs::write(&put, changed)?;
        let verdict = self.run_suites(mutant, alone, |suite| {
            let (binary, limit) = self.baseline(suite)?;
            Ok(Ok(Ready { binary, limit, texts: Some(scratch), mutant: None }))
        });
        fs::remove_file(&put)?;
        verdict
    }

    /// Judges a mutant of Rust that has to be built.
    fn judge_built(&self, mutant: &Mutant, alone: bool) -> io::Result<Option<Verdict>> {
        let path = self.workspace.source(&mutant.file);
        let whole = fs::read_to_string(&path)?;
        let changed = mutant.apply(&whole).map_err(io::Error::other)?;
        let verdict = self.run_suites(mutant, alone, |suite| {
            // Limits come from runs without the mutant.
            if !self.known.lock().expect("no panic").contains_key(&suite) {
                fs::write(&path, &whole)?;
            }
            let (_, limit) = self.baseline(suite)?;
            fs::write(&path, &changed)?;
            match self.workspace.build(suite.target) {
                Ok(binary) => Ok(Ok(Ready { binary, limit, texts: None, mutant: None })),
                Err(Trouble::Code(said)) => Ok(Err(Trouble::first_error(&said).to_owned())),
                Err(Trouble::Io(error)) => Err(error),
            }
        });
        fs::write(&path, &whole)?;
        verdict
    }

    /// Runs suites until one catches the mutant. `ready` makes a suite ready, or says why the
    /// mutant is no program.
    fn run_suites<'a>(
        &self,
        mutant: &Mutant,
        alone: bool,
        mut ready: impl FnMut(Suite) -> io::Result<Result<Ready<'a>, String>>,
    ) -> io::Result<Option<Verdict>> {
        let package = self.workspace.package();
        let about = self.engine.about.iter().filter(|(file, _)| mutant.file.ends_with(file));
        let about: Vec<Suite> = about.flat_map(|(_, suites)| suites.iter().copied()).collect();
        let wide = self.suites.iter().copied().filter(|suite| !about.contains(suite));
        let whole: Vec<Suite> = about.iter().copied().chain(wide).collect();
        let likely = self.likely(mutant);
        // Each in the first suite that has it.
        let home = |by: &str| whole.iter().position(|suite| test_of(*suite, by).is_some());
        let first = whole.iter().enumerate().filter_map(|(at, suite)| {
            let here = likely.iter().filter(|by| home(by) == Some(at));
            let tests: Vec<&str> = here.filter_map(|by| test_of(*suite, by)).collect();
            (!tests.is_empty()).then_some((*suite, tests, true))
        });
        // Behind the likely tests, what has not been passed by this mutant in an earlier run.
        let key = key(mutant);
        let passed = |suite: Suite| !self.redo && self.passed_file(key, suite).exists();
        let whole = whole.iter().filter(|suite| !passed(**suite));
        let whole = whole.map(|suite| (*suite, vec![suite.filter], false));
        for (suite, names, exact) in first.chain(whole) {
            let Ready { binary, limit, texts, mutant } = match ready(suite)? {
                Ok(ready) => ready,
                Err(why) => return Ok(Some(Verdict::Unbuildable(why))),
            };
            let run = Run {
                binary: &binary,
                package: &package,
                texts,
                one_filter: suite.is_mimic(),
                mutant,
                limit,
            };
            let found = match run.until_failure(&names, exact)? {
                Outcome::Passed => None,
                Outcome::Hung(_) if !alone => return Ok(None),
                Outcome::Hung(test) => hangs_again(&run, suite, &test)?,
                Outcome::Failed(test, _) => confirm(&run, suite, &names, exact, &test)?,
            };
            if found.is_some() {
                return Ok(found);
            }
            if !exact {
                fs::write(self.passed_file(key, suite), "")?;
            }
        }
        Ok(Some(Verdict::Survived))
    }

    /// The file that says that the tests of a suite passed with a mutant.
    fn passed_file(&self, mutant: u64, suite: Suite) -> PathBuf {
        let digest = digest(&[suite.target, suite.filter]);
        self.workspace.target.join("mutants").join(format!("{mutant:016x}-{digest:016x}"))
    }

    /// The targets and names of tests that caught mutants of the same file, the latest first.
    fn likely(&self, mutant: &Mutant) -> Vec<String> {
        let catches = self.catches.lock().expect("no panic");
        let mut likely: Vec<String> = Vec::new();
        for (_, by) in catches.iter().rev().filter(|(file, _)| *file == mutant.file) {
            if likely.len() < LIKELY && !likely.contains(by) {
                likely.push(by.clone());
            }
        }
        likely
    }

    /// The binary of a suite as it stands and the limit of its runs; the first time, after a run
    /// that must pass.
    fn baseline(&self, suite: Suite) -> io::Result<(PathBuf, Duration)> {
        let mut known = self.known.lock().expect("no panic");
        if let Some(known) = known.get(&suite) {
            return Ok(known.clone());
        }
        let binary = self.workspace.build(suite.target).map_err(|trouble| match trouble {
            Trouble::Code(said) => {
                io::Error::other(format!("{}: {}", suite.target, Trouble::first_error(&said)))
            }
            Trouble::Io(error) => error,
        })?;
        // A binary that has passed passes: an interrupted run need not wait for it again.
        let built = fs::metadata(&binary)?.modified()?;
        let passed = format!("{suite:?} {} {built:?}", binary.display());
        let kept = self
            .workspace
            .target
            .join("mutants")
            .join(format!("passed-{:016x}", digest(&[&passed])));
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
        let run = Run {
            binary,
            package: &package,
            texts: None,
            one_filter: suite.is_mimic(),
            mutant: None,
            limit,
        };
        let mut began = Instant::now();
        let mut outcome = run.until_failure(&[suite.filter], false)?;
        if let Outcome::Failed(test, _) | Outcome::Hung(test) = &outcome {
            println!("{} {test} fails without any mutant, once", suite.target);
            began = Instant::now();
            outcome = run.until_failure(&[suite.filter], false)?;
        }
        if let Outcome::Failed(test, _) | Outcome::Hung(test) = outcome {
            return Err(io::Error::other(format!("{test} fails without any mutant")));
        }
        let took = began.elapsed();
        println!("{} {}: {} s without a mutant", suite.target, suite.filter, took.as_secs());
        Ok(took)
    }
}

/// The name of a test of this suite, in the words of a catch.
fn test_of(suite: Suite, by: &str) -> Option<&str> {
    let test = by.strip_prefix(suite.target)?.strip_prefix(' ')?.split([' ', ',']).next()?;
    test.contains(suite.filter).then_some(test)
}

fn caught(suite: Suite, how: &str) -> Verdict {
    Verdict::Caught(format!("{} {how}", suite.target))
}

/// A run that hung counts if its test hangs or fails again, alone.
fn hangs_again(run: &Run<'_>, suite: Suite, test: &str) -> io::Result<Option<Verdict>> {
    let run = Run { limit: ALONE_LIMIT, ..*run };
    Ok(match run.until_failure(&[test], true)? {
        Outcome::Passed => None,
        Outcome::Hung(_) => Some(caught(suite, &format!("{test}, which hangs"))),
        Outcome::Failed(..) => Some(caught(suite, test)),
    })
}

/// A failure counts if it comes again: of that test alone, or of any test of the suite.
fn confirm(
    run: &Run<'_>,
    suite: Suite,
    names: &[&str],
    exact: bool,
    test: &str,
) -> io::Result<Option<Verdict>> {
    match run.until_failure(&[test], true)? {
        Outcome::Failed(_, said) => {
            let broken = ["Error compiling script", "syntax error at or near"];
            Ok(Some(match broken.into_iter().find(|words| said.contains(words)) {
                Some(words) => Verdict::Unbuildable(words.to_owned()),
                None => caught(suite, test),
            }))
        }
        Outcome::Hung(_) => Ok(Some(caught(suite, &format!("{test}, which hangs alone")))),
        Outcome::Passed => match run.until_failure(names, exact)? {
            Outcome::Failed(again, _) => {
                Ok(Some(caught(suite, &format!("{again} (and {test}, not every time)"))))
            }
            _ => Ok(None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::test_of;
    use crate::mutants::suite::Suite;

    #[test]
    fn a_test_is_found_in_the_words_of_a_catch() {
        let suite = Suite { target: "conformance", filter: "redis::" };
        assert_eq!(test_of(suite, "conformance redis::a"), Some("redis::a"));
        assert_eq!(test_of(suite, "conformance redis::a, which hangs"), Some("redis::a"));
        assert_eq!(test_of(suite, "conformance redis::a (and redis::b, not"), Some("redis::a"));
        assert_eq!(test_of(suite, "conformance etcd::a"), None);
        assert_eq!(test_of(suite, "redis redis::a"), None);
    }
}

//! Mutation testing of the engines: deliberate mistakes, one at a time, and whether a test notices.
//!
//! Each engine restates the rules of the ledger in its own language, and has a list of mistakes in
//! `lists/` ([`list`] says how they are written; an ordinary test keeps every one applicable), and
//! for Lua and SQL a sample of [`mechanical`] ones. [`judge`] runs the suites of the engine against
//! each mutant until a test fails. Nothing is built for one mutant: Lua and SQL are put into a
//! directory that the test binaries read (`TENURE_TEXTS`), and those of Rust are all in one build
//! ([`switched`], [`copies`]) and switched on by `TENURE_MUTANT`; the few that cannot be are built
//! one after the other. [`results`] are kept in the repository: a run that was interrupted goes on
//! where it stopped.

pub mod cargo;
pub mod copies;
pub mod engines;
pub mod judge;
pub mod list;
pub mod mechanical;
pub mod results;
pub mod suite;
pub mod switched;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use self::cargo::Workspace;
use self::engines::{ENGINES, Engine};
use self::judge::Judge;
use self::list::Mutant;
use self::results::{Results, Verdict, key};
use crate::tree::root;

/// Whether mutants are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// They are judged.
    Judge,
    /// They are printed.
    List,
    /// How many were judged so far is printed.
    Scores,
}

/// What is asked for.
#[derive(Debug)]
pub struct Options {
    /// Whose mutants; all if none is named.
    pub engines: Vec<&'static Engine>,
    /// Whether mutants are run, or only printed.
    pub work: Work,
    /// Numbers, or what the file or description contains, with commas between them.
    pub only: Option<String>,
    /// How many mechanical ones.
    pub sample: usize,
    /// How many at a time.
    pub jobs: usize,
    /// How many suites of each engine to run behind those that are about the file, the narrowest
    /// first. Who survives them is not kept: another suite may catch it.
    pub suites: usize,
    /// Run those again that survived.
    pub survivors: bool,
    /// Forget earlier results.
    pub fresh: bool,
}

impl Default for Options {
    fn default() -> Self {
        let (work, survivors, fresh) = (Work::Judge, false, false);
        let (engines, only, suites) = (Vec::new(), None, usize::MAX);
        Self { engines, work, only, sample: 40, jobs: 2, suites, survivors, fresh }
    }
}

/// The engine with this name.
#[must_use]
pub fn engine(name: &str) -> Option<&'static Engine> {
    ENGINES.iter().find(|engine| engine.name == name)
}

/// Runs what is asked for. Says whether every mutant was caught or has a reason not to be.
///
/// # Errors
/// If a list or a file cannot be read, a suite fails without any mutant, or Cargo cannot be run.
pub fn run(options: &Options) -> io::Result<bool> {
    let root = root().canonicalize()?;
    let engines: Vec<&'static Engine> = match &options.engines[..] {
        [] => ENGINES.iter().collect(),
        named => named.to_vec(),
    };
    let mut fine = true;
    for engine in engines {
        let mut mutants = engine.mutants(&root, options.sample)?;
        mutants.retain(|mutant| options.only.as_ref().is_none_or(|only| is_wanted(mutant, only)));
        match options.work {
            Work::Judge => fine &= judge_all(&root, engine, mutants, options)?,
            Work::List => {
                for mutant in &mutants {
                    println!("{} {}: {}: {}", engine.name, mutant.id, mutant.file, mutant.does);
                }
            }
            Work::Scores => {
                let (mechanical, listed): (Vec<_>, Vec<_>) =
                    mutants.into_iter().partition(|mutant| mutant.line.is_some());
                for (kind, mutants) in [("", listed), (", mechanical", mechanical)] {
                    if !mutants.is_empty() {
                        println!("| {}{kind} {}", engine.name, score(&root, engine, &mutants)?);
                    }
                }
            }
        }
    }
    Ok(fine)
}

/// How these mutants of an engine fared, as in the table of docs/testing.md.
fn score(root: &Path, engine: &Engine, mutants: &[Mutant]) -> io::Result<String> {
    let results = Results::open(&results_of(root, engine), mutants, false)?;
    let (mut caught, mut explained, mut survived, mut not_built) = (0, 0, 0, 0);
    for mutant in mutants {
        match results.get(key(mutant)) {
            Some(Verdict::Caught(_)) => caught += 1,
            Some(Verdict::Survived) if mutant.excuse.is_some() => explained += 1,
            Some(Verdict::Survived) => survived += 1,
            Some(Verdict::Unbuildable(_)) => not_built += 1,
            None => {}
        }
    }
    let (all, judged) = (mutants.len() - not_built, caught + explained + survived);
    Ok(format!("| {all} | {judged} | {caught} | {explained} | {survived} |"))
}

fn is_wanted(mutant: &Mutant, only: &str) -> bool {
    only.split(',').any(|only| is_meant(mutant, only))
}

fn is_meant(mutant: &Mutant, only: &str) -> bool {
    let is_id = only.trim_start_matches('m').chars().all(|char| char.is_ascii_digit());
    if is_id { mutant.id == only } else { mutant.file.contains(only) || mutant.does.contains(only) }
}

/// A mutant and the key of its result.
type Keyed = (u64, Mutant);

fn judge_all(
    root: &Path,
    engine: &'static Engine,
    mutants: Vec<Mutant>,
    options: &Options,
) -> io::Result<bool> {
    let here = Workspace::here(root);
    let scratch = here.target.join("mutants");
    fs::create_dir_all(&scratch)?;
    let everything = engine.mutants(root, usize::MAX)?;
    let kept = Results::open(&results_of(root, engine), &everything, options.fresh)?;
    let results = Mutex::new(kept);
    let all: Vec<Keyed> = mutants.into_iter().map(|mutant| (key(&mutant), mutant)).collect();
    let known = |key| results.lock().expect("no panic").get(key).cloned();
    let is_open = |key| match known(key) {
        None => true,
        Some(Verdict::Survived) => options.survivors,
        Some(_) => false,
    };
    let open: Vec<&Keyed> = all.iter().filter(|(key, _)| is_open(*key)).collect();
    let judge = |workspace: Workspace, switched| {
        let catches = everything.iter().filter_map(|mutant| match known(key(mutant)) {
            Some(Verdict::Caught(by)) => Some((mutant.file.clone(), by)),
            _ => None,
        });
        let redo = options.survivors;
        Judge::new(workspace, engine, options.suites, switched, redo, catches.collect())
    };
    let scratch = scratch.join(format!("texts-{}", engine.name));
    if !open.is_empty() {
        let (copy, on) = copies::switched(root, &here)?;
        let can = |keyed: &&Keyed| keyed.1.is_text() || on.contains(&keyed.0);
        let (now, later): (Vec<&Keyed>, Vec<&Keyed>) = open.into_iter().partition(can);
        pool(&judge(copy, true), &now, &scratch, options.jobs, &results)?;
        if !later.is_empty() {
            let copy = here.copy("workspace", &HashMap::new())?;
            pool(&judge(copy, false), &later, &scratch, 1, &results)?;
        }
    }
    let judged: Vec<(&Mutant, Verdict)> =
        all.iter().filter_map(|(key, mutant)| Some((mutant, known(*key)?))).collect();
    Ok(report(engine.name, &judged))
}

/// Where the results of an engine are kept.
fn results_of(root: &Path, engine: &Engine) -> PathBuf {
    root.join(format!("tools/tidy/src/mutants/results/{}.txt", engine.name))
}

/// Judges these, so many at a time; those that hung once more, alone.
fn pool(
    judge: &Judge,
    mutants: &[&Keyed],
    scratch: &Path,
    jobs: usize,
    results: &Mutex<Results>,
) -> io::Result<()> {
    let next = Mutex::new(mutants.iter());
    let hung = Mutex::new(Vec::new());
    let one = |keyed: &Keyed, worker: usize, alone: bool| -> io::Result<bool> {
        let (key, mutant) = keyed;
        let began = Instant::now();
        let texts = scratch.join(worker.to_string());
        let Some(verdict) = judge.judge(mutant, &texts, alone)? else {
            println!("{} {}: {}: hangs, will run alone", mutant.id, mutant.file, mutant.does);
            return Ok(false);
        };
        let seconds = began.elapsed().as_secs();
        println!("{} {}: {}: {verdict} ({seconds} s)", mutant.id, mutant.file, mutant.does);
        if verdict != Verdict::Survived || judge.all {
            results.lock().expect("no panic").put(*key, &verdict)?;
        }
        Ok(true)
    };
    let work = |worker: usize| -> io::Result<()> {
        loop {
            let Some(keyed) = next.lock().expect("no panic").next() else { return Ok(()) };
            if !one(keyed, worker, jobs == 1)? {
                hung.lock().expect("no panic").push(*keyed);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    for keyed in hung.into_inner().expect("no panic") {
        one(keyed, 0, true)?;
    }
    Ok(())
}

/// Prints the score and each survivor. Says whether all survivors have a reason.
fn report(engine: &str, judged: &[(&Mutant, Verdict)]) -> bool {
    let is_caught = |verdict: &Verdict| matches!(verdict, Verdict::Caught(_));
    for (kind, mechanical) in [("listed", false), ("mechanical", true)] {
        let of_kind = judged.iter().filter(|(mutant, _)| mutant.line.is_some() == mechanical);
        let (mut caught, mut survived, mut not_built) = (0, 0, 0);
        for (_, verdict) in of_kind {
            match verdict {
                Verdict::Caught(_) => caught += 1,
                Verdict::Survived => survived += 1,
                Verdict::Unbuildable(_) => not_built += 1,
            }
        }
        let total = caught + survived;
        if total + not_built > 0 {
            println!(
                "{engine}, {kind}: {caught} of {total} caught ({} %), {survived} survived; \
                 {not_built} do not build and do not count",
                caught * 100 / total.max(1)
            );
        }
    }
    let mut fine = true;
    for (mutant, verdict) in judged {
        let Mutant { id, file, does, .. } = mutant;
        match (verdict, &mutant.excuse) {
            (Verdict::Survived, Some(why)) => {
                println!("survived: {id} {file}: {does}\n    {why}");
            }
            (Verdict::Survived, None) => {
                fine = false;
                println!("survived: {id} {file}: {does}");
            }
            (verdict, Some(_)) if is_caught(verdict) => {
                println!("{id} {file}: {does}: {verdict}, though the list says that none can");
            }
            _ => {}
        }
    }
    fine
}

/// Complaints about the lists: too short, not to be understood, or a text that does not occur
/// exactly once. `read` reads a file below `crates/tenure/src`.
#[must_use]
pub fn complaints(read: impl Fn(&str) -> io::Result<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for engine in ENGINES {
        let at = format!("lists/{}.txt", engine.name);
        let mutants = match list::parse(engine.list) {
            Ok(mutants) => mutants,
            Err(why) => {
                complaints.push(format!("{at}: {why}"));
                continue;
            }
        };
        if mutants.len() < 30 {
            complaints
                .push(format!("{at}: {} mutants; which mistakes are missing?", mutants.len()));
        }
        for mutant in mutants {
            let applied = read(&mutant.file)
                .map_err(|error| format!("{}: {error}", mutant.file))
                .and_then(|text| mutant.apply(&text).map(|changed| changed == text));
            match applied {
                Ok(false) => {}
                Ok(true) => complaints.push(format!("{at}: {}: changes nothing", mutant.does)),
                Err(why) => complaints.push(format!("{at}: {why}")),
            }
        }
    }
    complaints
}

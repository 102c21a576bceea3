//! The copy of the workspace that has the mutants of Rust of all engines in it. Knows which of them
//! cannot be switched: those that [`switched()`] leaves out, and those that do not compile, which
//! are found by building the copy until no error is left, and are remembered.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

use super::cargo::{Trouble, Workspace};
use super::engines::ENGINES;
use super::list::Mutant;
use super::results::key;
use super::switched::{self, Woven};

/// Where the library's sources are, below the root.
const SOURCES: &str = "crates/tenure/src/";

/// Makes the copy. Returns it with the keys of the mutants that can be switched on there.
///
/// # Errors
/// If a list or a file cannot be read, Cargo cannot be run, or the copy does not build for a reason
/// that is no mutant's.
pub fn switched(root: &Path, here: &Workspace) -> io::Result<(Workspace, HashSet<u64>)> {
    let mut files: BTreeMap<String, Vec<Mutant>> = BTreeMap::new();
    for engine in ENGINES {
        for mutant in engine.mutants(root, 0)?.into_iter().filter(|mutant| !mutant.is_text()) {
            files.entry(mutant.file.clone()).or_default().push(mutant);
        }
    }
    let kept = here.target.join("mutants/unswitched.txt");
    let text = if kept.exists() { fs::read_to_string(&kept)? } else { String::new() };
    let mut aside: HashSet<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    loop {
        let (mut others, mut woven) = (HashMap::new(), HashMap::new());
        for (file, mutants) in &files {
            let numbered: Vec<(u64, &Mutant)> = mutants
                .iter()
                .map(|mutant| (key(mutant), mutant))
                .filter(|(key, _)| !aside.contains(key))
                .collect();
            let whole = fs::read_to_string(here.source(file))?;
            let one = switched::weave(&whole, &numbered);
            others.insert(format!("{SOURCES}{file}"), one.text.clone());
            woven.insert(format!("{SOURCES}{file}"), one);
        }
        let library = fs::read_to_string(here.source("lib.rs"))?;
        others.insert(format!("{SOURCES}lib.rs"), library + switched::SWITCH);
        let copy = here.copy("switched", &others)?;
        let said = match copy.build("conformance") {
            Ok(_) => {
                let on = woven.values().flat_map(|one| one.lines.iter().map(|(key, _)| *key));
                return Ok((copy, on.collect()));
            }
            Err(Trouble::Io(error)) => return Err(error),
            Err(Trouble::Code(said)) => said,
        };
        let found = culprits(&said, &woven);
        if found.is_empty() {
            let error = Trouble::first_error(&said);
            return Err(io::Error::other(format!("the copy with all mutants: {error}")));
        }
        println!("{} mutants do not build together with the others", found.len());
        aside.extend(found);
        let text: Vec<String> = aside.iter().map(u64::to_string).collect();
        fs::write(&kept, text.join("\n"))?;
    }
}

/// The mutants on whose lines the compiler found errors.
fn culprits(said: &str, woven: &HashMap<String, Woven>) -> HashSet<u64> {
    let (mut found, mut is_error) = (HashSet::new(), false);
    for line in said.lines() {
        if line.starts_with("error") || line.starts_with("warning") {
            is_error = line.starts_with("error");
        }
        let Some(place) = line.trim_start().strip_prefix("--> ").filter(|_| is_error) else {
            continue;
        };
        let mut words = place.split(':');
        let (Some(path), Some(Ok(at))) = (words.next(), words.next().map(str::parse::<usize>))
        else {
            continue;
        };
        let lines = woven.get(path).map(|one| &one.lines[..]).unwrap_or_default();
        found.extend(lines.iter().filter(|(_, lines)| lines.contains(&at)).map(|(key, _)| *key));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{HashMap, HashSet, Woven, culprits};

    #[test]
    fn a_mutant_is_found_by_the_line_of_an_error() {
        let woven = Woven { text: String::new(), lines: vec![(7, 3..5), (8, 5..9)] };
        let woven = HashMap::from([("crates/a.rs".to_owned(), woven)]);
        let said = "warning: b\n --> crates/a.rs:3:1\nerror[E1]: c\n  --> crates/a.rs:5:9\n\
                    error: d\n --> crates/b.rs:3:1\n";
        assert_eq!(culprits(said, &woven), HashSet::from([8]));
    }
}

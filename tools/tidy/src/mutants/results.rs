//! What became of mutants, kept in a file of the repository so that a run goes on where another
//! one stopped, on any machine. One line for each result, written as soon as it is known: number
//! in the list, key, verdict, the target and name of the test or the like.
//!
//! The key is a digest of the file's name and of both texts: a result is forgotten when the mutant
//! changes. It is not forgotten when tests or other lines of the file change: a mutant that was
//! caught stays caught until `--fresh` judges all anew, and `--survivors` runs again what was not.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::list::Mutant;

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This test failed: its target and its name.
    Caught(String),
    /// No test did.
    Survived,
    /// It is no program: it does not count.
    Unbuildable(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught(test) => write!(f, "caught by {test}"),
            Self::Survived => f.write_str("SURVIVED"),
            Self::Unbuildable(why) => write!(f, "does not build: {why}"),
        }
    }
}

/// FNV-1a of these texts.
#[must_use]
pub fn digest(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The key of a mutant's result.
#[must_use]
pub fn key(mutant: &Mutant) -> u64 {
    digest(&[&mutant.file, &mutant.before, &mutant.after])
}

/// The results of an engine.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    /// The numbers of all mutants there are, by their keys.
    order: Vec<(u64, String)>,
    known: HashMap<u64, Verdict>,
}

impl Results {
    /// Reads what is kept of these mutants.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub fn open(path: &Path, mutants: &[Mutant], fresh: bool) -> io::Result<Self> {
        let order = mutants.iter().map(|mutant| (key(mutant), mutant.id.clone())).collect();
        let kept = path.exists() && !fresh;
        let text = if kept { fs::read_to_string(path)? } else { String::new() };
        let known = text.lines().filter_map(parse).collect();
        Ok(Self { path: path.to_owned(), order, known })
    }

    /// What is known of the mutant with this key.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<&Verdict> {
        self.known.get(&key)
    }

    /// Keeps a result. Forgets those of mutants that are no more.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put(&mut self, key: u64, verdict: &Verdict) -> io::Result<()> {
        self.known.insert(key, verdict.clone());
        let mut lines = String::new();
        for (key, id) in &self.order {
            let (word, what) = match self.known.get(key) {
                Some(Verdict::Caught(test)) => ("caught", test.as_str()),
                Some(Verdict::Survived) => ("survived", ""),
                Some(Verdict::Unbuildable(why)) => ("unbuildable", why.as_str()),
                None => continue,
            };
            let what = what.replace('\n', " ");
            let _ = writeln!(lines, "{}", format!("{id} {key:016x} {word} {what}").trim_end());
        }
        // Beside it first: a run may be killed at any time.
        let beside = self.path.with_extension("new");
        fs::write(&beside, lines)?;
        fs::rename(&beside, &self.path)
    }
}

fn parse(line: &str) -> Option<(u64, Verdict)> {
    let mut fields = line.splitn(4, ' ').skip(1);
    let key = u64::from_str_radix(fields.next()?, 16).ok()?;
    let (word, text) = (fields.next()?, fields.next().unwrap_or_default().to_owned());
    let verdict = match word {
        "caught" => Verdict::Caught(text),
        "survived" => Verdict::Survived,
        "unbuildable" => Verdict::Unbuildable(text),
        _ => return None,
    };
    Some((key, verdict))
}

#[cfg(test)]
mod tests {
    use super::{Results, Verdict, key};
    use crate::mutants::list::Mutant;

    #[test]
    fn results_are_kept_in_the_order_of_the_list_and_the_last_one_counts() {
        let path = std::env::temp_dir().join(format!("tidy-results-{}", std::process::id()));
        let mutant =
            |id: &str| Mutant { id: id.to_owned(), before: id.to_owned(), ..Mutant::default() };
        let (all, gone) = ([mutant("1"), mutant("2"), mutant("3")], mutant("4"));
        let [one, two, three] = all.each_ref().map(key);
        let mut results = Results::open(&path, &all, true).unwrap();
        results.put(two, &Verdict::Unbuildable("no\nway".to_owned())).unwrap();
        results.put(key(&gone), &Verdict::Survived).unwrap();
        results.put(one, &Verdict::Survived).unwrap();
        results.put(one, &Verdict::Caught("lib a::b".to_owned())).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let again = Results::open(&path, &all, false).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(again.get(one), Some(&Verdict::Caught("lib a::b".to_owned())));
        assert_eq!(again.get(two), Some(&Verdict::Unbuildable("no way".to_owned())));
        assert_eq!((again.get(three), again.get(key(&gone))), (None, None));
        let expected = format!("1 {one:016x} caught lib a::b\n2 {two:016x} unbuildable no way\n");
        assert_eq!(text, expected);
    }
}

//! What became of mutants, kept in a file so that a run can go on where it stopped. One line for
//! each result, added as soon as it is known: key, verdict, name of the test or the like, seconds.
//!
//! The key is a digest of the file and of both texts, so a result is forgotten when the file, the
//! mutant or its place changes. It is not forgotten when tests change: a mutant that was caught
//! stays caught, and `--survivors` runs again what was not.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This test failed.
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

/// The results of an engine.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    known: HashMap<u64, Verdict>,
}

impl Results {
    /// Reads what is kept.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub fn open(path: &Path, fresh: bool) -> io::Result<Self> {
        if fresh && path.exists() {
            fs::remove_file(path)?;
        }
        let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        let known = text.lines().filter_map(parse).collect();
        Ok(Self { path: path.to_owned(), known })
    }

    /// What is known of the mutant with this key.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<&Verdict> {
        self.known.get(&key)
    }

    /// Keeps a result.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put(&mut self, key: u64, verdict: &Verdict, seconds: u64) -> io::Result<()> {
        let (word, text) = match verdict {
            Verdict::Caught(test) => ("caught", test.as_str()),
            Verdict::Survived => ("survived", ""),
            Verdict::Unbuildable(why) => ("unbuildable", why.as_str()),
        };
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let text = text.replace(['\t', '\n'], " ");
        writeln!(file, "{key:016x}\t{word}\t{text}\t{seconds}")?;
        self.known.insert(key, verdict.clone());
        Ok(())
    }
}

fn parse(line: &str) -> Option<(u64, Verdict)> {
    let mut fields = line.split('\t');
    let key = u64::from_str_radix(fields.next()?, 16).ok()?;
    let (word, text) = (fields.next()?, fields.next()?.to_owned());
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
    use super::{Results, Verdict};

    #[test]
    fn results_are_kept_and_the_last_one_counts() {
        let path = std::env::temp_dir().join(format!("tidy-results-{}", std::process::id()));
        let mut results = Results::open(&path, true).unwrap();
        results.put(1, &Verdict::Survived, 2).unwrap();
        results.put(1, &Verdict::Caught("a::b".to_owned()), 3).unwrap();
        results.put(2, &Verdict::Unbuildable("no\tway".to_owned()), 0).unwrap();
        let again = Results::open(&path, false).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(again.get(1), Some(&Verdict::Caught("a::b".to_owned())));
        assert_eq!(again.get(2), Some(&Verdict::Unbuildable("no way".to_owned())));
        assert_eq!(again.get(3), None);
    }
}

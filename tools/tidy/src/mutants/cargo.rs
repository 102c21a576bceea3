//! Builds test binaries. Knows Cargo and where things are built, not what is tested.
//!
//! Tests run in copies of the workspace below the target directory, which have a target directory
//! of their own: the tree of the caller is never changed, and may be edited meanwhile. One copy has
//! all mutants of Rust in it, to be switched on ([`super::switched`]); what cannot be switched is
//! made in another copy, one at a time. Files of a copy are written only if they differ, so that
//! Cargo builds only what has changed.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A workspace and where it is built.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Its root.
    pub root: PathBuf,
    /// Its target directory.
    pub target: PathBuf,
}

/// Why there are no binaries.
#[derive(Debug)]
pub enum Trouble {
    /// The code does not build; what Cargo says.
    Code(String),
    /// Cargo or a file is not there.
    Io(io::Error),
}

impl Trouble {
    /// The first error of code that does not build.
    #[must_use]
    pub fn first_error(said: &str) -> &str {
        said.lines().find(|line| line.starts_with("error")).unwrap_or("cargo failed")
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Workspace {
    /// The workspace at a root, built where Cargo would build it.
    #[must_use]
    pub fn here(root: &Path) -> Self {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        Self { root: root.to_owned(), target: target.unwrap_or_else(|| root.join("target")) }
    }

    /// A copy of this workspace as it stands now, but with other texts for some files (by their
    /// paths below the root), built below the same target directory.
    ///
    /// # Errors
    /// If git cannot list the files, or one cannot be copied.
    pub fn copy(&self, called: &str, others: &HashMap<String, String>) -> io::Result<Self> {
        let scratch = self.target.join("mutants");
        let copy = Self { root: scratch.join(called), target: scratch.join("target") };
        let mut listed = Command::new("git");
        listed.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listed = listed.current_dir(&self.root).output()?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let paths: HashSet<&str> = listed.split_terminator('\0').collect();
        if paths.is_empty() {
            return Err(io::Error::other("git lists no files of the workspace"));
        }
        for path in &paths {
            let (from, to) = (self.root.join(path), copy.root.join(path));
            // A file that was removed and not committed yet, or a link.
            if !from.is_file() {
                continue;
            }
            fs::create_dir_all(to.parent().expect("below the root"))?;
            let text = match others.get(*path) {
                Some(text) => text.clone().into_bytes(),
                None => fs::read(&from)?,
            };
            if !fs::read(&to).is_ok_and(|there| there == text) {
                fs::copy(&from, &to)?;
                if others.contains_key(*path) {
                    fs::write(&to, text)?;
                }
            }
        }
        remove_others(&copy.root, &copy.root, &paths)?;
        Ok(copy)
    }

    /// The directory of the library.
    #[must_use]
    pub fn package(&self) -> PathBuf {
        self.root.join("crates/tenure")
    }

    /// A source file of the library, by its path below `src`.
    #[must_use]
    pub fn source(&self, file: &str) -> PathBuf {
        self.package().join("src").join(file)
    }

    /// Builds a test target, an integration test or `lib`, and tells where the binary is.
    ///
    /// # Errors
    /// If the code does not build, or Cargo cannot be run.
    pub fn build(&self, target: &str) -> Result<PathBuf, Trouble> {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "-p", "tenure", "--all-features", "--no-run"]);
        cargo.args(["--message-format", "json-render-diagnostics"]);
        match target {
            "lib" => cargo.arg("--lib"),
            test => cargo.args(["--test", test]),
        };
        // What `cargo run` says of `tidy`: build scripts that hear of it would run again each time.
        for (name, _) in std::env::vars_os() {
            if is_of_package(&name.to_string_lossy()) {
                cargo.env_remove(&name);
            }
        }
        let built = cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target).output()?;
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr).into_owned();
            return Err(Trouble::Code(said));
        }
        let stem = if target == "lib" { "tenure-" } else { &format!("{target}-") };
        let binary = executables(&String::from_utf8_lossy(&built.stdout))
            .into_iter()
            .find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(stem)));
        binary.ok_or_else(|| Trouble::Code(format!("cargo built no test {target}")))
    }
}

/// Whether Cargo sets this variable for the package that it runs.
fn is_of_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| variable.starts_with(prefix))
}

/// The executables that Cargo tells of.
fn executables(messages: &str) -> Vec<PathBuf> {
    let named = messages.lines().filter_map(|line| {
        let (_, rest) = line.split_once("\"executable\":\"")?;
        rest.split_once('"').map(|(path, _)| PathBuf::from(path))
    });
    named.collect()
}

/// Removes from a copy what the original no longer has.
fn remove_others(root: &Path, folder: &Path, paths: &HashSet<&str>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(root, &path, paths)?;
        } else if let Ok(below) = path.strip_prefix(root)
            && !paths.contains(&*below.to_string_lossy())
        {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::executables;

    #[test]
    fn executables_are_found_among_messages() {
        let messages = "{\"reason\":\"a\",\"executable\":null}\n\
                        {\"reason\":\"b\",\"executable\":\"/t/deps/redis-1a\",\"fresh\":true}\n";
        assert_eq!(executables(messages), [std::path::Path::new("/t/deps/redis-1a")]);
    }
}

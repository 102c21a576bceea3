//! Runs a suite of tests, a part of a test binary, until its first failure. Knows processes and the
//! output of test binaries, not mutants.
//!
//! The process gets a group of its own. Its lines are read as they come: the first `... FAILED` is
//! the answer, and the group is killed, since a run with a mistake in it may hang or take long to
//! fail everywhere. A process that ends badly without having failed a test has crashed; one that
//! goes on beyond the limit is killed too, and the first test that had not ended is named. Servers
//! that tests have started die with them.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A part of a test binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Suite {
    /// The name of the integration test, or `lib` for the unit tests.
    pub target: &'static str,
    /// What the names of its tests contain.
    pub filter: &'static str,
}

impl Suite {
    /// Whether its binary has a harness of its own, which takes one filter.
    #[must_use]
    pub fn is_mimic(&self) -> bool {
        self.target == "conformance"
    }
}

/// How a run of a suite ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every test passed, and there was one.
    Passed,
    /// This test failed; and what was printed.
    Failed(String, String),
    /// The limit passed while this test, and maybe others, ran.
    Hung(String),
}

/// How a suite is run.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The test binary.
    pub binary: &'a Path,
    /// The directory of the package, where Cargo would run it.
    pub package: &'a Path,
    /// The directory from which the library takes scripts and SQL, if it has them.
    pub texts: Option<&'a Path>,
    /// Whether the binary takes one argument with commas between names.
    pub one_filter: bool,
    /// The mutant that is switched on, see [`super::switched`].
    pub mutant: Option<u64>,
    /// When a run is ended.
    pub limit: Duration,
}

impl Run<'_> {
    /// Runs the tests whose names contain one of these, or are called so.
    ///
    /// # Errors
    /// If the binary cannot be started.
    pub fn until_failure(&self, names: &[&str], exact: bool) -> io::Result<Outcome> {
        let alone = exact && names.len() == 1;
        let mut command = self.command();
        command.args(self.filters(names)).args(exact.then_some("--exact"));
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().expect("piped");
        let (send, lines) = channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let began = Instant::now();
        let (mut ended, mut said, mut failed) = (HashSet::new(), String::new(), None);
        let hung = loop {
            let left = self.limit.saturating_sub(began.elapsed());
            match lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some((test, fine)) = parse(&line) {
                        ended.insert(test.to_owned());
                        if !fine {
                            failed = Some(test.to_owned());
                        }
                    }
                    said.push_str(&line);
                    said.push('\n');
                    // One that runs alone has its story printed behind it.
                    if failed.is_some() && !alone {
                        break false;
                    }
                }
                Err(RecvTimeoutError::Timeout) => break true,
                Err(RecvTimeoutError::Disconnected) => break false,
            }
        };
        if hung || (failed.is_some() && !alone) {
            kill_group(child.id());
        }
        let status = child.wait()?;
        drop(lines);
        drop(reader);
        if let Some(test) = failed {
            return Ok(Outcome::Failed(test, said));
        }
        if hung {
            let tests = self.list(names, exact)?;
            let open = tests.into_iter().find(|test| !ended.contains(test));
            return Ok(Outcome::Hung(open.unwrap_or_else(|| "no test, at the end".to_owned())));
        }
        if !status.success() || ended.is_empty() {
            let test = format!("{}: {status}, {} tests ran", self.binary.display(), ended.len());
            return Ok(Outcome::Failed(test, said));
        }
        Ok(Outcome::Passed)
    }

    /// The names as the binary takes them.
    fn filters(&self, names: &[&str]) -> Vec<String> {
        if self.one_filter {
            return vec![names.join(",")];
        }
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn list(&self, names: &[&str], exact: bool) -> io::Result<Vec<String>> {
        let exact = exact.then_some("--exact");
        let filters = self.filters(names);
        let listed = self.command().arg("--list").args(filters).args(exact).output()?;
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.binary);
        command.current_dir(self.package).env("CARGO_MANIFEST_DIR", self.package);
        // As in test.sh: stores that sync every write are many times faster in memory.
        if std::env::var_os("TENURE_TEST_HOME").is_none() && Path::new("/dev/shm").is_dir() {
            command.env("TENURE_TEST_HOME", "/dev/shm");
        }
        // A shared PostgreSQL starts from a copy of an empty one, which is kept beside the copies
        // of the workspace.
        if let Some(scratch) = self.package.ancestors().nth(3) {
            command.env("TENURE_TEST_INITDB", scratch.join("initdb"));
        }
        match self.texts {
            Some(texts) => command.env("TENURE_TEXTS", texts),
            None => command.env_remove("TENURE_TEXTS"),
        };
        match self.mutant {
            Some(number) => command.env("TENURE_MUTANT", number.to_string()),
            None => command.env_remove("TENURE_MUTANT"),
        };
        command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command
    }
}

/// The test that a line of output tells the end of, and whether it passed.
fn parse(line: &str) -> Option<(&str, bool)> {
    let (test, how) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let fine = match how.trim_end() {
        "ok" => true,
        "FAILED" => false,
        _ => return None,
    };
    Some((test.trim_end(), fine))
}

fn kill_group(leader: u32) {
    // A process that has just ended by itself is no trouble.
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{leader}")]).status();
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use super::{Outcome, Run};

    /// A test binary that does this.
    fn binary(name: &str, does: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tidy-suite-{name}-{}", std::process::id()));
        let lists = r#"if [ "$1" = --list ]; then printf 'a: test\nb: test\n'; exit; fi"#;
        fs::write(&path, format!("#!/bin/sh\n{lists}\n{does}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        path
    }

    fn run(name: &str, does: &str, limit: Duration) -> Outcome {
        let binary = binary(name, does);
        let package = Path::new("/");
        let texts = Some(Path::new("/texts"));
        let run =
            Run { binary: &binary, package, texts, one_filter: false, mutant: Some(7), limit };
        let outcome = run.until_failure(&[], false).unwrap();
        fs::remove_file(&binary).unwrap();
        outcome
    }

    #[test]
    fn the_first_failure_ends_the_run_and_names_the_test() {
        let long = Duration::from_secs(600);
        let does = "echo 'test a ... ok'; echo 'test b ... FAILED'; exec sleep 600";
        let Outcome::Failed(test, _) = run("fails", does, long) else { panic!("it failed") };
        assert_eq!(test, "b");
        assert_eq!(run("passes", "echo \"test a$TENURE_X ... ok\"", long), Outcome::Passed);
        let Outcome::Failed(crash, _) = run("crashes", "echo 'test a ... ok'; exit 3", long) else {
            panic!("it crashed")
        };
        assert!(crash.ends_with("exit status: 3, 1 tests ran"), "{crash}");
        assert!(matches!(run("empty", "true", long), Outcome::Failed(..)), "no test ran");
    }

    #[test]
    fn a_run_beyond_the_limit_is_ended_and_the_test_that_hangs_is_named() {
        let does = "echo 'test a ... ok'; exec sleep 600";
        assert_eq!(run("hangs", does, Duration::from_millis(300)), Outcome::Hung("b".to_owned()));
    }

    #[test]
    fn the_library_is_told_where_texts_are_and_which_mutant_is_on() {
        let does = "echo \"test $TENURE_TEXTS $TENURE_MUTANT ... FAILED\"";
        let Outcome::Failed(test, _) = run("told", does, Duration::from_secs(60)) else {
            panic!("it failed")
        };
        assert_eq!(test, "/texts 7");
    }
}

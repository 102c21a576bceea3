//! The whole `tenure run x -- true`, from the shell's point of view, beside `flock file true`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;
use tenure::{Error, ErrorKind};

use crate::engines::embedded::failed;
use crate::figure::Figure;
use crate::run::{Bench, Run};
use crate::stats::{median, micros};

pub(crate) fn benches() -> Vec<Bench> {
    vec![Bench::new(&["run_true"], |run| {
        let directory = tempfile::tempdir();
        run_true(run, &directory.map_err(|error| failed("cannot make a directory", error))?)
    })]
}

/// One run of each in turn, so that both meet the same machine.
fn run_true(run: &Run, directory: &TempDir) -> Result<Vec<Figure>, Error> {
    let times = run.count(5, 400);
    let tenure = binary()?;
    let url = format!("embedded://{}/store", directory.path().display());
    let ours = || {
        let mut command = Command::new(&tenure);
        command.args(["--url", &url, "run", "x", "--", "true"]);
        command
    };
    let theirs = || {
        let mut command = Command::new("flock");
        command.arg(directory.path().join("flock")).arg("true");
        command
    };
    // The first one makes the store.
    timed(ours())?;
    timed(theirs())?;
    let (mut runs, mut flocks) = (Vec::new(), Vec::new());
    for time in 0..times {
        runs.push(timed(ours())?);
        flocks.push(timed(theirs())?);
        run.progress.step(time + 1, times);
    }
    let figure = Figure::new("run_true", median(&runs), "us", "x flock file true; aim <= 3");
    Ok(vec![figure.relative_to(median(&flocks))])
}

fn timed(mut command: Command) -> Result<f64, Error> {
    command.stdin(Stdio::null()).env_remove("TENURE_OWNER");
    let start = Instant::now();
    let status = command.status().map_err(|error| failed("cannot start a command", error))?;
    let took = micros(start.elapsed());
    if status.success() {
        return Ok(took);
    }
    Err(Error::new(ErrorKind::Unavailable, format!("{command:?} failed: {status}")))
}

/// The command beside this program. Cargo brings it up to date, where Cargo has started us to
/// measure.
fn binary() -> Result<PathBuf, Error> {
    let here = std::env::current_exe().map_err(|error| failed("cannot find myself", error))?;
    let binary = here.with_file_name("tenure");
    if let Some(cargo) = std::env::var_os("CARGO").filter(|_| !cfg!(debug_assertions)) {
        let manifest =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/tenure-cli/Cargo.toml");
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--release", "--manifest-path"]).arg(manifest);
        timed(build)?;
    }
    if binary.exists() {
        return Ok(binary);
    }
    let what = format!("there is no {}", binary.display());
    Err(Error::new(ErrorKind::Unavailable, what).with_help("build it: cargo build -p tenure-cli"))
}

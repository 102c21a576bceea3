//! Every snippet of the command's page and of the recipes runs, and does what it says.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use common::{Place, code, eventually, output, stderr, stdout};
use rustix::process::Signal;

/// The blocks of one language under a heading of a page; under the whole page if there is none.
fn blocks(page: &str, heading: Option<&str>, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(path).expect("a page");
    let mut found: Vec<String> = Vec::new();
    let (mut inside, mut under) = (false, heading.is_none());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ").filter(|_| !inside) {
            under = heading.is_none_or(|heading| title == heading);
        } else if let Some(after) = line.strip_prefix("```") {
            inside = !inside && after == language && under;
            found.extend(inside.then(String::new));
        } else if inside && let Some(block) = found.last_mut() {
            block.push_str(line);
            block.push('\n');
        }
    }
    assert!(!found.is_empty(), "{page}: no {language} under {heading:?}");
    found
}

fn block(heading: &str) -> String {
    blocks("recipes.md", Some(heading), "sh").swap_remove(0)
}

/// A place where the programs that the pages speak of are there, and say what they were told.
fn furnished() -> Place {
    let place = Place::embedded();
    for program in
        ["make", "ffmpeg", "deploy.sh", "nightly.sh", "read-config", "write-config", "transfer"]
    {
        script(&place, program, "echo \"$(basename \"$0\") $*\" >> done\n");
    }
    place
}

fn script(place: &Place, name: &str, text: &str) {
    let path = place.write(name, &format!("#!/bin/sh\n{text}"));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a script");
}

fn shell(place: &Place, text: &str) -> Command {
    let mut command = place.shell(&format!("set -eu; PATH=.:$PATH\n{text}"));
    command.env("LC_ALL", "C");
    command
}

fn run(place: &Place, text: &str) -> Output {
    output(&mut shell(place, text))
}

#[test]
fn every_snippet_runs() {
    for page in ["cells.md", "command.md", "jobs.md", "ordering.md", "rates.md", "recipes.md"] {
        for snippet in blocks(page, None, "sh") {
            let output = run(&furnished(), &snippet);
            assert!(output.status.success(), "{page}: {snippet}\n{output:?}");
        }
    }
}

#[test]
fn the_config_file_of_the_page_is_one() {
    let place = furnished();
    let file = place.write("tenure.toml", &blocks("command.md", None, "toml").swap_remove(0));
    let arguments = ["run", "x", "--preset", "nightly", "-c", "echo $TENURE_NAMESPACE"];
    let output = output(place.tenure(&arguments).env("TENURE_CONFIG", file));
    assert_eq!(stdout(&output), "staging\n", "{output:?}");
}

#[test]
fn the_table_of_the_page_on_ordering_is_one() {
    let place = furnished();
    let file = place.write("tenure.toml", &blocks("ordering.md", None, "toml").swap_remove(0));
    let nested = "tenure run account:1 -- tenure run account:2 -- echo done";
    let output = output(place.shell(nested).env("TENURE_CONFIG", file));
    assert_eq!(stdout(&output), "", "{output:?}");
    assert!(stderr(&output).contains("of level \"account\""), "{output:?}");
}

#[test]
fn a_cron_job_does_not_overlap_and_says_nothing_about_it() {
    let place = furnished();
    script(&place, "nightly.sh", "echo started >> log; sleep 600\n");
    let recipe = block("A cron job that must not overlap");
    let first = shell(&place, &recipe).spawn().unwrap();
    eventually("it starts", || place.read("log") == "started\n");
    let output = run(&place, &recipe);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!((stdout(&output), stderr(&output)), (String::new(), String::new()));
    assert_eq!(place.read("log"), "started\n", "the second one did not run");
    rustix::process::kill_process(rustix::process::Pid::from_child(&first), Signal::TERM).unwrap();
    code(first);
}

#[test]
fn a_deployment_waits_for_the_one_before() {
    let place = furnished();
    script(&place, "deploy.sh", "echo begin >> log; sleep 0.3; echo end >> log\n");
    let recipe = block("A deploy lock");
    let first = shell(&place, &recipe).spawn().unwrap();
    eventually("it starts", || place.read("log") == "begin\n");
    let label = place.says_json(&["show", "deploy", "--json"])["holders"][0]["label"].clone();
    assert!(label.as_str().unwrap().starts_with("deploy by "), "{label}");
    assert!(run(&place, &recipe).status.success());
    assert_eq!(code(first), Some(0));
    assert_eq!(place.read("log"), "begin\nend\nbegin\nend\n");
}

#[test]
fn no_more_than_three_encoders_run_at_once() {
    let place = furnished();
    let count = "mkdir -p now; touch now/$$; ls now | wc -l >> counts; sleep 0.3; rm now/$$\n";
    script(&place, "ffmpeg", count);
    let output = run(&place, &block("At most three encoders"));
    assert!(output.status.success(), "{}", stderr(&output));
    let counts = place.read("counts");
    let counts: Vec<u32> = counts.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(counts.len(), 5);
    assert_eq!(counts.iter().max(), Some(&3), "{counts:?}");
}

/// What systemd does with a unit, as far as `tenure` can tell: it starts the line, signals all
/// processes of the unit, and reads the exit code.
#[test]
fn the_unit_of_systemd_starts_one_worker_and_stops_it() {
    let place = furnished();
    let unit = blocks("recipes.md", Some("A systemd unit"), "ini").swap_remove(0);
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
        line.expect(key).to_owned()
    };
    script(
        &place,
        "worker",
        "trap 'echo stopped >> log; exit 0' TERM\n\
         echo started >> log\n\
         while :; do sleep 0.05; done\n",
    );
    let line = value("ExecStart").replace("/usr/local/bin/", "");
    let words: Vec<&str> = line.split(' ').collect();
    let start = || {
        let mut command = place.tenure(&words[1..]);
        command.env("PATH", format!("{}:/usr/bin:/bin", place.file("").display()));
        command
    };
    let first = start().spawn().unwrap();
    eventually("it starts", || place.read("log") == "started\n");
    let mut second = start();
    second.arg("--help"); // after `--`, so it is the worker's
    let second = second.spawn().unwrap();
    place.wait_for_line("worker", 1);
    rustix::process::kill_process(rustix::process::Pid::from_child(&second), Signal::TERM).unwrap();
    assert_eq!(code(second), Some(143));
    rustix::process::kill_process(rustix::process::Pid::from_child(&first), Signal::TERM).unwrap();
    assert_eq!(code(first), Some(0));
    assert_eq!(place.read("log"), "started\nstopped\n");
    assert_eq!(value("SuccessExitStatus"), "75");
    assert_eq!(value("RestartForceExitStatus"), "69 123");
}

#[test]
fn a_smaller_fence_is_refused() {
    let place = furnished();
    let recipe = block("A write that a late writer cannot undo");
    assert!(run(&place, &recipe).status.success());
    assert!(run(&place, &recipe).status.success());
    place.write("report.fence", "9007199254740992\n");
    assert_eq!(run(&place, &recipe).status.code(), Some(1));
}

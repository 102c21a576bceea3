//! The command as its users meet it. Runs the real binary and reads like a manual.

use std::process::{Command, Output};

use serde_json::{Value, json};

/// Runs `tenure` with these arguments.
fn tenure(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).args(arguments).output().expect("tenure starts")
}

/// What it printed, when it must have succeeded and said nothing else.
fn says(arguments: &[&str]) -> String {
    let output = tenure(arguments);
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn says_json(arguments: &[&str]) -> Value {
    serde_json::from_str(&says(arguments)).expect("JSON")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn help_leads_with_examples() {
    for arguments in
        [&["--help"][..], &["version", "--help"], &["promises", "--help"], &["check-name", "-h"]]
    {
        let help = says(arguments);
        let (examples, usage) = (help.find("Examples:"), help.find("Usage:"));
        assert!(examples.is_some() && examples < usage, "{help}");
    }
}

#[test]
fn the_examples_of_the_help_work() {
    let help = says(&["--help"]);
    let examples = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let mut tried = 0;
    for example in examples.take_while(|line| line.starts_with("  tenure ")) {
        let command = example.trim().split("  ").next().unwrap_or_default();
        let arguments: Vec<&str> = command.split(' ').skip(1).collect();
        says(&arguments);
        tried += 1;
    }
    assert_eq!(tried, 3, "{help}");
}

#[test]
fn version_names_the_engines_that_are_built_in() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(says(&["version"]), format!("tenure {version}\nengines: embedded, memory\n"));
    assert_eq!(says(&["--version"]), format!("tenure {version}\n"));
    assert_eq!(
        says_json(&["version", "--json"]),
        json!({ "schema_version": 1, "version": version, "engines": ["embedded", "memory"] })
    );
}

#[test]
fn promises_are_a_table_for_people() {
    assert_eq!(
        says(&["promises"]),
        "\
engine    fencing        queue  read-write  semaphores  sets  wake  survives      drift
embedded  strict         yes    yes         yes         yes   push  client-crash  0%
memory    clock-bounded  yes    yes         yes         yes   push  -             0%

What the fences rest on:
  embedded  a high-water mark on disk, reserved ahead and synced
  memory    a counter in this process; across processes the wall clock
"
    );
}

#[test]
fn promises_are_json_for_scripts() {
    let promises = says_json(&["promises", "--json"]);
    assert_eq!(promises["engines"][0]["engine"], "embedded");
    assert_eq!(promises["engines"][0]["survives"], json!(["client-crash"]));
    assert_eq!(promises["schema_version"], 1);
    assert_eq!(
        promises["engines"][1],
        json!({
                "engine": "memory",
                "fencing": "clock-bounded",
                "fencing_rests_on": "a counter in this process; across processes the wall clock",
                "queue": true,
                "sharing": true,
                "counting": true,
                "atomic_sets": true,
                "wake": "push",
                "survives": [],
                "drift_percent": 0,
        })
    );
}

#[test]
fn json_is_one_line_that_begins_with_the_version_of_its_shape() {
    for command in ["version", "promises"] {
        let text = says(&[command, "--json"]);
        assert!(text.starts_with("{\"schema_version\":1,"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn a_good_name_is_answered_by_the_exit_code_alone() {
    for name in ["account:17", "naïve 名前", "*", "-n", "--help-me"] {
        assert_eq!(says(&["check-name", name]), "", "{name:?}");
    }
}

#[test]
fn a_bad_name_gets_a_reason_that_helps() {
    let long = "x".repeat(256);
    for (name, reason) in [
        ("", "tenure: a name must not be empty; choose a printable text"),
        (&long, "tenure: a name has at most 255 bytes, this one has 256"),
        ("two\nlines", "byte 3 is U+000A"),
    ] {
        let output = tenure(&["check-name", name]);
        assert_eq!(output.status.code(), Some(1), "{name:?}");
        assert_eq!(output.stdout, b"", "{name:?}");
        let stderr = stderr(&output);
        assert!(stderr.contains(reason), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn a_command_that_makes_no_sense_exits_with_2() {
    for arguments in [&["lokc"][..], &["version", "--jsn"], &["check-name"], &[]] {
        let output = tenure(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
        assert!(stderr(&output).contains("Usage:"), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = command.arg("promises").stdout(writer).output().expect("tenure starts");
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}

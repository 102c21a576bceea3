//! The command as its users meet it: help, names, promises, papers, configuration. Runs the real
//! binary and reads like a manual.

mod common;

use std::process::Command;

use common::{Place, stderr, stdout};
use serde_json::json;

#[test]
fn help_leads_with_examples() {
    let place = Place::memory();
    let all = place.says(&["--help"]);
    let commands: Vec<&str> = all
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|word| !word.is_empty())
        .collect();
    let expected = [
        "run",
        "hold",
        "acquire",
        "renew",
        "release",
        "wait",
        "ls",
        "show",
        "leader",
        "watch",
        "graph",
        "deadlocks",
        "sessions",
        "cells",
        "order",
        "push",
        "work",
        "jobs",
        "rate",
        "force-release",
        "raise-fences",
        "doctor",
        "migrate",
        "promises",
        "presets",
        "check-name",
        "completions",
        "man",
        "version",
    ];
    assert_eq!(commands, expected, "{all}");
    for command in commands {
        let help = place.says(&[command, "--help"]);
        let (examples, usage) = (help.find("Examples:"), help.find("Usage:"));
        assert!(examples.is_some() && examples < usage, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}

#[test]
fn help_never_shows_a_password_from_the_environment() {
    let place = Place::memory();
    let output = place.tenure(&["run", "--help"]).env("TENURE_URL", "redis://u:secret@h").output();
    assert!(!stdout(&output.unwrap()).contains("secret"));
}

#[test]
fn version_names_the_engines_that_are_built_in() {
    let place = Place::memory();
    let version = env!("CARGO_PKG_VERSION");
    let engines = [
        "embedded",
        "etcd",
        "memory",
        "postgres",
        "redis",
        "redis+sentinel",
        "redis+cluster",
        "redlock",
    ];
    let listed = engines.join(", ");
    assert_eq!(place.says(&["version"]), format!("tenure {version}\nengines: {listed}\n"));
    assert_eq!(place.says(&["--version"]), format!("tenure {version}\n"));
    assert_eq!(
        place.says_json(&["version", "--json"]),
        json!({ "schema_version": 1, "version": version, "engines": engines })
    );
}

/// Columns are told apart by two spaces and more.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn promises_are_a_table_for_people() {
    let said = Place::memory().says(&["promises"]);
    let (table, rest) = said.split_once("\n\nWhat the fences rest on:\n").unwrap();
    let (rests_on, rest) = rest.split_once("\n\nWhat lists of cells rest on:\n").unwrap();
    let (lists, rest) = rest.split_once("\n\nWithout rates:\n").unwrap();
    let (without_rates, replicas) = rest.split_once("\n\n").unwrap();
    let wanted = |lines: &'static str| lines.lines().map(cells).collect::<Vec<_>>();
    let rows = wanted(
        "\
engine  fencing  queue  read-write  semaphores  sets  jobs  deadlocks  rates  wake  \
survives  replicas  drift
embedded  strict  yes  yes  yes  yes  yes  broken  yes  push  client-crash  no  0%
etcd  strict  yes  yes  yes  yes  no  broken  no  push  \
client-crash store-restart power-loss node-loss  no  10%
memory  clock-bounded  yes  yes  yes  yes  yes  broken  yes  push  -  no  0%
postgres  clock-bounded  yes  yes  yes  yes  yes  broken  yes  push  \
client-crash store-restart power-loss  no  10%
redis  clock-bounded  yes  yes  yes  yes  yes  broken  yes  push  client-crash  yes  10%
redis+sentinel  clock-bounded  yes  yes  yes  yes  yes  broken  yes  push  client-crash  yes  10%
redis+cluster  clock-bounded  yes  yes  yes  no  yes  reported  yes  push  client-crash  yes  10%
redlock  clock-bounded  no  no  no  no  no  unseen  no  poll  client-crash node-loss  no  10%",
    );
    assert_eq!(table.lines().map(cells).collect::<Vec<_>>(), rows);
    let reasons = wanted(
        "\
embedded  a high-water mark on disk, reserved ahead and synced
etcd  the cluster's revision; a restored backup is noticed and refused
memory  a counter in this process; across processes the wall clock
postgres  a sequence in the database; where commits are lost the server's wall clock
redis  a counter in the store; after a loss of its memory the store's wall clock
redis+sentinel  a counter in the store; after a fail-over that lost writes the wall clocks \
of the old primary and of the new one
redis+cluster  a counter for each name, kept for an hour after its last use, and the wall clock; \
no floor for the namespace, and a fail-over may lose the last grants
redlock  counters at a majority of nodes; for nodes that keep no append-only file, after a \
restart the nodes' clocks",
    );
    assert_eq!(rests_on.lines().map(cells).collect::<Vec<_>>(), reasons);
    let read = wanted(
        "\
embedded  the order of keys in the file
etcd  the order of keys, a range at a time
memory  a sorted map in this process
postgres  an index of the table
redis  an index of names in the store
redis+sentinel  an index of names in the store
redis+cluster  a scan of all keys of every primary, for each list and each look of a prefix watch",
    );
    assert_eq!(lists.lines().map(cells).collect::<Vec<_>>(), read);
    let without = wanted(
        "\
etcd  etcd has no clock that a transaction could read, so no window can be exact: use the memory, \
embedded, redis or postgres engine
redlock  majorities of N nodes admit up to N / q times the limit, q being the majority: use the \
memory, embedded, redis or postgres engine",
    );
    assert_eq!(without_rates.lines().map(cells).collect::<Vec<_>>(), without);
    assert_eq!(
        replicas,
        "What replicas are for: with --replicas N a lock is held only once N of them have it, so \
that a\nfail-over to one of these does not forget it. They do not make fences strict.\n"
    );
}

#[test]
fn promises_are_json_for_scripts() {
    let promises = Place::memory().says_json(&["promises", "--json"]);
    assert_eq!(promises["engines"][0]["engine"], "embedded");
    assert_eq!(promises["engines"][0]["survives"], json!(["client-crash"]));
    assert_eq!(promises["schema_version"], 1);
    let engines = promises["engines"].as_array().unwrap();
    assert_eq!(
        *engines.iter().find(|one| one["engine"] == "memory").unwrap(),
        json!({
                "engine": "memory",
                "fencing": "clock-bounded",
                "fencing_rests_on": "a counter in this process; across processes the wall clock",
                "fence_floor": true,
                "queue": true,
                "sharing": true,
                "counting": true,
                "atomic_sets": true,
                "cells": true,
                "lists_rest_on": "a sorted map in this process",
                "jobs": true,
                "deadlocks": "broken",
                "rates": true,
                "no_rates_because": "",
                "wake": "push",
                "survives": [],
                "replicas": false,
                "drift_percent": 0,
        })
    );
}

#[test]
fn presets_are_listed_and_a_built_in_one_is_shortened_to_max_lease() {
    let place = Place::memory();
    let presets = place.says_json(&["presets", "--json", "--max-lease", "20s"]);
    let batch = |presets: &serde_json::Value| {
        let all = presets["presets"].as_array().unwrap().clone();
        all.into_iter().find(|preset| preset["name"] == "batch").unwrap()
    };
    assert_eq!(
        batch(&presets),
        json!({
            "name": "batch",
            "lease_ms": 20_000,
            "wait_ms": null,
            "max_hold_ms": 43_200_000,
            "lock_delay_ms": 0,
            "shortened_from_ms": 60_000,
        })
    );
    let own = batch(&place.says_json(&["presets", "--json"]));
    assert_eq!((&own["lease_ms"], &own["shortened_from_ms"]), (&json!(60_000), &json!(null)));
    let said = place.says(&["presets", "-o", "table", "--max-lease", "20s"]);
    assert!(said.contains("20s (of 1m, by max_lease)"), "{said}");
    place.says(&["run", "reports", "--preset", "batch", "--max-lease", "20s", "--", "true"]);
}

#[test]
fn json_is_one_line_that_begins_with_the_version_of_its_shape() {
    for command in ["version", "promises"] {
        let text = Place::memory().says(&[command, "--json"]);
        assert!(text.starts_with("{\"schema_version\":1,"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn a_good_name_is_answered_by_the_exit_code_alone() {
    for name in ["account:17", "naïve 名前", "*", "-n", "--help-me"] {
        assert_eq!(Place::memory().says(&["check-name", name]), "", "{name:?}");
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
        let output = Place::memory().run(&["check-name", name]);
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
        let output = Place::memory().run(arguments);
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

#[test]
fn completions_come_for_five_shells() {
    let place = Place::memory();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.says(&["completions", shell]);
        assert!(script.contains("tenure") && script.contains("check-name"), "{shell}");
    }
    let script = place.write("completions", &place.says(&["completions", "bash"]));
    let checked = Command::new("bash").arg("-n").arg(script).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let place = Place::memory();
    assert!(place.says(&["man"]).contains(".TH tenure 1"));
    place.says(&["man", "--dir", "man1"]);
    for page in ["tenure.1", "tenure-run.1", "tenure-force-release.1", "tenure-check-name.1"] {
        assert!(place.read(&format!("man1/{page}")).contains(".SH"), "{page}");
    }
    assert!(place.read("man1/tenure-run.1").contains("max\\-hold"));
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_profile() {
    let place = Place::memory();
    let config = place.write(
        "tenure.toml",
        "profile = \"a\"\n\
         [profiles.a]\nnamespace = \"from-a\"\n\
         [profiles.b]\nnamespace = \"from-b\"\n",
    );
    let namespace = |arguments: &[&str], set: Option<&str>| {
        let mut all = vec!["run", "x"];
        all.extend(arguments);
        all.extend(["-c", "echo $TENURE_NAMESPACE"]);
        let mut command = place.tenure(&all);
        command.env("TENURE_CONFIG", &config);
        if let Some(value) = set {
            command.env("TENURE_NAMESPACE", value);
        }
        stdout(&command.output().unwrap()).trim().to_owned()
    };
    assert_eq!(namespace(&[], None), "from-a");
    assert_eq!(namespace(&["--profile", "b"], None), "from-b");
    assert_eq!(namespace(&[], Some("from-env")), "from-env");
    assert_eq!(namespace(&["--namespace", "from-flag"], Some("from-env")), "from-flag");
}

#[test]
fn the_config_file_is_found_at_its_usual_place() {
    let place = Place::memory();
    std::fs::create_dir_all(place.file(".config/tenure")).unwrap();
    place.write(".config/tenure/config.toml", "[presets.nightly]\nlease = \"12s\"\n");
    let lease = ["run", "x", "--preset", "nightly", "-c", "echo $TENURE_LEASE_MS"];
    assert_eq!(place.says(&lease), "12000\n");
}

#[test]
fn a_mistake_in_the_config_file_is_an_error_that_names_it() {
    let place = Place::memory();
    let config = place.write("tenure.toml", "[profiles.a]\nulr = \"memory:\"\n");
    let config = config.to_str().unwrap();
    let output = place.run(&["ls", "--config", config]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains(config) && said.contains("ulr") && said.contains("line 2"), "{said}");
    assert_eq!(place.code(&["run", "x", "--config", config, "--", "true"]), 125);
    assert_eq!(place.code(&["doctor", "--config", config]), 1);
}

#[test]
fn doctor_finds_nothing_wrong_where_nothing_is() {
    let place = Place::embedded();
    let said = place.says(&["doctor"]);
    for check in ["process", "clock", "config", "store", "round trip", "lock", "fences", "crashes"]
    {
        assert!(said.contains(check), "{check}: {said}");
    }
    assert!(!said.contains("bad"), "{said}");
    let findings = place.says_json(&["doctor", "--json"]);
    assert_eq!(findings["schema_version"], 1);
    assert_eq!(findings["findings"][0]["state"], "ok");
}

#[test]
fn colours_are_for_terminals_and_for_those_who_ask() {
    let place = Place::embedded();
    assert!(!place.says(&["doctor"]).contains('\u{1b}'));
    assert!(place.says(&["doctor", "--color", "always"]).contains('\u{1b}'));
    let output = place.tenure(&["doctor"]).env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(stdout(&output).contains('\u{1b}'));
    let output =
        place.tenure(&["doctor"]).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output().unwrap();
    assert!(!stdout(&output).contains('\u{1b}'));
}

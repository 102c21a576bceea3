//! The house rules on the real tree. Knows which check looks at which files, not what they check.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tidy::tree::{File, root, text_files};
use tidy::{
    arrows, dialect, docs, features, links, manifest, mutants, promises, rooms, size, temporary,
    types, words,
};

/// Runs a check on every chosen file and prints all complaints at once.
fn check(chosen: fn(&File) -> bool, check: fn(&str, &str) -> Vec<String>) {
    let files = text_files(&root()).expect("the workspace can be read");
    let mut looked_at = 0;
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| chosen(file)) {
        looked_at += 1;
        complaints.extend(check(&file.path, &file.text));
    }
    assert!(looked_at > 0, "no file was looked at; did the tree move?");
    assert!(complaints.is_empty(), "{} to tidy:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn every_file_fits_the_eye() {
    check(File::is_rust, size::file_lines);
}

#[test]
fn every_line_fits_the_screen() {
    check(File::is_rust, size::columns);
}

#[test]
fn every_line_of_prose_fits_the_screen() {
    check(File::is_page, size::prose_columns);
}

#[test]
fn every_function_can_be_read_in_one_look() {
    check(File::is_rust, size::function_lines);
}

#[test]
fn every_file_says_what_it_knows() {
    check(File::is_rust, size::first_line);
}

#[test]
fn no_example_and_no_test_has_a_fixed_path() {
    let chosen = |file: &File| {
        let is_check = file.path == "tools/tidy/src/temporary.rs";
        let is_page = Path::new(&file.path).extension().is_some_and(|end| end == "md");
        (file.is_rust() || is_page) && !is_check
    };
    check(chosen, temporary::fixed_paths);
}

#[test]
fn imports_follow_the_arrows() {
    check(File::is_rust, arrows::imports);
}

#[test]
fn the_rules_are_pure_and_one_room_reads_the_clock() {
    check(File::is_rust, arrows::purity);
}

#[test]
fn every_dependency_says_why_it_is_there() {
    check(File::is_manifest, manifest::reasons);
}

#[test]
fn nothing_is_unfinished_and_no_test_is_switched_off() {
    check(File::is_rust, words::unfinished);
}

#[test]
fn no_text_speaks_of_internal_tooling() {
    check(|_| true, words::tooling);
}

#[test]
fn every_link_leads_somewhere() {
    check(File::is_page, |path, text| links::dead(&root(), path, text));
}

#[test]
fn every_public_async_function_answers_the_same_questions() {
    check(File::is_rust, docs::async_headings);
}

#[test]
fn comments_name_what_acts() {
    check(|file| file.is_rust() || file.is_script(), dialect::persons);
}

#[test]
fn every_engine_has_the_same_files() {
    let files = text_files(&root()).expect("the workspace can be read");
    let complaints = rooms::engine_files(files.iter().map(|file| file.path.as_str()));
    assert!(complaints.is_empty(), "{} to tidy:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn an_engine_enables_what_it_uses_of_tokio() {
    let files = text_files(&root()).expect("the workspace can be read");
    let manifest = files.iter().find(|file| file.path == "crates/tenure/Cargo.toml");
    let manifest = &manifest.expect("the library has a manifest").text;
    let rust = files.iter().filter(|file| file.is_rust());
    let complaints =
        features::tokio(manifest, rust.map(|file| (file.path.as_str(), file.text.as_str())));
    assert!(complaints.is_empty(), "{} to tidy:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn a_type_name_has_one_meaning_in_a_crate() {
    let files = text_files(&root()).expect("the workspace can be read");
    let rust = files.iter().filter(|file| file.is_rust());
    let complaints = types::doubles(rust.map(|file| (file.path.as_str(), file.text.as_str())));
    assert!(complaints.is_empty(), "{} to tidy:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn the_promises_are_the_same_everywhere_and_every_citation_resolves() {
    let read = |path| std::fs::read_to_string(root().join(path)).expect(path);
    let model = promises::in_model(&read(promises::MODEL));
    assert!(!model.is_empty(), "no promise was found; did the page move?");
    assert_eq!(promises::in_data(&read(promises::DATA)), model);
    let files = text_files(&root()).expect("the workspace can be read");
    let cited = |file: &File| promises::unresolved(&file.path, &file.text, model.len());
    // The check's own tests cite promises that do not exist.
    let others = files.iter().filter(|file| file.path != "tools/tidy/src/promises.rs");
    let complaints: Vec<_> = others.flat_map(cited).collect();
    assert!(complaints.is_empty(), "{} to tidy:\n{}", complaints.len(), complaints.join("\n"));
}

/// Runs a shell script as Cargo would run a test binary at this path, once for each list of
/// arguments.
fn run_under_the_runner(path: &str, script: &str, runs: [&[&str]; 2]) -> [Output; 2] {
    let dir = std::env::temp_dir().join(format!("tidy-{}-{}", std::process::id(), path.len()));
    let binary = dir.join(path);
    std::fs::create_dir_all(binary.parent().unwrap()).unwrap();
    std::fs::write(&binary, script).unwrap();
    std::fs::set_permissions(&binary, Permissions::from_mode(0o700)).unwrap();
    let outputs = runs.map(|arguments| {
        let mut runner = Command::new(root().join(".ci/test-runner"));
        runner.arg(&binary).args(arguments).env("TENURE_TEST_LIMIT", "1").output().unwrap()
    });
    std::fs::remove_dir_all(dir).unwrap();
    outputs
}

/// A test binary: three tests end, one hangs. The name of one is padded, as libtest-mimic does.
#[test]
fn a_test_that_hangs_is_reported_by_name_and_ends_the_run_of_its_binary_alone() {
    const BINARY: &str = r#"#!/bin/sh
        if [ "$1" = --list ]; then printf 'a: test\nb::hangs: test\nc: test\nd: test\n'; exit; fi
        printf 'test a        ... ok\ntest c ... FAILED\ntest d - should panic ... ok\n'
        if [ "$1" != --exact ]; then exec sleep 600; fi
        exit 7"#;
    let [hung, ended] = run_under_the_runner("deps/binary", BINARY, [&[], &["--exact"]]);
    let said = String::from_utf8(hung.stdout).unwrap();
    assert_eq!(hung.status.code(), Some(101), "{said}");
    assert!(said.starts_with("test a        ... ok\ntest c ... FAILED\n"), "{said}");
    let failed: Vec<_> = said.lines().filter(|line| line.ends_with(" ... FAILED")).collect();
    assert_eq!(failed, ["test c ... FAILED", "test b::hangs ... FAILED"], "{said}");
    assert!(said.contains("test result: FAILED. 2 passed; 2 failed;"), "{said}");
    // A binary that ends is left alone, and its exit code is passed on.
    assert_eq!(ended.status.code(), Some(7));
    let all = "test a        ... ok\ntest c ... FAILED\ntest d - should panic ... ok\n";
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), all);
}

/// Many doctests in one binary, and one that has a binary to itself.
#[test]
fn doctests_that_hang_end_by_name_too() {
    const BINARY: &str = r#"#!/bin/sh
        if [ "$1" = many ]; then
            printf 'running 3 tests\ntest src/a.rs - a (line 1) ... ok\n'
            printf 'test src/a.rs - c (line 7) has been running for over 60 seconds\n'
            printf 'test src/a.rs - b (line 3) has been running for over 60 seconds\n'
            printf 'test src/a.rs - c (line 7) ... ok\n'
        fi
        sleep 600"#;
    let [many, one] = run_under_the_runner("doctests", BINARY, [&["many"], &["one"]]);
    let said = String::from_utf8(many.stdout).unwrap();
    assert_eq!(many.status.code(), Some(101), "{said}");
    let failed: Vec<_> = said.lines().filter(|line| line.ends_with(" ... FAILED")).collect();
    assert_eq!(failed, ["test src/a.rs - b (line 3) ... FAILED"], "{said}");
    assert!(said.contains("test result: FAILED. 2 passed; 1 failed;"), "{said}");
    // Its name is rustdoc's to tell, by the exit code.
    assert_eq!(one.status.code(), Some(101));
    assert_eq!(String::from_utf8(one.stdout).unwrap(), "\n");
}

#[test]
fn every_mutant_finds_its_text_exactly_once() {
    let sources = root().join("crates/tenure/src");
    let complaints = mutants::complaints(|file| std::fs::read_to_string(sources.join(file)));
    assert!(complaints.is_empty(), "{} to tidy:\n{}", complaints.len(), complaints.join("\n"));
}

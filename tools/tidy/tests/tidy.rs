//! The house rules on the real tree. Knows which check looks at which files, not what they check.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

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

/// A test binary as Cargo would run it: two tests end, one hangs.
#[test]
fn a_test_that_hangs_is_reported_by_name_and_ends_the_run_of_its_binary_alone() {
    const BINARY: &str = r#"#!/bin/sh
        if [ "$1" = --list ]; then printf 'a: test\nb::hangs: test\nc: test\n'; exit; fi
        printf 'test a ... ok\ntest c ... FAILED\n'
        if [ "$1" != --exact ]; then exec sleep 600; fi
        exit 7"#;
    let dir = std::env::temp_dir().join(format!("tidy-{}/deps", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let binary = dir.join("binary");
    std::fs::write(&binary, BINARY).unwrap();
    std::fs::set_permissions(&binary, Permissions::from_mode(0o700)).unwrap();
    let run = |arguments: &[&str]| {
        let mut runner = Command::new(root().join(".ci/test-runner"));
        runner.arg(&binary).args(arguments).env("TENURE_TEST_LIMIT", "1").output().unwrap()
    };
    let (hung, ended) = (run(&[]), run(&["--exact"]));
    std::fs::remove_dir_all(dir.parent().unwrap()).unwrap();
    let said = String::from_utf8(hung.stdout).unwrap();
    assert_eq!(hung.status.code(), Some(101), "{said}");
    assert!(said.starts_with("test a ... ok\ntest c ... FAILED\n"), "{said}");
    assert!(said.contains("test b::hangs ... FAILED\n"), "{said}");
    assert!(said.contains("test result: FAILED. 1 passed; 2 failed;"), "{said}");
    // A binary that ends is left alone, and its exit code is passed on.
    assert_eq!(ended.status.code(), Some(7));
    assert_eq!(ended.stdout, b"test a ... ok\ntest c ... FAILED\n");
}

#[test]
fn every_mutant_finds_its_text_exactly_once() {
    let sources = root().join("crates/tenure/src");
    let complaints = mutants::complaints(|file| std::fs::read_to_string(sources.join(file)));
    assert!(complaints.is_empty(), "{} to tidy:\n{}", complaints.len(), complaints.join("\n"));
}

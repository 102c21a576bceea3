//! The house rules on the real tree. Knows which check looks at which files, not what they check.

use tidy::tree::{File, root, text_files};
use tidy::{arrows, docs, links, manifest, size, words};

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
fn every_function_can_be_read_in_one_look() {
    check(File::is_rust, size::function_lines);
}

#[test]
fn every_file_says_what_it_knows() {
    check(File::is_rust, size::first_line);
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

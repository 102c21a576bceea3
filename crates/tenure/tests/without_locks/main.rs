//! Updates and rates under load, on every engine that has them: many writers of one cell, replies
//! that are lost, and processes that take permits and are killed.

mod rates;
mod updates;

/// Whether to run for hours instead of seconds.
fn nightly() -> bool {
    std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly")
}

/// An embedded store that goes with the test.
fn embedded() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("embedded://{}/store", directory.path().display());
    (directory, url)
}

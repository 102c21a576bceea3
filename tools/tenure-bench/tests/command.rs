//! The benchmark of the command runs and gives its figure. Checks that it is there, never times.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn the_command_is_measured_beside_flock() {
    let bench = env!("CARGO_BIN_EXE_tenure-bench");
    // A test of the whole workspace has built it already.
    if !Path::new(bench).with_file_name("tenure").exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--manifest-path"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/tenure-cli/Cargo.toml"))
            .status();
        assert!(built.expect("cargo").success());
    }
    let output = Command::new(bench).args(["command", "--quick", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let figure: Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
    assert_eq!(figure["bench"], "run_true");
    assert!(figure["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{figure}");
}

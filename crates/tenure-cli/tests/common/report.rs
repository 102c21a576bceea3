//! What `tenure doctor --json` printed, and its exit code.

use serde_json::Value;

use super::Place;

/// The findings, each a check with its state and its words, and the exit code.
pub(crate) struct Report {
    pub(crate) findings: Value,
    pub(crate) code: i32,
}

impl Report {
    pub(crate) fn of(place: &Place) -> Self {
        let output = place.run(&["doctor", "--json"]);
        let findings = serde_json::from_slice(&output.stdout).expect("JSON");
        Self { findings, code: output.status.code().expect("an exit code") }
    }

    /// Whether a check has this state, if one is given, in these words.
    #[track_caller]
    pub(crate) fn has(&self, check: &str, state: &str, words: &str) {
        let all = self.findings["findings"].as_array().expect("a list");
        let fits = |finding: &Value| {
            finding["check"] == check
                && (state.is_empty() || finding["state"] == state)
                && finding["what"].as_str().is_some_and(|what| what.contains(words))
        };
        assert!(all.iter().any(fits), "{check} {state} {words:?}: {:#}", self.findings);
    }
}

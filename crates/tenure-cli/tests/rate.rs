//! `tenure rate` as its users meet it, on every store that has rates.

mod common;

use common::{Place, stderr};

common::on_stores!(
    [embedded, redis, postgres],
    [
        a_limit_allows_and_then_refuses_with_the_time_to_wait,
        a_command_runs_once_its_permits_are_taken,
        bad_limits_are_mistakes_of_the_command_line,
    ]
);

fn a_limit_allows_and_then_refuses_with_the_time_to_wait(place: &Place) {
    let take = ["rate", "api", "--limit", "2/1h", "--limit", "9/1day"];
    assert_eq!(place.code(&take), 0);
    let json = place.says_json(&[&take[..], &["--json"]].concat());
    assert_eq!((&json["allowed"], &json["remaining"]), (&true.into(), &0.into()), "{json}");
    assert_eq!(json["limits"][1]["used"], 2, "{json}");
    let refused = place.run(&take);
    assert_eq!(refused.status.code(), Some(75));
    let said = stderr(&refused);
    assert!(said.contains("1 of 2 per 1h") && said.contains("try again in 59m"), "{said}");
    let refused = place.run(&[&take[..], &["--json", "--wait", "1s"]].concat());
    assert_eq!((refused.status.code(), stderr(&refused).as_str()), (Some(75), ""));
    let json: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(json["allowed"], false);
    assert!(json["retry_after_ms"].as_u64().unwrap() > 3_000_000, "{json}");
    assert!(place.says(&[&take[..], &["--peek"]].concat()).starts_with("0 left; all of them in"));
    place.says(&["rate", "api", "--reset"]);
    assert_eq!(place.code(&take), 0);
}

fn a_command_runs_once_its_permits_are_taken(place: &Place) {
    let take = ["rate", "mail", "--limit", "1/50ms", "--wait", "1m", "--", "sh", "-c"];
    for at in 0..3 {
        let said = place.says(&[&take[..], &[&format!("echo mail {at}")]].concat());
        assert_eq!(said, format!("mail {at}\n"));
    }
    assert_eq!(place.code(&[&take[..], &["exit 7"]].concat()), 7);
    let hour = ["rate", "rare", "--limit", "1/1h", "--"];
    assert_eq!(place.code(&[&hour[..], &["true"]].concat()), 0);
    assert_eq!(place.code(&[&hour[..], &["true"]].concat()), 75, "it never ran");
    let missing = ["rate", "other", "--limit", "1/1h", "--", "./no-such-command"];
    assert_eq!(place.code(&missing), 127);
}

fn bad_limits_are_mistakes_of_the_command_line(place: &Place) {
    for (arguments, says) in [
        (&["rate", "a"][..], "--limit"),
        (&["rate", "a", "--limit", "100"], "PERMITS/TIME"),
        (&["rate", "a", "--limit", "0/1s"], "a limit of 0"),
        (&["rate", "a", "--limit", "5/1s", "--cost", "6"], "never fits a limit of 5"),
        (&["rate", "a", "--limit", "5/1s", "--cost", "0"], "a cost of 0"),
        (&["rate", "a", "--limit", "5/1s", "--limit", "6/1s"], "two limits"),
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    assert_eq!(place.code(&["rate", "a", "--limit", "5/1h"]), 0);
    let output = place.run(&["rate", "a", "--limit", "5/2h"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("in use with limits per 1h"), "{}", stderr(&output));
}

//! Deadlocks between processes, with the real command: one is refused, says why and ends with 75;
//! the others go on. And the commands that show them.

mod common;

use common::{Place, ended, eventually, output, stderr, stdout};

common::on_stores!(
    [embedded, redis, postgres, etcd],
    [
        of_two_nested_runs_in_opposite_order_one_is_refused_and_names_the_other,
        philosophers_that_run_commands_all_eat,
        a_deadlock_that_is_not_broken_is_shown,
    ]
);

/// Holds one lock, waits until `other` holds its own, and then waits for that.
fn crossing(first: &str, second: &str, other: &str, option: &str) -> String {
    format!(
        "tenure run {first} {option} --label of-{first} -c 'touch {first}; \
         while ! test -e {other}; do sleep 0.02; done; \
         exec tenure run {second} {option} --label of-{first} -- touch done-{first}'"
    )
}

fn of_two_nested_runs_in_opposite_order_one_is_refused_and_names_the_other(place: &Place) {
    let start = |script: String| {
        let mut command = place.shell(&script);
        let command = command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let (one, two) = (start(crossing("a", "b", "b", "")), start(crossing("b", "a", "a", "")));
    let outputs = [ended(one), ended(two)];
    let mut codes = outputs.each_ref().map(|output| output.status.code());
    codes.sort_unstable();
    assert_eq!(codes, [Some(0), Some(75)], "{outputs:?}");
    let refused = outputs.iter().find(|output| output.status.code() == Some(75)).unwrap();
    let said = stderr(refused);
    for part in ["deadlock", "of-a", "of-b", "holds \"a\"", "holds \"b\""] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(place.code(&["deadlocks"]), 0, "nothing is left of it");
}

fn philosophers_that_run_commands_all_eat(place: &Place) {
    let guests = 3;
    let dinner = |seat: usize| {
        let right = (seat + 1) % guests;
        // The pause makes it likely that all have their left fork when they ask for the right.
        format!(
            "(until tenure run fork:{seat} -q \
             -c 'sleep 0.3; exec tenure run fork:{right} -q -- true'; \
             do sleep 0.$(( $$ % 7 )); done; echo ate) &"
        )
    };
    let dinner: Vec<String> = (0..guests).map(dinner).collect();
    let output = output(&mut place.shell(&format!("{} wait", dinner.join(" "))));
    assert_eq!(stdout(&output), "ate\n".repeat(guests), "{output:?}");
}

fn a_deadlock_that_is_not_broken_is_shown(place: &Place) {
    let observe = "--deadlocks observe";
    let script = format!(
        "({}) & ({}) & wait",
        crossing("a", "b", "b", observe),
        crossing("b", "a", "a", observe)
    );
    let mut command = place.shell(&script);
    let mut runs = std::os::unix::process::CommandExt::process_group(&mut command, 0)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the deadlock is found", || place.code(&["graph", "--check"]) == 1);
    let found = place.run(&["deadlocks"]);
    assert_eq!(found.status.code(), Some(1));
    assert!(stdout(&found).contains("waits for its child process"), "{found:?}");
    let text = place.says(&["graph"]);
    assert!(text.starts_with("deadlock: ") && text.contains("of-a"), "{text}");
    let graph = place.says_json(&["graph", "a", "--format", "json"]);
    assert_eq!(graph["deadlocks"].as_array().unwrap().len(), 1, "{graph}");
    assert_eq!(graph["edges"].as_array().unwrap().len(), 6, "{graph}");
    let starts = [("dot", "digraph tenure {"), ("mermaid", "flowchart LR"), ("svg", "<svg ")];
    for (format, start) in starts {
        let drawn = place.says(&["graph", "--format", format]);
        assert!(drawn.starts_with(start) && drawn.contains("of-b"), "{drawn}");
    }
    let group = rustix::process::Pid::from_child(&runs);
    rustix::process::kill_process_group(group, rustix::process::Signal::TERM).unwrap();
    runs.wait().unwrap();
}

//! Deadlocks between processes, with the real command: one is refused, says why and ends with 75;
//! the others go on. And the commands that show them.

mod common;

use common::{Place, ended, eventually, output, stderr, stdout};

common::on_stores!(
    [embedded, redis, postgres, etcd],
    [
        of_two_nested_runs_in_opposite_order_one_is_refused_and_names_the_other,
        three_and_five_philosophers_that_run_commands_all_eat,
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

fn three_and_five_philosophers_that_run_commands_all_eat(place: &Place) {
    for guests in [3, 5] {
        let refused = dinner(place, guests);
        assert!(refused >= 1, "the deadlock of {guests} was not broken by a refusal");
        let sets = |seat: usize, right: usize| {
            format!("tenure run {guests}:{seat} --also {guests}:{right} -q -- true")
        };
        let refused = eaten(&mut place.shell(&table(guests, sets)), guests);
        assert_eq!(refused, 0, "sets waited in a circle");
    }
}

#[test]
fn fifty_philosophers_that_run_commands_all_eat() {
    let refused = dinner(&Place::embedded(), 50);
    assert!(refused >= 1, "the deadlock of fifty was not broken by a refusal");
}

/// Lets so many take their left fork, and, when all have it, their right one. Returns how often one
/// was refused; all must have eaten.
fn dinner(place: &Place, guests: usize) -> usize {
    let go = place.file(&format!("go-{guests}"));
    assert!(std::process::Command::new("mkfifo").arg(&go).status().unwrap().success());
    // Opened to be read, a pipe blocks until it is opened to be written.
    let forks = |seat: usize, right: usize| {
        format!(
            "tenure run {guests}:{seat} -q -c 'touch left-{guests}-{seat}; : < go-{guests}; \
             exec tenure run {guests}:{right} -q -- true'"
        )
    };
    let mut shell = place.shell(&table(guests, forks));
    let (sender, done) = std::sync::mpsc::channel();
    let eating = std::thread::spawn(move || {
        let eaten = eaten(&mut shell, guests);
        let _ = sender.send(());
        eaten
    });
    let left = |seat: usize| place.file(&format!("left-{guests}-{seat}")).exists();
    eventually("all have their left fork", || (0..guests).all(left) || done.try_recv().is_ok());
    // Stays open, for those that come later.
    let open = std::fs::File::options().read(true).write(true).open(go).unwrap();
    let refused = eating.join().unwrap();
    drop(open);
    refused
}

/// A script in which each guest runs its command again until it is not refused.
fn table(guests: usize, command: impl Fn(usize, usize) -> String) -> String {
    let guest = |seat: usize| {
        let command = command(seat, (seat + 1) % guests);
        format!(
            "(until {command}; do test $? = 75 || {{ echo failed; exit; }}; \
             echo refused; sleep 0.{}; done; echo ate) &",
            seat % 7
        )
    };
    let guests: Vec<String> = (0..guests).map(guest).collect();
    format!("{} wait", guests.join(" "))
}

/// Waits until all guests of a table have left it, and all have eaten. Returns how often one was
/// refused.
fn eaten(shell: &mut std::process::Command, guests: usize) -> usize {
    let output = output(shell);
    let said = stdout(&output);
    let count = |word: &str| said.lines().filter(|line| *line == word).count();
    assert_eq!(count("ate"), guests, "{output:?}");
    count("refused")
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

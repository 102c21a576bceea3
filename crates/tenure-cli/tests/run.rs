//! `tenure run`, as far as one process can show it: exit codes, environment, signals, the end of
//! the command's whole tree.

mod common;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Place, Running, alive, ended, eventually, output, stderr, stdout};
use rustix::process::Signal;

common::on_stores!(
    [memory, redis],
    [
        the_exit_code_is_that_of_the_command,
        a_command_that_a_signal_ended_gives_128_and_the_number,
        a_command_that_is_not_there_gives_127_and_one_that_cannot_run_126,
        what_goes_wrong_before_the_command_starts_gives_125_or_69_and_it_never_runs,
        the_command_finds_its_lock_in_its_environment,
        several_locks_come_with_a_fence_each,
        arguments_and_streams_reach_the_command_as_they_are,
        the_command_has_no_file_open_that_it_would_not_have_without_us,
        the_command_starts_with_the_signals_it_would_have_without_us,
        a_script_without_a_first_line_is_run_by_the_shell,
        signals_are_passed_on,
        a_signal_that_ends_the_command_reaches_everything_it_started,
        kill_9_of_tenure_ends_the_whole_tree,
        kill_9_of_the_guardian_ends_the_whole_tree_too,
        a_guardian_that_is_stopped_goes_on,
        max_hold_stops_the_command_and_all_it_started_with_124,
        the_signal_that_asks_to_stop_can_be_chosen,
        what_the_command_leaves_running_goes_on_unless_the_group_is_held,
        a_command_that_others_stop_and_let_go_on_ends_as_it_should,
        a_parent_that_ignores_its_children_still_gets_the_exit_code,
    ]
);

fn the_exit_code_is_that_of_the_command(place: &Place) {
    for code in [0, 1, 2, 75, 123, 255] {
        assert_eq!(place.code(&["run", "x", "--", "sh", "-c", &format!("exit {code}")]), code);
    }
}

fn a_command_that_a_signal_ended_gives_128_and_the_number(place: &Place) {
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("INT", 130)] {
        assert_eq!(place.code(&["run", "x", "-c", &format!("kill -{signal} $$")]), code);
    }
}

fn a_command_that_is_not_there_gives_127_and_one_that_cannot_run_126(place: &Place) {
    let output = place.run(&["run", "x", "--", "no-such-command"]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(stderr(&output), "tenure: cannot run no-such-command: No such file or directory\n");
    let output = place.run(&["run", "x", "--", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(126));
    assert!(stderr(&output).contains("Permission denied"), "{output:?}");
}

fn what_goes_wrong_before_the_command_starts_gives_125_or_69_and_it_never_runs(place: &Place) {
    for arguments in [
        &["run", "x"][..],
        &["run", "x", "--no-such-option", "--", "touch", "ran"],
        &["run", "", "--", "touch", "ran"],
        &["run", "x", "--slots", "0", "--", "touch", "ran"],
        &["run", "x", "--preset", "nightly", "--", "touch", "ran"],
        &["run", "x", "--lease", "1h", "--", "touch", "ran"],
        &["run", "x", "--url", "carrier-pigeon:", "--", "touch", "ran"],
        &["run", "x", "--config", "/no/such/file", "--", "touch", "ran"],
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {output:?}");
        assert_eq!(stdout(&output), "");
        assert_ne!(stderr(&output), "");
    }
    assert!(!place.file("ran").exists());
}

fn the_command_finds_its_lock_in_its_environment(place: &Place) {
    let script = "echo $TENURE_NAME $TENURE_NAMESPACE $TENURE_MODE $TENURE_LEASE_MS; \
                  echo $TENURE_FENCE; echo $TENURE_LEASE_ID; echo $TENURE_OWNER; echo $TENURE_HELD";
    let said =
        place.says(&["run", "reports", "--namespace", "team", "--lease", "20s", "-c", script]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "reports team exclusive 20000");
    assert!(lines[1].parse::<u64>().unwrap() > 0);
    assert_eq!(lines[2].len(), 8);
    assert_eq!(lines[3].len(), 32);
    assert_eq!(lines[4], "reports");
    for (flags, mode) in
        [("--shared", "shared"), ("--exclusive", "exclusive"), ("--slots=3", "permit")]
    {
        assert_eq!(
            place.says(&["run", "x", flags, "-c", "echo $TENURE_MODE"]),
            format!("{mode}\n")
        );
    }
}

fn several_locks_come_with_a_fence_each(place: &Place) {
    let script = "echo \"$TENURE_NAME\"; echo \"$TENURE_HELD\"; echo \"$TENURE_FENCES\"";
    let said = place.says(&["run", "b", "--also", "a", "--also", "c", "-c", script]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..4], ["b", "a", "b", "c"]);
    let fence = |line: &str, name: &str| {
        let (fence, of) = line.split_once(' ').unwrap();
        assert_eq!(of, name);
        fence.parse::<u64>().unwrap()
    };
    for (line, name) in lines[4..].iter().zip(["a", "b", "c"]) {
        assert!(fence(line, name) > 0);
    }
}

fn arguments_and_streams_reach_the_command_as_they_are(place: &Place) {
    let odd = ["a b", "", "$HOME", "*", "--", "-n", "naïve"];
    let mut arguments = vec!["run", "x", "--", "printf", "%s\\n"];
    arguments.extend(odd);
    assert_eq!(place.says(&arguments), odd.join("\n") + "\n");

    let mut child = place
        .tenure(&["run", "x", "--", "sh", "-c", "cat; echo error >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    let output = ended(child);
    assert_eq!((stdout(&output), stderr(&output)), ("through\n".to_owned(), "error\n".to_owned()));
}

fn the_command_has_no_file_open_that_it_would_not_have_without_us(place: &Place) {
    let script = "ls /proc/self/fd";
    let plain = stdout(&output(&mut place.shell(script)));
    assert_eq!(place.says(&["run", "x", "-c", script]), plain);
}

fn the_command_starts_with_the_signals_it_would_have_without_us(place: &Place) {
    let script = "grep -E 'Sig(Blk|Ign)' /proc/self/status";
    // The first 31 signals: the C library keeps two others for itself.
    let masks = |text: &str| -> Vec<u64> {
        let masks = text.split_whitespace().filter_map(|word| u64::from_str_radix(word, 16).ok());
        masks.map(|mask| mask & 0x7fff_ffff).collect()
    };
    let plain = masks(&stdout(&output(&mut place.shell(script))));
    assert_eq!(plain.len(), 2);
    assert_eq!(masks(&place.says(&["run", "x", "-c", script])), plain);
    let mut ignoring = place.shell("trap '' HUP; tenure run x -c 'kill -HUP $$; echo alive'");
    assert_eq!(stdout(&output(&mut ignoring)), "alive\n");
}

fn a_script_without_a_first_line_is_run_by_the_shell(place: &Place) {
    let script = place.write("script", "echo I am a script\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    assert_eq!(place.says(&["run", "x", "--", script.to_str().unwrap()]), "I am a script\n");
}

fn signals_are_passed_on(place: &Place) {
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ] {
        let script = format!(
            "trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let mut running = place.start(&["run", "x", "-c", &script]);
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        assert_eq!(running.line(), format!("got {name}"));
        assert_eq!(running.ends(), 7, "{name}");
    }
}

fn a_signal_that_ends_the_command_reaches_everything_it_started(place: &Place) {
    let mut running = place.start(&["run", "x", "-c", "sleep 600 | sleep 600 & echo $!; wait"]);
    let sleeper = running.line();
    running.signal(Signal::TERM);
    assert_eq!(running.ends(), 143);
    eventually("the pipeline ends", || !alive(&sleeper));
}

/// A shell that starts a pipeline, a background job, a daemon in a session of its own, and a child
/// that is never reaped; it prints the number of each.
const TREE: &str = "\
    sleep 601 | sleep 602 & echo $!
    setsid sh -c 'echo $$; exec sleep 603' &
    ( sleep 604 & echo $! )
    trap '' TERM; (trap '' TERM; echo $BASHPID; exec sleep 605) &
    sleep 0.3; echo ready; while :; do sleep 0.1; done";

fn start_tree(place: &Place, options: &[&str]) -> (Running, Vec<String>) {
    let mut arguments = vec!["run", "x"];
    arguments.extend(options);
    arguments.extend(["--", "bash", "-c", TREE]);
    let mut running = place.start(&arguments);
    let mut pids = Vec::new();
    loop {
        match running.line().as_str() {
            "ready" => break,
            pid => pids.push(pid.to_owned()),
        }
    }
    assert_eq!(pids.len(), 4, "{pids:?}");
    assert!(pids.iter().all(|pid| alive(pid)), "{pids:?}");
    (running, pids)
}

fn kill_9_of_tenure_ends_the_whole_tree(place: &Place) {
    let (running, pids) = start_tree(place, &["--kill-after", "200ms"]);
    running.signal(Signal::KILL);
    eventually("the tree is gone", || !pids.iter().any(|pid| alive(pid)));
}

fn kill_9_of_the_guardian_ends_the_whole_tree_too(place: &Place) {
    let (mut running, pids) = start_tree(place, &[]);
    let guardian = running.guardian();
    rustix::process::kill_process(guardian, Signal::KILL).unwrap();
    assert_eq!(running.ends(), 123);
    assert!(!pids.iter().any(|pid| alive(pid)), "the tree is gone before tenure is");
}

fn a_guardian_that_is_stopped_goes_on(place: &Place) {
    let mut running = place.start(&["run", "x", "-c", "echo ready; sleep 0.5; exit 3"]);
    assert_eq!(running.line(), "ready");
    rustix::process::kill_process(running.guardian(), Signal::STOP).unwrap();
    assert_eq!(running.ends(), 3);
}

fn max_hold_stops_the_command_and_all_it_started_with_124(place: &Place) {
    let began = Instant::now();
    assert_eq!(place.code(&["run", "x", "--max-hold", "200ms", "--", "sleep", "600"]), 124);
    let stubborn = "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    let arguments = ["run", "x", "--max-hold", "300ms", "-k", "200ms", "-c", stubborn];
    assert_eq!(place.code(&arguments), 124);
    assert!(!alive(&place.read("pid")));
    assert!(began.elapsed() < Duration::from_secs(10));
}

fn the_signal_that_asks_to_stop_can_be_chosen(place: &Place) {
    let script = "trap 'echo interrupted; exit 0' INT; while :; do sleep 0.05; done";
    let output = place.run(&["run", "x", "--max-hold", "300ms", "--signal", "INT", "-c", script]);
    assert_eq!(output.status.code(), Some(124));
    assert_eq!(stdout(&output), "interrupted\n");
}

fn what_the_command_leaves_running_goes_on_unless_the_group_is_held(place: &Place) {
    // It goes on until it is told that the command has ended.
    let script = "(until [ -e over ]; do sleep 0.02; done; echo late > file) >/dev/null 2>&1 &";
    assert_eq!(place.code(&["run", "x", "-c", script]), 0);
    place.write("over", "");
    eventually("the rest goes on", || place.read("file") == "late\n");

    std::fs::remove_file(place.file("file")).unwrap();
    let script = "(sleep 0.4; echo late > file) >/dev/null 2>&1 &";
    assert_eq!(place.code(&["run", "x", "--hold-group", "-c", script]), 0);
    assert_eq!(place.read("file"), "late\n");
}

fn a_command_that_others_stop_and_let_go_on_ends_as_it_should(place: &Place) {
    let mut running = place.start(&["run", "x", "-c", "echo $$; sleep 0.3; exit 5"]);
    let pid: i32 = running.line().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(running.ends(), 5);
}

fn a_parent_that_ignores_its_children_still_gets_the_exit_code(place: &Place) {
    let script = "trap '' CHLD; tenure run x -c 'exit 9'; echo $?";
    let output = output(&mut place.shell(script));
    assert_eq!(stdout(&output), "9\n");
}

/// Under `nohup`, and in the background of a shell without job control, the tests themselves start
/// with signals ignored; what they start must not.
#[test]
fn tests_send_signals_also_where_they_were_started_deaf_to_them() {
    let mut deaf = Command::new("env");
    deaf.args(["--ignore-signal=HUP,INT,QUIT,TERM"]).arg(std::env::current_exe().unwrap());
    deaf.args(["--exact", "memory::signals_are_passed_on"]);
    deaf.arg("memory::a_signal_that_ends_the_command_reaches_everything_it_started");
    let output = output(&mut deaf);
    assert!(stdout(&output).contains("2 passed"), "{}", stdout(&output));
}

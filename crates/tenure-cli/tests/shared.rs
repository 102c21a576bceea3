//! Locks between processes: waiting, conflicts, kinds, nesting, handles, looking, force.

mod common;

use std::time::{Duration, Instant};

use common::terminal::Terminal;
use common::{Place, Running, alive, ended, eventually, output, stderr, stdout};
use rustix::process::Signal;
use serde_json::Value;

common::on_stores!(
    [embedded, redis, postgres, etcd],
    [
        a_second_run_waits_for_the_first,
        a_lock_that_is_not_obtained_gives_75_and_the_command_never_runs,
        every_command_that_does_not_wait_words_a_refusal_alike,
        waiting_ends_with_a_signal_and_leaves_the_queue,
        readers_share_and_a_writer_is_alone,
        slots_let_so_many_in_and_no_more,
        several_locks_are_taken_all_or_none,
        a_run_inside_a_run_enters_what_is_held_and_siblings_exclude_each_other,
        namespaces_do_not_meet,
        kill_9_lets_the_next_in_only_when_the_whole_tree_is_gone,
        kill_9_of_the_guardian_lets_the_next_in_only_when_the_tree_is_gone,
        force_release_ends_exactly_that_grant_and_its_holder_learns_the_reason,
        on_lost_decides_what_becomes_of_the_command,
        hold_keeps_a_lock_until_a_signal_comes,
        a_handle_is_the_right_to_renew_and_release,
        a_handle_that_is_not_renewed_ends_with_its_lease,
        acquire_waits_in_the_queue_and_exports_what_a_script_needs,
        the_owner_of_a_handle_is_entered_by_what_the_script_runs,
        wait_returns_when_the_lock_is_free_and_takes_nothing,
        ls_shows_who_holds_and_who_waits,
        watch_tells_what_happens,
        a_wait_at_a_terminal_shows_the_holder_and_the_place,
        force_release_at_a_terminal_names_the_holder_and_asks,
        a_wait_without_a_terminal_prints_nothing,
        a_store_that_cannot_be_reached_gives_69,
        a_holder_that_ends_at_once_leaves_nothing_behind,
        a_command_ends_when_the_store_is_gone,
    ]
);

fn a_second_run_waits_for_the_first(place: &Place) {
    let mut first = place.start(&["run", "x", "-c", "echo started; sleep 0.4; echo first >> log"]);
    assert_eq!(first.line(), "started");
    assert_eq!(place.code(&["run", "x", "-c", "echo second >> log"]), 0);
    assert_eq!(place.read("log"), "first\nsecond\n");
    assert_eq!(first.ends(), 0);
}

fn a_lock_that_is_not_obtained_gives_75_and_the_command_never_runs(place: &Place) {
    let holder = place.held("x");
    for patience in [&["--no-wait"][..], &["-n"], &["--wait", "3500ms"], &["-w", "3.5"], &["-w0"]] {
        let mut arguments = vec!["run", "x"];
        arguments.extend(patience);
        arguments.extend(["--", "touch", "ran"]);
        let output = place.run(&arguments);
        assert_eq!(output.status.code(), Some(75), "{patience:?}: {output:?}");
        assert_ne!(stderr(&output), "");
    }
    assert_eq!(place.code(&["run", "x", "-n", "-E", "42", "--", "touch", "ran"]), 42);
    assert!(!place.file("ran").exists());
    let output = place.run(&["run", "x", "-w", "3", "--", "true"]);
    let who = format!(":{} 'sh'", holder.child.id());
    assert!(stderr(&output).contains(&who), "{}", stderr(&output));
}

/// `run -n` and `hold -n` did not name the holder, and `acquire -n` did not say what to do.
fn every_command_that_does_not_wait_words_a_refusal_alike(place: &Place) {
    let holder = place.held("x");
    for also in [&[][..], &["--also", "y"], &["--also", "a"]] {
        let refusal = |command: &str, rest: &[&str]| {
            let output = place.run(&[&[command, "x", "-n"], also, rest].concat());
            assert_eq!(output.status.code(), Some(75), "{output:?}");
            // How long it has been held is another number each time.
            let said = stderr(&output);
            let (before, after) = said.split_once(" for ").expect(&said);
            (before.to_owned(), after.split_once("fence").expect(&said).1.to_owned())
        };
        let (before, after) = refusal("run", &["--", "true"]);
        assert!(before.starts_with("tenure: \"x\": it is taken; held by "), "{before}");
        assert!(before.ends_with(&format!(":{} 'sh'", holder.child.id())), "{before}");
        assert!(
            after.ends_with("; wait for it with --wait, or see its queue with `tenure show`\n")
        );
        for command in ["acquire", "hold"] {
            assert_eq!(refusal(command, &[]), (before.clone(), after.clone()), "{command}");
        }
    }
}

fn waiting_ends_with_a_signal_and_leaves_the_queue(place: &Place) {
    let _holder = place.held("x");
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut waiter = place.start(&["run", "x", "--", "touch", "ran"]);
        place.wait_for_line("x", 1);
        waiter.signal(signal);
        assert_eq!(waiter.ends(), code);
        assert_eq!(place.waiting("x"), 0);
    }
    let waiter = place.start(&["run", "x", "--", "touch", "ran"]);
    place.wait_for_line("x", 1);
    waiter.signal(Signal::KILL);
    place.wait_for_line("x", 0);
    assert!(!place.file("ran").exists());
}

fn readers_share_and_a_writer_is_alone(place: &Place) {
    let mut reader = place.start(&["run", "x", "--shared", "-c", "echo in; sleep 600"]);
    assert_eq!(reader.line(), "in");
    assert_eq!(place.code(&["run", "x", "-s", "-n", "--", "true"]), 0);
    assert_eq!(place.code(&["run", "x", "-x", "-n", "--", "true"]), 75);
    // Exclusive is the default, and a reader stands in its way as `flock -s` does for `flock`.
    assert_eq!(place.code(&["run", "x", "-n", "--", "true"]), 75);
    let output = place.run(&["run", "x", "--slots", "2", "-n", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("in use as a lock"), "{}", stderr(&output));
}

fn slots_let_so_many_in_and_no_more(place: &Place) {
    let run = |script: &str| place.start(&["run", "x", "--slots", "2", "-c", script]);
    let mut holders = [run("echo in; sleep 600"), run("echo in; sleep 600")];
    for holder in &mut holders {
        assert_eq!(holder.line(), "in");
    }
    assert_eq!(place.code(&["run", "x", "--slots", "2", "-n", "--", "true"]), 75);
    holders[0].signal(Signal::TERM);
    holders[0].ends();
    assert_eq!(place.code(&["run", "x", "--slots", "2", "--", "true"]), 0);
}

fn several_locks_are_taken_all_or_none(place: &Place) {
    let _holder = place.held("b");
    assert_eq!(place.code(&["run", "a", "--also", "b", "-n", "--", "true"]), 75);
    assert_eq!(place.code(&["run", "a", "--also", "c", "-n", "--", "true"]), 0);
}

fn a_run_inside_a_run_enters_what_is_held_and_siblings_exclude_each_other(place: &Place) {
    let nested =
        place.shell("tenure run a -- tenure run b -- tenure run a -n -c 'echo $TENURE_HELD'");
    let output = output(&mut { nested });
    assert_eq!(stdout(&output), "a b\n", "{output:?}");

    let siblings = "\
        tenure run a -c '
            tenure run a -c \"echo in; : > entered; sleep 600\" & \
            while ! [ -e entered ]; do sleep 0.01; done; \
            tenure run a -n -- true; echo code $?; kill $!'";
    let output = common::output(&mut place.shell(siblings));
    assert_eq!(stdout(&output), "in\ncode 75\n", "{output:?}");
}

fn namespaces_do_not_meet(place: &Place) {
    let _holder = place.held("x");
    assert_eq!(place.code(&["run", "x", "-n", "--namespace", "other", "--", "true"]), 0);
}

fn kill_9_lets_the_next_in_only_when_the_whole_tree_is_gone(place: &Place) {
    // The daemon left its group and its session, and does not listen to TERM.
    let script = "setsid sh -c 'trap \"\" TERM; echo $$ > daemon; while :; do sleep 0.05; done' & \
                  while ! [ -s daemon ]; do sleep 0.01; done; echo ready; wait";
    let mut first =
        place.start(&["run", "x", "--lease", "60s", "--kill-after", "700ms", "-c", script]);
    assert_eq!(first.line(), "ready");
    let daemon = place.read("daemon").trim().to_owned();
    let check = format!("kill -0 {daemon} 2>/dev/null && echo alive || echo gone");
    let mut second = place.start(&["run", "x", "-c", &check]);
    place.wait_for_line("x", 1);
    let began = Instant::now();
    first.signal(Signal::KILL);
    assert_eq!(second.line(), "gone");
    assert!(began.elapsed() > Duration::from_millis(600), "it was asked first");
    // Renewed every third of the lease, so two thirds of it were left at least.
    assert!(began.elapsed() < Duration::from_secs(40), "before the lease ends");
    assert!(!alive(&daemon));
}

fn kill_9_of_the_guardian_lets_the_next_in_only_when_the_tree_is_gone(place: &Place) {
    let script = "setsid sh -c 'echo $$ > daemon; sleep 600' & \
                  while ! [ -s daemon ]; do sleep 0.01; done; echo ready; wait";
    let mut first = place.start(&["run", "x", "--lease", "3s", "-c", script]);
    assert_eq!(first.line(), "ready");
    let daemon = place.read("daemon").trim().to_owned();
    let check = format!("kill -0 {daemon} 2>/dev/null && echo alive || echo gone");
    let mut second = place.start(&["run", "x", "-c", &check]);
    place.wait_for_line("x", 1);
    rustix::process::kill_process(first.guardian(), Signal::KILL).unwrap();
    assert_eq!(first.ends(), 123);
    assert_eq!(second.line(), "gone");
}

fn fence_of(place: &Place, name: &str) -> String {
    place.says_json(&["show", name, "--json"])["holders"][0]["fence"].to_string()
}

fn force_release_ends_exactly_that_grant_and_its_holder_learns_the_reason(place: &Place) {
    let mut command = place.tenure(&["run", "x", "-c", "echo in; exec sleep 600"]);
    command.stderr(std::fs::File::create(place.file("errors")).unwrap());
    let mut holder = Running::start(command);
    assert_eq!(holder.line(), "in");
    let fence = fence_of(place, "x");

    let output = place.run(&["force-release", "x", "--fence", "1", "--reason", "wrong"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("fence {fence}")), "{}", stderr(&output));

    let said =
        place.says(&["force-release", "x", "--fence", &fence, "--reason", "deploy is stuck"]);
    assert!(said.contains(&format!(":{} 'echo'", holder.child.id())), "{said}");
    assert_eq!(holder.ends(), 123);
    assert_eq!(place.read("errors"), "tenure: lost x: it was released by force: deploy is stuck\n");
    assert_eq!(place.code(&["show", "x"]), 1);
}

fn on_lost_decides_what_becomes_of_the_command(place: &Place) {
    let cases = [("term", "got TERM\n", 123), ("kill", "", 123), ("ignore", "went on\n", 0)];
    for (on_lost, expected, code) in cases {
        let _ = std::fs::remove_file(place.file("log"));
        // It ends by itself only when it may: a busy machine must not be too slow to take the lock
        // away from it before.
        let script = "trap 'echo got TERM > log; exit' TERM; echo in; \
                      while [ ! -e go ]; do sleep 0.05; done; echo went on > log";
        let mut holder = place.start(&["run", "x", "--on-lost", on_lost, "-c", script]);
        assert_eq!(holder.line(), "in");
        let fence = fence_of(place, "x");
        place.says(&["force-release", "x", "--fence", &fence, "--reason", "test"]);
        if on_lost == "ignore" {
            std::fs::write(place.file("go"), "").unwrap();
        }
        assert_eq!(holder.ends(), code, "{on_lost}");
        assert_eq!(place.read("log"), expected, "{on_lost}");
    }
    let mut holder =
        place.start(&["run", "x", "--lost-exit-code", "9", "-c", "echo in; sleep 600"]);
    assert_eq!(holder.line(), "in");
    let fence = fence_of(place, "x");
    place.says(&["force-release", "x", "--fence", &fence, "--reason", "test"]);
    assert_eq!(holder.ends(), 9);
}

fn hold_keeps_a_lock_until_a_signal_comes(place: &Place) {
    let mut holder = place.start(&["hold", "x", "--label", "maintenance", "--json"]);
    let grant: Value = serde_json::from_str(&holder.line()).unwrap();
    assert_eq!(grant["name"], "x");
    assert_eq!(place.code(&["run", "x", "-n", "--", "true"]), 75);
    let shown = place.says_json(&["show", "x", "--json"]);
    assert_eq!(shown["holders"][0]["fence"], grant["fence"]);
    assert_eq!(shown["holders"][0]["label"], "maintenance");
    assert_eq!(shown["holders"][0]["pid"], holder.child.id());
    holder.signal(Signal::TERM);
    assert_eq!(holder.ends(), 0);
    assert_eq!(place.code(&["hold", "x", "--max-hold", "100ms"]), 124);

    let mut holder = place.start(&["hold", "x"]);
    assert!(holder.line().starts_with("holding x with fence "));
    let fence = fence_of(place, "x");
    place.says(&["force-release", "x", "--fence", &fence, "--reason", "test"]);
    assert_eq!(holder.ends(), 123);
}

fn a_handle_is_the_right_to_renew_and_release(place: &Place) {
    for kind in [&[][..], &["--shared"], &["--exclusive"], &["--slots", "1"], &["--also", "y"]] {
        let mut arguments = vec!["acquire", "x"];
        arguments.extend(kind);
        let handle = place.says(&arguments);
        let handle = handle.trim();
        let shown = place.says_json(&["show", "x", "--json"]);
        assert_eq!(shown["holders"].as_array().unwrap().len(), 1, "{shown}");
        assert_eq!(shown["holders"][0]["session"], Value::Null);
        assert_eq!(shown["holders"][0]["pid"], std::process::id());
        if !kind.contains(&"--shared") {
            arguments.push("-n");
            assert_eq!(place.code(&arguments), 75, "{kind:?}");
        }
        assert_eq!(place.says(&["renew", handle]), "");
        assert_eq!(place.says(&["release", handle]), "");
        assert_eq!(place.code(&["renew", handle]), 1);
        assert_eq!(place.code(&["release", handle]), 1);
        assert_eq!(place.code(&["show", "x"]), 1);
    }
}

fn a_handle_that_is_not_renewed_ends_with_its_lease(place: &Place) {
    // Long enough for a busy machine to start the next command meanwhile.
    let handle = place.says(&["acquire", "x", "--lease", "10s"]);
    assert_eq!(place.code(&["run", "x", "-n", "--", "true"]), 75);
    assert_eq!(place.code(&["run", "x", "-w", "30s", "--", "true"]), 0);
    assert_eq!(place.code(&["renew", handle.trim()]), 1);
    let output = place.run(&["acquire", "x", "--lease", "10m"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--max-lease"), "{output:?}");
}

fn acquire_waits_in_the_queue_and_exports_what_a_script_needs(place: &Place) {
    for kind in [&[][..], &["--slots", "1"]] {
        let mut hold = vec!["hold", "x"];
        hold.extend(kind);
        let mut holder = place.start(&hold);
        holder.line();
        let mut acquire = vec!["acquire", "x", "--export"];
        acquire.extend(kind);
        let mut waiter = place.start(&acquire);
        place.wait_for_line("x", 1);
        holder.signal(Signal::TERM);
        let mut lines = String::new();
        for name in ["TENURE_HANDLE", "TENURE_FENCE", "TENURE_OWNER"] {
            let line = waiter.line();
            assert!(line.starts_with(&format!("export {name}=")), "{line}");
            lines = lines + &line + "\n";
        }
        assert_eq!(waiter.ends(), 0);
        let script = format!("{lines} tenure renew && tenure release && echo \"done\"");
        assert_eq!(stdout(&output(&mut place.shell(&script))), "done\n");
    }
    let _holder = place.held("x");
    let mut waiter = place.start(&["acquire", "x"]);
    place.wait_for_line("x", 1);
    waiter.signal(Signal::INT);
    assert_eq!(waiter.ends(), 130);
    assert_eq!(place.waiting("x"), 0);
}

fn the_owner_of_a_handle_is_entered_by_what_the_script_runs(place: &Place) {
    let script =
        "eval \"$(tenure acquire x --export)\" && tenure run x -n -- echo inside; tenure release";
    let output = output(&mut place.shell(script));
    assert_eq!(stdout(&output), "inside\n", "{output:?}");
}

fn wait_returns_when_the_lock_is_free_and_takes_nothing(place: &Place) {
    assert_eq!(place.says(&["wait", "x"]), "");
    let mut holder = place.held("x");
    let output = place.run(&["wait", "x", "--wait", "100ms"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let mut waiter = place.start(&["wait", "x"]);
    assert_eq!(place.waiting("x"), 0);
    holder.signal(Signal::TERM);
    holder.ends();
    assert_eq!(waiter.ends(), 0);
}

fn ls_shows_who_holds_and_who_waits(place: &Place) {
    let output = place.run(&["ls"]);
    assert_eq!(stderr(&output), "no locks held, no waiters\n");
    let holder = place.held("account:1");
    let _waiter = place.start(&["run", "account:1", "--", "true"]);
    place.wait_for_line("account:1", 1);
    let _other = place.held("reports");

    let said = place.says(&["ls"]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("NAME       KIND  MODE       HOLDER"), "{said}");
    assert!(lines[1].starts_with("account:1  lock  exclusive  "), "{said}");
    assert!(lines[1].contains(&format!(":{} 'sh'", holder.child.id())), "{said}");
    assert!(lines[2].starts_with("reports    lock  exclusive  "), "{said}");
    assert_eq!(lines.len(), 3);

    let _reader = place.start(&["run", "config", "--shared", "--", "sleep", "600"]);
    let _permit = place.start(&["run", "encode", "--slots", "3", "--", "sleep", "600"]);
    for (name, mode) in [("config", "\tshared\t"), ("encode", "\tpermit\t")] {
        eventually("it is held", || place.says(&["ls", name, "-o", "plain"]).contains(mode));
    }

    assert_eq!(place.says(&["list", "acc*", "-o", "plain"]).lines().count(), 1);
    assert_eq!(place.says(&["ls", "--waiting", "-o", "plain"]).lines().count(), 1);
    assert_eq!(place.says(&["ls", "--kind", "semaphore", "-o", "plain"]).lines().count(), 1);
    assert!(place.says(&["ls", "--sort", "age", "-o", "plain"]).starts_with("account:1\t"));
    assert_eq!(place.says(&["ls", "-o", "ndjson"]).lines().count(), 4);

    let locks = place.says_json(&["ls", "--json"]);
    assert_eq!(locks["schema_version"], 1);
    assert_eq!(locks["locks"][0]["name"], "account:1");
    assert_eq!(locks["locks"][0]["queue"][0]["place"], 1);

    let said = place.says(&["show", "account:1"]);
    assert!(said.contains("queue, next first"), "{said}");

    let sessions = place.says_json(&["sessions", "--json"]);
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 5);
    let id = sessions["sessions"][0]["session"].as_str().unwrap();
    assert_eq!(place.says(&["sessions", id, "-o", "plain"]).lines().count(), 1);
    assert_eq!(place.code(&["sessions", "no-such"]), 1);
}

fn watch_tells_what_happens(place: &Place) {
    let _before = place.held("a");
    let mut watch = place.start(&["watch", "a*", "--interval", "20ms"]);
    let event = |watch: &mut Running| -> Value { serde_json::from_str(&watch.line()).unwrap() };
    // The first look shows what stands; what comes now is an event.
    assert_eq!(event(&mut watch)["event"], "holds");
    let mut holder = place.held("alpha");
    let granted = event(&mut watch);
    assert_eq!((&granted["event"], &granted["name"]), (&"granted".into(), &"alpha".into()));
    assert_eq!(granted["schema_version"], 1);
    let _other = place.held("beta");
    let _waiter = place.start(&["run", "alpha", "--", "sleep", "600"]);
    assert_eq!(event(&mut watch)["event"], "queued");
    holder.signal(Signal::TERM);
    holder.ends();
    assert_eq!(event(&mut watch)["event"], "ended");
    assert_eq!(event(&mut watch)["event"], "granted");
}

fn a_wait_at_a_terminal_shows_the_holder_and_the_place(place: &Place) {
    let holder = place.held("reports");
    let mut terminal = Terminal::new(place);
    terminal.line("tenure run reports -- echo finally; echo code $?");
    terminal.expect("waiting for reports: held by ");
    let said = terminal.expect(", you are 1st");
    assert!(said.contains(&format!(":{} 'sh' for ", holder.child.id())), "{said}");
    terminal.expect("\r\u{1b}[Kwaiting");
    holder.signal(Signal::TERM);
    terminal.expect("\r\u{1b}[K");
    terminal.expect("finally");
    terminal.expect("code 0");
}

fn force_release_at_a_terminal_names_the_holder_and_asks(place: &Place) {
    let mut holder = place.held("x");
    let fence = fence_of(place, "x");
    let mut terminal = Terminal::new(place);
    let line = format!("tenure force-release x --fence {fence} --reason test");
    terminal.line(&line);
    terminal.expect("release x by force, held by ");
    let said = terminal.expect("? [y/N] ");
    assert!(said.contains(&format!(":{} 'sh'", holder.child.id())), "{said}");
    terminal.line("n");
    terminal.expect("nothing was released");
    terminal.line(&line);
    terminal.expect("[y/N] ");
    terminal.line("y");
    terminal.expect("released x from ");
    assert_eq!(holder.ends(), 123);
}

fn a_wait_without_a_terminal_prints_nothing(place: &Place) {
    let mut holder = place.held("x");
    let waiter =
        place.tenure(&["run", "x", "--", "true"]).stderr(std::process::Stdio::piped()).spawn();
    let waiter = waiter.unwrap();
    std::thread::sleep(Duration::from_millis(1_300));
    holder.signal(Signal::TERM);
    holder.ends();
    let output = ended(waiter);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    assert!(stderr(&place.run(&["-v", "run", "x", "--", "true"])).contains("x: obtained after"));
}

fn a_store_that_cannot_be_reached_gives_69(place: &Place) {
    place.lose_store();
    let output = place.run(&["run", "x", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert_eq!(place.code(&["ls"]), 69);
    assert_eq!(place.code(&["doctor"]), 69);
    assert!(!place.file("ran").exists());
}

fn a_holder_that_ends_at_once_leaves_nothing_behind(place: &Place) {
    for _ in 0..20 {
        assert_eq!(place.code(&["run", "x", "-n", "--", "true"]), 0);
    }
    eventually("nothing is held", || place.code(&["show", "x"]) == 1);
}

fn a_command_ends_when_the_store_is_gone(place: &Place) {
    let mut holder = place.start(&["run", "x", "--lease", "2s", "-c", "echo in; exec sleep 600"]);
    assert_eq!(holder.line(), "in");
    place.lose_store();
    assert_eq!(holder.ends(), 123);
}

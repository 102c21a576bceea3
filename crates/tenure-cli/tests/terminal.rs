//! `tenure run` at a keyboard: an editor as the command, Ctrl-C, Ctrl-Z, pipelines, job control.

mod common;

use common::Place;
use common::terminal::{CTRL_C, CTRL_Z, Terminal};

#[test]
fn the_command_reads_from_the_terminal_and_the_shell_has_it_back_afterwards() {
    let place = Place::memory();
    let mut terminal = Terminal::new(&place);
    terminal.line("tenure run x -c 'read line; echo got $line'");
    terminal.line("hello");
    terminal.expect("got hello");
    terminal.expect("ready> ");
    terminal.line("echo the shell is $((20 + 3))");
    terminal.expect("the shell is 23");
}

#[test]
fn the_command_is_in_the_foreground_as_an_editor_must_be() {
    let place = Place::memory();
    let mut terminal = Terminal::new(&place);
    // Only the foreground group may change the terminal's settings without being stopped.
    terminal.line("tenure run x -c 'stty raw -echo; stty sane; stty -a | grep -c icanon'");
    terminal.expect("1");
    terminal.expect("ready> ");
    terminal.line("tenure run x -c 'ps -o pgid= -o tpgid= -p $$'; echo done");
    let said = terminal.expect("done");
    let numbers: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(numbers.len(), 2, "{said:?}");
    assert_eq!(numbers[0], numbers[1], "its group is the terminal's foreground group");
}

#[test]
fn a_command_reads_dev_tty_even_if_its_input_is_not_the_terminal() {
    let place = Place::memory();
    let mut terminal = Terminal::new(&place);
    terminal.line("tenure run x -c 'read line </dev/tty; echo got $line' </dev/null");
    terminal.line("secret");
    terminal.expect("got secret");
    terminal.expect("ready> ");
}

#[test]
fn ctrl_c_ends_the_command_once_and_the_exit_code_says_so() {
    let place = Place::memory();
    let mut terminal = Terminal::new(&place);
    terminal.line("tenure run x -c 'echo started; exec sleep 600'; echo code $?");
    terminal.expect("started");
    terminal.keys(CTRL_C);
    terminal.expect("code 130");
    terminal.expect("ready> ");
    let counting =
        "n=0; trap '\\''n=$((n+1))'\\'' INT; echo started; sleep 1; sleep 1; echo count $n";
    terminal.line(&format!("tenure run x -- bash -c '{counting}'; echo code $?"));
    terminal.expect("started");
    terminal.keys(CTRL_C);
    terminal.expect("count 1");
    terminal.expect("code 0");
}

#[test]
fn ctrl_z_stops_the_job_and_fg_lets_it_go_on() {
    let place = Place::memory();
    let mut terminal = Terminal::new(&place);
    terminal.line("tenure run x --lease 500ms -c 'echo started; read line; echo got $line'");
    terminal.expect("started");
    terminal.keys(CTRL_Z);
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    // For longer than the lease: the guardian keeps the lock while the job is stopped.
    terminal.line("sleep 1.5; jobs; echo looked");
    terminal.expect("Stopped");
    terminal.expect("looked");
    terminal.line("fg");
    terminal.line("again");
    terminal.expect("got again");
    terminal.expect("ready> ");
    terminal.line("echo code $?");
    terminal.expect("code 0");
}

#[test]
fn a_job_in_the_background_stops_when_it_wants_to_read_and_fg_gives_it_the_terminal() {
    let place = Place::memory();
    let mut terminal = Terminal::new(&place);
    terminal.line("tenure run x -c 'read line; echo got $line' & sleep 0.7");
    terminal.expect("ready> ");
    terminal.line("jobs; echo looked");
    terminal.expect("Stopped");
    terminal.expect("looked");
    terminal.line("fg");
    terminal.expect("tenure run");
    terminal.line("hello");
    terminal.expect("got hello");
    terminal.expect("ready> ");
}

#[test]
fn a_pipeline_shares_the_terminal_with_the_command() {
    let place = Place::memory();
    let mut terminal = Terminal::new(&place);
    let pager = "sh -c 'cat; read key </dev/tty; echo key $key'";
    terminal.line(&format!("tenure run x -- echo page | {pager}"));
    terminal.expect("page");
    terminal.line("q");
    terminal.expect("key q");
    terminal.expect("ready> ");
}

#[test]
fn an_interactive_shell_can_be_the_command() {
    let place = Place::memory();
    let mut terminal = Terminal::new(&place);
    terminal.line("tenure run x -- env PS1='inner> ' bash --norc --noediting -i");
    terminal.expect("inner> ");
    terminal.line("sh -c 'echo sleeping; exec sleep 600'");
    terminal.expect("sleeping");
    terminal.keys(CTRL_Z);
    terminal.expect("Stopped");
    terminal.expect("inner> ");
    terminal.line("kill -KILL %1; sleep 0.2");
    terminal.expect("Killed");
    terminal.expect("inner> ");
    terminal.line("echo under $TENURE_NAME; exit 4");
    terminal.expect("under x");
    terminal.expect("ready> ");
    terminal.line("echo code $?");
    terminal.expect("code 4");
}

//! A pseudo-terminal with an interactive shell on it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::Place;

pub(crate) const CTRL_C: &str = "\u{3}";
pub(crate) const CTRL_Z: &str = "\u{1a}";

/// A shell on a terminal of its own.
pub(crate) struct Terminal {
    shell: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// What was expected and seen so far.
    seen: usize,
}

impl Terminal {
    pub(crate) fn new(place: &Place) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        // The terminal is to control a session of its own, with the shell at its head.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", "bash", "--norc", "--noediting", "-i"]);
        place.furnish(&mut command);
        command.env("PS1", "ready> ").env("TERM", "xterm");
        let shell = command.stdin(end(&slave)).stdout(end(&slave)).stderr(end(&slave)).spawn();
        let keyboard = File::from(master);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, filled) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = reader.read(&mut bytes) {
                filled.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        let mut terminal = Self { shell: shell.expect("a shell"), keyboard, screen, seen: 0 };
        terminal.expect("ready> ");
        terminal
    }

    /// Types keys.
    pub(crate) fn keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line, and waits until its echo is over.
    pub(crate) fn line(&mut self, line: &str) {
        self.keys(line);
        self.expect(line);
        self.keys("\n");
        self.expect("\n");
    }

    /// Waits until a text appears after what was expected before. Gives what stood in between.
    pub(crate) fn expect(&mut self, text: &str) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen.lock().unwrap().clone();
            let new = &screen[self.seen..];
            if let Some(at) = new.find(text) {
                let between = new[..at].to_owned();
                self.seen += at + text.len();
                return between;
            }
            let late = began.elapsed() > Duration::from_secs(20);
            assert!(!late, "no {text:?} on the screen after {new:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Closing the terminal hangs up on everything that runs there.
        let _ = self.keyboard.write_all(b"\x03\nexit\nexit\n");
        let began = Instant::now();
        while self.shell.try_wait().unwrap().is_none() {
            if began.elapsed() > Duration::from_secs(2) {
                let _ = self.shell.kill();
                let _ = self.shell.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

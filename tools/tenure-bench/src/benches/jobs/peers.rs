//! Other job queues, which `peers/peers.sh` installs into a directory outside the repository. Each
//! is an executable `DIR/NAME`, called with a verb; `peers/README.md` has the verbs. Nothing of
//! theirs is linked.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tenure::Error;

use super::super::stores::failed;
use crate::benches::processes::Process;

/// Where a peer keeps its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerStore {
    Postgres,
    Redis,
    Embedded,
}

/// What is known of a peer before it is installed.
#[derive(Debug)]
struct KnownPeer {
    name: &'static str,
    store: PeerStore,
    /// Jobs of a block are divided by this: a slow peer would keep the others waiting.
    slow: u32,
    /// The least ratio of claims and completions.
    aim: f64,
}

static KNOWN: [KnownPeer; 4] = [
    KnownPeer { name: "graphile", store: PeerStore::Postgres, slow: 1, aim: 1.0 },
    KnownPeer { name: "river", store: PeerStore::Postgres, slow: 2, aim: 2.0 },
    KnownPeer { name: "effectum", store: PeerStore::Embedded, slow: 1, aim: 10.0 },
    KnownPeer { name: "bullmq", store: PeerStore::Redis, slow: 1, aim: 1.5 },
];

/// How a peer is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settings {
    Best,
    Default,
}

impl Settings {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Default => "default",
        }
    }
}

/// The peers of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers(Vec<Peer>);

/// A peer that is installed.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    known: &'static KnownPeer,
    program: PathBuf,
    version: String,
}

impl Peers {
    /// Looks which peers are installed. A peer without a directory is left out.
    pub(crate) fn find(directory: Option<&Path>) -> Self {
        let find = |known: &'static KnownPeer| {
            let program = directory?.join(known.name);
            let version = output(Command::new(&program).arg("version")).ok()?;
            Some(Peer { known, program, version: version.trim().to_owned() })
        };
        Self(KNOWN.iter().filter_map(find).collect())
    }

    /// For each known peer its name, and its version if it takes part.
    pub(crate) fn versions(&self) -> Vec<(&'static str, Option<&str>)> {
        let version = |known: &'static KnownPeer| {
            let found = self.0.iter().find(|peer| peer.known.name == known.name);
            (known.name, found.map(|peer| peer.version.as_str()))
        };
        KNOWN.iter().map(version).collect()
    }

    /// Those with this kind of store.
    pub(super) fn of(&self, store: PeerStore) -> impl Iterator<Item = &Peer> {
        self.0.iter().filter(move |peer| peer.known.store == store)
    }
}

impl Peer {
    pub(super) fn name(&self) -> &'static str {
        self.known.name
    }

    pub(super) fn aim(&self) -> f64 {
        self.known.aim
    }

    pub(super) fn slow(&self) -> u32 {
        self.known.slow
    }

    /// Runs a verb to its end, and returns what it prints.
    pub(super) fn call(&self, arguments: &[&str]) -> Result<String, Error> {
        let printed = output(Command::new(&self.program).args(arguments));
        printed.map_err(|why| failed(&format!("{}: {why}", self.name())))
    }

    /// The same; it prints one number.
    pub(super) fn number(&self, arguments: &[&str]) -> Result<f64, Error> {
        let printed = self.call(arguments)?;
        printed.trim().parse().map_err(|_| failed(&format!("{}: {printed:?}", self.name())))
    }

    /// Starts a verb that goes on until it is killed.
    pub(super) fn start(&self, arguments: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        Process::spawn(command).map_err(|error| failed(&format!("{}: {error}", self.name())))
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

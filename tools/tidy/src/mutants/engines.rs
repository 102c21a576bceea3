//! Which mutants and which suites belong together. Knows names of files and tests, runs nothing.

use std::fs;
use std::io;
use std::path::Path;

use super::list::{self, Mutant};
use super::mechanical;
use super::suite::Suite;

/// A part of the code with its mutants and with the suites that judge them.
#[derive(Debug)]
pub struct Engine {
    /// How it is called on the command line.
    pub name: &'static str,
    /// Its list, see [`list`].
    pub list: &'static str,
    /// Where the Lua or SQL for mechanical mutants is, below `crates/tenure/src`.
    pub texts: Option<&'static str>,
    /// The narrowest first. Unit tests are last: they need a build of the library of their own.
    pub suites: &'static [Suite],
}

const fn suite(target: &'static str, filter: &'static str) -> Suite {
    Suite { target, filter }
}

/// All of them.
pub const ENGINES: &[Engine] = &[
    Engine {
        name: "lua",
        list: include_str!("lists/lua.txt"),
        texts: Some("engine/redis/lua"),
        suites: &[
            suite("conformance", "redis::"),
            suite("redis", ""),
            suite("differential", "redis::"),
            suite("cluster", ""),
            suite("sentinel", ""),
            suite("lib", "engine::redis::scripts"),
        ],
    },
    Engine {
        name: "sql",
        list: include_str!("lists/sql.txt"),
        texts: Some("engine/postgres/sql"),
        suites: &[
            suite("conformance", "postgres::"),
            suite("postgres", ""),
            suite("differential", "postgres::"),
            suite("lib", "engine::postgres::schema"),
        ],
    },
    Engine {
        name: "etcd",
        list: include_str!("lists/etcd.txt"),
        texts: None,
        suites: &[
            suite("conformance", "etcd::"),
            suite("etcd", ""),
            suite("differential", "etcd::"),
            suite("lib", "engine::etcd"),
        ],
    },
    Engine {
        name: "redlock",
        list: include_str!("lists/redlock.txt"),
        texts: Some("engine/redlock/lua"),
        suites: &[
            suite("conformance", "redlock::"),
            suite("redlock", ""),
            suite("redlock_model", ""),
            suite("lib", "engine::redlock"),
        ],
    },
    Engine {
        name: "embedded",
        list: include_str!("lists/embedded.txt"),
        texts: None,
        suites: &[
            suite("conformance", "embedded::"),
            suite("embedded", ""),
            suite("differential", "embedded::"),
            suite("lib", "engine::embedded"),
        ],
    },
];

impl Engine {
    /// Its mutants: those of the list, and a sample of mechanical ones.
    ///
    /// # Errors
    /// If the list cannot be understood or a file cannot be read.
    pub fn mutants(&self, root: &Path, sample: usize) -> io::Result<Vec<Mutant>> {
        let listed = list::parse(self.list);
        let mut mutants =
            listed.map_err(|why| io::Error::other(format!("lists/{}.txt: {why}", self.name)))?;
        if let Some(folder) = self.texts {
            mutants.extend(mechanical::sample(&texts(root, folder)?, sample));
        }
        Ok(mutants)
    }
}

/// The files of a folder below `crates/tenure/src`, by name.
fn texts(root: &Path, folder: &str) -> io::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join("crates/tenure/src").join(folder))? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        files.push((path, fs::read_to_string(entry.path())?));
    }
    files.sort();
    Ok(files)
}

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
    /// The narrowest first.
    pub suites: &'static [Suite],
    /// Files, by the end of their path, and the parts of the suites that are about them: these run
    /// behind the two narrowest suites.
    pub about: &'static [(&'static str, &'static [Suite])],
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
            suite("differential", "redis::kept"),
            suite("differential", "redis::a_few"),
            suite("conformance", "redis::"),
            suite("redis", ""),
            suite("differential", "redis::"),
            suite("cluster", ""),
            suite("sentinel", ""),
            suite("lib", "engine::redis::scripts"),
        ],
        about: &[
            ("lua/connect.lua", &[suite("redis", "forgetting::"), suite("redis", "terms::")]),
            ("lua/change_terms.lua", &[suite("redis", "terms::")]),
            ("lua/head.lua", &[suite("redis", "forgetting::"), suite("redis", "clocks::")]),
            ("lua/tail.lua", &[suite("redis", "forgetting::")]),
            ("lua/renew.lua", &[suite("redis", "ttl::"), suite("conformance", "redis::expiry")]),
            ("lua/claim.lua", &[suite("redis", "ttl::"), suite("conformance", "redis::fencing")]),
            ("lua/put.lua", &[suite("conformance", "redis::cells")]),
            ("lua/get.lua", &[suite("conformance", "redis::cells")]),
            ("lua/inspect.lua", &[suite("conformance", "redis::inspection")]),
            ("lua/raise_fences.lua", &[suite("conformance", "redis::floors")]),
            ("lua/rights.lua", &[suite("redis", "access::")]),
            ("lua/slot.lua", &[suite("redis", "ttl::"), suite("redis", "damage::")]),
        ],
    },
    Engine {
        name: "sql",
        list: include_str!("lists/sql.txt"),
        texts: Some("engine/postgres/sql"),
        suites: &[
            suite("differential", "postgres::kept"),
            suite("differential", "postgres::a_few"),
            suite("conformance", "postgres::"),
            suite("postgres", ""),
            suite("differential", "postgres::"),
            suite("lib", "engine::postgres::schema"),
        ],
        about: &[
            ("sql/tables.sql", &[suite("postgres", "rows::"), suite("postgres", "clocks::")]),
            ("sql/connect.sql", &[suite("postgres", "crashes::"), suite("postgres", "doors::")]),
            ("sql/claim.sql", &[suite("postgres", "rows::")]),
            ("sql/release.sql", &[suite("postgres", "rows::")]),
            ("sql/cells.sql", &[suite("conformance", "postgres::cells")]),
            ("sql/inspect.sql", &[suite("conformance", "postgres::inspection")]),
            ("sql/raise_fences.sql", &[suite("conformance", "postgres::floors")]),
        ],
    },
    Engine {
        name: "etcd",
        list: include_str!("lists/etcd.txt"),
        texts: None,
        suites: &[
            suite("differential", "etcd::kept"),
            suite("differential", "etcd::a_few"),
            suite("lib", "engine::etcd"),
            suite("conformance", "etcd::"),
            suite("etcd", ""),
            suite("differential", "etcd::"),
        ],
        about: &[],
    },
    Engine {
        name: "redlock",
        list: include_str!("lists/redlock.txt"),
        texts: Some("engine/redlock/lua"),
        suites: &[
            suite("lib", "engine::redlock"),
            suite("redlock", "votes::"),
            suite("redlock", "faults::"),
            suite("conformance", "redlock::"),
            suite("redlock", ""),
            suite("redlock_model", ""),
        ],
        about: &[],
    },
    Engine {
        name: "embedded",
        list: include_str!("lists/embedded.txt"),
        texts: None,
        suites: &[
            suite("differential", "embedded::kept"),
            suite("differential", "embedded::a_few"),
            suite("lib", "engine::embedded"),
            suite("conformance", "embedded::"),
            suite("embedded", ""),
            suite("differential", "embedded::"),
        ],
        about: &[("embedded/cells.rs", &[suite("conformance", "embedded::cells")])],
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

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
    /// before the suites.
    pub about: &'static [(&'static str, &'static [Suite])],
}

const fn suite(target: &'static str, filter: &'static str) -> Suite {
    Suite { target, filter }
}

const REDIS_KEPT: Suite = suite("differential", "redis::kept");
const REDIS_CONTENDED: Suite = suite("redis", "contended::");
const REDIS_TTL: Suite = suite("redis", "ttl::");
const REDIS_CELLS: Suite = suite("conformance", "redis::cells");
const REDIS_CELL_PROGRAMS: Suite = suite("differential", "redis::engine_and_rules");
const REDIS_DEADLOCKS: Suite = suite("conformance", "redis::deadlocks");
const REDIS_RATES: Suite = suite("conformance", "redis::rates");
const REDIS_JOBS: &[Suite] = &[
    suite("conformance", "redis::jobs"),
    suite("differential", "redis::engine_and_rules_agree_on_programs_of_jobs"),
    suite("jobs", "redis::"),
];
const POSTGRES_JOBS: &[Suite] = &[
    suite("conformance", "postgres::jobs"),
    suite("differential", "postgres::engine_and_rules_agree_on_programs_of_jobs"),
    suite("jobs", "postgres::"),
];
const POSTGRES_KEPT: Suite = suite("differential", "postgres::kept");
const POSTGRES_CELLS: Suite = suite("conformance", "postgres::cells");
const POSTGRES_CELL_PROGRAMS: Suite = suite("differential", "postgres::engine_and_rules");
const ETCD_CELLS: Suite = suite("conformance", "etcd::cells");
const ETCD_CELL_PROGRAMS: Suite = suite("differential", "etcd::engine_and_rules");
const ETCD_LIB: Suite = suite("lib", "engine::etcd");
const EMBEDDED_CELLS: Suite = suite("conformance", "embedded::cells");
const EMBEDDED_CELL_PROGRAMS: Suite = suite("differential", "embedded::engine_and_rules");
const EMBEDDED_LIB: Suite = suite("lib", "engine::embedded");

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
            suite("without_locks", "redis"),
        ],
        about: &[
            ("lua/connect.lua", &[suite("redis", "forgetting::"), suite("redis", "terms::")]),
            ("lua/change_terms.lua", &[suite("redis", "terms::")]),
            ("lua/head.lua", &[suite("redis", "forgetting::"), suite("redis", "clocks::")]),
            ("lua/tail.lua", &[suite("redis", "forgetting::")]),
            ("lua/clock.lua", &[suite("redis", "clocks::")]),
            ("lua/renew.lua", &[REDIS_KEPT, REDIS_TTL]),
            ("lua/claim.lua", &[REDIS_KEPT, REDIS_TTL]),
            ("lua/slot.lua", &[REDIS_KEPT, REDIS_TTL, REDIS_CONTENDED]),
            ("lua/evict.lua", &[suite("conformance", "redis::inspection")]),
            (
                "lua/inspect.lua",
                &[suite("conformance", "redis::inspection"), REDIS_DEADLOCKS, REDIS_CONTENDED],
            ),
            ("lua/raise_fences.lua", &[suite("conformance", "redis::fencing")]),
            ("lua/rights.lua", &[suite("redis", "access::")]),
            ("lua/get.lua", &[REDIS_CELLS, REDIS_CELL_PROGRAMS, suite("redis", "cells::")]),
            (
                "lua/write.lua",
                &[REDIS_CELLS, REDIS_CELL_PROGRAMS, suite("redis", "cells::"), REDIS_TTL],
            ),
            ("lua/keyclock.lua", &[suite("redis", "clocks::"), REDIS_TTL]),
            ("lua/rate.lua", &[REDIS_RATES]),
            ("lua/take.lua", &[REDIS_RATES, suite("redis", "clocks::")]),
            ("lua/settle.lua", &[REDIS_RATES]),
            ("lua/reset.lua", &[REDIS_RATES]),
            ("lua/refuse_victim.lua", &[REDIS_DEADLOCKS]),
            ("lua/jobs.lua", REDIS_JOBS),
            ("lua/turn.lua", REDIS_JOBS),
            ("lua/push.lua", REDIS_JOBS),
            ("lua/change_job.lua", REDIS_JOBS),
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
            suite("without_locks", "postgres"),
        ],
        about: &[
            ("sql/tables.sql", &[suite("postgres", "rows::"), suite("postgres", "clocks::")]),
            ("sql/connect.sql", &[suite("postgres", "crashes::"), suite("postgres", "doors::")]),
            ("sql/claim.sql", &[POSTGRES_KEPT, suite("postgres", "rows::")]),
            ("sql/release.sql", &[POSTGRES_KEPT, suite("postgres", "rows::")]),
            (
                "sql/cells.sql",
                &[
                    POSTGRES_CELLS,
                    suite("postgres", "watches::"),
                    suite("postgres", "cells::"),
                    POSTGRES_CELL_PROGRAMS,
                ],
            ),
            (
                "sql/rates.sql",
                &[
                    suite("conformance", "postgres::rates"),
                    suite("postgres", "rates::"),
                    suite("postgres", "clocks::"),
                ],
            ),
            ("sql/refuse_victim.sql", &[suite("conformance", "postgres::deadlocks")]),
            ("sql/inspect.sql", &[suite("conformance", "postgres::inspection")]),
            ("sql/evict.sql", &[suite("conformance", "postgres::inspection")]),
            ("sql/raise_fences.sql", &[suite("conformance", "postgres::fencing")]),
            ("sql/jobs.sql", POSTGRES_JOBS),
            ("sql/turn.sql", POSTGRES_JOBS),
            ("sql/push.sql", POSTGRES_JOBS),
            ("sql/change_job.sql", POSTGRES_JOBS),
            ("sql/job_in.sql", &[suite("jobs", "postgres::")]),
        ],
    },
    Engine {
        name: "etcd",
        list: include_str!("lists/etcd.txt"),
        texts: None,
        suites: &[
            suite("differential", "etcd::kept"),
            suite("differential", "etcd::a_few"),
            ETCD_LIB,
            suite("conformance", "etcd::"),
            suite("etcd", ""),
            suite("differential", "etcd::"),
            suite("deadlock", ""),
        ],
        about: &[
            ("etcd/cells.rs", &[ETCD_CELLS, ETCD_CELL_PROGRAMS, suite("etcd", "cells::")]),
            ("etcd/cell_writes.rs", &[ETCD_CELLS, ETCD_CELL_PROGRAMS, suite("etcd", "cells::")]),
            ("etcd/cell_watches.rs", &[ETCD_CELLS, ETCD_CELL_PROGRAMS, suite("etcd", "cells::")]),
            ("etcd/deadlock.rs", &[suite("conformance", "etcd::deadlocks"), ETCD_LIB]),
            ("etcd/leases.rs", &[ETCD_LIB]),
            ("etcd/watches.rs", &[ETCD_LIB]),
            ("etcd/signals.rs", &[ETCD_LIB]),
        ],
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
            EMBEDDED_LIB,
            suite("conformance", "embedded::"),
            suite("embedded", ""),
            suite("differential", "embedded::"),
        ],
        about: &[
            (
                "embedded/cell_rows.rs",
                &[EMBEDDED_CELLS, EMBEDDED_CELL_PROGRAMS, suite("embedded", "cells::")],
            ),
            (
                "embedded/cell_signals.rs",
                &[EMBEDDED_CELLS, EMBEDDED_CELL_PROGRAMS, suite("embedded", "cells::")],
            ),
            ("embedded/commit.rs", &[EMBEDDED_LIB, suite("embedded", "durability::")]),
            ("embedded/commit_queue.rs", &[EMBEDDED_LIB, suite("embedded", "durability::")]),
            ("embedded/durable.rs", &[EMBEDDED_LIB, suite("embedded", "durability::")]),
            ("embedded/datagrams.rs", &[EMBEDDED_LIB, suite("embedded", "letters::")]),
            ("embedded/directory.rs", &[EMBEDDED_LIB, suite("embedded", "place::")]),
            ("embedded/gate.rs", &[EMBEDDED_LIB, suite("embedded", "letters::")]),
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

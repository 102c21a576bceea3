//! A PgBouncer before a PostgreSQL: many clients, few connections, each lent out for one
//! transaction. Knows its configuration, not who comes.

use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;

use crate::patience::{LIMIT, within};
use crate::ports;
use crate::process::{Process, directory, locked, open_to, remove, write};

use super::builder::ready;
use super::{ADMIN, Postgres, other_program};

/// A `pgbouncer` in transaction mode on a free loopback port.
pub struct PgBouncer {
    process: Mutex<Process>,
    dir: PathBuf,
    port: u16,
}

impl PgBouncer {
    /// Starts one before a server, with so many connections to it.
    ///
    /// # Panics
    /// When it cannot be started; the message says why and what to do.
    #[must_use]
    pub fn before(server: &Postgres, connections: u16) -> Self {
        Self::start(server, connections).unwrap_or_else(|error| panic!("{error}"))
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{ADMIN}@127.0.0.1:{}/postgres", self.port)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it with -9.
    pub fn kill(&self) {
        locked(&self.process).kill();
    }

    fn start(server: &Postgres, connections: u16) -> Result<Self, String> {
        let user = ready::user()?;
        let dir = directory("pgbouncer")?;
        open_to(&dir, user)?;
        let port = ports::free();
        let config = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = {connections}\nmax_client_conn = 1000\nserver_reset_query =\n",
            server.place().dir.display(),
            server.port(),
        );
        // `any` asks nobody for anything and needs one user for all connections to the server.
        let config = config.replacen("port=", &format!("user={ADMIN} port="), 1);
        let path = dir.join("pgbouncer.ini");
        write(&path, &config)?;
        open_to(&path, user)?;
        let mut program = other_program("pgbouncer", "pgbouncer")?;
        program.command.arg(&path);
        let log = dir.join("log");
        let process = Process::start(program, &log)?;
        let up = within(LIMIT, || {
            !process.lives() || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        if up && process.lives() {
            return Ok(Self { process: Mutex::new(process), dir, port });
        }
        Err(format!("pgbouncer died at its start: {}", ready::last_words(&log)))
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        locked(&self.process).kill();
        remove(&self.dir);
    }
}

impl fmt::Debug for PgBouncer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgBouncer").field("url", &self.url()).finish_non_exhaustive()
    }
}

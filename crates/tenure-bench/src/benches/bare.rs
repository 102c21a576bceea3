//! The least that a fair hand-off between processes takes: one transaction to ask, one to pass it
//! on, one datagram. No leases, fences, owners or checks.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use heed::types::{Bytes, Str};
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RwTxn};
use tenure::{Error, ErrorKind};

pub(super) struct Bare {
    env: Env,
    table: Database<Str, Bytes>,
    directory: PathBuf,
    socket: UnixDatagram,
    number: u32,
}

impl Bare {
    #[allow(unsafe_code, reason = "opening an LMDB environment is")]
    pub(super) fn open(directory: &Path, number: u32) -> Result<Self, Error> {
        let mut options = EnvOpenOptions::new();
        options.map_size(4 << 20);
        // SAFETY: made for this run alone, opened once in each process, on a local disk.
        let env = unsafe {
            options.flags(EnvFlags::WRITE_MAP | EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC);
            options.open(directory)
        };
        let open = || {
            let env = env?;
            let mut txn = env.write_txn()?;
            let table = env.create_database(&mut txn, None)?;
            txn.commit()?;
            let socket = UnixDatagram::bind(directory.join(format!("s{number}")))?;
            Ok(Self { env, table, directory: directory.to_owned(), socket, number })
        };
        open().map_err(trouble)
    }

    pub(super) fn pair(&self) -> Result<(), Error> {
        let pair = || {
            if !self.claim()? {
                self.socket.recv(&mut [0; 64])?;
            }
            if let Some(next) = self.release()? {
                self.socket.send_to(&[1; 40], self.directory.join(format!("s{next}")))?;
            }
            Ok(())
        };
        pair().map_err(trouble)
    }

    /// Takes the lock, or a place in line. Whether it has the lock.
    fn claim(&self) -> heed::Result<bool> {
        let mut txn = self.env.write_txn()?;
        let free = self.number(&txn, "holder")?.is_none();
        if free {
            self.put(&mut txn, "holder", self.number)?;
        } else {
            let tail = self.number(&txn, "tail")?.unwrap_or(0);
            self.put(&mut txn, &format!("q{tail}"), self.number)?;
            self.put(&mut txn, "tail", tail + 1)?;
        }
        txn.commit()?;
        Ok(free)
    }

    /// Passes the lock on. Who has it now.
    fn release(&self) -> heed::Result<Option<u32>> {
        let mut txn = self.env.write_txn()?;
        let head = self.number(&txn, "head")?.unwrap_or(0);
        let key = format!("q{head}");
        let next = self.number(&txn, &key)?;
        if let Some(next) = next {
            self.table.delete(&mut txn, &key)?;
            self.put(&mut txn, "head", head + 1)?;
            self.put(&mut txn, "holder", next)?;
        } else {
            self.table.delete(&mut txn, "holder")?;
        }
        txn.commit()?;
        Ok(next)
    }

    fn number(&self, txn: &RwTxn<'_>, key: &str) -> heed::Result<Option<u32>> {
        let bytes = self.table.get(txn, key)?;
        Ok(bytes.and_then(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?))))
    }

    fn put(&self, txn: &mut RwTxn<'_>, key: &str, value: u32) -> heed::Result<()> {
        self.table.put(txn, key, &value.to_le_bytes())
    }
}

fn trouble(error: heed::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the bare loop failed").caused_by(error)
}

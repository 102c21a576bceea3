//! The least that a fair hand-off between processes takes: one transaction to ask, one to pass it
//! on, one datagram; as many bytes as Tenure's. No leases, fences, owners or checks.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use heed::types::{Bytes, Str};
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RwTxn};
use tenure::{Error, ErrorKind};

/// The slot's one row: the holder's record, then those of the waiters in their order.
const SLOT: &str = "handoff";
/// About as long as the record of a claim.
const RECORD: usize = 220;

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

    /// Takes the lock and passes it on. Returns whether it had to wait.
    pub(super) fn pair(&self, keep: impl Fn()) -> Result<bool, Error> {
        let pair = || {
            let free = self.claim()?;
            if !free {
                self.socket.recv(&mut [0; 64])?;
            }
            keep();
            if let Some(next) = self.release()? {
                self.socket.send_to(&[1; 40], self.directory.join(format!("s{next}")))?;
            }
            Ok(!free)
        };
        pair().map_err(trouble)
    }

    /// Takes the lock, or a place in line. Whether it has the lock.
    fn claim(&self) -> heed::Result<bool> {
        let mut txn = self.env.write_txn()?;
        let mut row = self.row(&txn)?;
        let free = row.is_empty();
        let mut record = [7; RECORD];
        record[..4].copy_from_slice(&self.number.to_le_bytes());
        row.extend_from_slice(&record);
        self.table.put(&mut txn, SLOT, &row)?;
        txn.commit()?;
        Ok(free)
    }

    /// Passes the lock on. Who has it now.
    fn release(&self) -> heed::Result<Option<u32>> {
        let mut txn = self.env.write_txn()?;
        let mut row = self.row(&txn)?;
        row.drain(..RECORD.min(row.len()));
        let next = row.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        if next.is_some() {
            self.table.put(&mut txn, SLOT, &row)?;
        } else {
            self.table.delete(&mut txn, SLOT)?;
        }
        txn.commit()?;
        Ok(next)
    }

    fn row(&self, txn: &RwTxn<'_>) -> heed::Result<Vec<u8>> {
        Ok(self.table.get(txn, SLOT)?.unwrap_or_default().to_vec())
    }
}

fn trouble(error: heed::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the bare loop failed").caused_by(error)
}

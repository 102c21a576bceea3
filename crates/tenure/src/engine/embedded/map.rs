//! The size of the memory map over the lock environment.
//!
//! The map begins small and doubles when it is full. The process that enlarges it publishes the new
//! size in shared memory; the others follow before their next step. All of this happens inside the
//! gate, where no transaction of this process is open, which is what LMDB requires.

use std::sync::atomic::Ordering;

use heed::{Env, WithoutTls};
use rustix::fs::{FallocateFlags, fallocate};

use super::directory::cannot_without;
use super::gate::GateGuard;
use super::store::Store;
use crate::contract::{Error, ErrorKind};

/// The largest map.
pub(super) const MAX_MAP: usize = 4 << 30;
/// The space of the map that steps which may grow the store leave free, in bytes.
const SPARE: usize = 1 << 20;

impl Store {
    /// Maps what another process has added to the map.
    pub(super) fn follow_map(
        &self,
        env: &Env<WithoutTls>,
        _inside: &GateGuard<'_>,
    ) -> Result<(), Error> {
        let wanted = self.gate.counters().map_size.load(Ordering::Acquire);
        let wanted = usize::try_from(wanted).unwrap_or(MAX_MAP);
        if env.info().map_size < wanted {
            self.resize(env, wanted)?;
        }
        Ok(())
    }

    /// Makes sure that [`SPARE`] bytes of the map stay free.
    pub(super) fn keep_spare(
        &self,
        env: &Env<WithoutTls>,
        inside: &GateGuard<'_>,
    ) -> Result<(), Error> {
        let info = env.info();
        if (info.last_page_number + 1) * rustix::param::page_size() + SPARE <= info.map_size {
            return Ok(());
        }
        let Err(full) = self.grow(env, inside) else { return Ok(()) };
        // Pages that were used may be free again.
        let used = env.non_free_pages_size().ok().and_then(|size| usize::try_from(size).ok());
        if used.is_some_and(|used| used + SPARE <= info.map_size) {
            return Ok(());
        }
        self.full.store(true, Ordering::Relaxed);
        Err(full)
    }

    /// Doubles the map.
    pub(super) fn grow(&self, env: &Env<WithoutTls>, _inside: &GateGuard<'_>) -> Result<(), Error> {
        let wanted = env.info().map_size * 2;
        if wanted > MAX_MAP {
            let what = "the store is as large as it may become";
            return Err(Error::new(ErrorKind::Limit, what).with_help("hold fewer locks"));
        }
        // Before the map is enlarged: invariant 3 of the store.
        let allocated = fallocate(&self.data, FallocateFlags::empty(), 0, wanted as u64);
        if let Err(error) = allocated {
            // Frees the blocks that were allocated before the disk was full.
            let _ = self.data.set_len(env.info().map_size as u64);
            let more = (wanted - env.info().map_size) >> 20;
            let needs = format!("the store needs {more} MiB more to hold more locks");
            return Err(cannot_without("enlarge", &self.file_set, error.into(), &needs));
        }
        self.resize(env, wanted)?;
        self.gate.counters().map_size.fetch_max(wanted as u64, Ordering::AcqRel);
        Ok(())
    }

    #[allow(unsafe_code, reason = "heed cannot see that no transaction is open")]
    fn resize(&self, env: &Env<WithoutTls>, size: usize) -> Result<(), Error> {
        // SAFETY: the caller is alone inside the gate, and every transaction of this environment
        // is opened and closed inside it.
        let resized = unsafe { env.resize(size) };
        resized.map_err(|error| {
            // The old map is gone already: this process must not use it again.
            let _ = self.gone.set(format!("the store could not be mapped: {error}"));
            self.lost()
        })
    }
}

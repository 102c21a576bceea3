//! Cells: the value is that of one key, and its revision plus the base of fences is the version.
//!
//! A second key has the largest fence that wrote the cell. It stays when the cell is removed, and a
//! write without a fence does not touch it. A cell with a time to live has a lease of its own. How
//! cells are written is in `cell_writes.rs`, how they are watched in `cell_watches.rs`.
//!
//! A list reads a range of values and the same range of fences at one revision. There may be more
//! fences than values, because fences of removed cells stay: what the second range lacks is read
//! name by name, at the revision of the first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::client::{KeyValue, RangeRequest, RequestOp, ResponseOp};
use super::errors::VerbError;
use super::keys::Range;
use super::transaction::{OPERATIONS, as_i64};
use super::{EtcdEngine, Inner};
use crate::contract::{
    Batch, BatchVerdict, Cell, CellQuery, CellRange, Cells, Delivery, Error, ErrorKind, Fence,
    Name, Pattern, Pending, Verb, Version, WeakWatcher,
};
use crate::limits;

/// How many cells a list reads in one call, at least and at most. Values may be large.
const CELLS_PER_READ: (usize, usize) = (16, 64);

impl Cells for EtcdEngine {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        Box::pin(self.run(Verb::Cell, async move { inner.read_cell(&name).await }))
    }

    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        let (inner, batch) = (Arc::clone(&self.inner), batch.clone());
        Box::pin(self.run(Verb::Cell, async move {
            batch.check_limits()?;
            inner.write_cells(&batch).await
        }))
    }

    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        let CellQuery { pattern, after, limit } = query;
        let (inner, pattern, after) = (Arc::clone(&self.inner), pattern.clone(), after.cloned());
        let limit = limit.clamp(1, limits::PAGE);
        Box::pin(self.run(Verb::Cell, async move {
            inner.list_cells(&pattern, after.as_ref(), limit).await
        }))
    }

    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery> {
        let (inner, range) = (Arc::clone(&self.inner), range.clone());
        Box::pin(self.run(Verb::Cell, async move {
            inner.watch_cells(&range, watcher).await?;
            Ok(Delivery::Pushed)
        }))
    }
}

impl Inner {
    /// Reads a cell, and how long its lease has left if it has one.
    async fn read_cell(self: &Arc<Self>, name: &Name) -> Result<Option<Cell>, VerbError> {
        let keys = [self.keys.cell(name), self.keys.cell_fence(name)];
        let read = self.connection.read(keys.map(RequestOp::get).to_vec()).await?;
        let mut found = read.replies.into_iter().map(|reply| reply.into_kvs().into_iter().next());
        let (Some(value), fence) = (found.next().flatten(), found.next().flatten()) else {
            return Ok(None);
        };
        let fence = fence.map(|fence| read_fence(name, &fence)).transpose()?;
        let lease = value.lease;
        let cell = self.cell_of(value, fence);
        Ok(self.with_expiry(vec![(name.clone(), cell, lease)]).await?.pop().map(|(_, cell)| cell))
    }

    /// The cell at a key, without the time that it has left.
    pub(super) fn cell_of(&self, key: KeyValue, fence: Option<Fence>) -> Cell {
        let version = Version(self.version_of(key.mod_revision));
        Cell { value: key.value, version, fence, expires_in: None }
    }

    /// The version that a write at this revision has.
    pub(super) fn version_of(&self, revision: i64) -> u64 {
        self.epoch().version(u64::try_from(revision).unwrap_or(0))
    }

    /// Adds to cells the time that their leases have left, and leaves out those that have ended.
    /// The leases are read concurrently.
    async fn with_expiry(
        self: &Arc<Self>,
        cells: Vec<(Name, Cell, i64)>,
    ) -> Result<Vec<(Name, Cell)>, VerbError> {
        let mut in_flight = Vec::new();
        let mut leases: Vec<i64> = cells.iter().map(|(.., lease)| *lease).collect();
        leases.sort_unstable();
        leases.dedup();
        for lease in leases.into_iter().filter(|lease| *lease != 0) {
            let inner = Arc::clone(self);
            let read = async move { Ok(inner.leases.remaining_at_most(lease).await) };
            in_flight.push((lease, self.tasks.run(read)));
        }
        let mut left: HashMap<i64, Option<Duration>> = HashMap::new();
        for (lease, read) in in_flight {
            left.insert(lease, read.await??);
        }
        let living = cells.into_iter().filter_map(|(name, mut cell, lease)| {
            if lease != 0 {
                cell.expires_in = Some(left.get(&lease).copied().flatten()?);
            }
            Some((name, cell))
        });
        Ok(living.collect())
    }

    async fn list_cells(
        self: &Arc<Self>,
        pattern: &Pattern,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Cell)>, VerbError> {
        let mut range = self.keys.cells(&pattern.literal_prefix());
        if let Some(after) = after {
            range.from = range.from.max(self.behind_cell(after));
        }
        let mut found = Vec::new();
        while range.from < range.to {
            let most = limit.clamp(CELLS_PER_READ.0, CELLS_PER_READ.1);
            let (names, cells) = self.read_cells(&range, most, pattern).await?;
            found.extend(self.with_expiry(cells).await?);
            match names.last() {
                Some(last) if names.len() == most && found.len() < limit => {
                    range.from = self.behind_cell(last);
                }
                _ => break,
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Reads the first cells of a range. Returns the names of all, and the cells of those that
    /// match, each with its lease.
    async fn read_cells(
        &self,
        range: &Range,
        most: usize,
        pattern: &Pattern,
    ) -> Result<(Vec<Name>, Vec<(Name, Cell, i64)>), VerbError> {
        let page = |range: Range| RangeRequest {
            key: range.from,
            range_end: range.to,
            limit: i64::try_from(most).unwrap_or(i64::MAX),
            ..RangeRequest::default()
        };
        let reads = vec![page(range.clone()).into(), page(self.keys.fences_of(range)).into()];
        let read = self.connection.read(reads).await?;
        let (revision, mut pages) = (read.revision, read.replies.into_iter());
        let mut kvs_of_next = || pages.next().map(ResponseOp::into_kvs).unwrap_or_default();
        let (values, fence_keys) = (kvs_of_next(), kvs_of_next());
        let named =
            values.into_iter().filter_map(|key| Some((self.keys.cell_name(&key.key)?, key)));
        let values: Vec<(Name, KeyValue)> = named.collect();
        let names: Vec<Name> = values.iter().map(|(name, _)| name.clone()).collect();
        let is_cut = fence_keys.len() == most;
        let mut fences = HashMap::new();
        let mut last = None;
        for key in fence_keys {
            if let Some(name) = self.keys.cell_fence_name(&key.key) {
                fences.insert(name.clone(), read_fence(&name, &key)?);
                last = Some(name);
            }
        }
        let matching = values.into_iter().filter(|(name, _)| pattern.matches(name.as_str()));
        let matching: Vec<(Name, KeyValue)> = matching.collect();
        let missing = matching.iter().map(|(name, _)| name);
        let missing: Vec<&Name> =
            missing.filter(|name| is_cut && Some(*name) > last.as_ref()).collect();
        self.read_fences(&missing, revision, &mut fences).await?;
        let cells = matching.into_iter().map(|(name, key)| {
            let (fence, lease) = (fences.get(&name).copied(), key.lease);
            let cell = self.cell_of(key, fence);
            (name, cell, lease)
        });
        Ok((names, cells.collect()))
    }

    /// Reads the fences of some cells, as they were at a revision.
    async fn read_fences(
        &self,
        names: &[&Name],
        revision: u64,
        fences: &mut HashMap<Name, Fence>,
    ) -> Result<(), VerbError> {
        for names in names.chunks(OPERATIONS) {
            let get = |name: &&Name| RangeRequest {
                key: self.keys.cell_fence(name),
                revision: as_i64(revision),
                ..RangeRequest::default()
            };
            let read = self.connection.read(names.iter().map(|name| get(name).into()).collect());
            for (name, reply) in names.iter().zip(read.await?.replies) {
                if let Some(key) = reply.into_kvs().first() {
                    fences.insert((*name).clone(), read_fence(name, key)?);
                }
            }
        }
        Ok(())
    }

    /// The first key behind that of a cell.
    fn behind_cell(&self, name: &Name) -> Vec<u8> {
        [&*self.keys.cell(name), &[0]].concat()
    }
}

/// Parses the fence of a cell.
pub(super) fn read_fence(name: &Name, key: &KeyValue) -> Result<Fence, Error> {
    let text = std::str::from_utf8(&key.value).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.map(Fence::new).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, "the fence of the cell is damaged")
            .on(name)
            .with_help("inspect its key with etcdctl and delete it")
    })
}

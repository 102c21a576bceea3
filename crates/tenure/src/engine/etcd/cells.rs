//! Cells: the value is that of one key, and its revision plus the base of fences is the version.
//!
//! A second key has the largest fence that wrote the cell, and stays when the cell is removed. A
//! write reads both keys, checks the expectation, and writes on condition that neither has changed;
//! otherwise it starts again. A cell with a time to live has a lease of its own.

use std::sync::Arc;
use std::time::Duration;

use super::claim::MAX_ATTEMPTS;
use super::client::{KeyValue, RangeRequest, RequestOp, ResponseOp};
use super::errors::{VerbError, contended};
use super::transaction::Transaction;
use super::{EtcdEngine, Inner};
use crate::contract::{
    Cell, Cells, Error, ErrorKind, Expect, Fence, Name, Pattern, Pending, Put, PutVerdict, Verb,
    Version,
};
use crate::limits;

/// How many cells are read in one call.
const CELLS_PER_READ: i64 = 256;

impl Cells for EtcdEngine {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        Box::pin(self.run(Verb::Cell, async move {
            let (cell, ..) = inner.read_cell(&name).await?;
            Ok(cell)
        }))
    }

    fn put<'a>(&'a self, put: &'a Put) -> Pending<'a, PutVerdict> {
        let (inner, put) = (Arc::clone(&self.inner), put.clone());
        Box::pin(self.run(Verb::Cell, async move {
            put.check()?;
            let value = Some((put.value, put.time_to_live));
            inner.write_cell(&put.name, put.expect, value).await
        }))
    }

    fn remove<'a>(&'a self, name: &'a Name, expect: Expect) -> Pending<'a, PutVerdict> {
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        Box::pin(self.run(Verb::Cell, async move { inner.write_cell(&name, expect, None).await }))
    }

    fn list<'a>(
        &'a self,
        pattern: &'a Pattern,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Pending<'a, Vec<(Name, Cell)>> {
        let (inner, pattern, after) = (Arc::clone(&self.inner), pattern.clone(), after.cloned());
        let limit = limit.clamp(1, limits::PAGE);
        Box::pin(
            self.run(Verb::Cell, async move { inner.list_cells(&pattern, after, limit).await }),
        )
    }
}

/// A cell, the largest fence that wrote it, and the revisions of both keys.
type StoredCell = (Option<Cell>, Option<Fence>, [u64; 2]);

impl Inner {
    /// Reads both keys of a cell.
    async fn read_cell(&self, name: &Name) -> Result<StoredCell, VerbError> {
        let keys = [self.keys.cell(name), self.keys.cell_fence(name)];
        let read = self.connection.read(keys.map(RequestOp::get).to_vec()).await?;
        let mut found = read.replies.into_iter().map(|reply| reply.into_kvs().into_iter().next());
        let (cell, fence) = (found.next().flatten(), found.next().flatten());
        let written = |key: &Option<KeyValue>| {
            key.as_ref().map_or(0, |key| u64::try_from(key.mod_revision).unwrap_or(0))
        };
        let revisions = [written(&cell), written(&fence)];
        let fence = match fence {
            Some(fence) => Some(read_fence(name, &fence)?),
            None => None,
        };
        let cell = match cell {
            Some(cell) => Some(self.cell_at(&cell, fence).await?),
            None => None,
        };
        Ok((cell, fence, revisions))
    }

    async fn cell_at(&self, key: &KeyValue, fence: Option<Fence>) -> Result<Cell, VerbError> {
        let version = self.epoch().version(u64::try_from(key.mod_revision).unwrap_or(0));
        let expires_in = match key.lease {
            0 => None,
            lease => Some(self.leases.remaining(lease).await?.unwrap_or(Duration::ZERO)),
        };
        Ok(Cell { value: key.value.clone(), version: Version(version), fence, expires_in })
    }

    async fn write_cell(
        &self,
        name: &Name,
        expect: Expect,
        value: Option<(Vec<u8>, Option<Duration>)>,
    ) -> Result<PutVerdict, VerbError> {
        if let Expect::Fence(fence) = expect
            && fence.get() >= limits::FENCE
        {
            let what = format!("no fence is as large as {fence}");
            return Err(Error::new(ErrorKind::InvalidOption, what)
                .on(name)
                .with_help("pass the number exactly as it was handed out")
                .into());
        }
        for attempt in 0..MAX_ATTEMPTS {
            let (present, seen, [cell_at, fence_at]) = self.read_cell(name).await?;
            let nothing = present.is_none() && value.is_none();
            let fence = match expect.judge(present, seen) {
                Ok(fence) => fence,
                Err(refused) => return Ok(refused),
            };
            let mut txn = Transaction::default();
            txn.if_unwritten(self.keys.cell(name), cell_at);
            txn.if_unwritten(self.keys.cell_fence(name), fence_at);
            match &value {
                Some((value, time_to_live)) => {
                    let lease = match time_to_live {
                        Some(time) => self.leases.grant_unrenewed(*time).await?,
                        None => 0,
                    };
                    txn.put(self.keys.cell(name), value.clone(), lease);
                }
                None => txn.delete(self.keys.cell(name)),
            }
            if fence != seen
                && let Some(fence) = fence
            {
                txn.put(self.keys.cell_fence(name), fence.to_string().into_bytes(), 0);
            }
            let reply = self.connection.txn(txn.compares, txn.writes, Vec::new()).await?;
            if reply.succeeded {
                // Removing an absent cell makes no revision, but the version has to grow.
                let revision = reply.revision + u64::from(nothing);
                return Ok(PutVerdict::Done(Version(self.epoch().version(revision))));
            }
            self.back_off(attempt).await;
        }
        Err(contended(name).into())
    }

    async fn list_cells(
        &self,
        pattern: &Pattern,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Cell)>, VerbError> {
        let all = self.keys.all_cells();
        let behind = |name: &Name| [&*self.keys.cell(name), &[0]].concat();
        let mut from = after.as_ref().map_or(all.from, behind);
        let mut found = Vec::new();
        loop {
            let wanted = RangeRequest {
                key: from,
                range_end: all.to.clone(),
                limit: CELLS_PER_READ,
                ..RangeRequest::default()
            };
            let read = self.connection.read(vec![wanted.into()]).await?;
            let keys = read.replies.into_iter().next().map(ResponseOp::into_kvs);
            let keys = keys.unwrap_or_default();
            let more = keys.len() as u64 >= CELLS_PER_READ.unsigned_abs();
            let mut last = None;
            for key in keys {
                let Some(name) = self.keys.cell_name(&key.key) else { continue };
                last = Some(behind(&name));
                if pattern.matches(name.as_str()) {
                    let (cell, ..) = self.read_cell(&name).await?;
                    found.extend(cell.map(|cell| (name, cell)));
                }
                if found.len() == limit {
                    return Ok(found);
                }
            }
            match last {
                Some(last) if more => from = last,
                _ => return Ok(found),
            }
        }
    }
}

fn read_fence(name: &Name, key: &KeyValue) -> Result<Fence, Error> {
    let text = std::str::from_utf8(&key.value).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.map(Fence::new).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, "the fence of the cell is damaged")
            .on(name)
            .with_help("inspect its key with etcdctl and delete it")
    })
}

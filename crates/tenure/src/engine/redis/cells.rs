//! Cells: versioned bytes, each in a hash of its own. A batch is one call of `write.lua`, whose
//! head says how cells, the ids that wrote them and the index of their names are kept.

use super::inspect::StoreAccess;
use super::names::NameSet;
use super::replies;
use crate::contract::{
    Batch, BatchVerdict, Cell, CellAction, CellPart, CellQuery, CellRange, Cells, Delivery, Error,
    Expect, Name, Pending, WeakWatcher,
};
use crate::limits;

/// For how long the fence of a removed cell is kept, in milliseconds: a day. A stale writer that
/// comes later than that is not refused.
const FENCE_LINGER: &str = "86400000";
/// The longest time to live, in microseconds: what scripts can add to the time and keep exact.
const MAX_TTL: u128 = (limits::FENCE / 4) as u128;
/// Most cells in one call of `get.lua`.
const MAX_BATCH: usize = 32;

/// The result of reading one cell of several.
pub(super) type CellRead = Result<Option<Cell>, Error>;

impl<T: StoreAccess> Cells for T {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        Box::pin(async move {
            let mut cells = self.read_cells(std::slice::from_ref(name), false).await?;
            cells.pop().unwrap_or(Ok(None)).map_err(|error| error.on(name))
        })
    }

    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        Box::pin(async move {
            batch.check_limits()?;
            let texts = BatchTexts::new(batch, self.max_lease().as_micros());
            let reply = self.write_cells(batch, &texts.items(batch)).await;
            let reply = reply.map_err(|error| match &batch.parts[..] {
                [part] => error.on(&part.name),
                _ => error,
            })?;
            replies::written(&reply, batch)?
        })
    }

    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        Box::pin(list(self, query))
    }

    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery> {
        self.watch_cells(range, watcher)
    }
}

/// The arguments of `write.lua` that have to be formatted.
struct BatchTexts {
    id: Vec<u8>,
    age: String,
    keep: String,
    /// The version or fence, and the time to live, of each part.
    parts: Vec<(String, String)>,
}

impl BatchTexts {
    fn new(batch: &Batch, keep_micros: u128) -> Self {
        let ttl = |part: &CellPart| match &part.action {
            CellAction::Put { time_to_live: Some(time), .. } => time.as_micros().clamp(1, MAX_TTL),
            _ => 0,
        };
        let texts = |part: &CellPart| (part.expect.operand().to_string(), ttl(part).to_string());
        Self {
            id: batch.id.map_or(Vec::new(), |id| id.as_u128().to_be_bytes().into()),
            age: batch.age.as_micros().min(MAX_TTL).to_string(),
            keep: keep_micros.to_string(),
            parts: batch.parts.iter().map(texts).collect(),
        }
    }

    fn items<'a>(&'a self, batch: &'a Batch) -> Vec<&'a [u8]> {
        let mut items: Vec<&[u8]> = Vec::with_capacity(4 + 6 * batch.parts.len());
        items.extend([&*self.id, self.age.as_bytes(), self.keep.as_bytes()]);
        items.push(FENCE_LINGER.as_bytes());
        for (part, (given, ttl)) in batch.parts.iter().zip(&self.parts) {
            let expects = match part.expect {
                Expect::Anything => "any",
                Expect::Absent => "absent",
                Expect::Version(_) => "version",
                Expect::Fence(_) => "fence",
            };
            let (action, value): (&str, &[u8]) = match &part.action {
                CellAction::Check => ("check", b""),
                CellAction::Put { value, .. } => ("put", value),
                CellAction::Remove => ("remove", b""),
            };
            items.extend([part.name.as_str().as_bytes(), expects.as_bytes(), given.as_bytes()]);
            items.extend([action.as_bytes(), value, ttl.as_bytes()]);
        }
        items
    }
}

/// Reads names (`names.rs`), and the cells that match, in batches.
async fn list(store: &impl StoreAccess, query: CellQuery<'_>) -> Result<Vec<(Name, Cell)>, Error> {
    let CellQuery { pattern, after, limit } = query;
    let limit = limit.clamp(1, limits::PAGE);
    let (prefix, mut after) = (pattern.literal_prefix(), after.cloned());
    let mut found: Vec<(Name, Cell)> = Vec::new();
    loop {
        let names = store.names(NameSet::Cells, &prefix, after.as_ref()).await?;
        let chosen = names.after(after.as_ref()).iter();
        let chosen = chosen.filter(|name| pattern.matches(name.as_str())).cloned();
        let chosen: Vec<Name> = chosen.collect();
        let mut rest = &chosen[..];
        while !rest.is_empty() {
            let batch = &rest[..rest.len().min(MAX_BATCH).min(limit - found.len())];
            let cells = store.read_cells(batch, true).await?;
            let read = cells.len();
            for (name, cell) in batch.iter().zip(cells) {
                if let Some(cell) = cell.map_err(|error| error.on(name))? {
                    found.push((name.clone(), cell));
                }
            }
            rest = &rest[read..];
            if found.len() == limit {
                let last = found[limit - 1].0.clone();
                names.keep(store, NameSet::Cells, &prefix, &last);
                return Ok(found);
            }
        }
        if names.is_last {
            return Ok(found);
        }
        after = names.last().cloned();
    }
}

//! Cells: versioned bytes, each in a hash of its own. Compare-and-set is one call of `put.lua`.

use std::collections::BTreeSet;

use super::inspect::StoreAccess;
use super::replies;
use crate::contract::{
    Cell, Cells, Error, ErrorKind, Expect, Name, Pattern, Pending, Put, PutVerdict, Verb,
};
use crate::limits;

/// For how long the fence of a removed cell is kept, in milliseconds: a day. A stale writer that
/// comes later than that is not refused.
const FENCE_LINGER: &str = "86400000";
/// Most cells in one call.
const MAX_BATCH: usize = 256;

impl<T: StoreAccess> Cells for T {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        Box::pin(async move {
            let mut cells = self.read_cells(std::slice::from_ref(name)).await?;
            cells.pop().unwrap_or(Ok(None)).map_err(|error| error.on(name))
        })
    }

    fn put<'a>(&'a self, put: &'a Put) -> Pending<'a, PutVerdict> {
        Box::pin(async move {
            put.check()?;
            let ttl = put.time_to_live.map_or(0, |time| time.as_micros().max(1)).to_string();
            write(self, &put.name, put.expect, "put", &put.value, &ttl).await
        })
    }

    fn remove<'a>(&'a self, name: &'a Name, expect: Expect) -> Pending<'a, PutVerdict> {
        Box::pin(async move { write(self, name, expect, "remove", b"", "0").await })
    }

    fn list<'a>(
        &'a self,
        pattern: &'a Pattern,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Pending<'a, Vec<(Name, Cell)>> {
        Box::pin(async move {
            let limit = limit.clamp(1, limits::PAGE);
            let keys = self.scan(&self.keys().all_cells()).await?;
            let names = keys.iter().filter_map(|key| self.keys().cell_name(key));
            let chosen = names.filter(|name| {
                after.is_none_or(|after| name > after) && pattern.matches(name.as_str())
            });
            let chosen: Vec<Name> = chosen.collect::<BTreeSet<_>>().into_iter().collect();
            let mut found = Vec::new();
            for names in chosen.chunks(MAX_BATCH) {
                for (name, cell) in names.iter().zip(self.read_cells(names).await?) {
                    if let Some(cell) = cell.map_err(|error| error.on(name))? {
                        found.push((name.clone(), cell));
                    }
                }
                if found.len() >= limit {
                    break;
                }
            }
            found.truncate(limit);
            Ok(found)
        })
    }
}

/// The result of reading one cell of several.
pub(super) type CellRead = Result<Option<Cell>, Error>;

async fn write(
    store: &impl StoreAccess,
    name: &Name,
    expect: Expect,
    what: &str,
    value: &[u8],
    ttl: &str,
) -> Result<PutVerdict, Error> {
    let (expects, given) = match expect {
        Expect::Anything => ("any", 0),
        Expect::Absent => ("absent", 0),
        Expect::Version(version) => ("version", version.0),
        Expect::Fence(fence) => ("fence", fence.get()),
    };
    if given >= limits::FENCE {
        let what = format!("no fence or version is as large as {given}");
        return Err(Error::new(ErrorKind::InvalidOption, what)
            .during(Verb::Cell)
            .on(name)
            .with_help("pass the number exactly as it was handed out"));
    }
    let given = given.to_string();
    let items: [&[u8]; 6] = [
        expects.as_bytes(),
        given.as_bytes(),
        what.as_bytes(),
        value,
        ttl.as_bytes(),
        FENCE_LINGER.as_bytes(),
    ];
    let value = store.write_cell(name, items).await;
    replies::put(&value.map_err(|error| error.on(name))?)
}

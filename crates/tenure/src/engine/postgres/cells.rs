//! Cells: versioned values in a table of their own.
//!
//! A write is one call of `put`, which locks the row, compares what is expected with what is there,
//! and writes or refuses. A removed cell that was written under a fence leaves a row without a
//! value, so that a write with a smaller fence is still refused.

use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresEngine;
use super::errors::unexpected_reply;
use super::statements::Function;
use crate::contract::{
    Cell, Cells, Error, ErrorKind, Expect, Fence, Name, Pattern, Pending, Put, PutVerdict, Verb,
    Version,
};
use crate::limits;

/// Most cells in one reply.
const MAX_BATCH: i32 = 256;

impl Cells for PostgresEngine {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        Box::pin(async move {
            let found = self.read_cells(name.as_str(), true, 1).await;
            let found = found.map_err(|error| error.on(name))?;
            Ok(found.into_iter().next().map(|(_, cell)| cell))
        })
    }

    fn put<'a>(&'a self, put: &'a Put) -> Pending<'a, PutVerdict> {
        Box::pin(async move {
            put.check()?;
            let value = Some(put.value.clone());
            self.write_cell(&put.name, put.expect, value, put.time_to_live).await
        })
    }

    fn remove<'a>(&'a self, name: &'a Name, expect: Expect) -> Pending<'a, PutVerdict> {
        Box::pin(async move { self.write_cell(name, expect, None, None).await })
    }

    fn list<'a>(
        &'a self,
        pattern: &'a Pattern,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Pending<'a, Vec<(Name, Cell)>> {
        Box::pin(async move {
            let limit = limit.clamp(1, limits::PAGE);
            let mut found = Vec::new();
            let mut after = after.map_or(String::new(), |name| name.as_str().to_owned());
            while found.len() < limit {
                let cells = self.read_cells(&after, false, MAX_BATCH).await?;
                let Some((last, _)) = cells.last() else { break };
                last.as_str().clone_into(&mut after);
                found.extend(cells.into_iter().filter(|(name, _)| pattern.matches(name.as_str())));
            }
            found.truncate(limit);
            Ok(found)
        })
    }
}

impl PostgresEngine {
    async fn read_cells(
        &self,
        from: &str,
        only: bool,
        most: i32,
    ) -> Result<Vec<(Name, Cell)>, Error> {
        let rows = self.query(Verb::Cell, Function::Cells, |ns| {
            vec![Box::new(ns), Box::new(from.to_owned()), Box::new(only), Box::new(most)]
        });
        let rows = rows.await?;
        let read = |row: &Row| {
            let name: &str = row.try_get(0).map_err(|error| unexpected_reply().caused_by(error))?;
            Ok((Name::try_from(name)?, cell(row)?.ok_or_else(unexpected_reply)?))
        };
        rows.iter().map(read).collect()
    }

    async fn write_cell(
        &self,
        name: &Name,
        expect: Expect,
        value: Option<Vec<u8>>,
        ttl: Option<Duration>,
    ) -> Result<PutVerdict, Error> {
        let (condition, operand) = match expect {
            Expect::Anything => ("any", 0),
            Expect::Absent => ("absent", 0),
            Expect::Version(version) => ("version", version.0),
            Expect::Fence(fence) => ("fence", fence.get()),
        };
        let Some(operand) = i64::try_from(operand).ok().filter(|_| operand < limits::FENCE) else {
            let what = format!("no fence or version is as large as {operand}");
            return Err(Error::new(ErrorKind::InvalidOption, what)
                .during(Verb::Cell)
                .on(name)
                .with_help("pass the number exactly as it was handed out"));
        };
        // A time too long for the column is stored as no expiry.
        let ttl = ttl.and_then(|time| i64::try_from(time.as_micros().max(1)).ok());
        let ttl = ttl.filter(|ttl| *ttl < i64::MAX / 4);
        let rows = self.query(Verb::Cell, Function::Put, |ns| {
            vec![
                Box::new(ns),
                Box::new(name.as_str().to_owned()),
                Box::new(condition.to_owned()),
                Box::new(operand),
                Box::new(value),
                Box::new(ttl),
            ]
        });
        let rows = rows.await.map_err(|error| error.on(name))?;
        verdict(rows.first().ok_or_else(unexpected_reply)?)
    }
}

fn verdict(row: &Row) -> Result<PutVerdict, Error> {
    let failed = |error: tokio_postgres::Error| unexpected_reply().caused_by(error);
    let number = |at: usize| -> Result<u64, Error> {
        let value: i64 = row.try_get(at).map_err(failed)?;
        u64::try_from(value).map_err(|_| unexpected_reply())
    };
    match row.try_get::<_, &str>(0).map_err(failed)? {
        "d" => Ok(PutVerdict::Done(Version(number(2)?))),
        "r" => Ok(PutVerdict::Refused(cell(row)?)),
        "s" => Ok(PutVerdict::Stale(Fence::new(number(3)?))),
        _ => Err(unexpected_reply()),
    }
}

/// Parses the cell in the columns after the first; `None` if there is no value.
fn cell(row: &Row) -> Result<Option<Cell>, Error> {
    let failed = |error: tokio_postgres::Error| unexpected_reply().caused_by(error);
    let Some(value) = row.try_get::<_, Option<Vec<u8>>>(1).map_err(failed)? else {
        return Ok(None);
    };
    let number = |at: usize| -> Result<Option<u64>, Error> {
        let value: Option<i64> = row.try_get(at).map_err(failed)?;
        Ok(value.and_then(|value| u64::try_from(value).ok()))
    };
    Ok(Some(Cell {
        value,
        version: Version(number(2)?.ok_or_else(unexpected_reply)?),
        fence: number(3)?.map(Fence::new),
        expires_in: number(4)?.map(Duration::from_micros),
    }))
}

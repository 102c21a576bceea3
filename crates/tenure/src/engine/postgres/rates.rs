//! Rates in tables of their own. A request is one call of `take`, one transaction; how a rate is
//! kept and locked is at the head of `sql/rates.sql`.
//!
//! The time is that of the server (`clock_timestamp`). If its clock is stepped ahead, windows end
//! early; if it is stepped back, the time of a rate stands still until the clock has caught up.

use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresEngine;
use super::errors::unexpected_reply;
use super::statements::{Function, micros};
use crate::contract::{
    Error, Name, Pending, RateLevel, RateShape, Rates, Settle, Settled, Take, TakeReply,
    TakeVerdict, Verb,
};

impl Rates for PostgresEngine {
    fn take<'a>(&'a self, take: &'a Take) -> Pending<'a, TakeVerdict> {
        Box::pin(async move {
            take.check()?;
            let permits: Vec<i64> = match &take.shape {
                RateShape::Windows(limits) => limits.iter().map(|one| big(one.permits)).collect(),
                RateShape::Pace(pace) => {
                    [pace.micros_for(take.cost), pace.burst_micros()].map(big).to_vec()
                }
            };
            let rows = self.query(Verb::Rate, Function::Take, |ns| {
                vec![
                    Box::new(ns),
                    Box::new(take.name.as_str().to_owned()),
                    Box::new(windows(&take.shape)),
                    Box::new(permits),
                    Box::new(big(take.cost)),
                    Box::new(micros(take.wait)),
                    Box::new(take.probe),
                ]
            });
            let verdict = rows.await.and_then(|rows| match &rows[..] {
                [row] => read_verdict(row, &take.shape),
                _ => Err(unexpected_reply()),
            });
            verdict.map_err(|error| error.during(Verb::Rate).on(&take.name))
        })
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Settled> {
        Box::pin(async move {
            settle.check()?;
            let Settle { stamp, taken, actual, .. } = *settle;
            let lasts: Vec<i64> = match &settle.shape {
                RateShape::Windows(_) => Vec::new(),
                RateShape::Pace(pace) => {
                    [taken, actual].map(|permits| big(pace.micros_for(permits))).to_vec()
                }
            };
            let rows = self.query(Verb::Rate, Function::Settle, |ns| {
                vec![
                    Box::new(ns),
                    Box::new(settle.name.as_str().to_owned()),
                    Box::new(windows(&settle.shape)),
                    Box::new(big(stamp)),
                    Box::new(big(taken)),
                    Box::new(big(actual)),
                    Box::new(lasts),
                ]
            });
            let counted = rows.await.and_then(|rows| {
                let row = rows.first().ok_or_else(unexpected_reply)?;
                row.try_get::<_, bool>(0).map_err(|error| unexpected_reply().caused_by(error))
            });
            let counted = counted.map_err(|error| error.during(Verb::Rate).on(&settle.name))?;
            Ok(if counted { Settled::Counted } else { Settled::Past })
        })
    }

    fn reset<'a>(&'a self, name: &'a Name) -> Pending<'a, ()> {
        Box::pin(async move {
            let rows = self.query(Verb::Rate, Function::Reset, |ns| {
                vec![Box::new(ns), Box::new(name.as_str().to_owned())]
            });
            rows.await.map(drop).map_err(|error| error.on(name))
        })
    }
}

/// Checked before, or a number of the store: fits.
fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn windows(shape: &RateShape) -> Vec<i64> {
    shape.windows().into_iter().map(big).collect()
}

fn read_verdict(row: &Row, shape: &RateShape) -> Result<TakeVerdict, Error> {
    let strange = |error: tokio_postgres::Error| unexpected_reply().caused_by(error);
    let number = |number: i64| u64::try_from(number).map_err(|_| unexpected_reply());
    let duration = |micros: i64| number(micros).map(Duration::from_micros);
    if let Some(stands) = row.try_get::<_, Option<Vec<i64>>>(6).map_err(strange)? {
        let windows = stands.into_iter().map(duration).collect::<Result<_, _>>()?;
        return Ok(TakeVerdict::OtherWindows(windows));
    }
    let used: Vec<i64> = row.try_get(4).map_err(strange)?;
    let clear: Vec<i64> = row.try_get(5).map_err(strange)?;
    let level = |(used, clear): (i64, i64)| -> Result<RateLevel, Error> {
        let clear_after = duration(clear)?;
        Ok(match shape {
            RateShape::Pace(pace) => RateShape::pace_level(pace, clear_after),
            RateShape::Windows(_) => RateLevel { used: number(used)?, clear_after },
        })
    };
    let limit: i32 = row.try_get(2).map_err(strange)?;
    Ok(TakeVerdict::Told(TakeReply {
        taken: row.try_get(0).map_err(strange)?,
        wait: duration(row.try_get(1).map_err(strange)?)?,
        limit: usize::try_from(limit).map_err(|_| unexpected_reply())?,
        stamp: number(row.try_get(3).map_err(strange)?)?,
        levels: used.into_iter().zip(clear).map(level).collect::<Result<_, _>>()?,
    }))
}

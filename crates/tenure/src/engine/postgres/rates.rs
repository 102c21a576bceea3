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
                    Box::new(if take.probe { -1 } else { micros(take.wait) }),
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

/// Parses the reply to a `take`, whose forms are at the head of the function.
fn read_verdict(row: &Row, shape: &RateShape) -> Result<TakeVerdict, Error> {
    let reply: Vec<i64> = row.try_get(0).map_err(|error| unexpected_reply().caused_by(error))?;
    if let Some((-1, stands)) = reply.split_first() {
        let windows = stands.iter().map(|micros| duration(*micros)).collect::<Result<_, _>>()?;
        return Ok(TakeVerdict::OtherWindows(windows));
    }
    if let ([stamp, used], RateShape::Windows(limits)) = (&reply[..], shape) {
        // From the short path: taken now, and the only limit.
        let window = limits.first().ok_or_else(unexpected_reply)?.window_micros();
        let level = RateLevel { used: number(*used)?, clear_after: Duration::from_micros(window) };
        let (wait, limit, levels) = (Duration::ZERO, 0, level.into());
        return Ok(TakeVerdict::Told(TakeReply {
            taken: true,
            wait,
            limit,
            stamp: number(*stamp)?,
            levels,
        }));
    }
    let Some((&[taken, wait, limit, stamp], levels)) = reply.split_first_chunk() else {
        return Err(unexpected_reply());
    };
    let (used, clear) = levels.split_at(levels.len() / 2);
    let level = |(used, clear): (&i64, &i64)| -> Result<RateLevel, Error> {
        let clear_after = duration(*clear)?;
        Ok(match shape {
            RateShape::Pace(pace) => RateShape::pace_level(pace, clear_after),
            RateShape::Windows(_) => RateLevel { used: number(*used)?, clear_after },
        })
    };
    Ok(TakeVerdict::Told(TakeReply {
        taken: taken == 1,
        wait: duration(wait)?,
        limit: usize::try_from(limit).map_err(|_| unexpected_reply())?,
        stamp: number(stamp)?,
        levels: used.iter().zip(clear).map(level).collect::<Result<_, _>>()?,
    }))
}

fn number(number: i64) -> Result<u64, Error> {
    u64::try_from(number).map_err(|_| unexpected_reply())
}

fn duration(micros: i64) -> Result<Duration, Error> {
    number(micros).map(Duration::from_micros)
}

//! Rates: a list for each limit, under one prefix. A request is one call of `take.lua`; how a rate
//! is kept is at the head of `rate.lua`. In a cluster all keys of a rate have the tag of its name.
//!
//! The time is that of the server. If its clock is stepped ahead, windows end early; if it is
//! stepped back, the time of a rate stands still until the clock has caught up.

use std::time::Duration;

use redis::Value;

use super::client::{list, number, strange, text};
use super::inspect::StoreAccess;
use crate::contract::{
    Error, Name, Pending, RateLevel, RateShape, Rates, Settle, Settled, Take, TakeReply,
    TakeVerdict,
};

impl<T: StoreAccess> Rates for T {
    fn take<'a>(&'a self, take: &'a Take) -> Pending<'a, TakeVerdict> {
        Box::pin(async move {
            take.check()?;
            let wait = if take.probe { "-1".to_owned() } else { take.wait.as_micros().to_string() };
            let mut items = vec![take.cost.to_string(), wait];
            match &take.shape {
                RateShape::Pace(pace) => {
                    let lasts = [pace.micros_for(take.cost), pace.burst_micros()];
                    items.push("p".to_owned());
                    items.extend(lasts.map(|micros| micros.to_string()));
                }
                RateShape::Windows(limits) => {
                    items.push(windows(&take.shape));
                    items.extend(limits.iter().map(|limit| limit.permits.to_string()));
                }
            }
            let items: Vec<&[u8]> = items.iter().map(String::as_bytes).collect();
            let value = self.run_rate(&self.scripts().take, &take.name, &items).await;
            let value = value.map_err(|error| error.on(&take.name))?;
            read_verdict(&value, &take.shape).ok_or_else(|| strange(&value).on(&take.name))
        })
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Settled> {
        Box::pin(async move {
            settle.check()?;
            let Settle { stamp, taken, actual, .. } = *settle;
            let mut items = [stamp, taken, actual].map(|number| number.to_string()).to_vec();
            match &settle.shape {
                RateShape::Pace(pace) => {
                    let lasts = [taken, actual].map(|permits| pace.micros_for(permits));
                    items.push("p".to_owned());
                    items.extend(lasts.map(|micros| micros.to_string()));
                }
                RateShape::Windows(_) => {
                    items.push(windows(&settle.shape));
                    items.extend(settle.shape.windows().iter().map(u64::to_string));
                }
            }
            let items: Vec<&[u8]> = items.iter().map(String::as_bytes).collect();
            let value = self.run_rate(&self.scripts().settle, &settle.name, &items).await;
            let value = value.map_err(|error| error.on(&settle.name))?;
            match number(&value) {
                Some(0) => Ok(Settled::Past),
                Some(1) => Ok(Settled::Counted),
                _ => Err(strange(&value).on(&settle.name)),
            }
        })
    }

    fn reset<'a>(&'a self, name: &'a Name) -> Pending<'a, ()> {
        Box::pin(async move {
            let reset: Result<Value, Error> = self.run_rate(&self.scripts().reset, name, &[]).await;
            reset.map(drop).map_err(|error| error.on(name))
        })
    }
}

/// The windows of a rate as text.
fn windows(shape: &RateShape) -> String {
    let windows: Vec<String> = shape.windows().iter().map(u64::to_string).collect();
    windows.join(",")
}

fn read_verdict(value: &Value, shape: &RateShape) -> Option<TakeVerdict> {
    let items = list(value)?;
    if let [kind, stands] = items
        && text(kind) == Some("o")
    {
        let stands = text(stands)?;
        let windows = stands.split(',').filter(|window| *window != "p");
        let windows = windows.map(|window| window.parse().ok().map(Duration::from_micros));
        return Some(TakeVerdict::OtherWindows(windows.collect::<Option<_>>()?));
    }
    let numbers: Vec<u64> = items.iter().map(number).collect::<Option<_>>()?;
    if let ([stamp, used], RateShape::Windows(limits)) = (&numbers[..], shape) {
        // From the short path: taken now, and the only limit.
        let clear_after = Duration::from_micros(limits.first()?.window_micros());
        let levels = RateLevel { used: *used, clear_after }.into();
        let (wait, limit) = (Duration::ZERO, 0);
        return Some(TakeVerdict::Told(TakeReply {
            taken: true,
            wait,
            limit,
            stamp: *stamp,
            levels,
        }));
    }
    let (&[taken, wait, limit, stamp], levels) = numbers.split_first_chunk()?;
    let level = |pair: &[u64]| {
        let clear_after = Duration::from_micros(pair[1]);
        match shape {
            RateShape::Pace(pace) => RateShape::pace_level(pace, clear_after),
            RateShape::Windows(_) => RateLevel { used: pair[0], clear_after },
        }
    };
    Some(TakeVerdict::Told(TakeReply {
        taken: taken == 1,
        wait: Duration::from_micros(wait),
        limit: usize::try_from(limit).ok()?,
        stamp,
        levels: levels.chunks_exact(2).map(level).collect(),
    }))
}

//! `tenure wait`: until a lock is free, without taking it. Knows how to look again.

use std::time::{Duration, Instant};

use tenure::contract::SlotView;
use tenure::{Error, ErrorKind, Name, Query, Tenure};

use crate::args::WaitArgs;
use crate::failure::Failure;
use crate::settings::Settings;
use crate::waiting_line::WaitingLine;

/// How soon to look again at first, and at most.
const PACE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// Inspects until the lock has no holder.
pub(super) fn run(settings: &Settings, args: &WaitArgs) -> Result<u8, Failure> {
    settings.session(|tenure| until_free(tenure, settings, args))
}

fn until_free(tenure: &Tenure, settings: &Settings, args: &WaitArgs) -> Result<u8, Failure> {
    let name = Name::try_from(args.name.as_str())?;
    let deadline = args.wait.map(|limit| Instant::now() + limit);
    let mut line = WaitingLine::new(&args.name, settings);
    let mut pause = PACE.0;
    loop {
        let seen = tenure::block_on(tenure.inspect(&Query::Slot(name.clone())))?;
        let taken = |slot: &&SlotView| !slot.holders.is_empty() || slot.closed_for.is_some();
        let Some(slot) = seen.slots.iter().find(taken) else {
            line.clear(false);
            return Ok(0);
        };
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            line.clear(false);
            let limit = args.wait.unwrap_or_default();
            let error = Error::new(ErrorKind::TimedOut, format!("still held after {limit:?}"))
                .on(&name)
                .blocked_by(slot.holders.clone(), None);
            return Err(error.into());
        }
        if line.due().is_some_and(|due| now >= due) {
            line.show(Some(slot), |_| false);
        }
        let left = deadline.map_or(pause, |deadline| deadline - now);
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(PACE.1);
    }
}

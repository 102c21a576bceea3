//! `ls`, `show` and `sessions`: holders and waiters, read page by page and printed as rows.

use std::io::Write;

use tenure::contract::{SlotView, short};
use tenure::{Error, Name, Page, Pattern, Query, Snapshot, Tenure};

use crate::args::{KindArg, LsArgs, OutputArg, SessionsArgs, ShowArgs, SortArg};
use crate::failure::{self, Failure};
use crate::output::{self, LockRow, STRONG, SessionRow, kind_of};
use crate::settings::Settings;

/// `tenure ls`.
pub(super) fn ls(
    settings: &Settings,
    args: &LsArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let pattern = args.pattern.as_deref().map_or_else(Pattern::all, Pattern::new);
    let page = Page { pattern, contended: args.waiting, reserved: args.all, ..Page::default() };
    let mut slots = settings.session(|tenure| Ok(all(tenure, page)?))?.slots;
    slots.retain(|slot| wanted(args, slot));
    match args.sort {
        SortArg::Name => {}
        SortArg::Age => slots.sort_by_key(|slot| {
            std::cmp::Reverse(slot.holders.iter().map(|holder| holder.held_for).max())
        }),
        SortArg::Waiting => slots.sort_by_key(|slot| std::cmp::Reverse(slot.queue.len())),
    }
    let rows: Vec<LockRow> = slots.iter().map(LockRow::new).collect();
    if rows.is_empty() && matches!(form, OutputArg::Table | OutputArg::Wide) {
        if !settings.quiet {
            eprintln!("no locks held, no waiters");
        }
        return Ok(0);
    }
    output::list(form, "locks", &rows, out)?;
    Ok(0)
}

fn wanted(args: &LsArgs, slot: &SlotView) -> bool {
    let kind = args.kind.is_none_or(|kind| {
        let word = match kind {
            KindArg::Lock => "lock",
            KindArg::Semaphore => "semaphore",
        };
        kind_of(slot.shape) == word
    });
    kind && (!args.held || !slot.holders.is_empty())
}

/// `tenure show`.
pub(super) fn show(
    settings: &Settings,
    args: &ShowArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let name = Name::try_from(args.name.as_str())?;
    let query = Query::Slot(name);
    let seen = settings.session(|tenure| Ok(tenure::block_on(tenure.inspect(&query))?))?;
    let Some(slot) = seen.slots.first() else {
        let message = format!("{}: not held, no waiters", args.name);
        return Err(Failure::new(failure::NO, message));
    };
    let row = LockRow::new(slot);
    match form {
        OutputArg::Json | OutputArg::Ndjson => output::json(&row, out)?,
        OutputArg::Plain => output::list(form, "locks", &[row], out)?,
        OutputArg::Table | OutputArg::Wide => describe(&row, out)?,
    }
    Ok(0)
}

/// One lock in full, for people.
fn describe(row: &LockRow, out: &mut impl Write) -> std::io::Result<()> {
    let ago = |millis: u64| short(std::time::Duration::from_millis(millis));
    let permits = row.permits.map(|permits| format!(" of {permits}")).unwrap_or_default();
    writeln!(out, "{STRONG}{}{STRONG:#}  {}{permits}", row.name, row.kind)?;
    if let Some(closed) = row.closed_for_ms {
        writeln!(out, "closed for another {} after a crash", ago(closed))?;
    }
    writeln!(out, "\nholders")?;
    let head = ["", "HOLDER", "MODE", "FENCE", "HELD", "LEASE", "SESSION", "CODE"];
    let dash = || "-".to_owned();
    let rows = row.holders.iter().map(|holder| {
        vec![
            String::new(),
            holder.about.short(),
            if holder.reserved { "reserved" } else { holder.mode }.to_owned(),
            holder.fence.to_string(),
            ago(holder.held_for_ms),
            ago(holder.expires_in_ms),
            holder.about.session.clone().unwrap_or_else(|| "detached".to_owned()),
            holder.about.code.clone().unwrap_or_else(dash),
        ]
    });
    output::table(&head, head.len(), rows, out)?;
    if row.queue.is_empty() {
        return writeln!(out, "\nno waiters");
    }
    writeln!(out, "\nqueue, next first")?;
    let head = ["", "WAITER", "MODE", "WAITED", "SESSION", "CODE"];
    let rows = row.queue.iter().map(|waiter| {
        vec![
            waiter.place.to_string(),
            waiter.about.short(),
            waiter.mode.to_owned(),
            ago(waiter.waited_for_ms),
            waiter.about.session.clone().unwrap_or_else(|| "detached".to_owned()),
            waiter.about.code.clone().unwrap_or_else(dash),
        ]
    });
    output::table(&head, head.len(), rows, out)
}

/// `tenure sessions`.
pub(super) fn sessions(
    settings: &Settings,
    args: &SessionsArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let seen = settings.session(|tenure| Ok(all(tenure, Page::default())?))?;
    let mut rows: Vec<SessionRow> = seen.sessions().iter().map(SessionRow::new).collect();
    if let Some(id) = &args.id {
        rows.retain(|row| row.session.as_ref().is_some_and(|session| session.starts_with(id)));
        if rows.is_empty() {
            let message = format!("no session that holds or waits begins with {id:?}");
            return Err(Failure::new(failure::NO, message));
        }
    }
    output::list(form, "sessions", &rows, out)?;
    Ok(0)
}

/// Everything that matches, page after page.
fn all(tenure: &Tenure, mut page: Page) -> Result<Snapshot, Error> {
    let mut whole = Snapshot::default();
    loop {
        let seen = tenure::block_on(tenure.inspect(&Query::Page(page.clone())))?;
        whole.slots.extend(seen.slots);
        whole.truncated |= seen.truncated;
        page.after = seen.more_after;
        if page.after.is_none() {
            return Ok(whole);
        }
    }
}

//! `tenure force-release`: ends exactly the grant with the given fence. Asks the user to confirm,
//! unless told not to or not at a terminal, and prints what became of the grant.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use tenure::contract::Shape;
use tenure::{Evicted, Fence, HolderView, Name, Query, Tenure};

use crate::args::{ForceReleaseArgs, OutputArg};
use crate::failure::{self, Failure};
use crate::output::{self, HolderRow};
use crate::settings::Settings;

/// Ends the grant with that fence, or says who holds the lock instead.
pub(super) fn run(
    settings: &Settings,
    args: &ForceReleaseArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    settings.session(|tenure| evict(tenure, args, form, out))
}

fn evict(
    tenure: &Tenure,
    args: &ForceReleaseArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let (shape, holders) = holders(tenure, &args.name)?;
    let holds = |holder: &&HolderView| holder.fence == Fence::new(args.fence);
    // Without such a holder the store's answer says who holds the lock instead.
    if let Some(holder) = holders.iter().find(holds)
        && !args.yes
        && io::stdin().is_terminal()
        && io::stderr().is_terminal()
        && !sure(args, holder)?
    {
        return Err(Failure::new(failure::NO, "nothing was released"));
    }
    let evicted = tenure.force_release(&args.name, Fence::new(args.fence), &args.reason);
    match tenure::block_on(evicted)? {
        Evicted::Done(ended) => {
            let ended: Vec<HolderRow> =
                ended.iter().map(|holder| HolderRow::new(shape, holder)).collect();
            report(args, &ended, form, out)?;
            Ok(0)
        }
        Evicted::NoSuchGrant(holders) => {
            let ForceReleaseArgs { name, fence, .. } = args;
            let message = format!("{name}: no holder with fence {fence}; {}", now(&holders));
            Err(Failure::new(failure::NO, message))
        }
    }
}

/// The kind of the lock, and its holders.
fn holders(tenure: &Tenure, name: &str) -> Result<(Shape, Vec<HolderView>), Failure> {
    let query = Query::Slot(Name::try_from(name)?);
    let seen = tenure::block_on(tenure.inspect(&query))?;
    let slot = seen.slots.into_iter().next();
    Ok(slot.map_or((Shape::Lock, Vec::new()), |slot| (slot.shape, slot.holders)))
}

fn sure(args: &ForceReleaseArgs, holder: &HolderView) -> io::Result<bool> {
    let mut stderr = io::stderr();
    write!(stderr, "release {} by force, held by {holder}? [y/N] ", args.name)?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Who holds it now, in words.
fn now(holders: &[HolderView]) -> String {
    if holders.is_empty() {
        return "it is free, nothing was released".to_owned();
    }
    let holders: Vec<String> = holders.iter().map(ToString::to_string).collect();
    format!("nothing was released; it is held by {}", holders.join(" and by "))
}

fn report(
    args: &ForceReleaseArgs,
    ended: &[HolderRow],
    form: OutputArg,
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Released<'a> {
        name: &'a str,
        fence: u64,
        reason: &'a str,
        ended: &'a [HolderRow],
    }
    match form {
        OutputArg::Json | OutputArg::Ndjson => {
            let ForceReleaseArgs { name, fence, reason, .. } = args;
            output::json(&Released { name, fence: *fence, reason, ended }, out)
        }
        _ => ended.iter().try_for_each(|holder| {
            writeln!(out, "released {} from {}", args.name, holder.about.short())
        }),
    }
}

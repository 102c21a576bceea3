//! `tenure hold`: keeps a lock until a signal comes. Knows sessions and signals, no commands.

use std::future::Future;
use std::io::Write;
use std::pin::{Pin, pin};
use std::time::Instant;

use nix::sys::signal::Signal;
use serde::Serialize;
use tenure::contract::Loss;
use tenure::{LockStatus, Owner};

use crate::args::{HoldArgs, OutputArg};
use crate::asking::{Asking, trouble};
use crate::config::Config;
use crate::ending::{Ending, Session};
use crate::failure::{self, Failure};
use crate::interrupts::{Interrupts, Waited};
use crate::output::{self, millis};
use crate::reactor::Reactor;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::wanted::Wanted;

/// What ends a hold as it should end.
const ENDS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Takes the lock, prints the grant, and holds until a signal, the time limit or a loss ends it.
pub(super) fn run(
    settings: &Settings,
    config: &Config,
    args: &HoldArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let wanted = Wanted::new(&args.lock, args.max_hold, config)?;
    let settings = &settings.clone().asking_replicas(&args.lock)?.waiting(wanted.patience);
    let began = Instant::now();
    // Before the session starts its thread, which inherits it.
    let reactor = Reactor::new(Signals::catch_only(&ENDS).map_err(trouble)?).map_err(trouble)?;
    let interrupts = Interrupts::new(&reactor);
    let owner = Owner::from_env()?.unwrap_or_else(Owner::new);
    let session = match Session::open(settings, std::process::id(), &interrupts)? {
        Ok(session) => session,
        Err(code) => return Ok(code),
    };
    let (tenure, wanted) = (session.tenure(), &wanted);
    let asking = Asking { tenure, settings, wanted, owner: &owner, began, backstop: None };
    let mut ending = Ending::new(&interrupts, settings.close_timeout);
    let done = hold(&asking, &interrupts, &mut ending, form, out);
    // A loss has to be told before anything that may wait for the store.
    let done = done.map_err(|failure| failure.conflict(wanted.conflict, settings.quiet).told());
    session.close(&mut ending);
    done
}

fn hold(
    asking: &Asking<'_>,
    interrupts: &Interrupts<'_>,
    ending: &mut Ending<'_>,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let wanted = asking.wanted;
    let guard = match asking.obtain(interrupts)? {
        Ok(guard) => guard,
        Err(code) => return Ok(code),
    };
    let until = wanted.max_hold.map(|most| Instant::now() + most);
    print(wanted, &guard, form, out)?;
    let mut ended = guard.lost();
    let mut ended: Pin<&mut dyn Future<Output = Loss>> = pin!(&mut ended);
    let code = match interrupts.wait(ended.as_mut(), until)? {
        Waited::Interrupted(_) | Waited::Gone => 0,
        Waited::Late => failure::MAX_HOLD,
        Waited::Done(loss) => {
            return Err(Failure::new(failure::LOST, format!("lost {}: {loss}", wanted.name())));
        }
    };
    let given_back = ending.give_back(asking.tenure, wanted, guard);
    match given_back {
        Err(failure) if code == failure::MAX_HOLD => failure.tell(),
        given_back => given_back?,
    }
    Ok(code)
}

/// Says what is held, at once: a script may be waiting for this line.
fn print(
    wanted: &Wanted,
    held: &LockStatus,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Grant<'a> {
        name: &'a str,
        names: Vec<String>,
        mode: &'a str,
        fence: u64,
        lease_ms: u64,
        claim: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        replicas: Option<u32>,
    }
    let grant = Grant {
        name: wanted.name(),
        names: held.names().map(ToString::to_string).collect(),
        mode: wanted.kind.word(),
        fence: held.fence()?.get(),
        lease_ms: millis(wanted.lease),
        claim: held.claim_id().to_string(),
        replicas: held.replicas(),
    };
    match form {
        OutputArg::Json | OutputArg::Ndjson => output::json(&grant, out)?,
        OutputArg::Plain => writeln!(out, "{}\t{}", grant.name, grant.fence)?,
        OutputArg::Table | OutputArg::Wide => {
            writeln!(out, "holding {} with fence {}", grant.names.join(", "), grant.fence)?;
        }
    }
    Ok(out.flush()?)
}

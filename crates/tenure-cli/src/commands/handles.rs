//! `tenure renew` and `tenure release`: one call for the claim that a handle names, which no keeper
//! renews.

use std::io::Write;

use serde::Serialize;
use tenure::contract::{Release, Released, Renewed};

use super::acquire::{Store, largest};
use crate::args::{OutputArg, Shared};
use crate::asking::trouble;
use crate::failure::{self, Failure};
use crate::handle::Handle;
use crate::interrupts::Interrupts;
use crate::output::{self, millis};
use crate::reactor::Reactor;
use crate::settings::Settings;
use crate::signals::Signals;

/// `tenure renew`.
pub(super) fn renew(
    settings: Settings,
    text: &str,
    shared: &Shared,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    #[derive(Serialize)]
    struct Kept {
        fence: u64,
        lease_ms: u64,
    }
    let (handle, settings) = namespace_of(settings, text, shared)?;
    let reactor = Reactor::new(Signals::catch_only(&[]).map_err(trouble)?).map_err(trouble)?;
    let interrupts = Interrupts::new(&reactor);
    let store = Store::connect(&settings, &interrupts)?;
    let batch = [handle.claim.clone()];
    let renewed = store.call(store.engine.renew(&batch))?;
    match renewed.into_iter().next() {
        Some(Renewed::Held(grant)) => {
            let kept = Kept { fence: largest(&grant).get(), lease_ms: millis(handle.claim.lease) };
            if matches!(shared.form(), OutputArg::Json | OutputArg::Ndjson) {
                output::json(&kept, out)?;
            }
            Ok(0)
        }
        _ => Err(gone(&handle)),
    }
}

/// `tenure release`.
pub(super) fn release(
    settings: Settings,
    text: &str,
    shared: &Shared,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let (handle, settings) = namespace_of(settings, text, shared)?;
    let reactor = Reactor::new(Signals::catch_only(&[]).map_err(trouble)?).map_err(trouble)?;
    let interrupts = Interrupts::new(&reactor);
    let store = Store::connect(&settings, &interrupts)?;
    let batch = [Release { claim: handle.claim.clone(), uncertain: false }];
    let released = store.call(store.engine.release(&batch))?;
    if released.first() != Some(&Released::Done) {
        return Err(gone(&handle));
    }
    if matches!(shared.form(), OutputArg::Json | OutputArg::Ndjson) {
        output::json(&std::collections::BTreeMap::from([("released", true)]), out)?;
    }
    Ok(0)
}

/// The handle, and the settings of its namespace.
fn namespace_of(
    mut settings: Settings,
    text: &str,
    shared: &Shared,
) -> Result<(Handle, Settings), Failure> {
    let handle = Handle::parse(text)?;
    if shared.namespace.as_ref().is_some_and(|said| *said != handle.namespace) {
        let message =
            format!("the handle is of namespace {:?}; leave --namespace out", handle.namespace);
        return Err(Failure::usage(message));
    }
    settings.namespace.clone_from(&handle.namespace);
    Ok((handle, settings))
}

fn gone(handle: &Handle) -> Failure {
    let name = handle.claim.parts.first_name();
    let message = format!("{name}: this claim is gone: it was released, or its lease ran out");
    Failure::new(failure::NO, message)
}

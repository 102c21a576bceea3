//! `acquire`, `renew` and `release`: claims that belong to no process and live by their lease.
//! Knows the contract with a store, and handles.

use std::future::{Future, pending};
use std::io::Write;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::getppid;
use serde::Serialize;
use tenure::contract::{
    About, Claim, ClaimId, Confirmed, Engine, Grant, Label, Patience as Waits, Refusal, Release,
    Released, Renewed, Verdict,
};
use tenure::{Error, ErrorKind, Fence, Owner};

use crate::args::{AcquireArgs, OutputArg, Shared};
use crate::asking::{Asking, ends_wait, trouble};
use crate::config::Config;
use crate::failure::{self, Failure};
use crate::handle::Handle;
use crate::output::{self, millis};
use crate::reactor::{Reactor, Woken};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::wanted::{Kind, Patience, Wanted};

/// How often a ticket that nobody tells asks again, at first and at most.
const PACE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// `tenure acquire`.
pub(super) fn run(
    settings: &Settings,
    config: &Config,
    args: &AcquireArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let wanted = Wanted::new(&args.lock, None, config)?;
    let replicas = settings.clone().asking_replicas(&args.lock)?.replicas;
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    let signals = Signals::catch_only(&signals).map_err(trouble)?;
    let owner = Owner::from_env()?.unwrap_or_else(Owner::new);
    let store = Store {
        engine: settings.engine()?,
        reactor: Reactor::new(signals).map_err(trouble)?,
        limit: settings.op_timeout,
    };
    let promises = store.engine.promises();
    if replicas.is_some() && !promises.replicas {
        let message = format!("the engine {} has no replicas to ask", promises.engine);
        return Err(Failure::usage(message));
    }
    let claim = Arc::new(detached(settings, &wanted, &owner)?);
    let grant = match (wanted.patience, wanted.kind) {
        (Patience::Try, _) => store.claim(&claim)?,
        (_, Kind::Permit(_)) => store.wait_for(&claim, wanted.patience)?,
        // Without a line nobody stands in anybody's way, and nobody enters twice either.
        _ if !promises.queue => store.wait_for(&claim, wanted.patience)?,
        _ => store.enter_behind_a_session(settings, &wanted, &owner, &claim)?,
    };
    let grant = match grant {
        Ok(grant) => grant,
        Err(code) => return Ok(code),
    };
    let confirmed = store.confirm(&claim, replicas);
    if confirmed.is_err() {
        // Not held by enough is not held.
        let _ = store.give_back(&claim);
    }
    let replicas = confirmed?;
    let handle = Handle {
        claim: claim.to_ref(),
        owner: owner.lineage().owner(),
        namespace: settings.namespace.clone(),
    };
    let granted = Granted { grant, replicas };
    let printed = print(&handle, &granted, &owner, args, form, out);
    if printed.is_err() {
        // Nobody could read the handle, so nobody could ever give the lock back.
        let _ = store.give_back(&claim);
    }
    printed.map(|()| 0)
}

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
    let (handle, store) = store_of(settings, text, shared)?;
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
    let (handle, store) = store_of(settings, text, shared)?;
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

/// The handle, and the store of its namespace.
fn store_of(
    mut settings: Settings,
    text: &str,
    shared: &Shared,
) -> Result<(Handle, Store), Failure> {
    let handle = Handle::parse(text)?;
    if shared.namespace.as_ref().is_some_and(|said| *said != handle.namespace) {
        let message =
            format!("the handle is of namespace {:?}; leave --namespace out", handle.namespace);
        return Err(Failure::usage(message));
    }
    settings.namespace.clone_from(&handle.namespace);
    let store = Store {
        engine: settings.engine()?,
        reactor: Reactor::new(Signals::catch_only(&[]).map_err(trouble)?).map_err(trouble)?,
        limit: settings.op_timeout,
    };
    Ok((handle, store))
}

fn gone(handle: &Handle) -> Failure {
    let name = handle.claim.parts.first_name();
    let message = format!("{name}: this claim is gone: it was released, or its lease ran out");
    Failure::new(failure::NO, message)
}

/// A claim of no session. It names our parent, the script that will keep the handle.
fn detached(settings: &Settings, wanted: &Wanted, owner: &Owner) -> Result<Claim, Failure> {
    if wanted.lease > settings.max_lease {
        let message = format!(
            "a lease of {:?} is longer than the namespace allows ({:?}); renew it in time, or set \
             --max-lease for every client",
            wanted.lease, settings.max_lease
        );
        return Err(Failure::usage(message));
    }
    let host = rustix::system::uname();
    let host: String = host.nodename().to_string_lossy().chars().take(64).collect();
    Ok(Claim {
        id: ClaimId::new(),
        session: None,
        lineage: owner.lineage().clone(),
        parts: wanted.parts()?,
        lease: wanted.lease,
        lock_delay: wanted.lock_delay,
        patience: if wanted.patience == Patience::Try { Waits::Try } else { Waits::Wait },
        replaces: None,
        about: About {
            host: host.into(),
            pid: getppid().as_raw().unsigned_abs(),
            place: None,
            label: wanted.label.as_deref().map(Label::try_from).transpose()?,
        },
    })
}

/// A store without a session.
struct Store {
    engine: Arc<dyn Engine>,
    reactor: Reactor,
    limit: Duration,
}

/// What was granted, or the exit code of a signal that came first.
type Outcome = Result<Grant, u8>;

/// What was granted, and how many replicas have it, where that was asked.
struct Granted {
    grant: Grant,
    replicas: Option<u32>,
}

impl Store {
    /// One call, with its time limit.
    fn call<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        self.call_within(self.limit, call)
    }

    fn call_within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        let mut call = pin!(call);
        let until = Instant::now() + limit;
        loop {
            let call: Pin<&mut dyn Future<Output = _>> = call.as_mut();
            match self.reactor.next(call, None, Some(until)).map_err(trouble)? {
                Woken::Done(answer) => return Ok(answer?),
                Woken::Late => {
                    let message = format!("the store did not answer within {limit:?}");
                    return Err(Failure::new(failure::UNREACHABLE, message));
                }
                // A call is short: what it did must be known before anything ends.
                Woken::Signal(_) | Woken::Readable => {}
            }
        }
    }

    /// Asks once.
    fn claim(&self, claim: &Arc<Claim>) -> Result<Outcome, Failure> {
        match self.call(self.engine.claim(claim))? {
            Verdict::Granted(grant) => Ok(Ok(grant)),
            Verdict::Queued(_) => {
                self.give_back(claim)?;
                Err(Failure::new(failure::NOT_OBTAINED, "it is taken"))
            }
            Verdict::Refused(refusal) => Err(refused(claim, refusal)),
        }
    }

    /// Waits in a session, which is told when its turn comes and leaves no ticket behind if it is
    /// killed; then the same owner enters once more, detached, and the session's hold ends.
    fn enter_behind_a_session(
        &self,
        settings: &Settings,
        wanted: &Wanted,
        owner: &Owner,
        claim: &Arc<Claim>,
    ) -> Result<Outcome, Failure> {
        let tenure = settings.builder().open(Arc::clone(&self.engine))?;
        let asking = Asking { tenure: &tenure, settings, wanted, owner, backstop: None };
        let obtained = asking.obtain(&self.reactor, None);
        if !matches!(obtained, Ok(Ok(_))) {
            // Our place in line is given up before we end: afterwards nobody would.
            tenure::blocking::wait(tenure.close());
        }
        let guard = match obtained? {
            Ok(guard) => guard,
            Err(code) => return Ok(Err(code)),
        };
        let granted = self.claim(claim);
        let released = tenure::blocking::wait(guard.release());
        tenure::blocking::wait(tenure.close());
        if let (Ok(_), Err(error)) = (&granted, released) {
            // Lost in between: somebody else may have held the lock, and our grant is not what it
            // seems.
            let _ = self.give_back(claim);
            return Err(error.into());
        }
        granted
    }

    /// Waits with a detached ticket, asking again and again, where nothing can be entered twice.
    fn wait_for(&self, claim: &Arc<Claim>, patience: Patience) -> Result<Outcome, Failure> {
        let deadline = match patience {
            Patience::Limit(limit) => Some(Instant::now() + limit),
            Patience::Forever | Patience::Try => None,
        };
        let mut pause = PACE.0;
        loop {
            match self.call(self.engine.claim(claim))? {
                Verdict::Granted(grant) => return Ok(Ok(grant)),
                Verdict::Refused(refusal) => return Err(refused(claim, refusal)),
                Verdict::Queued(_) => {}
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                self.give_back(claim)?;
                let message = format!("{}: not granted in time", claim.parts.first_name());
                return Err(Failure::new(failure::NOT_OBTAINED, message));
            }
            let until = deadline.map_or(now + pause, |deadline| deadline.min(now + pause));
            let mut nothing = pin!(pending::<()>());
            let woken = self.reactor.next(nothing.as_mut(), None, Some(until)).map_err(trouble)?;
            if let Woken::Signal(caught) = woken
                && let Some(code) = ends_wait(caught.signal)
            {
                self.give_back(claim)?;
                return Ok(Err(code));
            }
            pause = (pause * 2).min(PACE.1);
        }
    }

    /// How many replicas have the grant, if so many are wanted; fewer are a failure.
    fn confirm(
        &self,
        claim: &Claim,
        wanted: Option<(u32, Duration)>,
    ) -> Result<Option<u32>, Failure> {
        let Some((wanted, within)) = wanted else { return Ok(None) };
        let name = claim.parts.first_name();
        let reference = claim.to_ref();
        let call = self.engine.confirm(&reference, wanted, within);
        let Confirmed { renewed, replicas } = self.call_within(self.limit + within * 2, call)?;
        if !matches!(renewed, Renewed::Held(_)) {
            let message = format!("{name}: the store forgot the grant before its replicas had it");
            return Err(Failure::new(failure::UNREACHABLE, message));
        }
        if replicas < wanted {
            let message =
                format!("{name}: only {replicas} of {wanted} replicas confirmed within {within:?}");
            return Err(Failure::new(failure::UNREACHABLE, message));
        }
        Ok(Some(replicas))
    }

    fn give_back(&self, claim: &Claim) -> Result<(), Failure> {
        let batch = [Release { claim: claim.to_ref(), uncertain: true }];
        self.call(self.engine.release(&batch)).map(drop)
    }
}

fn refused(claim: &Claim, refusal: Refusal) -> Failure {
    let name = claim.parts.first_name();
    match refusal {
        Refusal::Held { by, .. } => {
            Error::new(ErrorKind::TimedOut, "it is taken").on(name).blocked_by(by, None).into()
        }
        Refusal::Shape { name, stands } => {
            let next = "use one name for one kind of lock";
            let error = Error::new(ErrorKind::Shape, format!("it is in use as {stands}"));
            error.on(&name).next(next).into()
        }
        Refusal::Full { name, limit } => {
            Error::new(ErrorKind::Limit, format!("{limit} hold or wait already")).on(&name).into()
        }
        other => Failure::new(failure::NO, format!("{name}: refused: {other:?}")),
    }
}

fn print(
    handle: &Handle,
    granted: &Granted,
    owner: &Owner,
    args: &AcquireArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Acquired<'a> {
        handle: &'a str,
        names: Vec<&'a str>,
        fence: u64,
        lease_ms: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        replicas: Option<u32>,
    }
    let text = handle.to_text();
    let (fence, replicas) = (largest(&granted.grant), granted.replicas);
    if args.export {
        writeln!(out, "export TENURE_HANDLE={text}")?;
        writeln!(out, "export TENURE_FENCE={fence}")?;
        writeln!(out, "export TENURE_OWNER={}", owner.to_env_value())?;
    } else if matches!(form, OutputArg::Json | OutputArg::Ndjson) {
        let names = handle.claim.parts.names().map(tenure::Name::as_str).collect();
        let lease_ms = millis(handle.claim.lease);
        let fence = fence.get();
        output::json(&Acquired { handle: &text, names, fence, lease_ms, replicas }, out)?;
    } else {
        writeln!(out, "{text}")?;
    }
    Ok(out.flush()?)
}

fn largest(grant: &Grant) -> Fence {
    grant.fences.as_slice().iter().copied().max().unwrap_or(Fence::new(0))
}

//! `tenure acquire`: a claim that belongs to no process and lives by its lease. Knows how to wait
//! for one without leaving anything behind, and the contract with a store.

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
    Renewed, Verb, Verdict, short,
};
use tenure::{Conduct, Effect, Error, ErrorKind, Fence, HolderView, Owner, Query};

use crate::args::{AcquireArgs, OutputArg};
use crate::asking::{Asking, taken, trouble};
use crate::config::Config;
use crate::ending::{Ending, GRACE, Session};
use crate::failure::{self, Failure};
use crate::handle::Handle;
use crate::interrupts::{Interrupts, Waited};
use crate::output::{self, millis};
use crate::reactor::Reactor;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::wanted::{Kind, Patience, Wanted};

/// How often a ticket without a push renews to see whether it was granted, at first and at most.
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
    let settings = &settings.clone().waiting(wanted.patience);
    let began = Instant::now();
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    let reactor = Reactor::new(Signals::catch_only(&signals).map_err(trouble)?).map_err(trouble)?;
    let interrupts = Interrupts::new(&reactor);
    let owner = Owner::from_env()?.unwrap_or_else(Owner::new);
    let engine = match settings.engine_unless(&interrupts)? {
        Ok(engine) => engine,
        Err(code) => return Ok(code),
    };
    let store = Store::new(engine, &interrupts, settings, began);
    let promises = store.engine.promises();
    if replicas.is_some() && !promises.replicas {
        let message = format!("the engine {} has no replicas to ask", promises.engine);
        return Err(Failure::usage(message));
    }
    let mut claim = Arc::new(detached(settings, &wanted, &owner)?);
    let grant = match (wanted.patience, wanted.kind) {
        (Patience::Try, _) => store.claim(&claim)?,
        // Only there a store notices that a process has died: elsewhere tickets live by their
        // leases.
        (_, Kind::Permit(_)) if settings.scheme() == "embedded" => {
            store.move_out_of_session(&wanted, &owner, &mut claim)?
        }
        (_, Kind::Permit(_)) => store.wait_for(&claim, wanted.patience)?,
        // Without a queue a session's ticket would be no place to wait in, and no owner re-enters.
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
        store.withdraw(&claim);
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
        // Without the handle the lock could not be given back.
        store.withdraw(&claim);
    }
    printed.map(|()| 0)
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
            conduct: Conduct::default(),
        },
    })
}

/// A store without a session.
pub(super) struct Store<'a> {
    pub(super) engine: Arc<dyn Engine>,
    interrupts: &'a Interrupts<'a>,
    settings: &'a Settings,
    /// From when on a wait limit counts: before the store was reached.
    began: Instant,
}

/// What was granted, or the exit code of a signal that came first.
type Outcome = Result<Grant, u8>;

/// What was granted, and how many replicas have it, where that was asked.
struct Granted {
    grant: Grant,
    replicas: Option<u32>,
}

impl<'a> Store<'a> {
    fn new(
        engine: Arc<dyn Engine>,
        interrupts: &'a Interrupts<'a>,
        settings: &'a Settings,
        began: Instant,
    ) -> Self {
        Self { engine, interrupts, settings, began }
    }

    /// Connects, where no signal is caught.
    pub(super) fn connect(
        settings: &'a Settings,
        interrupts: &'a Interrupts<'a>,
    ) -> Result<Self, Failure> {
        let engine = tenure::block_on(settings.engine())?;
        Ok(Self::new(engine, interrupts, settings, Instant::now()))
    }

    /// One call, with its time limit.
    pub(super) fn call<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        self.call_within(self.settings.op_timeout, call)
    }

    /// One call that is short: a signal that comes meanwhile only makes it shorter.
    fn call_within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        match Ending::new(self.interrupts, limit).wait(pin!(call))? {
            Some(answer) => Ok(answer?),
            None => Err(unanswered(began.elapsed()).into()),
        }
    }

    /// Sends the claim. If it fails and the store may have acted all the same, it is withdrawn. A
    /// signal that comes meanwhile ends it, and the answer is an exit code.
    fn send(&self, claim: &Arc<Claim>) -> Result<Result<Verdict, u8>, Failure> {
        let (answer, ended) = self.ask(claim)?;
        self.settle(claim, answer, ended)
    }

    /// Sends the claim once. Returns what came back, and the exit code of a signal that came
    /// meanwhile.
    fn ask(&self, claim: &Arc<Claim>) -> Result<(Result<Verdict, Error>, Option<u8>), Failure> {
        let (began, mut limit, mut ended) = (Instant::now(), self.settings.op_timeout, None);
        let mut call = pin!(self.engine.claim(claim));
        let answer = loop {
            let call: Pin<&mut dyn Future<Output = _>> = call.as_mut();
            match self.interrupts.wait(call, began.checked_add(limit))? {
                Waited::Done(answer) => break answer,
                Waited::Late => break Err(unanswered(began.elapsed())),
                // What the call did should be known before anything ends.
                Waited::Interrupted(code) => {
                    ended = Some(code);
                    limit = limit.min(began.elapsed() + GRACE);
                }
                Waited::Gone => {}
            }
        };
        Ok((answer, ended))
    }

    /// What becomes of an answer to the claim: see `send`.
    fn settle(
        &self,
        claim: &Arc<Claim>,
        answer: Result<Verdict, Error>,
        ended: Option<u8>,
    ) -> Result<Result<Verdict, u8>, Failure> {
        let leaves = match &answer {
            Ok(Verdict::Refused(_)) => false,
            Ok(Verdict::Granted(_) | Verdict::Queued(_)) => ended.is_some(),
            Err(error) => error.effect() == Effect::Unknown,
        };
        let answer = answer.map_err(|error| {
            let failure = Failure::from(error.during(Verb::Claim).on(claim.parts.first_name()));
            // Told before the withdrawal, which may have to wait.
            if ended.is_none() { failure.told() } else { failure }
        });
        if leaves {
            self.withdraw(claim);
        }
        match ended {
            Some(code) => Ok(Err(code)),
            None => answer.map(Ok),
        }
    }

    /// Asks once.
    fn claim(&self, claim: &Arc<Claim>) -> Result<Outcome, Failure> {
        Ok(match self.send(claim)? {
            Ok(Verdict::Granted(grant)) => Ok(grant),
            Ok(Verdict::Queued(_)) => {
                self.withdraw(claim);
                return Err(taken(claim.parts.first_name(), Vec::new()).into());
            }
            Ok(Verdict::Refused(Refusal::Held { by, .. })) => return Err(self.taken(claim, by)),
            Ok(Verdict::Refused(refusal)) => return Err(refused(claim, refusal)),
            Err(code) => Err(code),
        })
    }

    /// The refusal of a claim that does not wait: of a set, for the first name that is held. Best
    /// effort, as the holder may have left meanwhile.
    fn taken(&self, claim: &Claim, by: Vec<HolderView>) -> Failure {
        let several = claim.parts.as_slice().len() > 1;
        for name in claim.parts.names().filter(|_| several) {
            let query = Query::Slot(name.clone());
            let seen = self.call(self.engine.inspect(&query)).unwrap_or_default();
            if let Some(slot) = seen.slots.into_iter().find(|slot| !slot.holders.is_empty()) {
                return taken(name, slot.holders).into();
            }
        }
        taken(claim.parts.first_name(), by).into()
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
        let session = Session::on(Arc::clone(&self.engine), settings.builder())?;
        let tenure = session.tenure();
        let asking = Asking { tenure, settings, wanted, owner, began: self.began, backstop: None };
        let mut ending = Ending::new(self.interrupts, settings.close_timeout);
        let entered = self.enter(&asking, claim, &mut ending);
        // Told before our place in line, or what is held, is given back.
        let entered = entered.map_err(|why| why.conflict(wanted.conflict, settings.quiet).told());
        session.close(&mut ending);
        entered
    }

    fn enter(
        &self,
        asking: &Asking<'_>,
        claim: &Arc<Claim>,
        ending: &mut Ending<'_>,
    ) -> Result<Outcome, Failure> {
        let guard = match asking.obtain(self.interrupts)? {
            Ok(guard) => guard,
            Err(code) => return Ok(Err(code)),
        };
        let granted = self.claim(claim);
        if !matches!(granted, Ok(Ok(_))) {
            return granted;
        }
        if let Err(failure) = ending.give_back(asking.tenure, asking.wanted, guard) {
            // Lost in between: another client may have held the lock, and our grant is not what it
            // seems.
            let failure = failure.told();
            self.withdraw(claim);
            return Err(failure);
        }
        granted
    }

    /// Waits in a session whose tickets end with this process, where nothing can be entered twice.
    /// Then the same claim is sent once more as one of no session, which makes it detached.
    fn move_out_of_session(
        &self,
        wanted: &Wanted,
        owner: &Owner,
        claim: &mut Arc<Claim>,
    ) -> Result<Outcome, Failure> {
        let settings = self.settings;
        let builder = settings.builder().on_behalf_of(claim.about.pid);
        let session = Session::on(Arc::clone(&self.engine), builder)?;
        let tenure = session.tenure();
        let asking = Asking { tenure, settings, wanted, owner, began: self.began, backstop: None };
        let moved = asking.obtain(self.interrupts).and_then(|obtained| {
            let guard = match obtained {
                Ok(guard) => guard,
                Err(code) => return Ok(Err(code)),
            };
            Arc::make_mut(claim).id = guard.claim_id();
            let granted = self.claim(claim)?;
            if granted.is_ok() {
                // The session must not give back what is no longer its own.
                std::mem::forget(guard);
            }
            Ok(granted)
        });
        if let Ok(Ok(_)) = moved {
            // Closing would end the claim. What is left of the session ends with this process.
            std::mem::forget(session);
            return moved;
        }
        let moved = moved.map_err(|why| why.conflict(wanted.conflict, settings.quiet).told());
        session.close(&mut Ending::new(self.interrupts, settings.close_timeout));
        moved
    }

    /// Waits with a detached ticket, asking again and again, where nothing can be entered twice. A
    /// store that is away is asked again too, as a session would: until the wait limit, or until
    /// nothing was answered for the longest lease.
    fn wait_for(&self, claim: &Arc<Claim>, patience: Patience) -> Result<Outcome, Failure> {
        let deadline = match patience {
            Patience::Limit(limit) => Some(self.began + limit),
            Patience::Forever | Patience::Try => None,
        };
        let (mut pause, mut answered, mut unknown) = (PACE.0, Instant::now(), false);
        loop {
            let (answer, ended) = self.ask(claim)?;
            let now = Instant::now();
            let away = matches!(&answer, Err(error) if error.kind() == ErrorKind::Unavailable);
            let end = deadline.unwrap_or(answered + self.settings.max_lease);
            if away && ended.is_none() && now < end {
                unknown |= answer.is_err_and(|error| error.effect() == Effect::Unknown);
            } else {
                // What one attempt may have done, all of them together may have done.
                let all = |error: Error| if unknown { error.effect_unknown() } else { error };
                match self.settle(claim, answer.map_err(all), ended)? {
                    Ok(Verdict::Granted(grant)) => return Ok(Ok(grant)),
                    Ok(Verdict::Refused(refusal)) => return Err(refused(claim, refusal)),
                    Ok(Verdict::Queued(_)) => answered = now,
                    Err(code) => return Ok(Err(code)),
                }
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                self.withdraw(claim);
                let message = format!("{}: not granted in time", claim.parts.first_name());
                return Err(Failure::new(failure::NOT_OBTAINED, message));
            }
            let until = deadline.map_or(now + pause, |deadline| deadline.min(now + pause));
            let mut nothing = pin!(pending::<()>());
            if let Waited::Interrupted(code) =
                self.interrupts.wait(nothing.as_mut(), Some(until))?
            {
                self.withdraw(claim);
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
        let Some(replication) = self.engine.replication() else {
            return Err(Failure::from(self.engine.promises().lacks("replicas")));
        };
        let call = replication.confirm(&reference, wanted, within);
        let Confirmed { renewed, replicas } =
            self.call_within(self.settings.op_timeout + within * 2, call)?;
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

    /// Gives the claim back, as long as the end may take. The lease is the backstop.
    fn withdraw(&self, claim: &Claim) {
        let batch = [Release { claim: claim.to_ref(), uncertain: true }];
        let mut ending = Ending::new(self.interrupts, self.settings.close_timeout);
        let _ = ending.wait(pin!(self.engine.release(&batch)));
    }
}

fn unanswered(waited: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no response within {}", short(waited)))
        .effect_unknown()
        .with_help("check that the store is up and reachable")
}

fn refused(claim: &Claim, refusal: Refusal) -> Failure {
    let name = claim.parts.first_name();
    match refusal {
        Refusal::Shape { name, stands } => {
            let next = "use one name for one kind of lock";
            let error = Error::new(ErrorKind::Shape, format!("it is in use as {stands}"));
            error.on(&name).with_help(next).into()
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

pub(super) fn largest(grant: &Grant) -> Fence {
    grant.fences.as_slice().iter().copied().max().unwrap_or(Fence::new(0))
}

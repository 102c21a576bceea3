//! Plays a program on an engine and on the ledger and compares after every step: the answer, the
//! pushes, and everything that can be seen of every slot. Fences are compared by their order.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::program::{AskedShape, NAMES, PARENTS, PERMITS, Program, ProgramStep, SESSIONS};
use crate::conformance::harness::Harness;
use crate::conformance::world::{Ask, Raw, World, floor_of, name};
use crate::contract::{
    Arrival, Claim, ClaimId, ClaimRef, Evicted, Eviction, Fence, Grant, Lineage, Name, OwnerId,
    Page, Part, Patience, Query, Queued, Raised, Refusal, Release, Renewed, Signal, SlotView,
    Verdict,
};
use crate::ledger::{Ledger, Now};
use crate::limits::NAMED_HOLDERS;
use crate::time::Tick;

/// Short beside any lease.
const INSTANT: Duration = Duration::from_millis(1);

/// Where engine and ledger part.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The number of the step.
    pub step: usize,
    /// The step, what the engine did, what the ledger did.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.what)
    }
}

/// Plays a program.
pub(super) fn play(program: &Program, harness: &dyn Harness) -> Result<(), Difference> {
    let stage =
        harness.open().map_err(|absent| Difference { step: 0, what: absent.to_string() })?;
    let mut duel = Duel::new(World::new(stage), harness.serves_at_once());
    for (at, step) in program.steps().iter().enumerate() {
        let compared = duel.step(step);
        compared.map_err(|what| Difference { step: at, what: format!("{step}: {what}") })?;
    }
    Ok(())
}

/// An engine and the ledger, which get the same steps and whose answers are compared.
struct Duel {
    world: World,
    raws: Vec<Raw>,
    ledger: Ledger,
    now: Now,
    owners: Vec<OwnerId>,
    claims: HashMap<usize, Arc<Claim>>,
    /// For every name: the engine's fences by the ledger's.
    fences: HashMap<Name, BTreeMap<Fence, Fence>>,
    arrivals: HashMap<Arrival, Arrival>,
    /// The engine serves a queue at the very instant at which a claim in its way expires.
    at_once: bool,
    /// How many steps were taken.
    steps: usize,
}

impl Duel {
    fn new(world: World, at_once: bool) -> Self {
        let raws = (0..SESSIONS).map(|_| world.raw()).collect();
        let owners = PARENTS.iter().map(|_| OwnerId::new()).collect();
        // The ledger's clocks run on their own; only differences of time matter.
        let now = Now { tick: Tick::from_nanos(1_000_000_000_000), wall_micros: 1 };
        Self {
            world,
            raws,
            ledger: Ledger::default(),
            now,
            owners,
            claims: HashMap::new(),
            fences: HashMap::new(),
            arrivals: HashMap::new(),
            at_once,
            steps: 0,
        }
    }

    fn step(&mut self, step: &ProgramStep) -> Result<(), String> {
        let begins = matches!(
            step,
            ProgramStep::Claim { .. } | ProgramStep::Repeat(_) | ProgramStep::Renew { .. }
        );
        // Where each expiry is an event, those of one instant come in any order, and all are right:
        // there no two claims end at one instant. Elsewhere some do and some do not.
        self.steps += 1;
        if begins && (self.at_once || self.steps.is_multiple_of(3)) {
            self.pass(INSTANT);
        }
        match step {
            ProgramStep::Claim { claim, .. } => {
                let made = self.make(step);
                self.claims.insert(*claim, made);
                self.claim(*claim)?;
            }
            ProgramStep::Repeat(claim) => self.claim(*claim)?,
            ProgramStep::Renew { claims, lease } => self.renew(claims, *lease)?,
            ProgramStep::Release(claim) => self.release(*claim, false)?,
            ProgramStep::Withdraw(claim) => self.release(*claim, true)?,
            ProgramStep::Evict { claim, name } => self.evict(*claim, *name)?,
            ProgramStep::End(session) => {
                let id = self.raws[*session].session();
                self.world.stage().end_session(id);
                self.rules(|ledger, now| ledger.end_session(id, now));
            }
            ProgramStep::Raise(by) => self.raise(*by)?,
            ProgramStep::Pass(time) => self.pass(self.world.lease() * *time / 100),
        }
        if matches!(step, ProgramStep::Pass(_)) {
            // Not now: to look is to drop what has expired. The next verb has to find it.
            return Ok(());
        }
        self.compare_slots()?;
        self.compare_signals()
    }

    fn pass(&mut self, time: Duration) {
        self.world.pass(time);
        self.pass_in_ledger(time);
    }

    /// Lets time pass for the ledger, from expiry to expiry if the engine does the same.
    fn pass_in_ledger(&mut self, time: Duration) {
        let mut left = time;
        loop {
            let next = if self.at_once { self.next_expiry() } else { None };
            let step = next.map_or(left, |next| next.min(left));
            self.now.tick = self.now.tick + step;
            let micros = u64::try_from(step.as_micros()).unwrap_or(u64::MAX);
            self.now.wall_micros = self.now.wall_micros.saturating_add(micros);
            left -= step;
            if self.at_once {
                let all = Query::Page(Page::default());
                self.rules(|ledger, now| ledger.inspect(&all, now));
            }
            if left.is_zero() {
                return;
            }
        }
    }

    /// How long until the ledger drops something by itself.
    fn next_expiry(&mut self) -> Option<Duration> {
        let all = Query::Page(Page::default());
        let slots = self.rules(|ledger, now| ledger.inspect(&all, now)).slots;
        let times = slots.iter().flat_map(|slot| {
            let holders = slot.holders.iter().map(|holder| holder.expires_in);
            holders.chain(slot.queue.iter().map(|waiter| waiter.expires_in)).chain(slot.closed_for)
        });
        times.filter(|time| !time.is_zero()).min()
    }

    /// Makes the claim of a `claim` step.
    fn make(&self, step: &ProgramStep) -> Arc<Claim> {
        let ProgramStep::Claim { session, owner, parts, wait, lease, delay, replaces, .. } = step
        else {
            unreachable!("only claims are made")
        };
        let raw = &self.raws[*session];
        let parts = parts.iter().map(|(n, kind)| part(*n, *kind)).collect();
        let mut ask = Ask::set(&self.world, parts).of(&self.lineage(*owner));
        ask.patience = if *wait { Patience::Wait } else { Patience::Try };
        ask.lease = self.world.lease() * *lease / 100;
        ask.lock_delay = self.world.lease() * *delay / 100;
        ask.replaces = replaces.and_then(|old| self.claims.get(&old)).map(|claim| claim.id);
        raw.make(ask)
    }

    fn lineage(&self, owner: usize) -> Lineage {
        let mut ancestors = Vec::new();
        let mut next = PARENTS[owner];
        while let Some(parent) = next {
            ancestors.push(self.owners[parent]);
            next = PARENTS[parent];
        }
        Lineage::nested(self.owners[owner], &ancestors).expect("a short family")
    }

    fn claim(&mut self, number: usize) -> Result<(), String> {
        let Some(claim) = self.claims.get(&number).cloned() else { return Ok(()) };
        let theirs = self.raw_of(&claim).send(&self.world, &claim);
        let ours = self.rules(|ledger, now| ledger.claim(&claim, now));
        match (&theirs, &ours) {
            (Verdict::Granted(theirs), Verdict::Granted(ours)) => self.grants(&claim, theirs, ours),
            (Verdict::Queued(theirs), Verdict::Queued(ours)) => self.queues(theirs, ours),
            (Verdict::Refused(theirs), Verdict::Refused(ours)) => same_refusal(theirs, ours),
            _ => Err(differ(&theirs, &ours)),
        }
    }

    /// Renews those of the claims that have the session of the first, in one call.
    fn renew(&mut self, numbers: &[usize], lease: Option<u32>) -> Result<(), String> {
        let made: Vec<_> = numbers.iter().filter_map(|one| self.claims.get(one).cloned()).collect();
        let Some(first) = made.first() else { return Ok(()) };
        let session = first.session;
        let mut claims: Vec<Arc<Claim>> = Vec::new();
        for claim in made.iter().filter(|claim| claim.session == session) {
            // Where each expiry is an event, no two claims may end at one instant.
            let ends_apart = lease.is_none() && claims.iter().all(|one| one.lease != claim.lease);
            if claims.is_empty() || !self.at_once || ends_apart {
                claims.push(Arc::clone(claim));
            }
        }
        let batch: Vec<ClaimRef> = claims
            .iter()
            .map(|claim| {
                let given = lease.map(|lease| self.world.lease() * lease / 100);
                // A claim of etcd is on a lease of its own length, and a renewal may end it
                // earlier, but never later. No session asks for that.
                let most = if self.at_once { claim.lease } else { Duration::MAX };
                let given = given.map(|given| given.min(most));
                ClaimRef { lease: given.unwrap_or(claim.lease), ..claim.to_ref() }
            })
            .collect();
        let (engine, sent) = (Arc::clone(self.raw_of(first).engine()), batch.clone());
        let theirs = self.world.now(async move { engine.renew(&sent).await });
        let theirs = theirs.map_err(|error| error.to_string())?;
        let ours = self.rules(|ledger, now| ledger.renew(&batch, now));
        if theirs.len() != ours.len() {
            return Err(differ(&theirs, &ours));
        }
        for (claim, (theirs, ours)) in claims.iter().zip(theirs.iter().zip(&ours)) {
            match (theirs, ours) {
                (Renewed::Held(theirs), Renewed::Held(ours)) => self.grants(claim, theirs, ours)?,
                (Renewed::Waiting(theirs), Renewed::Waiting(ours)) => self.queues(theirs, ours)?,
                (Renewed::Gone(theirs), Renewed::Gone(ours)) if theirs == ours => {}
                _ => return Err(format!("{}: {}", claim.id, differ(theirs, ours))),
            }
        }
        Ok(())
    }

    fn release(&mut self, number: usize, uncertain: bool) -> Result<(), String> {
        let Some(claim) = self.claims.get(&number).cloned() else { return Ok(()) };
        let raw = self.raw_of(&claim);
        let theirs = if uncertain {
            raw.withdraw(&self.world, &claim)
        } else {
            raw.release(&self.world, &claim)
        };
        let release = Release { claim: claim.to_ref(), uncertain };
        let ours = self.rules(|ledger, now| ledger.release(&[release], now));
        let ours = ours.into_iter().next().expect("one answer");
        if theirs == ours { Ok(()) } else { Err(differ(&theirs, &ours)) }
    }

    /// Evicts by the fence each side has for the claim; if it holds nothing there, by one that
    /// no claim has.
    fn evict(&mut self, number: usize, at: usize) -> Result<(), String> {
        let Some(claim) = self.claims.get(&number).cloned() else { return Ok(()) };
        let slot = name(NAME[at]);
        let (theirs, ours) = self.views(&slot);
        let fence = |view: &Option<SlotView>| {
            let holders = view.iter().flat_map(|view| &view.holders);
            let found = holders.into_iter().find(|holder| holder.claim == claim.id);
            found.map_or(Fence::new(0), |holder| holder.fence)
        };
        let evict = |fence| Eviction::new(slot.clone(), fence, "program").expect("a good reason");
        let (theirs, ours) = (evict(fence(&theirs)), evict(fence(&ours)));
        let engine = Arc::clone(self.raws[0].engine());
        let theirs = self.world.now(async move { engine.evict(&theirs).await });
        let theirs = theirs.map_err(|error| error.to_string())?;
        let ours = self.rules(|ledger, now| ledger.evict(&ours, now));
        match (&theirs, &ours) {
            (Evicted::Done(theirs), Evicted::Done(ours))
            | (Evicted::NoSuchGrant(theirs), Evicted::NoSuchGrant(ours))
                if ids(theirs.iter().map(|h| h.claim)) == ids(ours.iter().map(|h| h.claim)) =>
            {
                Ok(())
            }
            _ => Err(differ(&theirs, &ours)),
        }
    }

    /// Raises the fences of each side above how far they have got there.
    fn raise(&mut self, by: u64) -> Result<(), String> {
        let ask = |to: u64| {
            let engine = Arc::clone(self.raws[0].engine());
            let raised = self
                .world
                .now(async move { floor_of(&*engine).raise_fences(Fence::new(to)).await });
            raised.map_err(|error| error.to_string())
        };
        let above = |raised: Raised| match raised {
            Raised::NotAbove(highest) => highest.get() + by,
            Raised::Done => by,
        };
        let mut theirs = ask(above(ask(0)?))?;
        // Where all namespaces have one floor, another test may raise it meanwhile.
        for _ in 0..if by > 0 { 20 } else { 0 } {
            if theirs == Raised::Done {
                break;
            }
            theirs = ask(above(ask(0)?))?;
        }
        let ours = self.rules(|ledger, _| {
            let highest = ledger.raise_fences(Fence::new(0));
            ledger.raise_fences(Fence::new(above(highest)))
        });
        // How far they have got is each side's own, and so is whether anything was given out yet.
        let done = |raised: &Raised| matches!(raised, Raised::Done);
        if done(&theirs) == done(&ours) { Ok(()) } else { Err(differ(&theirs, &ours)) }
    }

    fn grants(&mut self, claim: &Claim, theirs: &Grant, ours: &Grant) -> Result<(), String> {
        self.same_arrival(theirs.arrival, ours.arrival)?;
        let fences = theirs.fences.as_slice().iter().zip(ours.fences.as_slice());
        for (name, (theirs, ours)) in claim.parts.names().zip(fences) {
            self.same_fence(name, *theirs, *ours)?;
        }
        Ok(())
    }

    fn queues(&mut self, theirs: &Queued, ours: &Queued) -> Result<(), String> {
        self.same_arrival(theirs.arrival, ours.arrival)?;
        // Where each expiry is an event of its own, only the first waiter is told when to ask.
        let untold = self.at_once && theirs.first_expiry.is_none() && theirs.place > 1;
        let alike = untold || theirs.first_expiry.is_some() == ours.first_expiry.is_some();
        if theirs.place == ours.place && alike { Ok(()) } else { Err(differ(theirs, ours)) }
    }

    /// Equal fences on one side are equal on the other, and larger ones are larger.
    fn same_fence(&mut self, name: &Name, theirs: Fence, ours: Fence) -> Result<(), String> {
        let known = self.fences.entry(name.clone()).or_default();
        let before = known.range(..ours).next_back().is_none_or(|(_, fence)| *fence < theirs);
        let after = known.range(ours..).find(|(other, _)| **other != ours);
        let after = after.is_none_or(|(_, fence)| theirs < *fence);
        let same = *known.entry(ours).or_insert(theirs) == theirs;
        if before && after && same {
            return Ok(());
        }
        Err(format!("fence of {name:?}: engine {theirs}, ledger {ours}, so far {known:?}"))
    }

    fn same_arrival(&mut self, theirs: Arrival, ours: Arrival) -> Result<(), String> {
        if *self.arrivals.entry(ours).or_insert(theirs) == theirs {
            return Ok(());
        }
        Err(format!("arrival: engine {theirs:?}, ledger {ours:?}"))
    }

    fn compare_slots(&mut self) -> Result<(), String> {
        for text in NAME {
            let name = name(text);
            let (theirs, ours) = self.views(&name);
            let (shown, expected) = (theirs.as_ref().map(shape_of), ours.as_ref().map(shape_of));
            // A slot that only a lock delay keeps need not be shown.
            if shown.clone().unwrap_or_default() != expected.clone().unwrap_or_default() {
                return Err(format!("slot {text}: engine {shown:?}, ledger {expected:?}"));
            }
            let holders = |view: Option<SlotView>| view.map(|v| v.holders).unwrap_or_default();
            let ours = holders(ours);
            for theirs in holders(theirs) {
                // Who held first is not to be seen where it was in the same instant.
                if let Some(ours) = ours.iter().find(|ours| ours.claim == theirs.claim) {
                    self.same_fence(&name, theirs.fence, ours.fence)?;
                }
            }
        }
        Ok(())
    }

    fn views(&mut self, name: &Name) -> (Option<SlotView>, Option<SlotView>) {
        let theirs = self.world.slot(name.as_str());
        let query = Query::Slot(name.clone());
        let ours = self.rules(|ledger, now| ledger.inspect(&query, now)).slots;
        (theirs, ours.into_iter().next())
    }

    fn compare_signals(&mut self) -> Result<(), String> {
        let mut ours = self.ledger.take_signals();
        for at in 0..self.raws.len() {
            let session = self.raws[at].session();
            let told = |signal: &Signal| match signal {
                Signal::Granted { claim, grant } => Some((*claim, Some(grant.arrival))),
                Signal::Ended { claim, .. } => Some((*claim, None)),
                Signal::AllEnded { .. }
                | Signal::Resync
                | Signal::Again { .. }
                | Signal::Jobs { .. } => None,
            };
            let expected: Vec<_> =
                ours.extract_if(.., |(to, _)| *to == session).map(|(_, signal)| signal).collect();
            let heard = self.raws[at].heard(&self.world);
            let mut theirs: Vec<_> = heard.iter().filter_map(told).collect();
            let mut expected: Vec<_> = expected.iter().filter_map(told).collect();
            theirs.sort_by_key(|(claim, _)| *claim);
            expected.sort_by_key(|(claim, _)| *claim);
            if theirs.iter().map(|t| t.0).ne(expected.iter().map(|t| t.0)) {
                return Err(format!("pushes to s{at}: engine {theirs:?}, ledger {expected:?}"));
            }
            for ((_, theirs), (_, ours)) in theirs.into_iter().zip(expected) {
                match (theirs, ours) {
                    (Some(theirs), Some(ours)) => self.same_arrival(theirs, ours)?,
                    (None, None) => {}
                    other => return Err(format!("pushes to s{at}: {other:?}")),
                }
            }
        }
        Ok(())
    }

    /// Asks the ledger, which judges and therefore has none of the bugs put in on purpose.
    fn rules<T>(&mut self, ask: impl FnOnce(&mut Ledger, Now) -> T) -> T {
        let now = self.now;
        #[cfg(feature = "seeded-bugs")]
        return crate::seeded::without(|| ask(&mut self.ledger, now));
        #[cfg(not(feature = "seeded-bugs"))]
        ask(&mut self.ledger, now)
    }

    fn raw_of(&self, claim: &Claim) -> &Raw {
        let mut raws = self.raws.iter();
        raws.find(|raw| Some(raw.session()) == claim.session).expect("one of ours")
    }
}

const NAME: [&str; NAMES] = ["a", "b", "c"];

fn part(at: usize, kind: AskedShape) -> Part {
    let name = name(NAME[at]);
    match kind {
        AskedShape::Read => Part::read(name),
        AskedShape::Write => Part::write(name),
        AskedShape::Permits(permits) => {
            Part::permits(name, permits.clamp(1, PERMITS), PERMITS).expect("permits that fit")
        }
    }
}

/// What must be the same of a slot: who holds what, who waits for what, in which order.
type SlotShape = (Vec<(ClaimId, u32, bool)>, Vec<(ClaimId, u32, bool)>);

fn shape_of(view: &SlotView) -> SlotShape {
    let mut holders: Vec<_> =
        view.holders.iter().map(|holder| (holder.claim, holder.weight, holder.reserved)).collect();
    holders.sort_unstable();
    let line =
        view.queue.iter().map(|waiter| (waiter.claim, waiter.weight, waiter.ahead)).collect();
    (holders, line)
}

fn same_refusal(theirs: &Refusal, ours: &Refusal) -> Result<(), String> {
    let same = match (theirs, ours) {
        (Refusal::Held { by: a, waiting: x }, Refusal::Held { by: b, waiting: y }) => {
            // Of more holders than a refusal names, each side may name others.
            let cut = a.len() == NAMED_HOLDERS && b.len() == NAMED_HOLDERS;
            x == y && (cut || ids(a.iter().map(|h| h.claim)) == ids(b.iter().map(|h| h.claim)))
        }
        (theirs, ours) => theirs == ours,
    };
    if same { Ok(()) } else { Err(differ(theirs, ours)) }
}

fn ids(ids: impl Iterator<Item = ClaimId>) -> Vec<ClaimId> {
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable();
    ids
}

fn differ<T: fmt::Debug>(theirs: &T, ours: &T) -> String {
    format!("engine {theirs:?}, ledger {ours:?}")
}

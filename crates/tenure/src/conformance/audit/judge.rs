//! The judgements, each written from a numbered promise. Knows lives, not stores.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use super::super::promises::sentence;
use super::history::History;
use super::timeline::{ClaimLife, lives};
use crate::contract::{ClaimId, Fence, Name};
use crate::time::Tick;

/// What to hold a run to.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// First come, first served is promised.
    pub queue: bool,
    /// How long a name may be free while a claim waits for it.
    pub wake_within: Duration,
    /// The link loses calls and pushes, so a released claim may stay in the store for a lease.
    pub lossy: bool,
    /// The run has come to rest: nothing may be left open.
    pub at_rest: bool,
}

/// One breach of a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The number of the promise.
    pub promise: u8,
    /// Who, where, when.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {} ({}) broken: ", self.promise, sentence(self.promise))?;
        f.write_str(&self.what)
    }
}

/// What a judgement found, and what it rests on.
#[derive(Clone, Debug, Default)]
pub struct Verdicts {
    /// All breaches.
    pub violations: Vec<Violation>,
    /// How many grants were judged.
    pub grants: usize,
    /// How many of them were handed over from one claim to a waiting one.
    pub waited: usize,
    /// How many uses were judged.
    pub uses: usize,
    /// How many claims were never answered.
    pub unanswered: usize,
}

impl Verdicts {
    fn breach(&mut self, promise: u8, what: String) {
        self.violations.push(Violation { promise, what });
    }
}

impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} grants ({} after waiting), {} uses, {} unanswered, {} violations",
            self.grants,
            self.waited,
            self.uses,
            self.unanswered,
            self.violations.len()
        )?;
        self.violations.iter().take(20).try_for_each(|violation| write!(f, "\n  {violation}"))
    }
}

/// Judges a history.
#[must_use]
pub fn judge(history: &History, rules: &Rules) -> Verdicts {
    let lives = lives(history);
    let mut verdicts = Verdicts {
        grants: lives.iter().filter(|life| life.granted.is_some()).count(),
        waited: lives.iter().filter(|life| life.granted.is_some() && life.queued.is_some()).count(),
        uses: lives.iter().map(|life| life.uses.len()).sum(),
        unanswered: lives.iter().filter(|life| life.unanswered()).count(),
        ..Verdicts::default()
    };
    let end = history.entries().last().map_or(Tick::ZERO, |entry| entry.at);
    let names: BTreeSet<&Name> =
        lives.iter().flat_map(|life| life.parts.iter().map(|(name, _, _)| name)).collect();
    for name in names {
        let here: Vec<&ClaimLife> = lives.iter().filter(|life| life.part(name).is_some()).collect();
        exclusion(name, &here, &mut verdicts);
        fences(name, &here, &mut verdicts);
        if rules.queue {
            first_come(name, &here, &mut verdicts);
        }
        wake_ups(name, &here, rules, end, &mut verdicts);
    }
    for life in &lives {
        uses(life, &mut verdicts);
        if rules.at_rest && !life.ended() {
            verdicts.breach(7, format!("claim {} was left open", life.id));
        }
    }
    verdicts
}

/// Promise 1: at no instant do the claims that believe to hold weigh more than the capacity. An
/// owner and its ancestors count once.
fn exclusion(name: &Name, lives: &[&ClaimLife], verdicts: &mut Verdicts) {
    let mut changes: Vec<(Tick, bool, usize)> = Vec::new();
    for (at, life) in lives.iter().enumerate() {
        if let Some((from, _)) = &life.granted
            && *from < life.believed_until
        {
            changes.push((*from, true, at));
            changes.push((life.believed_until, false, at));
        }
    }
    // At one instant releases come before grants: a hand-off is no overlap.
    changes.sort_unstable();
    let mut holding: Vec<usize> = Vec::new();
    for (when, comes, at) in changes {
        if !comes {
            holding.retain(|other| *other != at);
            continue;
        }
        holding.push(at);
        let now: Vec<&ClaimLife> = holding.iter().map(|at| lives[*at]).collect();
        let Some((_, shape, _)) = lives[at].part(name) else { continue };
        let weight = weight(name, &now, shape.reentrant());
        if weight > u64::from(shape.capacity()) {
            let who: Vec<_> = now.iter().map(|life| life.id.to_string()).collect();
            let text = format!(
                "{name:?} at {when:?}: {} weigh {weight} of {}",
                who.join(", "),
                shape.capacity()
            );
            verdicts.breach(1, text);
        }
    }
}

/// What holders weigh together. Of nested owners only the heaviest counts, of one owner's claims
/// too; permits of a semaphore add up.
fn weight(name: &Name, lives: &[&ClaimLife], reentrant: bool) -> u64 {
    let weight_of =
        |life: &ClaimLife| life.part(name).map_or(0, |(_, _, weight)| u64::from(*weight));
    if !reentrant {
        return lives.iter().map(|life| weight_of(life)).sum();
    }
    // Siblings do not count once: only an owner that another one descends from is left out.
    let counts = |at: usize| {
        let life = lives[at];
        !lives.iter().enumerate().any(|(other, their)| {
            let heavier = (weight_of(their), other) > (weight_of(life), at);
            let same = their.owner() == life.owner();
            other != at
                && ((heavier && (same || life.kin(their)))
                    || (!same && their.lineage.contains(&life.owner())))
        })
    };
    (0..lives.len()).filter(|at| counts(*at)).map(|at| weight_of(lives[at])).sum()
}

/// Promise 3: fences of one name strictly grow from holder to holder. Only an owner and its kin may
/// share one.
fn fences(name: &Name, lives: &[&ClaimLife], verdicts: &mut Verdicts) {
    let mut grants: Vec<(Tick, Fence, &ClaimLife)> = Vec::new();
    for life in lives {
        if let (Some((at, _)), Some(fence)) = (&life.granted, life.fence(name)) {
            grants.push((*at, fence, life));
        }
    }
    let mut owners: HashMap<Fence, &ClaimLife> = HashMap::new();
    for (_, fence, life) in &grants {
        let first = *owners.entry(*fence).or_insert(life);
        if first.id != life.id && !shares_ancestor(first, life) {
            let text = format!("{name:?}: {} and {} share fence {fence}", first.id, life.id);
            verdicts.breach(3, text);
        }
    }
    // A claim that was sent after another had been granted has a larger fence.
    let mut learned: Vec<_> = grants.clone();
    learned.sort_by_key(|(at, _, _)| *at);
    grants.sort_by_key(|(_, _, life)| life.sent);
    let mut learned = learned.into_iter().peekable();
    let mut largest: Option<(Fence, &ClaimLife)> = None;
    for (_, fence, life) in grants {
        while let Some((_, theirs, earlier)) = learned.next_if(|(at, _, _)| *at < life.sent) {
            if largest.is_none_or(|(fence, _)| fence < theirs) {
                largest = Some((theirs, earlier));
            }
        }
        if let Some((theirs, earlier)) = largest.filter(|(theirs, _)| *theirs > fence)
            && !shares_ancestor(earlier, life)
        {
            let text =
                format!("{name:?}: {} had {theirs}, later {} has {fence}", earlier.id, life.id);
            verdicts.breach(3, text);
        }
    }
}

fn shares_ancestor(one: &ClaimLife, two: &ClaimLife) -> bool {
    one.lineage.iter().any(|owner| two.lineage.contains(owner))
}

/// Promise 2: a claim that was queued before another was sent is served before it. The store's
/// order is that of its fences.
fn first_come(name: &Name, lives: &[&ClaimLife], verdicts: &mut Verdicts) {
    let served = |life: &&&ClaimLife| life.fence(name).is_some();
    let mut line: Vec<&ClaimLife> = lives.iter().filter(served).copied().collect();
    let mut later: Vec<&ClaimLife> = line.clone();
    line.retain(|life| life.queued.is_some());
    line.sort_by_key(|life| life.queued);
    later.sort_by_key(|life| life.sent);
    let mut line = line.into_iter().peekable();
    let mut last: Option<(Fence, &ClaimLife)> = None;
    for life in later {
        while let Some(earlier) = line.next_if(|earlier| earlier.queued < Some(life.sent)) {
            let fence = earlier.fence(name).unwrap_or(Fence::new(0));
            if last.is_none_or(|(fence_so_far, _)| fence_so_far < fence) {
                last = Some((fence, earlier));
            }
        }
        let (Some((fence, earlier)), Some(own)) = (last, life.fence(name)) else { continue };
        // Kin, and readers that upgrade, may stand ahead of the line.
        let privileged = life.lineage.len() > 1 || life.replaces || earlier.kin(life);
        if own < fence && !privileged && !upgrades(life, lives) {
            let (first, second) = (earlier.id, life.id);
            let text =
                format!("{name:?}: {first} waited before {second} was sent, but came after it");
            verdicts.breach(2, text);
        }
    }
}

/// Whether the claim's owner held something here already when it asked.
fn upgrades(life: &ClaimLife, lives: &[&ClaimLife]) -> bool {
    lives.iter().any(|other| {
        other.id != life.id
            && other.owner() == life.owner()
            && other.granted.as_ref().is_some_and(|(at, _)| *at <= life.sent)
            && other.believed_until >= life.sent
    })
}

/// Promise 8: while a name is certainly free no claim waits for it for long. A claim of unknown
/// fate may be what holds it.
fn wake_ups(name: &Name, lives: &[&ClaimLife], rules: &Rules, end: Tick, verdicts: &mut Verdicts) {
    let mut busy: Vec<(Tick, Tick, ClaimId)> = Vec::new();
    for life in lives {
        busy.extend(occupied(life, rules).map(|(from, until)| (from, until, life.id)));
    }
    busy.sort_unstable();
    for waiter in lives.iter().filter(|life| life.waits && life.parts.len() == 1) {
        let Some(queued) = waiter.queued else { continue };
        let over = waiter.served.or(waiter.gave_up).unwrap_or(end);
        let mut free_from = queued;
        let mut longest = Duration::ZERO;
        for (from, until, id) in &busy {
            if *from >= over {
                break;
            }
            if *id != waiter.id {
                longest = longest.max(from.since(free_from));
                free_from = free_from.max(*until);
            }
        }
        longest = longest.max(over.since(free_from));
        if longest > rules.wake_within {
            let text = format!("{name:?}: {} waited {longest:?} for a free name", waiter.id);
            verdicts.breach(8, text);
        }
    }
}

/// When a claim may have been in the way of others. Its holder learns of a grant a little after the
/// store made it; and if the link loses things, the store may know a claim for a lease longer.
fn occupied(life: &ClaimLife, rules: &Rules) -> Option<(Tick, Tick)> {
    let lingers = life.last_heard + life.lease;
    let gone = |at: Tick| if rules.lossy || life.lost { lingers } else { at };
    match (life.served, life.gave_up) {
        _ if life.refused => None,
        _ if life.unanswered() => Some((life.sent, lingers)),
        (Some(at), Some(end)) => Some((at - rules.wake_within, gone(end))),
        (Some(at), None) => Some((at - rules.wake_within, lingers)),
        // It waited and gave up, and may have been granted just then.
        (None, Some(end)) => Some((end - rules.wake_within, gone(end))),
        (None, None) => None,
    }
}

/// Promise 4: nothing is done with a lock after its safe-until, or before it is held; and always
/// with a fence it has.
fn uses(life: &ClaimLife, verdicts: &mut Verdicts) {
    for (at, fence) in &life.uses {
        let held = life.granted.as_ref().is_some_and(|(from, _)| from <= at);
        if !held || *at >= life.believed_until {
            verdicts.breach(4, format!("claim {} was used at {at:?} without right", life.id));
        }
        let own = life.granted.as_ref().and_then(|(_, fences)| fences.iter().max());
        if own.is_some_and(|own| fence < own) {
            verdicts.breach(3, format!("claim {} was used with fence {fence}", life.id));
        }
    }
}

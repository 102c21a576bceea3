//! From a history to what each claim may have believed and been, from when to when. Judges nothing.

use std::collections::HashMap;
use std::time::Duration;

use super::history::{History, HistoryEntry, What};
use crate::contract::{ClaimId, Fence, Name, OwnerId, Shape};
use crate::time::Tick;

/// The life of one claim as its side saw it.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct ClaimLife {
    pub(super) id: ClaimId,
    pub(super) lineage: Vec<OwnerId>,
    pub(super) parts: Vec<(Name, Shape, u32)>,
    pub(super) lease: Duration,
    pub(super) waits: bool,
    pub(super) replaces: bool,
    pub(super) sent: Tick,
    /// When it heard that it waits.
    pub(super) queued: Option<Tick>,
    /// When it was first granted, whether or not its caller picked that grant up in time.
    pub(super) served: Option<Tick>,
    /// When it heard that it holds, with which fences.
    pub(super) granted: Option<(Tick, Vec<Fence>)>,
    /// Until when it believed to hold: it let go, was told of the loss, or its safe-until passed.
    pub(super) believed_until: Tick,
    /// When it let go or gave up, by its own will.
    pub(super) gave_up: Option<Tick>,
    pub(super) refused: bool,
    pub(super) lost: bool,
    /// When it was last heard of: its store may know it for a lease after this.
    pub(super) last_heard: Tick,
    pub(super) uses: Vec<(Tick, Fence)>,
}

impl ClaimLife {
    pub(super) fn owner(&self) -> OwnerId {
        self.lineage[0]
    }

    /// Whether one is the other's owner or ancestor.
    pub(super) fn kin(&self, other: &Self) -> bool {
        self.lineage.contains(&other.owner()) || other.lineage.contains(&self.owner())
    }

    pub(super) fn part(&self, name: &Name) -> Option<&(Name, Shape, u32)> {
        self.parts.iter().find(|(other, _, _)| other == name)
    }

    pub(super) fn fence(&self, name: &Name) -> Option<Fence> {
        let at = self.parts.iter().position(|(other, _, _)| other == name)?;
        self.granted.as_ref()?.1.get(at).copied()
    }

    /// Whether the store never answered: it may or may not have got there.
    pub(super) fn unanswered(&self) -> bool {
        self.queued.is_none() && self.granted.is_none() && !self.refused
    }

    /// Whether its safe-until had passed when it heard that it holds.
    fn never_believed(&self) -> bool {
        self.granted.as_ref().is_some_and(|(at, _)| *at >= self.believed_until)
    }

    /// Whether it was over before the end of the run, one way or the other.
    pub(super) fn ended(&self) -> bool {
        self.gave_up.is_some() || self.refused || self.lost
    }
}

/// The lives in a history.
pub(super) fn lives(history: &History) -> Vec<ClaimLife> {
    let mut lives: Vec<ClaimLife> = Vec::new();
    let mut index: HashMap<ClaimId, usize> = HashMap::new();
    for entry in history.entries() {
        if let What::Sent { lineage, parts, lease, waits, replaces } = &entry.what {
            index.insert(entry.claim, lives.len());
            lives.push(ClaimLife {
                id: entry.claim,
                lineage: lineage.clone(),
                parts: parts.clone(),
                lease: *lease,
                waits: *waits,
                replaces: *replaces,
                sent: entry.at,
                queued: None,
                served: None,
                granted: None,
                believed_until: Tick::ZERO,
                gave_up: None,
                refused: false,
                lost: false,
                last_heard: entry.at,
                uses: Vec::new(),
            });
        } else if let Some(at) = index.get(&entry.claim) {
            live(&mut lives[*at], entry);
        }
    }
    lives
}

fn live(life: &mut ClaimLife, entry: &HistoryEntry) {
    life.last_heard = entry.at;
    match &entry.what {
        What::Queued => life.queued = life.queued.or(Some(entry.at)),
        What::Granted(fences, until) => {
            life.served = life.served.or(Some(entry.at));
            life.granted = Some((entry.at, fences.clone()));
            life.believed_until = *until;
        }
        // A renewal extends the trust in a grant only while safe-until has not passed.
        What::Renewed(until) if !life.ended() && entry.at <= life.believed_until => {
            life.believed_until = life.believed_until.max(*until);
        }
        // A grant that was heard of after its safe-until was never trusted: it is renewed before
        // it is handed out.
        What::Renewed(until) if !life.ended() && life.never_believed() => {
            life.granted = life.granted.take().map(|(_, fences)| (entry.at, fences));
            life.believed_until = *until;
        }
        What::Sent { .. } | What::Renewed(_) => {}
        What::Refused => life.refused = true,
        What::Lost => {
            life.lost = true;
            life.believed_until = life.believed_until.min(entry.at);
        }
        What::Released | What::Withdrawn => {
            life.gave_up = life.gave_up.or(Some(entry.at));
            life.believed_until = life.believed_until.min(entry.at);
        }
        What::Used(fence) => life.uses.push((entry.at, *fence)),
    }
}

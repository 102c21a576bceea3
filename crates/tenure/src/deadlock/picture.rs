//! The picture of a snapshot: actors, their holds and tickets, slot by slot; and its reduction.
//!
//! An *actor* is an owner, or, for reports, a task with all its claims that have no scope. The
//! admission rules are those of `ledger/slot.rs`, with every hold of an actor that can run taken
//! away: `fits` compares weights, `passes` says which tickets need not be waited behind. A ticket
//! may use the holds of its own owner and ancestors; such a hold is counted as it stands in the
//! snapshot, because an ancestor that can run may as well keep it.
//!
//! The set of actors that can run only grows, and a slot is looked at again only when an actor that
//! holds or waits there joins the set. So the reduction ends, and its result does not depend on the
//! order.

use std::collections::{HashMap, HashSet};

use crate::contract::{
    ClaimId, HolderView, Lineage, MARKER_KIND, OutsideWait, OwnerId, SessionId, Shape, SlotView,
    Snapshot, WaiterView, concurrency_marker,
};

/// An actor by its place in [`Picture::actors`].
pub(super) type FlowId = usize;

/// The facts of a snapshot, and which actors can run.
pub(super) struct Picture<'a> {
    pub(super) slots: Vec<SlotFacts<'a>>,
    pub(super) actors: Vec<FlowFacts<'a>>,
}

/// The facts of one slot.
pub(super) struct SlotFacts<'a> {
    pub(super) view: &'a SlotView,
    /// The actor of each holder, and of each waiter.
    pub(super) holders: Vec<FlowId>,
    pub(super) queue: Vec<FlowId>,
    /// The heaviest hold of each owner, where holds of one owner do not add up.
    heaviest: HashMap<OwnerId, u32>,
}

/// What is known of one actor.
#[derive(Default)]
pub(super) struct FlowFacts<'a> {
    /// Its tickets: slot, and place in the queue.
    pub(super) tickets: Vec<(usize, usize)>,
    /// Its holds: slot, and place among the holders.
    pub(super) holds: Vec<(usize, usize)>,
    /// The waiting actors whose end this one waits for, if it has no ticket.
    pub(super) children: Vec<ChildWait<'a>>,
    pub(super) owners: Vec<OwnerId>,
    /// It stands for a task with more than one owner.
    pub(super) by_task: bool,
    /// A claim that says who it is.
    pub(super) shown: Option<&'a crate::contract::About>,
    pub(super) can_run: bool,
}

/// What becomes of the tickets of a slot, by their places, if every actor that can run releases
/// all.
#[derive(Default)]
pub(super) struct Evaluation {
    /// Whether each is granted.
    pub(super) granted: Vec<bool>,
    /// Those of stuck actors that are granted: the set waits elsewhere.
    reserved: Vec<usize>,
    /// Those of stuck actors that are not granted.
    blocked: Vec<usize>,
}

/// Something that counts against a ticket: a hold, by its place among the holders, or what is
/// reserved for a ticket before it, by its place in the queue.
pub(super) struct InTheWay {
    pub(super) hold: bool,
    pub(super) at: usize,
    pub(super) weight: u32,
}

/// Until when one ticket is before another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precedence {
    /// As long as both wait.
    Stays,
    /// As long as this hold of a stuck actor stands, by its place among the holders.
    WhileHeld(usize),
    /// Until actors that can run release what they hold.
    MayEnd,
}

/// What is taken as given when the facts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Assume {
    /// Only what the store knows: verdicts rest on this.
    Known,
    /// Also that all claims without a scope which one task or thread made are of one actor, and
    /// that an owner does nothing until those nested in it have ended. For reports.
    Likely,
}

/// A waiting actor for which another one waits that has no ticket: an ancestor waits for its end,
/// or a connection of an owner for one of its.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChildWait<'a> {
    pub(super) child: FlowId,
    /// The ancestor runs it as its own child process; otherwise it is assumed.
    pub(super) known: bool,
    /// What is waited for outside the slots.
    pub(super) outside: Option<&'a str>,
}

/// What identifies an actor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum FlowKey {
    Owner(OwnerId),
    Task(SessionId, u16),
}

impl<'a> Picture<'a> {
    /// Reads the facts of a snapshot and reduces them.
    pub(super) fn new(snapshot: &'a Snapshot, assume: Assume) -> Self {
        let mut picture = Self { slots: Vec::new(), actors: Vec::new() };
        let mut known: HashMap<FlowKey, FlowId> = HashMap::new();
        for view in snapshot.slots.iter().filter(|slot| !is_marker(slot)) {
            picture.add_slot(view, assume, &mut known);
        }
        picture.link_children(assume, &known);
        if assume == Assume::Likely {
            picture.link_outside(&snapshot.outside, &known);
        }
        let marked: HashSet<&str> = snapshot
            .slots
            .iter()
            .filter(|slot| is_marker(slot) && !slot.holders.is_empty())
            .map(|slot| slot.name.as_str())
            .collect();
        picture.mark_free(&marked);
        picture.reduce();
        picture
    }

    fn add_slot(
        &mut self,
        view: &'a SlotView,
        assume: Assume,
        known: &mut HashMap<FlowKey, FlowId>,
    ) {
        let slot = self.slots.len();
        let mut facts =
            SlotFacts { view, holders: Vec::new(), queue: Vec::new(), heaviest: HashMap::new() };
        for (at, holder) in view.holders.iter().enumerate() {
            let key = key_of(holder.session, &holder.lineage, &holder.about, assume);
            let actor = self.actor(key, known);
            self.actors[actor].holds.push((slot, at));
            self.introduce(actor, holder.lineage.owner(), &holder.about, false);
            facts.holders.push(actor);
            let heaviest = facts.heaviest.entry(holder.lineage.owner()).or_default();
            *heaviest = (*heaviest).max(holder.weight);
        }
        for (at, waiter) in view.queue.iter().enumerate() {
            let key = key_of(waiter.session, &waiter.lineage, &waiter.about, assume);
            let actor = self.actor(key, known);
            self.actors[actor].tickets.push((slot, at));
            self.introduce(actor, waiter.lineage.owner(), &waiter.about, true);
            facts.queue.push(actor);
        }
        self.slots.push(facts);
    }

    fn actor(&mut self, key: FlowKey, known: &mut HashMap<FlowKey, FlowId>) -> FlowId {
        *known.entry(key).or_insert_with(|| {
            self.actors.push(FlowFacts::default());
            self.actors.len() - 1
        })
    }

    /// Notes who the actor is: a wait says it better than a hold.
    fn introduce(
        &mut self,
        actor: FlowId,
        owner: OwnerId,
        about: &'a crate::contract::About,
        waits: bool,
    ) {
        let actor = &mut self.actors[actor];
        if waits || actor.shown.is_none() {
            actor.shown = Some(about);
        }
        if !actor.owners.contains(&owner) {
            actor.owners.push(owner);
            actor.by_task |= actor.owners.len() > 1;
        }
    }

    /// Links each waiting actor to the ancestors that do nothing until it has ended.
    fn link_children(&mut self, assume: Assume, known: &HashMap<FlowKey, FlowId>) {
        let mut links = Vec::new();
        for slot in &self.slots {
            for (waiter, actor) in slot.view.queue.iter().zip(&slot.queue) {
                let held_up = usize::from(waiter.about.conduct.held_up);
                for (at, ancestor) in waiter.lineage.ancestors().iter().enumerate() {
                    let known_to_wait = at < held_up;
                    let link = ChildWait { child: *actor, known: known_to_wait, outside: None };
                    let counts = link.known || assume == Assume::Likely;
                    let parent = known.get(&FlowKey::Owner(*ancestor));
                    links.extend(parent.filter(|_| counts).map(|parent| (*parent, link)));
                }
            }
        }
        self.add_links(links);
    }

    /// Links owners that wait for each other outside the slots. Read beside these, so only reports
    /// rest on it.
    fn link_outside(&mut self, waits: &'a [OutsideWait], known: &HashMap<FlowKey, FlowId>) {
        let actor = |owner: OwnerId| known.get(&FlowKey::Owner(owner)).copied();
        let link = |wait: &'a OutsideWait| {
            let (waiter, child) = (actor(wait.waiter)?, actor(wait.holder)?);
            Some((waiter, ChildWait { child, known: false, outside: Some(&wait.what) }))
        };
        self.add_links(waits.iter().filter_map(link).collect());
    }

    fn add_links(&mut self, links: Vec<(FlowId, ChildWait<'a>)>) {
        for (parent, link) in links {
            if parent != link.child && !self.actors[parent].children.contains(&link) {
                self.actors[parent].children.push(link);
            }
        }
    }

    /// Marks the actors that can run whatever they wait for.
    fn mark_free(&mut self, marked: &HashSet<&str>) {
        // An owner that waits while a descendant waits too has two flows of control, and what the
        // one is granted may move the other ahead of its queue.
        let waiting: HashSet<OwnerId> = self.waiters().map(|w| w.lineage.owner()).collect();
        let mut nested: HashSet<OwnerId> = HashSet::new();
        for waiter in self.waiters() {
            for ancestor in waiter.lineage.ancestors().iter().filter(|one| waiting.contains(one)) {
                nested.insert(*ancestor);
                nested.insert(waiter.lineage.owner());
            }
        }
        for at in 0..self.actors.len() {
            let actor = &self.actors[at];
            let mut claims: Vec<ClaimId> =
                actor.tickets.iter().map(|ticket| self.waiter(*ticket).claim).collect();
            claims.sort_unstable();
            claims.dedup();
            let waits = claims.len() == 1 || claims.is_empty() && !actor.children.is_empty();
            let other_flow = actor.owners.iter().any(|owner| {
                nested.contains(owner) || marked.contains(concurrency_marker(*owner).as_str())
            });
            self.actors[at].can_run = !waits || other_flow;
        }
    }

    fn reduce(&mut self) {
        let mut again: Vec<usize> = (0..self.slots.len()).collect();
        let mut listed: Vec<bool> = vec![true; self.slots.len()];
        loop {
            let freed = self.free_parents();
            self.list_slots(&freed, &mut again, &mut listed);
            let Some(slot) = again.pop() else {
                if freed.is_empty() {
                    return;
                }
                continue;
            };
            listed[slot] = false;
            let here = self.evaluate(slot);
            let mut freed = Vec::new();
            for (place, granted) in here.granted.iter().enumerate() {
                let actor = self.slots[slot].queue[place];
                if *granted && !self.actors[actor].can_run && self.is_granted(actor, slot) {
                    self.actors[actor].can_run = true;
                    freed.push(actor);
                }
            }
            self.list_slots(&freed, &mut again, &mut listed);
        }
    }

    /// Frees actors without a ticket none of whose children is stuck any more.
    fn free_parents(&mut self) -> Vec<FlowId> {
        let is_free = |actor: &FlowFacts<'_>| {
            !actor.can_run
                && actor.tickets.is_empty()
                && actor.children.iter().all(|link| self.actors[link.child].can_run)
        };
        let all = self.actors.iter().enumerate();
        let freed: Vec<FlowId> = all.filter(|(_, one)| is_free(one)).map(|(at, _)| at).collect();
        for actor in &freed {
            self.actors[*actor].can_run = true;
        }
        freed
    }

    /// Notes that slots where these actors hold or wait have to be looked at again, and those of
    /// sets that have a ticket there too.
    fn list_slots(&self, freed: &[FlowId], again: &mut Vec<usize>, listed: &mut [bool]) {
        for actor in freed {
            let actor = &self.actors[*actor];
            for (slot, _) in actor.tickets.iter().chain(&actor.holds) {
                if !std::mem::replace(&mut listed[*slot], true) {
                    again.push(*slot);
                }
            }
        }
    }

    /// Whether all tickets of an actor are granted, given that the one at this slot is.
    fn is_granted(&self, actor: FlowId, known: usize) -> bool {
        let mut others = self.actors[actor].tickets.iter().filter(|(slot, _)| *slot != known);
        others.all(|(slot, place)| self.evaluate(*slot).granted[*place])
    }

    /// Which tickets of a slot are granted once every actor that can run has released everything,
    /// and in which order the rest stands. The ticket of a set may be granted here though the set
    /// stays stuck elsewhere: it is then reserved, and counts as a hold for the tickets behind it.
    pub(super) fn evaluate(&self, slot: usize) -> Evaluation {
        let facts = &self.slots[slot];
        let mut found = Evaluation::default();
        for (place, actor) in facts.queue.iter().enumerate() {
            let stuck = !self.actors[*actor].can_run;
            let granted = !stuck
                || self.obstacles(slot, place, &found).next().is_none()
                    && self.fits(slot, place, &found);
            found.granted.push(granted);
            match (stuck, granted) {
                (true, true) => found.reserved.push(place),
                (true, false) => found.blocked.push(place),
                (false, _) => {}
            }
        }
        found
    }

    fn fits(&self, slot: usize, place: usize, before: &Evaluation) -> bool {
        let facts = &self.slots[slot];
        let waiter = &facts.view.queue[place];
        let held: u64 = self.in_the_way(slot, place, before).map(|one| u64::from(one.weight)).sum();
        held == 0 || held + u64::from(waiter.weight) <= u64::from(facts.view.shape.capacity())
    }

    /// The holds of stuck actors that count against a ticket, and what is reserved for sets before
    /// it. Where holds of one owner do not add up, only the heaviest is among them.
    pub(super) fn in_the_way<'b>(
        &'b self,
        slot: usize,
        place: usize,
        before: &'b Evaluation,
    ) -> impl Iterator<Item = InTheWay> + 'b {
        let facts = &self.slots[slot];
        let waiter = &facts.view.queue[place];
        let adds_up = matches!(facts.view.shape, Shape::Semaphore(_));
        let reenters = !adds_up
            && facts.heaviest.get(&waiter.lineage.owner()).is_some_and(|own| *own >= waiter.weight);
        let mut counted: HashSet<OwnerId> = HashSet::new();
        let holds = facts.view.holders.iter().enumerate().filter_map(move |(at, holder)| {
            let owner = holder.lineage.owner();
            if reenters || self.actors[facts.holders[at]].can_run {
                return None;
            }
            let hold = InTheWay { hold: true, at, weight: holder.weight };
            if adds_up {
                return Some(hold);
            }
            let heaviest = facts.heaviest.get(&owner).copied().unwrap_or_default();
            let counts = !waiter.lineage.includes(owner) && holder.weight == heaviest;
            (counts && counted.insert(owner)).then_some(hold)
        });
        let reserved = before.reserved.iter().take_while(move |at| **at < place);
        let reserved = reserved.filter_map(move |at| {
            let other = &facts.view.queue[*at];
            let owner = other.lineage.owner();
            if reenters || !adds_up && waiter.lineage.includes(owner) {
                return None;
            }
            let has = if adds_up { 0 } else { facts.heaviest.get(&owner).copied().unwrap_or(0) };
            let weight = other.weight.saturating_sub(has);
            (weight > 0).then_some(InTheWay { hold: false, at: *at, weight })
        });
        holds.chain(reserved)
    }

    /// The places of the stuck tickets before this one that it has to wait behind, the last first.
    pub(super) fn obstacles<'b>(
        &'b self,
        slot: usize,
        place: usize,
        before: &'b Evaluation,
    ) -> impl Iterator<Item = usize> + 'b {
        let facts = &self.slots[slot];
        let waiter = &facts.view.queue[place];
        let kin = facts.view.shape.reentrant()
            && waiter.lineage.all().any(|owner| facts.heaviest.contains_key(&owner));
        before.blocked.iter().rev().copied().filter(move |at| {
            let other = &facts.view.queue[*at];
            let same = other.lineage.owner() == waiter.lineage.owner();
            *at < place && !(same || kin && facts.blocks(&waiter.lineage, other))
        })
    }

    /// What keeps a ticket before another one of its slot that has to wait for it.
    ///
    /// A ticket is ahead of the queue by holds of its owner and its ancestors, and goes back to the
    /// place of its arrival when the last of these ends. The other ticket goes back too when the
    /// last of its own ends, which may be later; one that is not ahead does not get there, because
    /// its ancestors would have to be granted the slot past it.
    pub(super) fn precedence(&self, slot: usize, before: usize, after: usize) -> Precedence {
        let facts = &self.slots[slot];
        let [first, second] = [before, after].map(|at| &facts.view.queue[at]);
        if !first.ahead {
            return Precedence::Stays;
        }
        let holders = || facts.view.holders.iter().zip(&facts.holders).enumerate();
        let is_kin = |ticket: &WaiterView, owner| ticket.lineage.includes(owner);
        let kin = holders().filter(|(_, (view, _))| is_kin(first, view.lineage.owner()));
        let Some((hold, (_, actor))) =
            kin.min_by_key(|(_, (_, actor))| self.actors[**actor].can_run)
        else {
            return Precedence::Stays;
        };
        if !self.actors[*actor].can_run {
            return Precedence::WhileHeld(hold);
        }
        // Whatever keeps the second one ahead keeps the first one ahead, too.
        let shared = holders().map(|(_, (view, _))| view.lineage.owner());
        let shared =
            shared.filter(|owner| is_kin(second, *owner)).all(|owner| is_kin(first, owner));
        if shared && first.arrival < second.arrival {
            Precedence::Stays
        } else {
            Precedence::MayEnd
        }
    }

    fn waiters(&self) -> impl Iterator<Item = &'a WaiterView> + '_ {
        self.slots.iter().flat_map(|slot| &slot.view.queue)
    }

    pub(super) fn waiter(&self, (slot, place): (usize, usize)) -> &'a WaiterView {
        &self.slots[slot].view.queue[place]
    }

    pub(super) fn holder(&self, (slot, at): (usize, usize)) -> &'a HolderView {
        &self.slots[slot].view.holders[at]
    }

    /// The owners of all actors that cannot run.
    pub(super) fn stuck_owners(&self) -> Vec<OwnerId> {
        let stuck = self.actors.iter().filter(|actor| !actor.can_run);
        stuck.flat_map(|actor| actor.owners.iter().copied()).collect()
    }
}

impl SlotFacts<'_> {
    /// Whether what `holder` and its ancestors hold keeps this waiter out. As `blocks` of
    /// `ledger/slot.rs`.
    fn blocks(&self, holder: &Lineage, waiter: &WaiterView) -> bool {
        let in_the_way = holder.all().filter(|owner| !waiter.lineage.includes(*owner));
        let held: u64 =
            in_the_way.map(|owner| self.heaviest.get(&owner).map_or(0, |w| u64::from(*w))).sum();
        held > 0 && held + u64::from(waiter.weight) > u64::from(self.view.shape.capacity())
    }
}

fn key_of(
    session: Option<SessionId>,
    lineage: &Lineage,
    about: &crate::contract::About,
    assume: Assume,
) -> FlowKey {
    match (assume, session, about.conduct.flow) {
        (Assume::Likely, Some(session), flow) if flow != 0 => FlowKey::Task(session, flow),
        _ => FlowKey::Owner(lineage.owner()),
    }
}

fn is_marker(slot: &SlotView) -> bool {
    slot.name.reserved_kind() == Some(MARKER_KIND)
}

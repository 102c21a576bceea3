//! The quorum protocol under every order of messages: three nodes, two clients, messages that are
//! lost, late and repeated, leases that end at any time. The nodes and clients are the engine's own
//! code (`rules`, `protocol`); only the network is made here.
//!
//! Each simpler protocol that was refuted once is refuted here again, so that the check is known to
//! bite.
#![cfg(feature = "redlock")]

use stateright::{Checker, HasDiscoveries, Model, Property};
use tenure::contract::ClaimId;
use tenure::engine::redlock::protocol::{AttemptVotes, NextStep, NodeVote};
use tenure::engine::redlock::rules::{AcquireArgs, AcquireReply, AttemptId, NodeHold, NodeSlot};

const NODES: usize = 3;
const CLIENTS: usize = 2;
/// Time stands still; a lease ends because the model says so.
const NOW: u64 = 0;
const LEASE: u64 = 1;

/// Which protocol is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Variant {
    /// As the engine has it.
    Right,
    /// The largest number of a majority is the fence, and no node is told.
    LargestWithoutWriteBack,
    /// The largest is written back, whichever claim holds the node by then.
    UnconditionalWriteBack,
    /// Only a hold is raised, but also to a smaller number than it has.
    RaiseWithoutBound,
}

#[derive(Clone, Debug)]
struct Quorum {
    variant: Variant,
    /// What the nodes have counted to before.
    start: [u64; NODES],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    nodes: [NodeSlot; NODES],
    clients: [Client; CLIENTS],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    stage: Stage,
    /// The largest fence that any claim had completed with when this one began.
    floor: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    /// The number is the one that is being raised.
    Trying(AttemptVotes, Option<u64>),
    Holding(u64),
    /// What it raised, if it came so far, may still arrive.
    GaveUp(Option<u64>),
}

/// What can happen next. Messages arrive in any order, late, never, or more than once.
///
/// An answer is heard when it is given or never: to hear it later would be to decide later, and
/// nothing that happens meanwhile depends on whether it was heard. Releases are left out as well:
/// to a node they are a lease that ends, and what they refuse from then on only makes it safer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Begin(usize),
    /// A message of this client arrives at this node, and its answer is heard or lost.
    Acquire(usize, usize, bool),
    Raise(usize, usize, bool),
    /// The client waits no longer. It takes silence for a no, so these need not be heard.
    TimeIsUp(usize),
    /// The lease of the claim that holds this node ends there.
    Expire(usize),
}

fn token(client: usize) -> AttemptId {
    AttemptId { claim: ClaimId::from_u128(client as u128), attempt: 1 }
}

impl Client {
    const IDLE: Self = Self { stage: Stage::Idle, floor: 0 };

    /// What it may raise at nodes. Who won by equal votes raises those that are behind, too.
    fn raises(&self) -> Option<u64> {
        match self.stage {
            Stage::Trying(_, raising) | Stage::GaveUp(raising) => raising,
            Stage::Holding(fence) => Some(fence),
            Stage::Idle => None,
        }
    }

    fn fence(&self) -> Option<u64> {
        if let Stage::Holding(fence) = self.stage { Some(fence) } else { None }
    }
}

impl World {
    /// The largest fence that any claim has completed with.
    fn completed(&self) -> u64 {
        self.clients.iter().filter_map(Client::fence).max().unwrap_or_default()
    }

    /// Whether a client still has a majority of nodes that say so.
    fn holds(&self, client: usize, fence: u64) -> bool {
        let says = |record: &NodeHold| record.token == token(client) && record.fence == fence;
        let nodes = self.nodes.iter();
        nodes.filter(|node| node.record.as_ref().is_some_and(says)).count() > NODES / 2
    }

    /// The client has heard an answer.
    fn proceed(&mut self, client: usize, heard: impl FnOnce(&mut AttemptVotes) -> NextStep) {
        let Stage::Trying(attempt, raising) = &mut self.clients[client].stage else { return };
        match heard(attempt) {
            NextStep::Wait => {}
            NextStep::Raise(fence) => *raising = Some(fence),
            NextStep::Won(fence) => self.clients[client].stage = Stage::Holding(fence),
            NextStep::Lost => self.clients[client].stage = Stage::GaveUp(*raising),
        }
    }
}

impl Quorum {
    /// The raise, or what others took for one.
    fn raise(&self, node: &mut NodeSlot, token: AttemptId, fence: u64) -> bool {
        let ours = node.record.as_ref().is_some_and(|record| record.token == token);
        match self.variant {
            Variant::Right | Variant::LargestWithoutWriteBack => {
                return node.raise(token, fence, NOW, LEASE);
            }
            Variant::RaiseWithoutBound if !ours => return false,
            Variant::UnconditionalWriteBack | Variant::RaiseWithoutBound => {}
        }
        node.counter = node.counter.max(fence);
        if let Some(record) = node.record.as_mut().filter(|_| ours) {
            record.fence = fence;
        }
        true
    }
}

impl Model for Quorum {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let nodes = self.start.map(|counter| NodeSlot { counter, ..NodeSlot::default() });
        vec![World { nodes, clients: [Client::IDLE; CLIENTS] }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (at, client) in world.clients.iter().enumerate() {
            if client.stage == Stage::Idle {
                actions.push(Action::Begin(at));
                continue;
            }
            // Copies arrive as long as the world stands, whatever their sender does by then.
            actions.extend((0..NODES).map(|node| Action::Acquire(at, node, false)));
            if client.raises().is_some() {
                actions.extend((0..NODES).map(|node| Action::Raise(at, node, false)));
            }
            if let Stage::Trying(_, raising) = &client.stage {
                actions.push(Action::TimeIsUp(at));
                let arrive = if raising.is_some() { Action::Raise } else { Action::Acquire };
                actions.extend((0..NODES).map(|node| arrive(at, node, true)));
            }
        }
        let held = (0..NODES).filter(|node| world.nodes[*node].record.is_some());
        actions.extend(held.map(Action::Expire));
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Begin(client) => {
                let stage = Stage::Trying(AttemptVotes::new(NODES), None);
                world.clients[client] = Client { stage, floor: last.completed() };
            }
            Action::Acquire(client, node, heard) => {
                let asked = AcquireArgs { token: token(client), hint: 0, lease: LEASE, delay: 0 };
                let answer = world.nodes[node].acquire(asked, NOW);
                if let (AcquireReply::Granted(number), true) = (answer, heard) {
                    world.proceed(client, |attempt| attempt.acquired(node, NodeVote::Yes(number)));
                }
            }
            Action::Raise(client, node, heard) => {
                let fence = last.clients[client].raises()?;
                let yes = self.raise(&mut world.nodes[node], token(client), fence);
                if yes && heard {
                    world.proceed(client, |attempt| attempt.raised(node, true));
                }
            }
            Action::TimeIsUp(client) => world.proceed(client, AttemptVotes::timed_out),
            Action::Expire(node) => world.nodes[node].record = None,
        }
        if self.variant == Variant::LargestWithoutWriteBack {
            for client in &mut world.clients {
                if let Stage::Trying(_, Some(fence)) = client.stage {
                    client.stage = Stage::Holding(fence);
                }
            }
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("fences are distinct", |_, world: &World| {
                let [one, other] = &world.clients;
                one.fence().is_none() || one.fence() != other.fence()
            }),
            Property::always(
                "who begins after another completed has a larger fence",
                |_, world: &World| {
                    let mut fences = world.clients.iter().map(|one| (one.fence(), one.floor));
                    fences.all(|(fence, floor)| fence.is_none_or(|fence| fence > floor))
                },
            ),
            Property::always("no living holder is out-fenced", |_, world: &World| {
                (0..CLIENTS).all(|at| {
                    let Some(fence) = world.clients[at].fence() else { return true };
                    let other = world.clients[1 - at].fence().unwrap_or_default();
                    !world.holds(at, fence) || other < fence
                })
            }),
            Property::sometimes("both complete", |_, world: &World| {
                world.clients.iter().all(|client| client.fence().is_some())
            }),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        // Copies that are granted again and again count without end; this is enough for all that
        // two clients can do to each other.
        world.nodes.iter().all(|node| node.counter <= 3)
    }
}

/// What nodes may have counted to before. They are alike, so their order does not matter.
const STARTS: [[u64; NODES]; 4] = [[0, 0, 0], [0, 0, 1], [0, 1, 1], [0, 0, 2]];

#[test]
fn the_protocol_holds_in_every_order_of_messages() {
    for start in STARTS {
        let model = Quorum { variant: Variant::Right, start };
        let checker = model.checker().threads(2).spawn_bfs().join();
        println!("{start:?}: {} states", checker.unique_state_count());
        checker.assert_properties();
    }
}

fn is_refuted(variant: Variant, start: [u64; NODES]) {
    let checker = Quorum { variant, start }.checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    let broken: Vec<_> = found.keys().filter(|name| **name != "both complete").collect();
    println!("{variant:?}: {broken:?} after {} states", checker.unique_state_count());
    assert!(!broken.is_empty(), "{variant:?} should have been refuted");
}

#[test]
fn the_largest_number_without_writing_it_back_is_refuted() {
    is_refuted(Variant::LargestWithoutWriteBack, [0, 1, 0]);
}

#[test]
fn writing_it_back_whoever_holds_by_then_is_refuted() {
    is_refuted(Variant::UnconditionalWriteBack, [0, 1, 0]);
}

#[test]
fn raising_without_a_bound_is_refuted() {
    is_refuted(Variant::RaiseWithoutBound, [0, 1, 0]);
}

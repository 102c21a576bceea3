//! Chooses between the views that several nodes have of a cluster. Pure.
//!
//! A node that is cut off from the cluster bus, or was removed with `CLUSTER FORGET`, goes on
//! answering clients, with the map it had. So no single view is trusted:
//!
//! 1. The best view is that of the node which most of the nodes asked count as a member; among
//!    equals, of one that is in touch with a majority of the masters, then the one with the highest
//!    epoch, then the one that knows a keeper for most slots.
//! 2. A node that the best view does not list, or lists as failed, is *apart*: its view counts for
//!    nothing, not even for slots that no other node claims. After it was removed these slots may
//!    be given to another node at any time without its noticing.
//! 3. Of the views that are left, each slot goes to the keeper with the highest config epoch.
//! 4. What was known before is one more view, the last: it is outdone by equal epochs, it keeps
//!    slots that no node reports, and it does not bring back a node that was removed.

use std::collections::HashMap;

use redis::Value;

use super::slots::{NodeAddress, SLOTS, SlotMap};
use crate::contract::{Error, ErrorKind};
use crate::engine::redis::client::info_text;

/// How many nodes have to report the same map for it to be used without asking others.
const ENOUGH: usize = 2;

/// The report of one node.
#[derive(Clone, Debug)]
pub(super) struct ClusterView {
    /// The node that was asked.
    pub(super) from: NodeAddress,
    pub(super) map: SlotMap,
    /// None if the access list forbids `CLUSTER NODES`.
    pub(super) nodes: Option<NodeTable>,
}

/// The nodes that a node knows of, itself included.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeTable {
    /// The id of the node that was asked.
    myself: String,
    by_id: HashMap<String, NodeStatus>,
}

/// A node, as another one or itself reports it.
#[derive(Clone, Copy, Debug, Default)]
struct NodeStatus {
    /// A majority of masters has agreed that it is down.
    failed: bool,
    /// The node that was asked does not reach it.
    suspected: bool,
    keeps_slots: bool,
    epoch: u64,
}

/// The result of comparing views.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) map: SlotMap,
    pub(super) membership: Membership,
    /// No other node has to be asked.
    pub(super) is_settled: bool,
}

/// The nodes whose views make up a map, and those whose views were rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Membership {
    /// Nodes whose views went into the map, the best first.
    pub(super) members: Vec<NodeAddress>,
    /// Nodes that replied, and are not in the cluster as the members see it.
    pub(super) apart: Vec<NodeAddress>,
}

impl Membership {
    /// Returns what is wrong with the nodes that replied, and what to do. `uncovered` slots have no
    /// keeper.
    ///
    /// `redis-cli --cluster fix` is not advised: on a node that is apart it would give that node
    /// the slots of all others, and an operator may run it there.
    pub(super) fn problem(&self, uncovered: usize) -> Option<(String, String)> {
        let (members, apart) = (names(&self.members), names(&self.apart));
        let first = self.members.first().map(std::slice::from_ref).map(names).unwrap_or_default();
        if !self.apart.is_empty() {
            let what = format!(
                "{apart} answers, but is not in the cluster as {members} see it: it was removed \
                 (CLUSTER FORGET) or is cut off from the cluster bus, and its map is not used"
            );
            let slots = match uncovered {
                0 => String::new(),
                _ => format!(
                    " and assign the {uncovered} slots without a keeper to other masters (CLUSTER \
                     ADDSLOTS there): what it kept is lost to the cluster"
                ),
            };
            let next = format!(
                "if it belongs to the cluster, check the bus ports and join it again (CLUSTER MEET \
                 at {first}); if not, take it out of the URL{slots}"
            );
            return Some((what, next));
        }
        if self.members.len() == 1 && uncovered > 0 {
            let what = format!(
                "{members} is the only node that answered, and it knows no keeper of {uncovered} \
                 of {SLOTS} slots: it was removed from the cluster, or is cut off from it"
            );
            let next = format!(
                "name more nodes of the cluster in the URL and compare CLUSTER NODES there; do not \
                 run redis-cli --cluster fix on {members}: it would take the slots of other nodes"
            );
            return Some((what, next));
        }
        None
    }

    /// Returns the error of a call to a slot that has no keeper.
    pub(super) fn without_keeper(&self, slot: u16, uncovered: usize) -> Error {
        let what = format!("no node of the cluster keeps slot {slot}");
        if let Some((problem, next)) = self.problem(uncovered) {
            return Error::new(ErrorKind::Unavailable, format!("{what}: {problem}"))
                .with_help(next);
        }
        let first = self.members.first().map(std::slice::from_ref);
        let next = first.map(names).unwrap_or_default();
        let next = format!("give the slot to a node: redis-cli --cluster fix {next}");
        Error::new(ErrorKind::Unavailable, what).with_help(next.trim_end().to_owned())
    }
}

impl NodeTable {
    /// Parses the reply to `CLUSTER NODES`: a line for each node, with its id, address, flags,
    /// master, two times, config epoch, link state and slots.
    pub(super) fn read(reply: &Value) -> Option<Self> {
        let mut nodes = Self::default();
        for line in info_text(reply)?.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [id, _, flags, _, _, _, epoch, _, slots @ ..] = &words[..] else { return None };
            let has = |flag: &str| flags.split(',').any(|one| one == flag);
            if has("myself") {
                (*id).clone_into(&mut nodes.myself);
            }
            let status = NodeStatus {
                failed: has("fail"),
                suspected: has("fail?"),
                // Slots in brackets are being moved.
                keeps_slots: slots.iter().any(|slots| !slots.starts_with('[')),
                epoch: epoch.parse().ok()?,
            };
            nodes.by_id.insert((*id).to_owned(), status);
        }
        (!nodes.myself.is_empty()).then_some(nodes)
    }

    /// Returns the config epoch of a node.
    pub(super) fn epoch_of(&self, id: &str) -> u64 {
        self.by_id.get(id).map_or(0, |status| status.epoch)
    }

    fn counts(&self, id: &str) -> bool {
        self.by_id.get(id).is_some_and(|status| !status.failed)
    }

    /// Returns true if a majority of the masters is reachable.
    fn in_touch(&self) -> bool {
        let masters = self.by_id.values().filter(|status| status.keeps_slots);
        let (all, away) = masters.fold((0, 0), |(all, away), one| {
            (all + 1, away + usize::from(one.failed || one.suspected))
        });
        2 * (all - away) > all
    }

    fn highest_epoch(&self) -> u64 {
        self.by_id.values().map(|status| status.epoch).max().unwrap_or(0)
    }
}

impl ClusterView {
    /// Returns true if this view lists the node of another one as a member.
    fn counts(&self, other: &Self) -> bool {
        match (&self.nodes, &other.nodes) {
            (Some(ours), Some(theirs)) => ours.counts(&theirs.myself),
            _ => true,
        }
    }

    fn rank(&self, all: &[Self]) -> (usize, bool, u64, usize) {
        let votes = all.iter().filter(|view| view.counts(self)).count();
        let in_touch = self.nodes.as_ref().is_none_or(NodeTable::in_touch);
        let epoch = self.nodes.as_ref().map_or(0, NodeTable::highest_epoch);
        (votes, in_touch, epoch, usize::from(SLOTS) - self.map.uncovered())
    }
}

/// Merges these views and the map that was known before; none if there is no view.
pub(super) fn choose(views: &[ClusterView], known: &SlotMap) -> Option<Choice> {
    let ranked = views.iter().map(|view| (view.rank(views), view));
    // The first of equals: it replied first.
    let best = ranked.reduce(|best, next| if next.0 > best.0 { next } else { best })?.1;
    let others = views.iter().filter(|view| view.from != best.from);
    let (members, apart): (Vec<&ClusterView>, Vec<&ClusterView>) =
        others.partition(|view| best.counts(view));
    let members: Vec<&ClusterView> = std::iter::once(best).chain(members).collect();
    let mut map = SlotMap::empty();
    // A node may be known by two addresses; the one in use stays.
    for keeper in known.keepers() {
        let named = |view: &&ClusterView| view.map.keepers().any(|one| one == keeper);
        if members.iter().any(named) {
            map.prefer(keeper);
        }
    }
    let mut epochs = vec![0; usize::from(SLOTS)];
    for view in &members {
        map.merge(&view.map, &mut epochs, |_| true);
    }
    let agreeing = members.iter().filter(|view| view.map.agrees_with(&map)).count();
    let (uncovered, keepers) = (map.uncovered(), map.keepers().count());
    let in_touch = best.nodes.as_ref().is_none_or(NodeTable::in_touch);
    let is_settled = in_touch && uncovered == 0 && agreeing >= ENOUGH.min(keepers);
    // One node that covers little may itself be the one that is apart.
    let is_sure = members.len() >= ENOUGH || uncovered == 0;
    let is_member = |id: &str| match &best.nodes {
        Some(nodes) if is_sure => nodes.by_id.contains_key(id),
        _ => !is_sure,
    };
    map.merge(known, &mut epochs, |keeper| is_member(&keeper.id));
    let addresses = |views: &[&ClusterView]| views.iter().map(|view| view.from.clone()).collect();
    let membership = Membership { members: addresses(&members), apart: addresses(&apart) };
    Some(Choice { map, membership, is_settled })
}

/// Lists nodes as `host:port, ...`.
pub(super) fn names(addresses: &[NodeAddress]) -> String {
    addresses.iter().map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three masters, 1 to 3, with replicas 4 to 6. Ids are numbers, and so are ports.
    const RANGES: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];
    const WHOLE: [(u16, u64); 3] = [(1, 1), (2, 2), (3, 3)];

    fn address(port: u16) -> NodeAddress {
        ("h".to_owned(), port)
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    /// The view of a node when the ranges are kept by these masters, each with its epoch (0:
    /// no keeper), and the nodes have these flags.
    fn view(from: u16, masters: [(u16, u64); 3], nodes: &[(u16, &str)]) -> ClusterView {
        let (mut text, mut ranges) = (String::new(), Vec::new());
        for (id, flags) in nodes {
            let myself = if *id == from { "myself," } else { "" };
            let at = masters.iter().position(|(master, _)| master == id);
            let (epoch, slots) = at.map_or((0, String::new()), |at| {
                (masters[at].1, format!("{}-{}", RANGES[at].0, RANGES[at].1))
            });
            let line =
                format!("{id} h:{id}@1{id} {myself}{flags} - 0 0 {epoch} connected {slots}\n");
            text.push_str(&line);
        }
        for ((first, last), (master, _)) in RANGES.iter().zip(masters).filter(|(_, m)| m.0 > 0) {
            let id = bulk(&master.to_string());
            let node = Value::Array(vec![bulk("h"), Value::Int(master.into()), id]);
            let (first, last) = (Value::Int((*first).into()), Value::Int((*last).into()));
            ranges.push(Value::Array(vec![first, last, node]));
        }
        let nodes = NodeTable::read(&bulk(&text)).unwrap();
        let map = SlotMap::read(&Value::Array(ranges), "h", |id| nodes.epoch_of(id)).unwrap();
        ClusterView { from: address(from), map, nodes: Some(nodes) }
    }

    const ALL: [(u16, &str); 6] =
        [(1, "master"), (2, "master"), (3, "master"), (4, "slave"), (5, "slave"), (6, "slave")];

    /// The ports of the keepers of the three ranges.
    fn keepers(choice: &Choice) -> [Option<u16>; 3] {
        RANGES.map(|(first, last)| {
            let keeper = |slot| choice.map.keeper(slot).map(|keeper| keeper.address.1);
            assert_eq!(keeper(first), keeper(last));
            keeper(first)
        })
    }

    fn chosen(views: &[ClusterView]) -> Choice {
        choose(views, &SlotMap::empty()).unwrap()
    }

    /// 1 is cut off; 4 has taken its place, and 5 that of 2, which is dead.
    fn after_fail_overs(from: u16) -> ClusterView {
        let nodes = [
            (1, "master,fail"),
            (2, "master,fail"),
            (3, "master"),
            (4, "master"),
            (5, "master"),
            (6, "slave"),
        ];
        view(from, [(4, 7), (5, 8), (3, 3)], &nodes)
    }

    /// The view of node 1.
    fn cut_off() -> ClusterView {
        let nodes = [
            (1, "master"),
            (2, "master,fail?"),
            (3, "master,fail?"),
            (4, "slave,fail?"),
            (5, "slave,fail?"),
            (6, "slave,fail?"),
        ];
        view(1, WHOLE, &nodes)
    }

    #[test]
    fn two_nodes_that_say_the_same_are_believed_and_one_is_not_enough() {
        let one = chosen(&[view(1, WHOLE, &ALL)]);
        assert!(!one.is_settled);
        let two = chosen(&[view(1, WHOLE, &ALL), view(5, WHOLE, &ALL)]);
        assert!(two.is_settled);
        assert_eq!(keepers(&two), [Some(1), Some(2), Some(3)]);
        assert_eq!(two.membership.problem(0), None);
        let alone = view(1, [(1, 1); 3], &[(1, "master")]);
        assert!(chosen(&[alone]).is_settled, "there is no other master to ask");
    }

    #[test]
    fn a_node_that_is_cut_off_from_the_bus_is_outdone_by_higher_epochs() {
        for views in [[cut_off(), after_fail_overs(3)], [after_fail_overs(3), cut_off()]] {
            let choice = chosen(&views);
            assert_eq!(keepers(&choice), [Some(4), Some(5), Some(3)]);
            assert_eq!(choice.membership.apart, [address(1)]);
            assert!(!choice.is_settled);
        }
        assert!(chosen(&[cut_off(), after_fail_overs(3), after_fail_overs(4)]).is_settled);
        // Before the others have agreed that it is down, only the epochs show it.
        let mut early = after_fail_overs(3);
        early.nodes.as_mut().unwrap().by_id.get_mut("1").unwrap().failed = false;
        let choice = chosen(&[view(1, WHOLE, &ALL), early]);
        assert_eq!(keepers(&choice), [Some(4), Some(5), Some(3)]);
        assert_eq!(choice.membership.members.len(), 2);
    }

    #[test]
    fn two_nodes_of_a_minority_agree_in_vain() {
        let mut replica = cut_off();
        replica.from = address(4);
        replica.nodes.as_mut().unwrap().myself = "4".to_owned();
        assert!(!chosen(&[cut_off(), replica]).is_settled);
    }

    #[test]
    fn what_is_known_is_not_replaced_by_a_lower_epoch() {
        let known = chosen(&[after_fail_overs(3), after_fail_overs(4)]).map;
        let choice = choose(&[cut_off()], &known).unwrap();
        assert_eq!(keepers(&choice), [Some(4), Some(5), Some(3)]);
        let later = chosen(&[view(6, [(4, 7), (5, 8), (6, 9)], &ALL)]).map;
        let choice = choose(&[after_fail_overs(3)], &later).unwrap();
        assert_eq!(keepers(&choice), [Some(4), Some(5), Some(6)]);
        let choice = choose(&[view(2, [(4, 7), (2, 10), (3, 11)], &ALL)], &later).unwrap();
        assert_eq!(keepers(&choice), [Some(4), Some(2), Some(3)]);
    }

    /// 1 was forgotten by all, and has forgotten all.
    fn removed() -> ClusterView {
        view(1, [(1, 1), (0, 0), (0, 0)], &[(1, "master")])
    }

    fn without_it(from: u16) -> ClusterView {
        view(from, [(0, 0), (2, 2), (3, 3)], &ALL[1..])
    }

    #[test]
    fn a_node_that_was_removed_is_named_and_nothing_it_says_is_believed() {
        let views = [removed(), without_it(2), without_it(3)];
        let choice = chosen(&views);
        assert_eq!(keepers(&choice), [None, Some(2), Some(3)]);
        let known = chosen(&[view(1, WHOLE, &ALL), view(2, WHOLE, &ALL)]).map;
        assert_eq!(keepers(&choose(&views, &known).unwrap()), [None, Some(2), Some(3)]);
        let error = choice.membership.without_keeper(7, choice.map.uncovered());
        let (text, next) = (error.to_string(), error.help());
        assert!(text.contains("h:1 answers, but is not in the cluster as h:2, h:3"), "{error}");
        assert!(next.contains("slots without a keeper to other masters"), "{next}");
        assert!(!next.contains("--cluster fix"), "{next}");
    }

    #[test]
    fn a_removed_node_that_answers_alone_takes_nothing_from_what_is_known() {
        let known = chosen(&[view(1, WHOLE, &ALL), view(2, WHOLE, &ALL)]).map;
        let choice = choose(&[removed()], &known).unwrap();
        assert_eq!(keepers(&choice), [Some(1), Some(2), Some(3)]);
        let new = chosen(&[removed()]);
        assert_eq!(keepers(&new), [Some(1), None, None]);
        let error = new.membership.without_keeper(9_000, new.map.uncovered());
        assert!(error.to_string().contains("h:1 is the only node that answered"), "{error}");
        assert!(error.help().contains("do not run redis-cli --cluster fix"), "{error}");
    }

    #[test]
    fn a_cluster_that_was_made_anew_with_low_epochs_is_believed() {
        let known = chosen(&[after_fail_overs(3), after_fail_overs(4)]).map;
        let nodes = [(11, "master"), (12, "master"), (13, "master")];
        let masters = [(11, 1), (12, 2), (13, 3)];
        let views = [view(11, masters, &nodes), view(12, masters, &nodes)];
        assert_eq!(keepers(&choose(&views, &known).unwrap()), [Some(11), Some(12), Some(13)]);
    }

    #[test]
    fn without_the_right_to_ask_for_epochs_the_map_with_most_slots_is_believed() {
        let silent = |view: ClusterView| ClusterView { nodes: None, ..view };
        let views = [silent(removed()), silent(view(2, WHOLE, &ALL))];
        assert_eq!(keepers(&chosen(&views)), [Some(1), Some(2), Some(3)]);
        assert!(choose(&[], &SlotMap::empty()).is_none());
    }

    #[test]
    fn the_address_in_use_stays_while_a_node_names_it() {
        let known = chosen(&[view(1, WHOLE, &ALL)]).map;
        let mut other = view(2, WHOLE, &ALL);
        other.map = SlotMap::empty();
        let text = "3 name:3@13 master - 0 0 3 connected 10923-16383\n2 name:2@12 \
                    myself,master - 0 0 2 connected 0-10922";
        let nodes = NodeTable::read(&bulk(text)).unwrap();
        let range = |first: i64, last: i64, port: i64| {
            let node = vec![bulk("name"), Value::Int(port), bulk(&port.to_string())];
            Value::Array(vec![Value::Int(first), Value::Int(last), Value::Array(node)])
        };
        let slots = Value::Array(vec![range(0, 10_922, 2), range(10_923, 16_383, 3)]);
        other.map = SlotMap::read(&slots, "name", |id| nodes.epoch_of(id)).unwrap();
        let views = [other, view(3, WHOLE, &ALL)];
        let choice = choose(&views, &known).unwrap();
        assert_eq!(choice.map.keeper(16_383).unwrap().address, address(3));
        let choice = choose(&views[..1], &SlotMap::empty()).unwrap();
        assert_eq!(choice.map.keeper(16_383).unwrap().address.0, "name");
    }

    #[test]
    fn an_answer_that_names_no_nodes_is_none() {
        for text in ["", "1 h:1@1 master - 0 0 1", "1 h:1@1 master - 0 0 x connected"] {
            assert!(NodeTable::read(&bulk(text)).is_none(), "{text:?}");
        }
        assert!(NodeTable::read(&Value::Nil).is_none());
    }
}

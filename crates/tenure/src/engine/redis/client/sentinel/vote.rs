//! Decides which server is the primary when sentinels disagree. Pure.
//!
//! A sentinel that is cut off from the others goes on naming the primary of the time before. Each
//! fail-over gets a number that is higher than all before (`config-epoch`), and a majority of the
//! sentinels has to vote for it: so the highest epoch is the latest configuration. Epochs are shown
//! by `SENTINEL MASTER`, which an access list may forbid. Where one of them is not shown, or the
//! highest is shown for two servers, the number of sentinels that name a server decides. Where that
//! is equal too, no vote does: every server in question is returned.

use std::fmt::Write as _;

/// A host and a port, as sentinels name them.
pub(in crate::engine) type HostPort = (String, u16);

/// The vote of one sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct SentinelVote {
    /// The host and port of the sentinel.
    pub(in crate::engine) sentinel: String,
    pub(in crate::engine) primary: HostPort,
    /// The epoch of its configuration, if it was asked for and shown.
    pub(in crate::engine) epoch: Option<u64>,
}

/// Returns the server that more than half of all `sentinels` name, if there is one.
pub(in crate::engine) fn majority(votes: &[SentinelVote], sentinels: usize) -> Option<&HostPort> {
    let primaries = primaries(votes);
    primaries.into_iter().find(|peer| count(votes, peer) > sentinels / 2)
}

/// Returns true if two sentinels name different servers.
pub(in crate::engine) fn differ(votes: &[SentinelVote]) -> bool {
    votes.iter().any(|vote| vote.primary != votes[0].primary)
}

/// Returns the server with the most votes; several of them in a tie, in the order of the sentinels.
pub(in crate::engine) fn best(votes: &[SentinelVote]) -> Vec<&HostPort> {
    let shown = votes.iter().all(|vote| vote.epoch.is_some());
    let rank = |peer: &&HostPort| {
        let named = votes.iter().filter(|vote| vote.primary == **peer);
        let epoch = named.map(|vote| vote.epoch.unwrap_or(0)).max();
        (epoch.filter(|_| shown), count(votes, peer))
    };
    let primaries = primaries(votes);
    let highest = primaries.iter().map(rank).max();
    primaries.into_iter().filter(|peer| Some(rank(peer)) == highest).collect()
}

/// Lists which sentinels name which server: `s1 names a:1 (epoch 1); s2, s3 name b:1`.
pub(in crate::engine) fn listed(votes: &[SentinelVote]) -> String {
    let mut text = String::new();
    for peer in primaries(votes) {
        let named: Vec<&SentinelVote> = votes.iter().filter(|vote| vote.primary == *peer).collect();
        let who: Vec<&str> = named.iter().map(|vote| &*vote.sentinel).collect();
        let verb = if who.len() == 1 { "names" } else { "name" };
        let gap = if text.is_empty() { "" } else { "; " };
        let _ = write!(text, "{gap}{} {verb} {}", who.join(", "), place(peer));
        if let Some(epoch) = named.iter().filter_map(|vote| vote.epoch).max() {
            let _ = write!(text, " (epoch {epoch})");
        }
    }
    text
}

/// `host:port`, fit for a terminal.
pub(in crate::engine) fn place((host, port): &HostPort) -> String {
    format!("{}:{port}", host.escape_debug())
}

fn count(votes: &[SentinelVote], peer: &HostPort) -> usize {
    votes.iter().filter(|vote| vote.primary == *peer).count()
}

/// Each server once.
fn primaries(votes: &[SentinelVote]) -> Vec<&HostPort> {
    let mut peers: Vec<&HostPort> = Vec::new();
    for vote in votes {
        if !peers.contains(&&vote.primary) {
            peers.push(&vote.primary);
        }
    }
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes<const N: usize>(all: [(&str, Option<u64>); N]) -> Vec<SentinelVote> {
        let vote = |(at, (host, epoch)): (usize, (&str, Option<u64>))| SentinelVote {
            sentinel: format!("s{}", at + 1),
            primary: (host.to_owned(), 1),
            epoch,
        };
        all.into_iter().enumerate().map(vote).collect()
    }

    fn hosts(votes: &[SentinelVote]) -> Vec<&str> {
        best(votes).into_iter().map(|(host, _)| &**host).collect()
    }

    #[test]
    fn the_highest_epoch_counts_more_than_any_number_of_sentinels() {
        let all = votes([("old", Some(3)), ("old", Some(3)), ("new", Some(4))]);
        assert_eq!(hosts(&all), ["new"]);
    }

    #[test]
    fn where_an_epoch_is_not_shown_the_number_of_sentinels_decides() {
        let all = votes([("old", Some(9)), ("new", None), ("new", Some(4))]);
        assert_eq!(hosts(&all), ["new"]);
        let all = votes([("old", Some(1)), ("new", Some(1)), ("new", Some(1))]);
        assert_eq!(hosts(&all), ["new"]);
    }

    #[test]
    fn a_tie_returns_every_server_in_question() {
        assert_eq!(hosts(&votes([("b", None), ("a", None)])), ["b", "a"]);
        assert_eq!(hosts(&votes([("b", Some(1)), ("a", Some(1)), ("c", Some(0))])), ["b", "a"]);
        assert_eq!(hosts(&[]), Vec::<&str>::new());
    }

    #[test]
    fn a_majority_is_more_than_half_of_all_sentinels_that_there_are() {
        let all = votes([("a", None), ("a", None), ("b", None)]);
        assert_eq!(majority(&all, 3), Some(&("a".to_owned(), 1)));
        assert_eq!(majority(&all, 4), None);
        assert!(differ(&all) && !differ(&all[..2]) && !differ(&[]));
    }

    #[test]
    fn a_list_says_which_sentinel_names_which_server() {
        let all = votes([("a", Some(0)), ("b", Some(1)), ("b", None)]);
        assert_eq!(listed(&all), "s1 names a:1 (epoch 0); s2, s3 name b:1 (epoch 1)");
    }
}

//! The finding about a primary that is cut off from its replicas while one of them is promoted.
//! Pure.
//!
//! Clients that are cut off together with the old primary continue to renew there. Nothing on their
//! side shows that another server is the primary by now. Only the old primary can stop, and it does
//! if `min-replicas-to-write` requires replicas to be connected.

use crate::contract::Health;

/// `least` is the setting, where it can be seen.
pub(super) fn judge(least: Option<&str>) -> (Health, String) {
    match least {
        None => {
            let what = "whether a primary that is cut off from its replicas stops cannot be seen \
                        (CONFIG is refused); min-replicas-to-write should be 1 or more";
            (Health::Note, what.to_owned())
        }
        Some("0") => {
            let what = "a primary that is cut off goes on granting locks to clients that reach it, \
                        beside the replica that took its place, because min-replicas-to-write is \
                        0; set it to 1 on all servers, and min-replicas-max-lag to less than a \
                        fail-over takes (with two replicas, one may then fail)";
            (Health::Note, what.to_owned())
        }
        Some(least) => {
            let what = format!(
                "a primary that is cut off from its replicas takes no more locks after \
                 min-replicas-max-lag (min-replicas-to-write is {})",
                least.escape_debug()
            );
            (Health::Fine, what)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primary_that_would_go_on_alone_is_told_how_to_stop() {
        for (least, state, words) in [
            (Some("0"), Health::Note, "is 0; set it to 1 on all servers"),
            (Some("1"), Health::Fine, "takes no more locks after"),
            (None, Health::Note, "CONFIG is refused"),
        ] {
            let (found, what) = judge(least);
            assert_eq!(found, state, "{what}");
            assert!(what.contains(words) && !what.contains('\n'), "{what}");
        }
    }
}

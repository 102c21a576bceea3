//! The scenarios, a file for each group. Each file lists its scenarios at the top; a scenario that
//! is not listed is dead code, which the compiler refuses.

mod exclusion;
mod idempotence;

use super::registry::{Group, Need, Scenario};
use super::waiting::Waiting;
use super::world::{Ask, World, name};

/// All lists.
pub(super) const LISTS: &[&[Scenario]] = &[exclusion::LIST, idempotence::LIST];

/// Lists the scenarios of a group: `name cites [promises] needs [needs];`
macro_rules! list {
    ($group:ident: $($name:ident cites [$($cite:literal),*] needs [$($need:ident),*];)*) => {
        pub(super) const LIST: &[super::Scenario] = &[$(super::Scenario {
            group: super::Group::$group,
            name: stringify!($name),
            cites: &[$($cite),*],
            needs: &[$(super::Need::$need),*],
            play: $name,
        }),*];
    };
}
use list;

//! Builds the errors for claims that a quorum does not support.

use crate::contract::{Claim, Error, ErrorKind, HolderView, Part, Shape, Verb};

/// The help text: engines that support the claim.
const HELP: &str = "use one store that all agree on: redis://, or embedded: on one host";

/// Refuses a claim for anything but one exclusive lock.
pub(super) fn unless_plain(claim: &Claim) -> Result<(), Error> {
    let parts = claim.parts.as_slice();
    let what = if parts.iter().any(Part::is_shared) {
        "a quorum has no shared locks: each node would have to know all readers, and no majority \
         can tell that the last of them has left"
    } else if parts.iter().any(|part| part.shape() != Shape::Lock) {
        "a quorum has no semaphores: permits counted at different majorities do not add up"
    } else if parts.len() > 1 {
        "a quorum takes one name at a time"
    } else if claim.replaces.is_some() {
        "a quorum has nothing to upgrade or downgrade"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Unsupported, what)
        .during(Verb::Claim)
        .on(claim.parts.first_name())
        .with_help(HELP))
}

/// Refuses re-entry of a name that is held through another process or by an ancestor.
pub(super) fn reentry(holder: &HolderView) -> Error {
    let what = format!(
        "this owner, or one it is nested in, holds the name already ({}); a quorum cannot let it \
         in again, because no node knows all holds of an owner",
        holder.about
    );
    Error::new(ErrorKind::Unsupported, what)
        .during(Verb::Claim)
        .with_help("take it once, in the outermost process; redis:// and embedded: re-enter")
}

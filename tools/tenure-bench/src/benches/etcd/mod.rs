//! What only a cluster makes interesting: how much longer a lock takes than the least there could
//! be, and who is woken when it is given back.

pub(crate) mod handoff;
pub(crate) mod pair;

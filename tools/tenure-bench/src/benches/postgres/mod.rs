//! What only a database on the other end of a connection makes interesting, beside what people
//! would write by hand with the same client.

pub(crate) mod advisory;
mod by_hand;
pub(crate) mod handoff;
pub(crate) mod neighbours;
pub(crate) mod pair;

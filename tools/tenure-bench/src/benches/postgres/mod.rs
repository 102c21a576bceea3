//! What only a database on the other end of a connection makes interesting, beside what people
//! would write by hand with the same client.

pub(crate) mod advisory;
mod by_hand;
pub(crate) mod handoff;
pub(crate) mod neighbours;
pub(crate) mod pair;

use std::time::Instant;

use tenure::Error;

use super::taker::Taker;
use crate::stats::nanos_each;

/// Microseconds a pair, over so many.
async fn block(taker: &mut impl Taker, pairs: u32) -> Result<f64, Error> {
    let start = Instant::now();
    taker.pairs(pairs).await?;
    Ok(nanos_each(start, pairs) / 1e3)
}

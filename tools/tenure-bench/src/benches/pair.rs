//! An uncontended lock and its release, beside the two bare calls to the engine that it makes.

use std::sync::Arc;

use tenure::contract::{Claim, Engine, Release, Released, Verdict, samples};
use tenure::{Error, ErrorKind, Name, Part, Tenure};

use super::lane::{LanePlan, beside as lanes};
use super::taker::Taker;
use crate::figure::Figure;
use crate::run::Run;

/// The ratio is what the session adds: table, keeper's deadlines, guard, fences.
pub(crate) fn measure(run: &Run, engine: Arc<dyn Engine>) -> Result<Vec<Figure>, Error> {
    let bare = Bare::new(Arc::clone(&engine))?;
    beside(run, engine, "x bare engine; aim <= 800", bare)
}

/// The same beside something else that takes and gives.
pub(crate) fn beside(
    run: &Run,
    engine: Arc<dyn Engine>,
    note: &'static str,
    reference: impl Taker,
) -> Result<Vec<Figure>, Error> {
    let (blocks, pairs) = (run.count(20, 300), run.count(50, 1_000));
    let mutex = Tenure::builder().open(engine)?.mutex("pair")?;
    let [ours, other] = lanes(run, LanePlan { warm_up: 1, blocks, pairs }, mutex, reference)?;
    let figure = Figure::new("pair", ours.nanos, "ns", note).relative_to(other.nanos);
    Ok(vec![figure.with_costs(ours.cost, other.cost)])
}

/// The engine without a session: the same claim again and again, made beforehand.
struct Bare {
    engine: Arc<dyn Engine>,
    claim: Arc<Claim>,
    batch: [Release; 1],
}

impl Bare {
    fn new(engine: Arc<dyn Engine>) -> Result<Self, Error> {
        let part = Part::write(Name::try_from("pair")?);
        let claim = Claim { lease: tenure::limits::DEFAULT_LEASE, ..samples::claim(part) };
        let batch = [Release { claim: claim.to_ref(), uncertain: false }];
        Ok(Self { engine, claim: Arc::new(claim), batch })
    }
}

impl Taker for Bare {
    type Held = ();

    async fn take(&mut self) -> Result<(), Error> {
        match self.engine.claim(&self.claim).await? {
            Verdict::Granted(_) => Ok(()),
            _ => Err(strange("a free lock was not granted")),
        }
    }

    async fn give(&mut self, (): ()) -> Result<(), Error> {
        match self.engine.release(&self.batch).await?.as_slice() {
            [Released::Done] => Ok(()),
            _ => Err(strange("a held lock was not given back")),
        }
    }
}

fn strange(what: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}

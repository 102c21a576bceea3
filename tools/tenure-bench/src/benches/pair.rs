//! An uncontended lock and its release, beside the two bare calls to the engine that it makes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::contract::{
    About, Claim, ClaimId, Engine, Lineage, OwnerId, Parts, Patience, Release, Released, Verdict,
};
use tenure::{Error, ErrorKind, Mutex, Name, Part, Tenure};

use crate::figure::Figure;
use crate::run::Run;
use crate::stats::{median, nanos_each};

/// The ratio is what the session adds: table, keeper's deadlines, guard, fences.
pub(crate) fn measure(run: &Run, engine: Arc<dyn Engine>) -> Result<Vec<Figure>, Error> {
    let (blocks, pairs) = (run.count(20, 300), run.count(50, 1_000));
    let progress = run.progress.clone();
    let tenure = Tenure::builder().open(Arc::clone(&engine))?;
    let mutex = tenure.mutex("pair")?;
    let bare = Bare::new(engine)?;
    run.in_task(async move {
        let (mut sessions, mut bares) = (Vec::new(), Vec::new());
        for block in 0..blocks {
            sessions.push(session_block(&mutex, pairs).await?);
            bares.push(bare.block(pairs).await?);
            progress.step(block + 1, blocks);
        }
        let figure = Figure::new("pair", median(&sessions), "ns", "x bare engine; aim < 2000");
        Ok(vec![figure.relative_to(median(&bares))])
    })
}

/// The same beside something else that takes and gives: `reference` gives nanoseconds a pair.
pub(crate) fn beside(
    run: &Run,
    engine: Arc<dyn Engine>,
    note: &'static str,
    mut reference: impl FnMut(u32) -> Result<f64, Error> + Send + 'static,
) -> Result<Vec<Figure>, Error> {
    let (blocks, pairs) = (run.count(20, 300), run.count(50, 1_000));
    let progress = run.progress.clone();
    let tenure = Tenure::builder().open(engine)?;
    let mutex = tenure.mutex("pair")?;
    run.in_task(async move {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for block in 0..blocks {
            ours.push(session_block(&mutex, pairs).await?);
            theirs.push(reference(pairs)?);
            progress.step(block + 1, blocks);
        }
        let figure = Figure::new("pair", median(&ours), "ns", note);
        Ok(vec![figure.relative_to(median(&theirs))])
    })
}

async fn session_block(mutex: &Mutex, pairs: u32) -> Result<f64, Error> {
    let start = Instant::now();
    for _ in 0..pairs {
        mutex.lock().await?.release().await?;
    }
    Ok(nanos_each(start, pairs))
}

/// The engine without a session: the same claim again and again, made beforehand.
struct Bare {
    engine: Arc<dyn Engine>,
    claim: Arc<Claim>,
    batch: [Release; 1],
}

impl Bare {
    fn new(engine: Arc<dyn Engine>) -> Result<Self, Error> {
        let claim = Claim {
            id: ClaimId::new(),
            session: None,
            lineage: Lineage::root(OwnerId::new()),
            parts: Parts::one(Part::write(Name::try_from("pair")?)),
            lease: tenure::limits::DEFAULT_LEASE,
            lock_delay: Duration::ZERO,
            patience: Patience::Wait,
            replaces: None,
            about: About {
                host: "here".into(),
                pid: 1,
                place: None,
                label: None,
                conduct: tenure::contract::Conduct::default(),
            },
        };
        let batch = [Release { claim: claim.to_ref(), uncertain: false }];
        Ok(Self { engine, claim: Arc::new(claim), batch })
    }

    async fn block(&self, pairs: u32) -> Result<f64, Error> {
        let start = Instant::now();
        for _ in 0..pairs {
            let verdict = self.engine.claim(&self.claim).await?;
            let released = self.engine.release(&self.batch).await?;
            if !matches!(verdict, Verdict::Granted(_)) || released != [Released::Done] {
                let what = "a free lock was not granted and given back";
                return Err(Error::new(ErrorKind::Unavailable, what));
            }
        }
        Ok(nanos_each(start, pairs))
    }
}

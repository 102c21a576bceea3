//! What a claim and a release cost the server itself, with 10,000 in line and with one.
//!
//! The engine is called without a session, one call at a time: what is counted is one script each,
//! by the server's own stopwatch.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use servers::Redis;
use tenure::contract::{
    Claim, Engine, Namespace, Release, Released, SessionId, Signal, SignalListener, Verdict,
    samples,
};
use tenure::engine::{Terms, connect};
use tenure::time::SystemClock;
use tenure::{Error, ErrorKind, Name, Part, limits};
use tokio::task::JoinSet;

use super::number;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

/// Hand-offs in a block, between two looks at the server's stopwatch.
const HANDOFFS: u32 = 40;

pub(crate) fn measure(run: &Run, redis: &Redis) -> Result<Vec<Figure>, Error> {
    let (waiters, blocks) = (run.count(100, 10_000), run.count(2, 40));
    let max_lease = limits::DEFAULT_MAX_LEASE;
    let namespace = Namespace::default();
    let terms = Terms { namespace, max_lease, clock: Arc::new(SystemClock) };
    let engine = run.here(connect(&redis.url(), terms))?;
    let listener: Arc<dyn SignalListener> = Arc::new(Deaf);
    let session = SessionId::new();
    engine.listen(session, Arc::downgrade(&listener) as Weak<dyn SignalListener>);
    let mut short = run.here(Line::form(&engine, session, "short", 1))?;
    let mut long = run.here(Line::form(&engine, session, "long", waiters))?;
    let (mut shorts, mut longs) = (Vec::new(), Vec::new());
    for block in 0..blocks {
        for (line, samples) in [(&mut short, &mut shorts), (&mut long, &mut longs)] {
            let before = redis.command_micros("evalsha");
            let moved = Arc::clone(&engine);
            run.here(line.advance(moved.as_ref()))?;
            let micros = redis.command_micros("evalsha") - before;
            samples.push(number(micros) / f64::from(HANDOFFS));
        }
        run.progress.step(block + 1, blocks);
    }
    let note = "x one in line, by the server's stopwatch";
    let figure = Figure::new("server_time_10k", median(&longs), "us", note);
    Ok(vec![figure.relative_to(median(&shorts)).judged_by(Aim::AtMost(1.5))])
}

/// One lock, its holder, and those who wait for it.
struct Line {
    name: Name,
    session: SessionId,
    /// The holder, then the others in their order.
    claims: VecDeque<Arc<Claim>>,
}

impl Line {
    async fn form(
        engine: &Arc<dyn Engine>,
        session: SessionId,
        name: &str,
        waiters: u32,
    ) -> Result<Self, Error> {
        let mut line = Self { name: Name::try_from(name)?, session, claims: VecDeque::new() };
        let first = line.claim();
        engine.claim(&first).await?;
        line.claims.push_back(first);
        // Together, so that the line stands long before the first lease ends.
        let mut tasks = JoinSet::new();
        for _ in 0..waiters {
            let (engine, claim) = (Arc::clone(engine), line.claim());
            tasks.spawn(async move { engine.claim(&claim).await.map(|verdict| (claim, verdict)) });
        }
        let mut places = Vec::new();
        for answered in tasks.join_all().await {
            match answered? {
                (claim, Verdict::Queued(queued)) => places.push((queued.arrival, claim)),
                (_, other) => return Err(strange(&format!("{other:?}"))),
            }
        }
        places.sort_by_key(|(arrival, _)| *arrival);
        line.claims.extend(places.into_iter().map(|(_, claim)| claim));
        Ok(line)
    }

    /// The holder gives the lock to the next and goes to the end of the line.
    async fn advance(&mut self, engine: &dyn Engine) -> Result<(), Error> {
        for _ in 0..HANDOFFS {
            let Some(holder) = self.claims.pop_front() else { return Err(strange("nobody")) };
            let release = Release { claim: holder.to_ref(), uncertain: false };
            let released = engine.release(&[release]).await?;
            let claim = self.claim();
            let verdict = engine.claim(&claim).await?;
            if released != [Released::Done] || !matches!(verdict, Verdict::Queued(_)) {
                return Err(strange(&format!("{released:?}, {verdict:?}")));
            }
            self.claims.push_back(claim);
        }
        Ok(())
    }

    fn claim(&self) -> Arc<Claim> {
        let (session, lease) = (Some(self.session), limits::DEFAULT_MAX_LEASE);
        let part = Part::write(self.name.clone());
        Arc::new(Claim { session, lease, ..samples::claim(part) })
    }
}

/// The server pushes as it always does; what it says is known here anyway.
struct Deaf;

impl SignalListener for Deaf {
    fn on_signal(&self, _signal: Signal) {}
}

fn strange(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the line did not advance: {what}"))
}

//! An uncontended lock at a majority of nodes and its release, one task: Tenure beside a Redlock
//! written by hand with the same client crate, and beside `rslock`.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use redis::aio::MultiplexedConnection;
use redis::{Client, Script, Value};
use rslock::{LockGuard, LockManager};
use servers::Redis;
use tenure::contract::SessionId;
use tenure::{Error, Mutex, Tenure};

use super::lane::{Lane, figure};
use super::redis::takers::{COMPARE_AND_DELETE, LEASE, failed, set_if_free};
use super::redis::{asked, number};
use super::taker::Taker;
use crate::figure::{Aim, Figure};
use crate::run::Run;

/// Pairs in a block: short enough that all meet the same moments of the machine.
const PAIRS: u32 = 20;
/// Blocks at the start that are not counted: scripts are loaded, caches settle.
const WARM_UP: u32 = 3;

/// A pair at these nodes: beside what is written by hand, and the same figure beside `rslock`.
pub(crate) fn measure(
    run: &Run,
    nodes: &[Redis],
    names: [&'static str; 2],
) -> Result<Vec<Figure>, Error> {
    let blocks = run.count(3, 300);
    let mut ours = Lane::new(run.here(tenure(nodes))?);
    let mut by_hand = Lane::new(run.here(ByHand::at(nodes))?);
    let urls = nodes.iter().map(Redis::url).collect::<Vec<_>>();
    let mut rslock = Lane::new(Rslock(LockManager::new(urls)));
    let progress = run.progress.clone();
    let (ours, by_hand, rslock) = run.in_task(async move {
        for number in 0..WARM_UP + blocks {
            let kept = number >= WARM_UP;
            ours.block(PAIRS, kept).await?;
            by_hand.block(PAIRS, kept).await?;
            rslock.block(PAIRS, kept).await?;
            progress.step((number + 1).saturating_sub(WARM_UP), blocks);
        }
        Ok::<_, Error>((ours, by_hand, rslock))
    })?;
    let ours = ours.measured(run)?;
    let hand = figure(names[0], "x written by hand", &ours, &by_hand.measured(run)?);
    let published = figure(names[1], "x rslock", &ours, &rslock.measured(run)?);
    Ok(vec![hand.judged_by(Aim::AtMost(1.2)), published.judged_by(Aim::AtMost(1.0))])
}

/// How many acquisitions took one round trip: a second one shows as one more call at a node.
pub(crate) fn one_round_trip(run: &Run, nodes: &[Redis]) -> Result<Vec<Figure>, Error> {
    let pairs = run.count(50, 5_000);
    let mut ours = run.here(tenure(nodes))?;
    let node = nodes.first().ok_or_else(|| failed("no node"))?;
    // Scripts are loaded.
    run.here(ours.pairs(PAIRS))?;
    let before = asked(node);
    let ours = run.here(async move { ours.pairs(pairs).await.map(|()| ours) })?;
    let extra = number((asked(node) - before).saturating_sub(2 * u64::from(pairs)));
    drop(ours);
    let share = 100.0 * (1.0 - extra / f64::from(pairs));
    let figure = Figure::new("one_round_trip_share", share, "%", "of acquisitions");
    Ok(vec![figure.judged_by(Aim::AtLeast(90.0))])
}

async fn tenure(nodes: &[Redis]) -> Result<Mutex, Error> {
    Tenure::connect(&url(nodes)).await?.mutex("tenure")
}

/// The URL of these nodes, which no client has used before.
pub(crate) fn url(nodes: &[Redis]) -> String {
    let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    format!("redlock://{}?new=yes", hosts.join(","))
}

/// `SET NX PX` at all nodes at once, and a script that compares and deletes: no fence, no renewal.
struct ByHand {
    nodes: Vec<MultiplexedConnection>,
    script: Script,
    value: String,
    taken: u64,
}

impl ByHand {
    async fn at(nodes: &[Redis]) -> Result<Self, Error> {
        let mut connections = Vec::new();
        for node in nodes {
            let client = Client::open(node.url()).map_err(failed)?;
            connections.push(client.get_multiplexed_async_connection().await.map_err(failed)?);
        }
        let (script, value) = (Script::new(COMPARE_AND_DELETE), SessionId::new().to_hex());
        Ok(Self { nodes: connections, script, value, taken: 0 })
    }
}

impl Taker for ByHand {
    type Held = String;

    async fn take(&mut self) -> Result<String, Error> {
        self.taken += 1;
        let value = format!("{}-{}", self.value, self.taken);
        let (needed, set) = (self.nodes.len() / 2 + 1, &set_if_free("by-hand", &value));
        let calls = self.nodes.iter_mut().map(|node| set.query_async::<Value>(node)).collect();
        let answers = all(calls).await;
        let granted = answers.into_iter().filter(|answer| matches!(answer, Ok(Value::Okay)));
        if granted.count() < needed {
            return Err(failed("a free key was not set"));
        }
        Ok(value)
    }

    async fn give(&mut self, held: String) -> Result<(), Error> {
        let (needed, script) = (self.nodes.len() / 2 + 1, &self.script);
        let calls = self.nodes.iter_mut().map(|node| {
            let mut call = script.key("by-hand");
            call.arg(&held);
            async move { call.invoke_async::<u32>(node).await }
        });
        let deleted = all(calls.collect()).await;
        let deleted = deleted.into_iter().filter(|answer| matches!(answer, Ok(1))).count();
        if deleted >= needed { Ok(()) } else { Err(failed("a key of ours was not deleted")) }
    }
}

/// The published crate.
struct Rslock(LockManager);

impl Taker for Rslock {
    type Held = LockGuard;

    async fn take(&mut self) -> Result<LockGuard, Error> {
        self.0.acquire(b"rslock", LEASE).await.map_err(failed)
    }

    async fn give(&mut self, held: LockGuard) -> Result<(), Error> {
        held.release().await;
        Ok(())
    }
}

/// Runs futures side by side.
async fn all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = futures.into_iter().map(|one| (Some(Box::pin(one)), None)).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for (future, output) in &mut running {
            if let Some(one) = future {
                match Pin::as_mut(one).poll(cx) {
                    Poll::Ready(done) => (*future, *output) = (None, Some(done)),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
}

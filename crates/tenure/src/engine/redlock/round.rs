//! A round: one script call to several nodes at once, with a timeout.
//!
//! The calls are written before `begin` returns, in the order of the connection. Replies arrive
//! over a channel whose senders are the calls in flight and the deadline; when all of them are
//! gone, the round has timed out. Dropping a round stops listening, not the calls.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, WeakUnboundedSender, unbounded_channel};

use super::Quorum;
use super::node::Placement;
use super::release::ReleaseRetry;
use super::scripts::ScriptCall;
use crate::engine::redis::client::RequestResult;

/// An event of a round.
#[derive(Debug)]
pub(super) enum RoundEvent {
    /// The node with this index replied, or its connection failed.
    Reply(usize, RequestResult),
    /// The timeout has passed, or no more replies can arrive.
    TimedOut,
}

/// A round in flight.
pub(super) struct Round {
    events: UnboundedReceiver<RoundEvent>,
    sender: WeakUnboundedSender<RoundEvent>,
}

impl Round {
    /// Sends a call to these nodes.
    pub(super) fn begin(
        quorum: &Quorum,
        placement: Placement,
        call: &Arc<ScriptCall>,
        nodes: impl IntoIterator<Item = usize>,
        limit: Duration,
    ) -> Self {
        let (sender, receiver) = unbounded_channel();
        for at in nodes {
            let (context, events) = (Arc::clone(&quorum.context), sender.clone());
            quorum.nodes[at].call(placement, call, move |outcome| {
                context.count_activity();
                // Fails if the round was decided and dropped.
                let _ = events.send(RoundEvent::Reply(at, outcome));
            });
        }
        let weak_sender = sender.downgrade();
        quorum.deadlines.limit(limit, sender);
        Self { events: receiver, sender: weak_sender }
    }

    /// Sends a release to all nodes. A node that does not reply gets it again, even if this round
    /// is dropped. Without a `limit` the round has no deadline.
    pub(super) fn begin_with_retry(
        quorum: &Arc<Quorum>,
        placement: Placement,
        call: &Arc<ScriptCall>,
        again: ReleaseRetry,
        limit: Duration,
    ) -> Self {
        let (sender, receiver) = unbounded_channel();
        for at in 0..quorum.nodes.len() {
            let (weak, events, same) = (Arc::downgrade(quorum), sender.clone(), Arc::clone(call));
            quorum.nodes[at].call(placement, call, move |outcome| {
                if let Some(quorum) = weak.upgrade() {
                    quorum.context.count_activity();
                    if outcome.is_err() {
                        quorum.retry_release(at, same, again);
                    }
                }
                let _ = events.send(RoundEvent::Reply(at, outcome));
            });
        }
        let weak_sender = sender.downgrade();
        if !limit.is_zero() {
            quorum.deadlines.limit(limit, sender);
        }
        Self { events: receiver, sender: weak_sender }
    }

    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> RoundEvent {
        self.events.recv().await.unwrap_or(RoundEvent::TimedOut)
    }

    /// Sets an earlier deadline: `limit` from now.
    pub(super) fn shorten(&self, quorum: &Quorum, limit: Duration) {
        if let Some(sender) = self.sender.upgrade() {
            quorum.deadlines.limit(limit, sender);
        }
    }
}

/// Runs futures concurrently. Returns their outputs in order.
pub(super) async fn join_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
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

/// Runs two futures concurrently.
pub(super) async fn join<A, B>(
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> (A, B) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        use std::task::Poll;
        if first.is_none()
            && let Poll::Ready(done) = one.as_mut().poll(cx)
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = other.as_mut().poll(cx)
        {
            second = Some(done);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (kept, also) => {
                (first, second) = (kept, also);
                Poll::Pending
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_runs_together_answers_in_its_order() {
        let later = |n: u64| async move {
            tokio::time::sleep(Duration::from_millis(10 - n)).await;
            n
        };
        assert_eq!(join_all(vec![later(1), later(9), later(4)]).await, [1, 9, 4]);
    }
}

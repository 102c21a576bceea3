//! One question to several nodes at once, with a limit of time. Knows answers as they come, not
//! what they mean.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, WeakUnboundedSender, unbounded_channel};

use super::Quorum;
use super::node::Lane;
use super::releasing::Again;
use super::scripts::Calling;
use crate::engine::redis::client::RequestResult as Outcome;

/// What happens in a round.
#[derive(Debug)]
pub(super) enum Event {
    /// This node answered.
    Answer(usize, Outcome),
    /// Nobody waits any longer.
    TimeIsUp,
}

/// A question under way. Dropping it stops listening; what was sent is done all the same.
pub(super) struct Round {
    heard: UnboundedReceiver<Event>,
    said: WeakUnboundedSender<Event>,
}

impl Round {
    /// Sends a call to these nodes, now.
    pub(super) fn begin(
        quorum: &Quorum,
        lane: Lane,
        calling: &Arc<Calling>,
        nodes: impl IntoIterator<Item = usize>,
        limit: Duration,
    ) -> Self {
        let (sender, receiver) = unbounded_channel();
        for at in nodes {
            let (site, told) = (Arc::clone(&quorum.site), sender.clone());
            quorum.nodes[at].call(lane, calling, move |outcome| {
                site.active();
                // Whoever has decided already does not want to know.
                let _ = told.send(Event::Answer(at, outcome));
            });
        }
        let said = sender.downgrade();
        quorum.patience.limit(limit, sender);
        Self { heard: receiver, said }
    }

    /// The same to all nodes, and whatever happens here, one that does not answer is asked again.
    pub(super) fn insisting(
        quorum: &Arc<Quorum>,
        lane: Lane,
        calling: &Arc<Calling>,
        again: Again,
        limit: Duration,
    ) -> Self {
        let (sender, receiver) = unbounded_channel();
        for at in 0..quorum.nodes.len() {
            let (weak, told, same) = (Arc::downgrade(quorum), sender.clone(), Arc::clone(calling));
            quorum.nodes[at].call(lane, calling, move |outcome| {
                if let Some(quorum) = weak.upgrade() {
                    quorum.site.active();
                    if outcome.is_err() {
                        quorum.insist(at, same, again);
                    }
                }
                let _ = told.send(Event::Answer(at, outcome));
            });
        }
        let said = sender.downgrade();
        if !limit.is_zero() {
            quorum.patience.limit(limit, sender);
        }
        Self { heard: receiver, said }
    }

    /// What happens next. After all is said, the time is up.
    pub(super) async fn next(&mut self) -> Event {
        self.heard.recv().await.unwrap_or(Event::TimeIsUp)
    }

    /// Waits no longer than this from now on.
    pub(super) fn hurry(&self, quorum: &Quorum, limit: Duration) {
        if let Some(said) = self.said.upgrade() {
            quorum.patience.limit(limit, said);
        }
    }
}

/// Runs futures side by side, and says what each came to, in their order.
pub(super) async fn together<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_runs_together_answers_in_its_order() {
        let later = |n: u64| async move {
            tokio::time::sleep(Duration::from_millis(10 - n)).await;
            n
        };
        assert_eq!(together(vec![later(1), later(9), later(4)]).await, [1, 9, 4]);
    }
}

//! Changes the longest lease of a namespace at all nodes that reply, if no client relies on it.
//!
//! Each node knows which clients are connected, by their subscriptions, and counts how often
//! clients have agreed on its terms. The change takes three rounds:
//!
//! 1. no node has a connected client that states another value; the nodes return their counts;
//! 2. no claim is found at a majority;
//! 3. each node changes its terms if there is still no such client and its count is the same.
//!
//! So a client that connects in between is either seen or makes the third round fail. A node that
//! is away keeps the old value, and is changed by the next client that connects with the new value.

use std::sync::Arc;
use std::time::Duration;

use super::Quorum;
use super::node::Placement;
use super::protocol::quorum;
use super::round::join_all;

use crate::contract::{Error, Page, Query};
use crate::engine::Terms;
use crate::engine::common::max_lease;
use crate::engine::common::redis::terms::TermsReply;
use crate::engine::redis::client::RequestError;

impl Quorum {
    pub(super) async fn change_terms(self, terms: &Terms, current: Duration) -> Result<(), Error> {
        self.handshake(false).await?;
        let refuse = |because: &str| max_lease::refused(current, terms.max_lease, because);
        let asked = vec![Some(String::new()); self.nodes.len()];
        let mut agreed = Vec::with_capacity(self.nodes.len());
        for reply in self.call_change_terms(terms, asked).await? {
            agreed.push(match reply {
                Some(TermsReply::There(clients)) => {
                    return Err(refuse(&max_lease::connected(clients)));
                }
                Some(TermsReply::Top(agreed)) => Some(agreed),
                _ => None,
            });
        }
        let mut page = Page::default();
        loop {
            let seen = Box::pin(self.inspect(Placement::Own, &Query::Page(page.clone()))).await?;
            if let Some(claims) = max_lease::claimed(&seen) {
                return Err(refuse(&claims));
            }
            page.after = seen.more_after;
            if page.after.is_none() {
                break;
            }
        }
        for reply in self.call_change_terms(terms, agreed).await? {
            match reply {
                Some(TermsReply::There(clients)) => {
                    return Err(refuse(&max_lease::connected(clients)));
                }
                Some(TermsReply::Again) => return Err(refuse("another client came and went")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Calls `change_terms` at each node for which there is a count (`""` to read it). Returns the
    /// replies; `None` for a node that was not called or did not reply.
    async fn call_change_terms(
        &self,
        terms: &Terms,
        counts: Vec<Option<String>>,
    ) -> Result<Vec<Option<TermsReply>>, Error> {
        let context = &self.context;
        let call = |(node, count): (&Arc<super::QuorumNode>, Option<String>)| {
            let keys = vec![context.keys.node.clone(), context.keys.terms().to_owned()];
            let packed = count.map(|count| {
                context
                    .script_call(&context.scripts().change_terms, keys)
                    .with(terms.max_lease.as_micros().to_string())
                    .with(context.keys.shared().clients())
                    .with(count)
                    .packed(true)
            });
            let node = Arc::clone(node);
            async move {
                match packed {
                    Some(packed) => Some(node.wire(Placement::Own).call(&packed).await),
                    None => None,
                }
            }
        };
        let calls = self.nodes.iter().zip(counts).map(call).collect();
        let mut said = Vec::with_capacity(self.nodes.len());
        let mut troubles: Vec<(usize, RequestError)> = Vec::new();
        for (at, outcome) in join_all(calls).await.into_iter().enumerate() {
            said.push(match outcome {
                Some(Ok(value)) => Some(TermsReply::read(&value, context.keys.shared())?),
                Some(Err(trouble)) => {
                    troubles.push((at, trouble));
                    None
                }
                None => None,
            });
        }
        let answered = said.iter().flatten().count();
        if answered < quorum(self.nodes.len()) {
            return Err(self.too_few_replies(answered, troubles.into_iter()));
        }
        Ok(said)
    }
}

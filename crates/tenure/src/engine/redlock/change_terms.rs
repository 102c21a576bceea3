//! Changing the longest lease of a namespace at all nodes that answer, when no client is there who
//! relies on it.
//!
//! Each node knows which clients are connected, and how often clients have agreed on its terms. The
//! change is made in three rounds: no node has a client that states another value; no claim is seen
//! at a majority; and each node changes its terms if still no such client is there and none has
//! agreed since. A node that is away keeps what it has, and is changed by the next client that
//! connects with the new value while it is there.

use std::sync::Arc;
use std::time::Duration;

use super::Callers;
use super::node::Lane;
use super::protocol::quorum;
use super::round::together;
use super::site::Site;
use super::url::Set;
use super::{Own, Quorum};
use crate::contract::{Error, Page, Query};
use crate::engine::redis::client::RequestError as Trouble;
use crate::engine::redis::terms::TermsReply as Said;
use crate::engine::{Terms, max_lease};

impl Quorum {
    /// Connects, and changes the longest lease of the namespace where it may.
    pub(super) async fn connect(set: &Set, terms: &Terms, staged: bool) -> Result<Self, Error> {
        let site = || Site::new(set, terms, staged);
        let own = Own::start("tenure-redlock")?;
        let found = if staged { None } else { Callers::find(&own).await };
        let connected = Self::open(set, site(), own, found);
        let refused = match connected.greet(set.new).await {
            Ok(()) => return Ok(connected),
            Err(error) => error,
        };
        let Some(stands) = connected.site.stands() else { return Err(refused) };
        drop(connected);
        let own = Own::start("tenure-redlock")?;
        let looks = Self::open(set, site().only_looks(stands), own, None);
        looks.change_terms(terms, stands).await?;
        let own = Own::start("tenure-redlock")?;
        let found = if staged { None } else { Callers::find(&own).await };
        let connected = Self::open(set, site(), own, found);
        connected.greet(set.new).await?;
        Ok(connected)
    }

    async fn change_terms(self, terms: &Terms, stands: Duration) -> Result<(), Error> {
        self.greet(false).await?;
        let refuse = |because: &str| max_lease::refused(stands, terms.max_lease, because);
        let asked = vec![Some(String::new()); self.nodes.len()];
        let mut agreed = Vec::with_capacity(self.nodes.len());
        for said in self.ask_to_change(terms, asked).await? {
            agreed.push(match said {
                Some(Said::There(clients)) => return Err(refuse(&max_lease::connected(clients))),
                Some(Said::Top(agreed)) => Some(agreed),
                _ => None,
            });
        }
        let mut page = Page::default();
        loop {
            let seen = Box::pin(self.look(Lane::Back, &Query::Page(page.clone()))).await?;
            if let Some(claims) = max_lease::claimed(&seen) {
                return Err(refuse(&claims));
            }
            page.after = seen.more_after;
            if page.after.is_none() {
                break;
            }
        }
        for said in self.ask_to_change(terms, agreed).await? {
            match said {
                Some(Said::There(clients)) => return Err(refuse(&max_lease::connected(clients))),
                Some(Said::Again) => return Err(refuse("another client came and went")),
                _ => {}
            }
        }
        Ok(())
    }

    /// One call to each node for which there is a word; what each said, none if it did not.
    async fn ask_to_change(
        &self,
        terms: &Terms,
        words: Vec<Option<String>>,
    ) -> Result<Vec<Option<Said>>, Error> {
        let site = &self.site;
        let call = |(node, word): (&Arc<super::Node>, Option<String>)| {
            let keys = vec![site.keys.node.clone(), site.keys.terms().to_owned()];
            let packed = word.map(|word| {
                site.calling(&site.scripts().change_terms, keys)
                    .with(terms.max_lease.as_micros().to_string())
                    .with(site.keys.plain().clients())
                    .with(word)
                    .packed(true)
            });
            let node = Arc::clone(node);
            async move {
                match packed {
                    Some(packed) => Some(node.wire(Lane::Back).call(&packed).await),
                    None => None,
                }
            }
        };
        let calls = self.nodes.iter().zip(words).map(call).collect();
        let mut said = Vec::with_capacity(self.nodes.len());
        let mut troubles: Vec<(usize, Trouble)> = Vec::new();
        for (at, outcome) in together(calls).await.into_iter().enumerate() {
            said.push(match outcome {
                Some(Ok(value)) => Some(Said::read(&value, site.keys.plain())?),
                Some(Err(trouble)) => {
                    troubles.push((at, trouble));
                    None
                }
                None => None,
            });
        }
        let answered = said.iter().flatten().count();
        if answered < quorum(self.nodes.len()) {
            return Err(self.too_few(answered, troubles.into_iter()));
        }
        Ok(said)
    }
}

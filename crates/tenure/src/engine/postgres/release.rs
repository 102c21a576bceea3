//! The release verb, also for claims that are withdrawn: `release_one` for a single claim on one
//! name, `release` for all other batches.
//!
//! - A claim that was never sent needs no call: nothing of it can be in the database (`claims.rs`).
//! - A release may grant the lock to the next waiter, whose session has to be notified. Where
//!   commits wait for the disk, the notification is not part of the transaction: PostgreSQL
//!   serializes commits that notify, and each of them would wait for the disk writes of all others.
//!   If waiters were seen on the name, `notify_later` is written directly behind the release and
//!   sends the notification without another round trip; otherwise the row of the reply causes a
//!   call of `notify`. The release returns when that was answered: the process may end then, and a
//!   waiter whose notification was lost finds its grant only at its next renewal. A wrong guess
//!   costs a round trip or an empty statement, never a wake-up.

use super::PostgresEngine;
use super::calls::in_order;
use super::errors::call_failed;
use super::replies::ReplyRow;
use super::statements::{Function, Parameters, batch, micros, uuid};
use crate::contract::{Error, Release, Released, Verb};

impl PostgresEngine {
    pub(super) async fn release(&self, releases: &[Release]) -> Result<Vec<Released>, Error> {
        for release in releases {
            self.inner.set_waiting(release.claim.id, false);
        }
        if self.inner.unsent.is_empty() {
            return self.send_releases(releases).await;
        }
        let unsent = |release: &Release| self.inner.unsent.take(release.claim.id);
        let sent: Vec<bool> = releases.iter().map(|release| !unsent(release)).collect();
        let rest = releases.iter().zip(&sent).filter(|(_, sent)| **sent);
        let rest: Vec<Release> = rest.map(|(release, _)| release.clone()).collect();
        let mut outcomes = self.send_releases(&rest).await?.into_iter();
        let next = |sent| if sent { outcomes.next() } else { Some(Released::Done) };
        Ok(sent.into_iter().filter_map(next).collect())
    }

    async fn send_releases(&self, releases: &[Release]) -> Result<Vec<Released>, Error> {
        let is_async = self.inner.context.is_async();
        let replies = match releases {
            [] => return Ok(Vec::new()),
            [release] if release.claim.parts.as_slice().len() == 1 => {
                self.release_one(release).await
            }
            _ => {
                let claims = || releases.iter().map(|release| &release.claim);
                let uncertain: Vec<bool> = releases.iter().map(|one| one.uncertain).collect();
                self.call(Verb::Release, Function::Release, |ns| {
                    let mut parameters = batch(claims, ns, is_async);
                    parameters.push(Box::new(uncertain));
                    parameters
                })
                .await
            }
        };
        in_order(replies?, releases.len(), Verb::Release, |reply| reply.released())
    }

    async fn release_one(&self, release: &Release) -> Result<Vec<ReplyRow>, Error> {
        let Release { claim, uncertain } = release;
        let (name, context) = (claim.parts.first_name(), &self.inner.context);
        let is_async = context.is_async();
        let then_notify =
            !is_async && !context.wraps_calls() && self.inner.contended.contains(name);
        let permit = self.permit(Verb::Release).await?;
        let parameters: Parameters = vec![
            Box::new(permit.ns()),
            Box::new(is_async),
            Box::new(uuid(claim.id.as_u128())),
            Box::new(name.as_str().to_owned()),
            Box::new(micros(claim.lease)),
            Box::new(*uncertain),
            Box::new(then_notify),
        ];
        let rows = if then_notify {
            permit.call_then(Function::ReleaseOne, parameters, Function::NotifyLater).await
        } else {
            permit.call(Function::ReleaseOne, parameters).await
        };
        let rows = rows.map_err(|error| call_failed(error.as_ref()).during(Verb::Release))?;
        let replies = self.parse_replies(&rows).await;
        let replies = replies.map_err(|error| error.during(Verb::Release))?;
        // Rows that are no replies were signals: there was a waiter.
        self.inner.contended.record(name, rows.len() > replies.len());
        Ok(replies)
    }
}

//! The verbs that change claims: what goes with each call, and what its answers mean. Knows claims,
//! not connections.

use std::time::Duration;

use uuid::Uuid;

use super::replies::{Answer, shape_number, strange};
use super::statements::Call;
use super::pipeline::Parameters;
use super::claims::Sending;
use super::{PostgresEngine, unanswered};
use crate::contract::{
    Claim, ClaimRef, Error, Evicted, Eviction, Fence, OwnerId, Part, Patience, Raised, Release,
    Released, Renewed, Verb, Verdict,
};

impl PostgresEngine {
    /// claim: by the short call for one name, by the long one for a set.
    pub(super) async fn ask_for(
        &self,
        claim: &Claim,
        sending: &Sending<'_>,
    ) -> Result<Verdict, Error> {
        let first = claim.parts.first_name();
        let room = self.room(Verb::Claim).await.map_err(|error| error.on(first))?;
        sending.sent();
        let (call, parameters) = match claim.parts.as_slice() {
            [part] => (Call::ClaimOne, self.claim_of_one(claim, part, room.ns())),
            parts => (Call::Claim, self.claim_of_set(claim, parts, room.ns())),
        };
        let rows = room.call(call, parameters).await;
        let rows =
            rows.map_err(|error| unanswered(error.as_ref()).during(Verb::Claim).on(first))?;
        let answers = self.read(&rows).map_err(|error| error.during(Verb::Claim).on(first));
        let answer = answers?.pop().ok_or_else(strange)?;
        answer.verdict().map_err(|error| error.during(Verb::Claim).on(first))
    }

    /// What goes with a claim on one name.
    fn claim_of_one(&self, claim: &Claim, part: &Part, ns: i32) -> Parameters {
        let is_async = self.inner.setup.is_async();
        vec![
            Box::new(ns),
            Box::new(is_async),
            Box::new(uuid(claim.id.as_u128())),
            Box::new(part.name().as_str().to_owned()),
            Box::new(shape_number(part.shape())),
            Box::new(weight(part)),
            Box::new(micros(claim.lease)),
            Box::new(micros(claim.lock_delay)),
            Box::new(claim.patience == Patience::Wait),
            Box::new(claim.replaces.map(|id| uuid(id.as_u128()))),
            Box::new(claim.session.map(|id| uuid(id.as_u128()))),
            Box::new(lineage(claim)),
            Box::new(claim.about.host.to_string()),
            Box::new(i64::from(claim.about.pid)),
            Box::new(claim.about.place.as_ref().map(ToString::to_string)),
            Box::new(claim.about.label.as_ref().map(ToString::to_string)),
        ]
    }

    /// What goes with a claim on several names.
    fn claim_of_set(&self, claim: &Claim, parts: &[Part], ns: i32) -> Parameters {
        let is_async = self.inner.setup.is_async();
        let owners: Vec<String> = lineage(claim).iter().map(ToString::to_string).collect();
        vec![
            Box::new(ns),
            Box::new(is_async),
            Box::new(vec![uuid(claim.id.as_u128())]),
            Box::new(vec![count(parts.len())]),
            Box::new(names(claim.parts.names())),
            Box::new(parts.iter().map(|part| shape_number(part.shape())).collect::<Vec<_>>()),
            Box::new(parts.iter().map(weight).collect::<Vec<_>>()),
            Box::new(vec![micros(claim.lease)]),
            Box::new(vec![micros(claim.lock_delay)]),
            Box::new(vec![claim.patience == Patience::Wait]),
            Box::new(vec![claim.replaces.map(|id| uuid(id.as_u128()))]),
            Box::new(vec![claim.session.map(|id| uuid(id.as_u128()))]),
            Box::new(vec![format!("{{{}}}", owners.join(","))]),
            Box::new(vec![claim.about.host.to_string()]),
            Box::new(vec![i64::from(claim.about.pid)]),
            Box::new(vec![claim.about.place.as_ref().map(ToString::to_string)]),
            Box::new(vec![claim.about.label.as_ref().map(ToString::to_string)]),
        ]
    }

    /// renew: one call for all.
    pub(super) async fn keep(&self, batch: &[ClaimRef]) -> Result<Vec<Renewed>, Error> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let is_async = self.inner.setup.is_async();
        let answers = self.ask(Verb::Renew, Call::Renew, |ns| {
            vec![
                Box::new(ns),
                Box::new(is_async),
                Box::new(ids(batch.iter())),
                Box::new(counts(batch.iter())),
                Box::new(names(batch.iter().flat_map(|claim| claim.parts.names()))),
                Box::new(leases(batch.iter())),
            ]
        });
        in_order(answers.await?, batch.len(), Verb::Renew, Answer::renewed)
    }

    /// release. What never went out needs no call: nothing of it can be in the database.
    pub(super) async fn give_back_sent(&self, batch: &[Release]) -> Result<Vec<Released>, Error> {
        if self.inner.unsent.is_empty() {
            return self.give_back(batch).await;
        }
        let unsent = |release: &Release| self.inner.unsent.take(release.claim.id);
        let sent: Vec<bool> = batch.iter().map(|release| !unsent(release)).collect();
        let rest = batch.iter().zip(&sent).filter(|(_, sent)| **sent);
        let rest: Vec<Release> = rest.map(|(release, _)| release.clone()).collect();
        let mut answers = self.give_back(&rest).await?.into_iter();
        let next = |sent| if sent { answers.next() } else { Some(Released::Done) };
        Ok(sent.into_iter().filter_map(next).collect())
    }

    /// release of what went out: by the short call for one name, by the long one for more.
    async fn give_back(&self, batch: &[Release]) -> Result<Vec<Released>, Error> {
        let is_async = self.inner.setup.is_async();
        let claims = || batch.iter().map(|release| &release.claim);
        let answers = match batch {
            [] => return Ok(Vec::new()),
            [release] if release.claim.parts.as_slice().len() == 1 => self.hand_on(release).await,
            _ => {
                self.ask(Verb::Release, Call::Release, |ns| {
                    vec![
                        Box::new(ns),
                        Box::new(is_async),
                        Box::new(ids(claims())),
                        Box::new(counts(claims())),
                        Box::new(names(claims().flat_map(|claim| claim.parts.names()))),
                        Box::new(leases(claims())),
                        Box::new(batch.iter().map(|one| one.uncertain).collect::<Vec<_>>()),
                    ]
                })
                .await
            }
        };
        in_order(answers?, batch.len(), Verb::Release, |answer| answer.released())
    }

    /// release of one name. Where somebody is known to wait for it, the statement that has them
    /// told goes out right behind: it is run when the first is committed, and nobody has to come
    /// back.
    async fn hand_on(&self, release: &Release) -> Result<Vec<Answer>, Error> {
        let Release { claim, uncertain } = release;
        let (name, setup) = (claim.parts.first_name(), &self.inner.setup);
        let is_async = setup.is_async();
        let at_once = !is_async && !setup.is_wrapped() && self.inner.crowds.expects(name);
        let parameters = |ns| -> Parameters {
            vec![
                Box::new(ns),
                Box::new(is_async),
                Box::new(uuid(claim.id.as_u128())),
                Box::new(name.as_str().to_owned()),
                Box::new(micros(claim.lease)),
                Box::new(*uncertain),
                Box::new(at_once),
            ]
        };
        let rows = if at_once {
            self.call_and_tell(Verb::Release, Call::ReleaseOne, parameters).await?
        } else {
            self.call(Verb::Release, Call::ReleaseOne, parameters).await?
        };
        let answers = self.read(&rows).map_err(|error| error.during(Verb::Release))?;
        self.inner.crowds.saw(name, rows.len() > answers.len());
        Ok(answers)
    }

    /// evict.
    pub(super) async fn put_out(&self, eviction: &Eviction) -> Result<Evicted, Error> {
        let is_async = self.inner.setup.is_async();
        let fence = i64::try_from(eviction.fence.get()).unwrap_or(i64::MAX);
        let answers = self.ask(Verb::Evict, Call::Evict, |ns| {
            vec![
                Box::new(ns),
                Box::new(is_async),
                Box::new(eviction.name.as_str().to_owned()),
                Box::new(fence),
                Box::new(eviction.reason.to_string()),
            ]
        });
        let answer = answers.await?.pop().ok_or_else(strange)?;
        answer.evicted().map_err(|error| error.during(Verb::Evict))
    }

    /// Raises the sequence that fences come from.
    pub(super) async fn lift_sequence(&self, to: Fence) -> Result<Raised, Error> {
        let to = i64::try_from(to.get()).unwrap_or(i64::MAX);
        let answers = self.ask(Verb::RaiseFences, Call::RaiseFences, |_| vec![Box::new(to)]);
        let answer = answers.await?.pop().ok_or_else(strange)?;
        answer.raised().map_err(|error| error.during(Verb::RaiseFences))
    }
}

/// One answer for each item, whatever their order was.
fn in_order<T>(
    mut answers: Vec<Answer>,
    count: usize,
    verb: Verb,
    read: impl Fn(Answer) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    answers.sort_by_key(|answer| answer.item);
    let whole = answers.iter().map(|answer| answer.item).eq(1..=count);
    if !whole {
        return Err(strange().during(verb));
    }
    let read = answers.into_iter().map(read);
    read.collect::<Result<_, _>>().map_err(|error| error.during(verb))
}

fn uuid(value: u128) -> Uuid {
    Uuid::from_u128(value)
}

fn lineage(claim: &Claim) -> Vec<Uuid> {
    claim.lineage.all().map(OwnerId::as_u128).map(uuid).collect()
}

fn weight(part: &Part) -> i32 {
    i32::try_from(part.weight()).unwrap_or(i32::MAX)
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn names<'a>(names: impl Iterator<Item = &'a crate::contract::Name>) -> Vec<String> {
    names.map(|name| name.as_str().to_owned()).collect()
}

fn ids<'a>(claims: impl Iterator<Item = &'a ClaimRef>) -> Vec<Uuid> {
    claims.map(|claim| uuid(claim.id.as_u128())).collect()
}

fn counts<'a>(claims: impl Iterator<Item = &'a ClaimRef>) -> Vec<i32> {
    claims.map(|claim| count(claim.parts.as_slice().len())).collect()
}

fn leases<'a>(claims: impl Iterator<Item = &'a ClaimRef>) -> Vec<i64> {
    claims.map(|claim| micros(claim.lease)).collect()
}

//! Parses the rows that the functions of the schema return.
//!
//! All functions that deal with slots return rows of one composite type (`answer` in
//! `sql/tables.sql`). `kind` says what a row is, and with it which columns have a value: the head
//! of each SQL file lists its kinds. Rows of kind `t` are no replies but signals for a session,
//! which the caller of the function has to deliver. A row that cannot be parsed means that the
//! functions in the database are not those of this version.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use uuid::Uuid;

use super::errors::unexpected_reply;
use crate::contract::{
    About, Arrival, ClaimId, Conduct, Error, Evicted, Fence, Grant, HolderView, Label, Lineage,
    Loss, Name, OutsideWait, OwnerId, Place, Queued, Raised, Refusal, Released, Renewed, SessionId,
    Shape, SlotView, Snapshot, Verdict, VictimVerdict, WaiterView,
};
use crate::limits;

/// The columns of a row, in the order in which [`ReplyRow::parse`] reads them.
pub(super) const COLUMNS: &str = "item, kind, arrival, place, first, fences, name, shape, texts";

/// The number of texts that describe a holder or a waiter: `view_of` in `sql/claim.sql`.
const FIELDS: usize = 13;

/// One row of a reply.
pub(super) struct ReplyRow {
    pub(super) item: usize,
    pub(super) kind: char,
    arrival: Option<i64>,
    place: Option<i64>,
    first: Option<i64>,
    fences: Vec<i64>,
    name: Option<String>,
    shape: Option<i32>,
    texts: Vec<Option<String>>,
}

impl ReplyRow {
    /// Parses a row.
    ///
    /// # Errors
    /// If its columns have other types.
    pub(super) fn parse(row: &Row) -> Result<Self, Error> {
        let parse = || -> Result<Self, tokio_postgres::Error> {
            Ok(Self {
                item: usize::try_from(row.try_get::<_, Option<i32>>(0)?.unwrap_or(0)).unwrap_or(0),
                kind: row.try_get::<_, &str>(1)?.chars().next().unwrap_or(' '),
                arrival: row.try_get(2)?,
                place: row.try_get(3)?,
                first: row.try_get(4)?,
                fences: row.try_get::<_, Option<_>>(5)?.unwrap_or_default(),
                name: row.try_get(6)?,
                shape: row.try_get(7)?,
                texts: row.try_get::<_, Option<_>>(8)?.unwrap_or_default(),
            })
        };
        parse().map_err(|error| unexpected_reply().caused_by(error))
    }

    /// The session and the text of a signal; `None` if the row is a reply.
    pub(super) fn signal(&self) -> Option<(SessionId, &str)> {
        if self.kind != 't' {
            return None;
        }
        let session = self.name.as_deref()?.parse::<Uuid>().ok()?;
        Some((SessionId::from_u128(session.as_u128()), self.texts.first()?.as_deref()?))
    }

    /// Returns whether this is a signal that the function `notify_later` sends.
    pub(super) fn is_notified_later(&self) -> bool {
        self.kind == 't' && self.place == Some(1)
    }

    /// The reply to a claim.
    pub(super) fn verdict(self) -> Result<Verdict, Error> {
        Ok(match self.kind {
            'g' => Verdict::Granted(self.grant()?),
            'q' => Verdict::Queued(self.queued()?),
            _ => Verdict::Refused(self.refusal()?),
        })
    }

    fn refusal(self) -> Result<Refusal, Error> {
        let name =
            |name: Option<String>| name.as_deref().and_then(|name| Name::from_store(name).ok());
        Ok(match self.kind {
            'h' => {
                let by = self.texts.chunks(FIELDS).map(holder).collect::<Option<_>>();
                let waiting = count(self.place);
                Refusal::Held { by: by.ok_or_else(unexpected_reply)?, waiting }
            }
            's' => Refusal::Shape {
                name: name(self.name).ok_or_else(unexpected_reply)?,
                stands: self.shape.and_then(shape_of).ok_or_else(unexpected_reply)?,
            },
            'u' => Refusal::Upgrade { by: about(&self.texts).ok_or_else(unexpected_reply)? },
            'w' => Refusal::Withdrawn,
            'n' => Refusal::NothingToReplace,
            'f' => Refusal::Full {
                name: name(self.name).ok_or_else(unexpected_reply)?,
                limit: count(self.place),
            },
            _ => return Err(unexpected_reply()),
        })
    }

    /// The reply to a renewal.
    pub(super) fn renewed(self) -> Result<Renewed, Error> {
        Ok(match self.kind {
            'g' => Renewed::Held(self.grant()?),
            'q' => Renewed::Waiting(self.queued()?),
            'x' => Renewed::Gone(match self.texts.into_iter().flatten().next() {
                Some(reason) => Loss::of_reason(&reason),
                None => Loss::Forgotten,
            }),
            _ => return Err(unexpected_reply()),
        })
    }

    /// The reply to a release.
    pub(super) fn released(&self) -> Result<Released, Error> {
        match self.kind {
            'd' => Ok(Released::Done),
            'o' => Ok(Released::Gone),
            _ => Err(unexpected_reply()),
        }
    }

    /// The reply to an eviction.
    pub(super) fn evicted(&self) -> Result<Evicted, Error> {
        let holders = self.texts.chunks(FIELDS).map(holder).collect::<Option<Vec<_>>>();
        let holders = holders.ok_or_else(unexpected_reply)?;
        match self.kind {
            'd' => Ok(Evicted::Done(holders)),
            'n' => Ok(Evicted::NoSuchGrant(holders)),
            _ => Err(unexpected_reply()),
        }
    }

    /// The reply to `refuse_victim`.
    pub(super) fn victim_verdict(&self) -> Result<VictimVerdict, Error> {
        match self.kind {
            'd' => Ok(VictimVerdict::Refused),
            'n' => Ok(VictimVerdict::Changed),
            _ => Err(unexpected_reply()),
        }
    }

    /// The reply to `raise_fences`.
    pub(super) fn raised(&self) -> Result<Raised, Error> {
        match (self.kind, self.place.and_then(number)) {
            ('d', _) => Ok(Raised::Done),
            ('n', Some(highest)) => Ok(Raised::NotAbove(Fence::new(highest))),
            _ => Err(unexpected_reply()),
        }
    }

    fn grant(&self) -> Result<Grant, Error> {
        let fences = self.fences.iter().map(|fence| number(*fence).map(Fence::new));
        let fences = fences.collect::<Option<_>>().ok_or_else(unexpected_reply)?;
        Ok(Grant { fences, arrival: self.arrival()? })
    }

    fn queued(&self) -> Result<Queued, Error> {
        Ok(Queued {
            place: count(self.place),
            first_expiry: self.first.map(micros),
            arrival: self.arrival()?,
        })
    }

    fn arrival(&self) -> Result<Arrival, Error> {
        self.arrival.and_then(number).map(Arrival).ok_or_else(unexpected_reply)
    }
}

/// Builds a snapshot of slots. The rows of a slot's holders and waiters follow that of the slot.
pub(super) fn snapshot(replies: Vec<ReplyRow>) -> Result<Snapshot, Error> {
    let mut snapshot = Snapshot::default();
    for reply in replies {
        match reply.kind {
            'S' => {
                let name = reply.name.as_deref().and_then(|name| Name::from_store(name).ok());
                let closed = reply.first.map(micros).filter(|closed| !closed.is_zero());
                snapshot.slots.push(SlotView {
                    name: name.ok_or_else(unexpected_reply)?,
                    shape: reply.shape.and_then(shape_of).ok_or_else(unexpected_reply)?,
                    holders: Vec::new(),
                    queue: Vec::new(),
                    closed_for: closed,
                });
            }
            'H' => {
                let slot = snapshot.slots.last_mut().ok_or_else(unexpected_reply)?;
                slot.holders.push(holder(&reply.texts).ok_or_else(unexpected_reply)?);
            }
            'W' => {
                let slot = snapshot.slots.last_mut().ok_or_else(unexpected_reply)?;
                let arrival = reply.arrival;
                slot.queue.push(waiter(&reply.texts, arrival).ok_or_else(unexpected_reply)?);
            }
            'B' => snapshot.outside.push(outside(&reply.texts).ok_or_else(unexpected_reply)?),
            'm' => snapshot.truncated = true,
            _ => return Err(unexpected_reply()),
        }
    }
    // Claims that expired after `touch_expired` are not returned; the row of their slot is.
    snapshot.slots.retain(|slot| {
        !slot.holders.is_empty() || !slot.queue.is_empty() || slot.closed_for.is_some()
    });
    Ok(snapshot)
}

fn shape_of(number: i32) -> Option<Shape> {
    match number {
        -1 => Some(Shape::Lock),
        permits => u32::try_from(permits).ok().filter(|some| *some > 0).map(Shape::Semaphore),
    }
}

type Texts<'a> = &'a [Option<String>];

fn holder(texts: Texts<'_>) -> Option<HolderView> {
    let text = |at: usize| texts.get(at)?.as_deref();
    Some(HolderView {
        claim: ClaimId::from_u128(id(text(0)?)?),
        session: session(text(1))?,
        lineage: lineage(text(2)?)?,
        weight: text(3)?.parse().ok()?,
        fence: Fence::new(text(4)?.parse().ok()?),
        reserved: text(5)? == "true",
        held_for: micros(text(6)?.parse().ok()?),
        expires_in: micros(text(7)?.parse().ok()?),
        about: about(texts.get(8..)?)?,
    })
}

fn waiter(texts: Texts<'_>, arrival: Option<i64>) -> Option<WaiterView> {
    // The same fields, of which the sixth means `ahead`.
    let view = holder(texts)?;
    Some(WaiterView {
        claim: view.claim,
        session: view.session,
        lineage: view.lineage,
        weight: view.weight,
        ahead: view.reserved,
        arrival: Arrival(number(arrival?)?),
        waited_for: view.held_for,
        expires_in: view.expires_in,
        about: view.about,
    })
}

/// Parses an owner that waits, one that it waits for, and the process of the server that holds.
fn outside(texts: Texts<'_>) -> Option<OutsideWait> {
    let text = |at: usize| texts.get(at)?.as_deref();
    Some(OutsideWait {
        waiter: OwnerId::from_u128(id(text(0)?)?),
        holder: OwnerId::from_u128(id(text(1)?)?),
        what: format!("a lock of the database that process {} holds", text(2)?).into(),
    })
}

/// Parses host, process id, place, label and conduct.
fn about(texts: Texts<'_>) -> Option<About> {
    let text = |at: usize| texts.get(at).and_then(Option::as_deref);
    Some(About {
        host: Arc::from(text(0)?),
        pid: text(1)?.parse().ok()?,
        place: text(2).map(|place| Place::Told(place.into())),
        label: text(3).and_then(|label| Label::try_from(label).ok()),
        conduct: Conduct::from_code(text(4)?.parse().ok()?),
    })
}

fn id(text: &str) -> Option<u128> {
    Some(text.parse::<Uuid>().ok()?.as_u128())
}

#[allow(clippy::option_option, reason = "no session is valid, one that cannot be parsed is not")]
fn session(text: Option<&str>) -> Option<Option<SessionId>> {
    match text {
        None => Some(None),
        Some(text) => Some(Some(SessionId::from_u128(id(text)?))),
    }
}

fn lineage(text: &str) -> Option<Lineage> {
    let owners = text.split(' ').map(|owner| id(owner).map(OwnerId::from_u128));
    let owners = owners.collect::<Option<Vec<_>>>()?;
    let (owner, ancestors) = owners.split_first()?;
    Lineage::nested(*owner, ancestors).ok()
}

fn number(value: i64) -> Option<u64> {
    u64::try_from(value).ok().filter(|number| *number < limits::FENCE)
}

fn count(value: Option<i64>) -> usize {
    value.and_then(|value| usize::try_from(value).ok()).unwrap_or_default()
}

fn micros(value: i64) -> Duration {
    Duration::from_micros(u64::try_from(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::statements::shape_number;
    use super::*;

    #[test]
    fn shapes_survive_the_store() {
        for shape in [Shape::Lock, Shape::Semaphore(limits::PERMITS)] {
            assert_eq!(shape_of(shape_number(shape)), Some(shape));
        }
        assert_eq!(shape_of(0), None);
    }
}

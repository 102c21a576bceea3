//! What the functions of the schema answer, and what they have sessions told. Knows rows, not
//! calls.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use uuid::Uuid;

use crate::contract::{
    About, Arrival, ClaimId, Error, ErrorKind, Evicted, Fence, Grant, HolderView, Label, Lineage,
    Loss, Name, OwnerId, Place, Queued, Raised, Refusal, Released, Renewed, SessionId, Shape,
    Signal, SlotView, Snapshot, Verdict, WaiterView,
};
use crate::limits;

/// The columns of every answer, in the order in which they are read here.
pub(super) const COLUMNS: &str = "item, kind, arrival, place, first, fences, name, shape, texts";

/// How many texts tell of a holder or a waiter.
const FIELDS: usize = 12;

/// One row of an answer.
pub(super) struct Answer {
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

impl Answer {
    /// Reads a row.
    ///
    /// # Errors
    /// If the schema is not ours.
    pub(super) fn read(row: &Row) -> Result<Self, Error> {
        let read = || -> Result<Self, tokio_postgres::Error> {
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
        read().map_err(|error| strange().caused_by(error))
    }

    /// Whom this tells, and what: rows that are no answers.
    pub(super) fn told(&self) -> Option<(SessionId, &str)> {
        if self.kind != 't' {
            return None;
        }
        let session = self.name.as_deref()?.parse::<Uuid>().ok()?;
        Some((SessionId::from_u128(session.as_u128()), self.texts.first()?.as_deref()?))
    }

    /// Whether the statement behind the call has it told.
    pub(super) fn is_left_to_tell(&self) -> bool {
        self.kind == 't' && self.place == Some(1)
    }

    /// What a claim came to.
    pub(super) fn verdict(self) -> Result<Verdict, Error> {
        Ok(match self.kind {
            'g' => Verdict::Granted(self.grant()?),
            'q' => Verdict::Queued(self.queued()?),
            _ => Verdict::Refused(self.refusal()?),
        })
    }

    fn refusal(self) -> Result<Refusal, Error> {
        let name =
            |name: Option<String>| name.as_deref().and_then(|name| Name::try_from(name).ok());
        Ok(match self.kind {
            'h' => {
                let by = self.texts.chunks(FIELDS).map(holder).collect::<Option<_>>();
                let waiting = count(self.place);
                Refusal::Held { by: by.ok_or_else(strange)?, waiting }
            }
            's' => Refusal::Shape {
                name: name(self.name).ok_or_else(strange)?,
                stands: self.shape.and_then(shape_of).ok_or_else(strange)?,
            },
            'u' => Refusal::Upgrade { by: about(&self.texts).ok_or_else(strange)? },
            'w' => Refusal::Withdrawn,
            'n' => Refusal::NothingToReplace,
            'f' => Refusal::Full {
                name: name(self.name).ok_or_else(strange)?,
                limit: count(self.place),
            },
            _ => return Err(strange()),
        })
    }

    /// What a renewal came to.
    pub(super) fn renewed(self) -> Result<Renewed, Error> {
        Ok(match self.kind {
            'g' => Renewed::Held(self.grant()?),
            'q' => Renewed::Waiting(self.queued()?),
            'x' => Renewed::Gone(match self.texts.into_iter().flatten().next() {
                Some(reason) => Loss::Evicted { reason: reason.into() },
                None => Loss::Forgotten,
            }),
            _ => return Err(strange()),
        })
    }

    /// What a release came to.
    pub(super) fn released(&self) -> Result<Released, Error> {
        match self.kind {
            'd' => Ok(Released::Done),
            'o' => Ok(Released::Gone),
            _ => Err(strange()),
        }
    }

    /// What a forced release came to.
    pub(super) fn evicted(&self) -> Result<Evicted, Error> {
        let holders = self.texts.chunks(FIELDS).map(holder).collect::<Option<Vec<_>>>();
        let holders = holders.ok_or_else(strange)?;
        match self.kind {
            'd' => Ok(Evicted::Done(holders)),
            'n' => Ok(Evicted::NoSuchGrant(holders)),
            _ => Err(strange()),
        }
    }

    /// What a request to raise fences came to.
    pub(super) fn raised(&self) -> Result<Raised, Error> {
        match (self.kind, self.place.and_then(number)) {
            ('d', _) => Ok(Raised::Done),
            ('n', Some(highest)) => Ok(Raised::NotAbove(Fence::new(highest))),
            _ => Err(strange()),
        }
    }

    fn grant(&self) -> Result<Grant, Error> {
        let fences = self.fences.iter().map(|fence| number(*fence).map(Fence::new));
        let fences = fences.collect::<Option<_>>().ok_or_else(strange)?;
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
        self.arrival.and_then(number).map(Arrival).ok_or_else(strange)
    }
}

/// What was seen of slots.
pub(super) fn snapshot(answers: Vec<Answer>) -> Result<Snapshot, Error> {
    let mut seen = Snapshot::default();
    for answer in answers {
        match answer.kind {
            'S' => {
                let name = answer.name.as_deref().and_then(|name| Name::try_from(name).ok());
                let closed = answer.first.map(micros).filter(|closed| !closed.is_zero());
                seen.slots.push(SlotView {
                    name: name.ok_or_else(strange)?,
                    shape: answer.shape.and_then(shape_of).ok_or_else(strange)?,
                    holders: Vec::new(),
                    queue: Vec::new(),
                    closed_for: closed,
                });
            }
            'H' => {
                let slot = seen.slots.last_mut().ok_or_else(strange)?;
                slot.holders.push(holder(&answer.texts).ok_or_else(strange)?);
            }
            'W' => {
                let slot = seen.slots.last_mut().ok_or_else(strange)?;
                slot.queue.push(waiter(&answer.texts).ok_or_else(strange)?);
            }
            'm' => seen.truncated = true,
            _ => return Err(strange()),
        }
    }
    // What died since it was looked after has left an empty row.
    seen.slots.retain(|slot| {
        !slot.holders.is_empty() || !slot.queue.is_empty() || slot.closed_for.is_some()
    });
    Ok(seen)
}

/// What a session is told.
pub(super) fn signal(text: &str) -> Option<Signal> {
    let (kind, rest) = text.split_once(' ')?;
    let (claim, rest) = rest.split_once(' ')?;
    let claim = ClaimId::from_u128(claim.parse::<Uuid>().ok()?.as_u128());
    match kind {
        "g" => {
            let mut numbers = rest.split(' ').map(|word| word.parse::<u64>().ok());
            let arrival = Arrival(numbers.next()??);
            let fences = numbers.map(|fence| fence.map(Fence::new)).collect::<Option<_>>()?;
            Some(Signal::Granted { claim, grant: Grant { fences, arrival } })
        }
        "e" => Some(Signal::Ended { claim, loss: Loss::Evicted { reason: rest.into() } }),
        _ => None,
    }
}

/// A shape as the store keeps it.
pub(super) fn shape_number(shape: Shape) -> i32 {
    match shape {
        Shape::Lock => -1,
        Shape::Semaphore(permits) => i32::try_from(permits).unwrap_or(i32::MAX),
    }
}

fn shape_of(number: i32) -> Option<Shape> {
    match number {
        -1 => Some(Shape::Lock),
        permits => u32::try_from(permits).ok().filter(|some| *some > 0).map(Shape::Semaphore),
    }
}

/// An answer that makes no sense.
pub(super) fn strange() -> Error {
    Error::new(ErrorKind::Corrupt, "the database answers what Tenure does not understand")
        .with_help(
            "look whether somebody changed Tenure's functions, or use one version everywhere",
        )
        .effect_unknown()
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

fn waiter(texts: Texts<'_>) -> Option<WaiterView> {
    let seen = holder(texts)?;
    Some(WaiterView {
        claim: seen.claim,
        session: seen.session,
        lineage: seen.lineage,
        weight: seen.weight,
        ahead: seen.reserved,
        waited_for: seen.held_for,
        expires_in: seen.expires_in,
        about: seen.about,
    })
}

/// Host, process, place, label.
fn about(texts: Texts<'_>) -> Option<About> {
    let text = |at: usize| texts.get(at).and_then(Option::as_deref);
    Some(About {
        host: Arc::from(text(0)?),
        pid: text(1)?.parse().ok()?,
        place: text(2).map(|place| Place::Told(place.into())),
        label: text(3).and_then(|label| Label::try_from(label).ok()),
    })
}

fn id(text: &str) -> Option<u128> {
    Some(text.parse::<Uuid>().ok()?.as_u128())
}

#[allow(clippy::option_option, reason = "no session is an answer, a strange one is not")]
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
    use super::*;

    #[test]
    fn what_a_session_is_told_is_read() {
        let id = ClaimId::new();
        let text = Uuid::from_u128(id.as_u128()).to_string();
        let fences = [Fence::new(5), Fence::new(6)].into_iter().collect();
        let grant = Grant { fences, arrival: Arrival(4) };
        assert_eq!(signal(&format!("g {text} 4 5 6")), Some(Signal::Granted { claim: id, grant }));
        let loss = Loss::Evicted { reason: "by hand, 2nd".into() };
        assert_eq!(
            signal(&format!("e {text} by hand, 2nd")),
            Some(Signal::Ended { claim: id, loss })
        );
        for odd in ["", "g", "g x 1 2", &format!("g {text} x"), &format!("z {text} 1")] {
            assert_eq!(signal(odd), None, "{odd}");
        }
    }

    #[test]
    fn shapes_survive_the_store() {
        for shape in [Shape::Lock, Shape::Semaphore(limits::PERMITS)] {
            assert_eq!(shape_of(shape_number(shape)), Some(shape));
        }
        assert_eq!(shape_of(0), None);
    }
}

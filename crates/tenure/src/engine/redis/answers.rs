//! What scripts answer, as the contract says it. Knows replies, not how they came.

use std::time::Duration;

use redis::Value;

use super::codec::{holders, micros, reason, shape, told, waiter};
use super::keys::Keys;
use crate::contract::{
    Arrival, Cell, ClaimId, Error, ErrorKind, Evicted, Fence, Fences, Grant, Loss, PutVerdict,
    Queued, Raised, Refusal, Released, Renewed, Signal, SlotView, Snapshot, Verdict, Version,
};

/// The answer to a claim of so many parts.
pub(super) fn verdict(
    value: &Value,
    parts: usize,
    now: u64,
    keys: &Keys,
) -> Result<Verdict, Error> {
    read_verdict(value, parts, now, keys).unwrap_or_else(|| Err(strange(value)))
}

fn read_verdict(
    value: &Value,
    parts: usize,
    now: u64,
    keys: &Keys,
) -> Option<Result<Verdict, Error>> {
    if let Some(fence) = fence_of(value) {
        let fences = std::iter::once(Fence::new(fence)).collect();
        return Some(Ok(Verdict::Granted(Grant { fences, arrival: Arrival(fence) })));
    }
    let list = list(value)?;
    let verdict = match text(list.first()?)? {
        "g" => Verdict::Granted(grant(list, parts)?),
        "q" => Verdict::Queued(queued(list)?),
        "h" => {
            let by = list.get(2..)?.chunks_exact(2);
            let by = holders(by.map(|pair| Some((text(&pair[1])?, text(&pair[0])?))), now)?;
            let waiting = usize::try_from(number(list.get(1)?)?).ok()?;
            Verdict::Refused(Refusal::Held { by, waiting })
        }
        "s" => {
            let name = keys.name_of(bytes(list.get(1)?)?)?;
            Verdict::Refused(Refusal::Shape { name, stands: shape(text(list.get(2)?)?)? })
        }
        "u" => {
            let by = told(text(list.get(1)?)?, "")?.about;
            Verdict::Refused(Refusal::Upgrade { by })
        }
        "w" => Verdict::Refused(Refusal::Withdrawn),
        "n" => Verdict::Refused(Refusal::NothingToReplace),
        "f" => {
            let name = keys.name_of(bytes(list.get(1)?)?)?;
            let limit = usize::try_from(number(list.get(2)?)?).ok()?;
            Verdict::Refused(Refusal::Full { name, limit })
        }
        "e" => return Some(Err(said(text(list.get(1)?)?))),
        _ => return None,
    };
    Some(Ok(verdict))
}

/// The answer to the renewal of a claim of so many parts.
pub(super) fn renewed(value: &Value, parts: usize) -> Result<Renewed, Error> {
    let read = || {
        let list = list(value)?;
        Some(match text(list.first()?)? {
            "g" => Renewed::Held(grant(list, parts)?),
            "q" => Renewed::Waiting(queued(list)?),
            "x" => Renewed::Gone(match text(list.get(1)?)? {
                "" => Loss::Forgotten,
                why => Loss::Evicted { reason: reason(why) },
            }),
            "e" => {
                // One claim's trouble: the others of its batch are renewed, and must hear so.
                let error = said(text(list.get(1)?)?);
                tracing::warn!(%error, "a claim cannot be renewed and counts as lost");
                Renewed::Gone(Loss::Forgotten)
            }
            _ => return None,
        })
    };
    read().ok_or_else(|| strange(value))
}

/// The answer to a release.
pub(super) fn released(value: &Value) -> Result<Released, Error> {
    match value {
        Value::Int(1) => Ok(Released::Done),
        Value::Int(0) => Ok(Released::Gone),
        Value::Array(list) => match list.get(1).and_then(text) {
            Some(message) => Err(said(message)),
            None => Err(strange(value)),
        },
        _ => Err(strange(value)),
    }
}

/// The answer to a forced release.
pub(super) fn evicted(value: &Value, key: &str) -> Result<Evicted, Error> {
    let read = || {
        let list = list(value)?;
        let now = number(list.first()?)?;
        let holds = list.get(2..)?.iter().map(|hold| Some((text(hold)?, key)));
        let holds = holders(holds, now)?;
        Some(match text(list.get(1)?)? {
            "d" => Evicted::Done(holds),
            "n" => Evicted::NoSuchGrant(holds),
            _ => return None,
        })
    };
    read().ok_or_else(|| strange(value))
}

/// What a request to raise fences came to.
pub(super) fn raised(value: &Value) -> Result<Raised, Error> {
    let read = || {
        let list = list(value)?;
        Some(match text(list.first()?)? {
            "d" => Raised::Done,
            "n" => Raised::NotAbove(Fence::new(number(list.get(1)?)?)),
            _ => return None,
        })
    };
    read().ok_or_else(|| strange(value))
}

/// What was seen of slots, and what is wrong with those that could not be read.
pub(super) fn snapshot(value: &Value, keys: &Keys) -> Result<(Snapshot, Vec<Error>), Error> {
    let read = || {
        let list = list(value)?;
        let now = number(list.first()?)?;
        let truncated = number(list.get(1)?)? == 1;
        let (bad, slots): (Vec<_>, Vec<_>) =
            list.get(2..)?.iter().partition(|slot| trouble_with(slot).is_some());
        let slots = slots.into_iter().map(|slot| slot_view(slot, now, keys));
        let mut slots: Vec<SlotView> = slots.collect::<Option<_>>()?;
        slots.sort_by(|a, b| a.name.cmp(&b.name));
        let bad = bad.into_iter().filter_map(trouble_with).collect();
        Some((Snapshot { slots, more_after: None, truncated }, bad))
    };
    read().ok_or_else(|| strange(value))
}

/// What was found wrong with a slot, if anything was.
fn trouble_with(slot: &Value) -> Option<Error> {
    match list(slot)? {
        [_, mark, message] if text(mark) == Some("e") => Some(said(text(message)?)),
        _ => None,
    }
}

fn slot_view(value: &Value, now: u64, keys: &Keys) -> Option<SlotView> {
    let list = list(value)?;
    let closed = number(list.get(2)?)?;
    let key = text(list.first()?)?;
    let holds = self::list(list.get(3)?)?.iter().map(|hold| Some((text(hold)?, key)));
    let holders = holders(holds, now)?;
    let line = self::list(list.get(4)?)?.chunks_exact(3).map(|one| {
        let expires = text(&one[1])?.parse().ok()?;
        waiter(text(&one[0])?, key, expires, text(&one[2])? == "1", now)
    });
    Some(SlotView {
        name: keys.name_of(key.as_bytes())?,
        shape: shape(text(list.get(1)?)?)?,
        holders,
        queue: line.collect::<Option<_>>()?,
        closed_for: (closed > 0).then(|| micros(closed)),
    })
}

/// What a push says.
pub(in crate::engine) fn signal(payload: &[u8]) -> Option<Signal> {
    let text = std::str::from_utf8(payload).ok()?;
    let (kind, rest) = text.split_once(' ')?;
    match kind {
        "g" => {
            let mut words = rest.split(' ');
            let claim: ClaimId = words.next()?.parse().ok()?;
            let arrival = Arrival(words.next()?.parse().ok()?);
            let fences = words.map(|word| word.parse().ok().map(Fence::new));
            let fences = fences.collect::<Option<Fences>>()?;
            Some(Signal::Granted { claim, grant: Grant { fences, arrival } })
        }
        "e" => {
            let (claim, why) = rest.split_once(' ')?;
            let loss = Loss::Evicted { reason: reason(why) };
            Some(Signal::Ended { claim: claim.parse().ok()?, loss })
        }
        // A long line is served a part at a time: its head asks for the rest.
        "r" => Some(Signal::Resync),
        _ => None,
    }
}

/// The answer to a write of a cell.
pub(super) fn put(value: &Value) -> Result<PutVerdict, Error> {
    let read = || {
        let list = list(value)?;
        Some(match text(list.first()?)? {
            "d" => PutVerdict::Done(Version(number(list.get(1)?)?)),
            "r" if list.len() == 1 => PutVerdict::Refused(None),
            "r" => PutVerdict::Refused(Some(read_cell(&list[1..])?)),
            "s" => PutVerdict::Stale(Fence::new(number(list.get(1)?)?)),
            _ => return None,
        })
    };
    read().ok_or_else(|| strange(value))
}

/// What stands in cells, one for each that was asked for.
pub(super) fn cells(value: &Value) -> Result<Vec<Result<Option<Cell>, Error>>, Error> {
    let all = list(value).ok_or_else(|| strange(value))?;
    let one = |value: &Value| match list(value)? {
        [] => Some(Ok(None)),
        [_] => Some(Err(said("TENURE corrupt cell"))),
        fields => Some(Ok(Some(read_cell(fields)?))),
    };
    all.iter().map(|value| one(value).ok_or_else(|| strange(value))).collect()
}

fn read_cell(fields: &[Value]) -> Option<Cell> {
    let [value, version, fence, left] = fields else { return None };
    let some = |value: &Value| match value {
        Value::Int(-1) => Some(None),
        other => number(other).map(Some),
    };
    Some(Cell {
        value: bytes(value)?.to_vec(),
        version: Version(number(version)?),
        fence: some(fence)?.map(Fence::new),
        expires_in: some(left)?.map(micros),
    })
}

fn grant(list: &[Value], parts: usize) -> Option<Grant> {
    let arrival = Arrival(number(list.get(1)?)?);
    let fences = list.get(2..)?.iter().map(|fence| number(fence).map(Fence::new));
    let fences = fences.collect::<Option<Fences>>()?;
    (fences.as_slice().len() == parts).then_some(Grant { fences, arrival })
}

fn queued(list: &[Value]) -> Option<Queued> {
    let first_expiry = match list.get(2)? {
        Value::Int(first) => u64::try_from(*first).ok().map(Duration::from_micros),
        _ => return None,
    };
    let place = usize::try_from(number(list.get(1)?)?).ok()?;
    Some(Queued { place, first_expiry, arrival: Arrival(number(list.get(3)?)?) })
}

/// A fence that stands alone: granted, one part, and the arrival is the same number.
pub(super) fn fence_of(value: &Value) -> Option<u64> {
    if let Value::Int(fence) = value {
        return u64::try_from(*fence).ok();
    }
    let digits = bytes(value).filter(|digits| digits.len() == 16)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The elements of an answer.
pub(in crate::engine) fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(list) => Some(list),
        _ => None,
    }
}

/// A whole number.
pub(in crate::engine) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// A text.
pub(in crate::engine) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::SimpleString(text) => Some(text),
        _ => std::str::from_utf8(bytes(value)?).ok(),
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// What a script found wrong.
pub(in crate::engine) fn said(message: &str) -> Error {
    // Servers before 7 find out only when a script writes.
    if message.starts_with("READONLY") {
        return Error::new(ErrorKind::Unavailable, "the server is a replica")
            .with_help("connect to the primary, or wait for it");
    }
    // The code of an error is cut off where it comes as one.
    let found = message.split_once("corrupt ");
    // Met on the way, when something may have been written already.
    let met = message.split_once("TENURE met ");
    let Some((_, rest)) = found.or(met) else {
        let what = format!("a script failed: {}", message.escape_debug());
        return Error::new(ErrorKind::Corrupt, what).effect_unknown().with_help(
            "look at the keys of this lock; an older or newer Tenure may have made them",
        );
    };
    let key: String = rest.split(' ').next().unwrap_or_default().escape_debug().collect();
    let what = format!("what stands at the key {key} is not of Tenure's making");
    let error = Error::new(ErrorKind::Corrupt, what)
        .with_help("find out who writes there; delete the key once nobody needs it");
    if found.is_none() { error.effect_unknown() } else { error }
}

/// An answer that makes no sense.
pub(in crate::engine) fn strange(value: &Value) -> Error {
    let shown: String = format!("{value:?}").chars().take(80).collect();
    Error::new(ErrorKind::Corrupt, format!("the store gave an answer that makes no sense: {shown}"))
        .effect_unknown()
        .with_help("check that nothing between this program and the store changes what they say")
}

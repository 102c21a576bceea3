//! The replies of scripts, parsed into types of the contract.
//!
//! A reply is an array whose first element is a letter for its kind; the head of each script in
//! `lua/` says which. A claim of one slot that was granted at once is a lone number: its fence,
//! which is its arrival as well.

use std::time::Duration;

use redis::Value;

use super::client::{bytes, list, number, strange, text};
use super::codec::{holders, micros, parse_claim, reason, shape, waiter};
use super::errors::script_error;
use super::keys::RedisKeys;
use crate::contract::{
    Arrival, Cell, Error, Evicted, Fence, Fences, Grant, Loss, PutVerdict, Queued, Raised, Refusal,
    Released, Renewed, SlotView, Snapshot, Verdict, Version,
};

/// Parses the reply to a claim of so many parts.
pub(super) fn verdict(
    value: &Value,
    parts: usize,
    now: u64,
    keys: &RedisKeys,
) -> Result<Verdict, Error> {
    read_verdict(value, parts, now, keys).unwrap_or_else(|| Err(strange(value)))
}

fn read_verdict(
    value: &Value,
    parts: usize,
    now: u64,
    keys: &RedisKeys,
) -> Option<Result<Verdict, Error>> {
    if let Some(fence) = single_fence(value) {
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
            let by = parse_claim(text(list.get(1)?)?, "")?.about;
            Verdict::Refused(Refusal::Upgrade { by })
        }
        "w" => Verdict::Refused(Refusal::Withdrawn),
        "n" => Verdict::Refused(Refusal::NothingToReplace),
        "f" => {
            let name = keys.name_of(bytes(list.get(1)?)?)?;
            let limit = usize::try_from(number(list.get(2)?)?).ok()?;
            Verdict::Refused(Refusal::Full { name, limit })
        }
        "e" => return Some(Err(script_error(text(list.get(1)?)?))),
        _ => return None,
    };
    Some(Ok(verdict))
}

/// Parses the reply to the renewal of a claim of so many parts.
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
                // The error of one claim: the others of its batch are renewed all the same.
                let error = script_error(text(list.get(1)?)?);
                tracing::warn!(%error, "claim lost: it cannot be renewed");
                Renewed::Gone(Loss::Forgotten)
            }
            _ => return None,
        })
    };
    read().ok_or_else(|| strange(value))
}

/// Parses the reply to a release.
pub(super) fn released(value: &Value) -> Result<Released, Error> {
    match value {
        Value::Int(1) => Ok(Released::Done),
        Value::Int(0) => Ok(Released::Gone),
        Value::Array(list) => match list.get(1).and_then(text) {
            Some(message) => Err(script_error(message)),
            None => Err(strange(value)),
        },
        _ => Err(strange(value)),
    }
}

/// Parses the reply to an eviction.
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

/// Parses the reply of `raise_fences.lua`.
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

/// Parses the reply of `inspect.lua`: slots, and the errors of those that cannot be read.
pub(super) fn snapshot(value: &Value, keys: &RedisKeys) -> Result<(Snapshot, Vec<Error>), Error> {
    let read = || {
        let list = list(value)?;
        let now = number(list.first()?)?;
        let truncated = number(list.get(1)?)? == 1;
        let (bad, slots): (Vec<_>, Vec<_>) =
            list.get(2..)?.iter().partition(|slot| slot_error(slot).is_some());
        let slots = slots.into_iter().map(|slot| slot_view(slot, now, keys));
        let mut slots: Vec<SlotView> = slots.collect::<Option<_>>()?;
        slots.sort_by(|a, b| a.name.cmp(&b.name));
        let bad = bad.into_iter().filter_map(slot_error).collect();
        Some((Snapshot { slots, more_after: None, truncated }, bad))
    };
    read().ok_or_else(|| strange(value))
}

/// Returns the error of a slot that cannot be read.
fn slot_error(slot: &Value) -> Option<Error> {
    match list(slot)? {
        [_, mark, message] if text(mark) == Some("e") => Some(script_error(text(message)?)),
        _ => None,
    }
}

fn slot_view(value: &Value, now: u64, keys: &RedisKeys) -> Option<SlotView> {
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

/// Parses the reply of `put.lua`.
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

/// Parses the reply of `get.lua`, one result for each cell.
pub(super) fn cells(value: &Value) -> Result<Vec<Result<Option<Cell>, Error>>, Error> {
    let all = list(value).ok_or_else(|| strange(value))?;
    let one = |value: &Value| match list(value)? {
        [] => Some(Ok(None)),
        [_] => Some(Err(script_error("TENURE corrupt cell"))),
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

/// Parses a lone fence: the claim has one part, is granted, and its arrival is the same number.
pub(super) fn single_fence(value: &Value) -> Option<u64> {
    if let Value::Int(fence) = value {
        return u64::try_from(*fence).ok();
    }
    let digits = bytes(value).filter(|digits| digits.len() == 16)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

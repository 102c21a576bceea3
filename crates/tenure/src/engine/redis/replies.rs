//! The replies of scripts, parsed into types of the contract.
//!
//! A reply is an array whose first element is a letter for its kind; the head of each script in
//! `lua/` says which. A claim of one slot that was granted at once is a lone number: its fence,
//! which is its arrival as well.

use std::time::Duration;

use redis::Value;

use super::client::{bytes, list, number, strange, text};
use super::codec::{holders, lone_holder, micros, parse_claim, shape, waiter};
use super::keys::RedisKeys;
use crate::contract::{
    Arrival, Batch, BatchVerdict, Cell, Conflict, ConflictCause, Error, Evicted, Fence, Fences,
    Grant, Loss, Queued, Raised, Refusal, Released, Renewed, SlotView, Snapshot, Verdict, Version,
    write_forgotten,
};
use crate::engine::common::redis::errors::script_error;

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
                why => Loss::of_reason(why),
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
        let (mut slots, mut bad): (Vec<SlotView>, Vec<Error>) = (Vec::new(), Vec::new());
        for value in list.get(2..)? {
            match slot_error(value) {
                Some(error) => bad.push(error),
                None => match self::list(value)? {
                    [key, value] => match lone_slot(text(key)?, text(value), now, keys) {
                        Some(slot) => slots.push(slot),
                        None => bad.push(script_error(&format!("TENURE corrupt {}", text(key)?))),
                    },
                    _ => slots.push(slot_view(value, now, keys)?),
                },
            }
        }
        slots.sort_by(|a, b| a.name.cmp(&b.name));
        Some((Snapshot { slots, truncated, ..Snapshot::default() }, bad))
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

/// Parses the slot of a lone holder, as it is kept.
fn lone_slot(key: &str, value: Option<&str>, now: u64, keys: &RedisKeys) -> Option<SlotView> {
    let (holder, shape) = lone_holder(value?, key, now)?;
    let name = keys.name_of(key.as_bytes())?;
    let (holders, queue) = (vec![holder], Vec::new());
    Some(SlotView { name, shape, holders, queue, closed_for: None })
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

/// Parses the reply of `write.lua`. The inner error is that of a write that is not remembered.
pub(super) fn written(value: &Value, batch: &Batch) -> Result<Result<BatchVerdict, Error>, Error> {
    let name = |nth: &Value| {
        let nth = usize::try_from(number(nth)?).ok()?;
        Some(&batch.parts.get(nth.checked_sub(1)?)?.name)
    };
    let conflict = |value: &Value| {
        let (nth, rest) = list(value)?.split_first()?;
        let cause = match (text(rest.first()?)?, &rest[1..]) {
            ("s", [fence]) => ConflictCause::Stale(Fence::new(number(fence)?)),
            ("c", []) => ConflictCause::Changed(None),
            ("c", fields) => ConflictCause::Changed(Some(read_cell(fields)?)),
            _ => return None,
        };
        Some(Conflict { name: name(nth)?.clone(), cause })
    };
    let read = || {
        let (kind, rest) = list(value)?.split_first()?;
        Some(match (text(kind)?, rest) {
            ("d", [version]) => Ok(BatchVerdict::Done(Version(number(version)?))),
            ("f", [nth]) => Err(write_forgotten(name(nth)?)),
            ("r", [_, ..]) => {
                let conflicts = rest.iter().map(conflict).collect::<Option<_>>()?;
                Ok(BatchVerdict::Refused(conflicts))
            }
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

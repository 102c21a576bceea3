//! The locks that an owner holds, inside the owner's own text: for a child process and for a
//! service that is called on behalf of the owner. There they count as held, for levels and for the
//! learned order.
//!
//! The text of an owner is its ids and its ancestors' (`primitives/owner.rs`); behind them stands
//! `+name,mode,level,place` for each lock. What is not a letter, a digit or one of `-_.:/` is
//! written as `%` and two hexadecimal digits, so that the text fits into a variable of the
//! environment, an unquoted word of a shell and the header of a request.
//!
//! The level is the one that this process gives the lock, also where a pattern of names decides:
//! the other process may have other patterns. The lock of the lowest level comes first, since it
//! alone decides what may still be acquired; what does not fit into [`limits::ORDER_INHERITED`]
//! locks or [`limits::ORDER_INHERITED_BYTES`] is left out, so that the text fits into a header.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::checker::{OrderChecker, place_text};
use super::edge::LockMode;
use super::holds::{FlowKey, HeldLock, HoldMark, held_by};
use crate::contract::{
    About, Claim, ClaimId, Conduct, Error, ErrorKind, Lineage, Name, Part, Parts, Patience, Place,
    host_name,
};
use crate::limits;

/// Comes before each lock in the text of an owner.
pub(crate) const SEPARATOR: char = '+';

/// Locks of another process that count as held until this is dropped.
#[derive(Debug)]
pub(crate) struct InheritedHolds {
    _marks: Vec<HoldMark>,
}

/// Appends the locks that an owner and its ancestors hold.
pub(crate) fn append_held(text: &mut String, lineage: &Lineage) {
    let held = held_by(Some(lineage), None, None);
    let mut locks: Vec<(Option<usize>, String)> = Vec::new();
    for one in &held {
        for part in one.claim.parts.as_slice().iter().filter(|part| !part.name().is_reserved()) {
            let (rank, level) = level_of(one, part.name(), &held);
            let place = place_text(&one.claim.about);
            let mode = LockMode::of(part.is_shared()).word();
            let lock = [part.name().as_str(), mode, &level, &place].map(encoded).join(",");
            if locks.iter().all(|(_, other)| *other != lock) {
                locks.push((rank, lock));
            }
        }
    }
    // Levels count from the highest: the lowest one has the greatest number.
    locks.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    let end = text.len() + limits::ORDER_INHERITED_BYTES;
    for (_, lock) in locks.into_iter().take(limits::ORDER_INHERITED) {
        if text.len() + SEPARATOR.len_utf8() + lock.len() > end {
            break;
        }
        text.push(SEPARATOR);
        text.push_str(&lock);
    }
}

/// The level of a lock, counted from the highest, and its name.
fn level_of(one: &HeldLock, name: &Name, held: &[HeldLock]) -> (Option<usize>, String) {
    let said = one.level.as_deref();
    // What a parent process holds has no checker here: the levels of any other lock tell its rank.
    let mut checkers = [one.checker].into_iter().chain(held.iter().map(|other| other.checker));
    let checker =
        checkers.find_map(|id| OrderChecker::by_id(id).filter(|it| it.levels().is_some()));
    let found = checker.as_ref().and_then(OrderChecker::levels).and_then(|levels| {
        let rank = levels.level_of(said, name)?;
        Some((Some(rank), levels.name(rank).to_owned()))
    });
    found.unwrap_or_else(|| (None, said.unwrap_or_default().to_owned()))
}

/// Counts the locks in `text` as held by an owner. `text` begins behind the first separator.
pub(crate) fn inherit(lineage: &Lineage, text: &str) -> Result<InheritedHolds, Error> {
    let locks: Vec<&str> = text.split(SEPARATOR).collect();
    if locks.len() > limits::ORDER_INHERITED {
        let what = format!("an owner brings at most {} locks along", limits::ORDER_INHERITED);
        return Err(Error::new(ErrorKind::Limit, what).with_help("hold fewer locks"));
    }
    let held: Result<Vec<HeldLock>, Error> =
        locks.into_iter().map(|lock| held_lock(lineage, lock)).collect();
    let flow = FlowKey::of_owner(lineage.owner());
    let marks = held?.into_iter().map(|held| HoldMark::new(flow, held)).collect();
    Ok(InheritedHolds { _marks: marks })
}

fn held_lock(lineage: &Lineage, lock: &str) -> Result<HeldLock, Error> {
    let fields: Option<Vec<String>> = lock.split(',').map(decode).collect();
    let Some([name, mode, level, place]) = fields.as_deref() else { return Err(not_holds()) };
    let name = Name::try_from(name.as_str()).map_err(|_| not_holds())?;
    let part = match mode.as_str() {
        "shared" => Part::read(name),
        "exclusive" => Part::write(name),
        _ => return Err(not_holds()),
    };
    let claim = Claim {
        id: ClaimId::new(),
        session: None,
        lineage: lineage.clone(),
        parts: Parts::one(part),
        lease: Duration::ZERO,
        lock_delay: Duration::ZERO,
        patience: Patience::Try,
        replaces: None,
        about: About {
            host: host_name(),
            pid: 0,
            place: (!place.is_empty()).then(|| Place::Told(place.as_str().into())),
            label: None,
            conduct: Conduct::default(),
        },
    };
    let level = (!level.is_empty()).then(|| Arc::from(level.as_str()));
    Ok(HeldLock { checker: 0, claim: Arc::new(claim), level, timer: None })
}

fn encoded(field: &str) -> String {
    let mut text = String::with_capacity(field.len());
    for byte in field.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

fn decode(field: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

fn not_holds() -> Error {
    Error::new(ErrorKind::InvalidOption, "the locks in the text of an owner cannot be read")
        .with_help(
            "leave TENURE_OWNER as `tenure run` set it, and a header as `to_header` wrote it",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::OwnerId;

    fn held_text(lineage: &Lineage) -> String {
        let mut text = String::new();
        append_held(&mut text, lineage);
        text
    }

    #[test]
    fn what_an_owner_holds_survives_the_environment() {
        let (parent, child) = (Lineage::root(OwnerId::new()), Lineage::root(OwnerId::new()));
        assert!(inherit(&parent, "a%20b%2c+x,shared,account,src/a.rs:7").is_err());
        let text = "a%20b%2c%2a,exclusive,,process%207+account:7,shared,account,src/a.rs:7";
        let holds = inherit(&parent, text).unwrap();
        assert_eq!(held_text(&parent), format!("+{text}"));
        let second = inherit(&child, &held_text(&parent)[1..]).unwrap();
        drop(holds);
        assert_eq!(held_text(&parent), "");
        assert_eq!(held_text(&child), format!("+{text}"));
        drop(second);
        for bad in ["", "a", "a,b,c,d", "a,shared,,%4", "a,shared,,%zz", "%ff,shared,,"] {
            assert!(inherit(&child, bad).is_err(), "{bad:?}");
        }
        assert!(inherit(&child, &["a,shared,,"; 200].join("+")).is_err());
    }

    #[test]
    fn a_text_with_many_locks_has_a_bounded_length() {
        let owner = Lineage::root(OwnerId::new());
        let many: Vec<String> =
            (0..100).map(|n| format!("n{n}{},shared,,", "x".repeat(90))).collect();
        let _holds = inherit(&owner, &many.join("+")).unwrap();
        let text = held_text(&owner);
        assert!(text.len() <= limits::ORDER_INHERITED_BYTES, "{}", text.len());
        assert!(text.len() > limits::ORDER_INHERITED_BYTES - 110, "{}", text.len());
        drop(inherit(&Lineage::root(OwnerId::new()), &text[1..]).unwrap());
    }
}

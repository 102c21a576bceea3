//! The locks that an owner holds, as text: for a child process and for a service that is called on
//! behalf of the owner. There they count as held, for levels and for the learned order.
//!
//! `name,mode,level,place` for each lock, `;` between locks. What is not a letter, a digit or one
//! of `-_.:/*` is written as `%` and two hexadecimal digits, so that the text fits into a variable
//! of the environment and into the header of a request.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::checker::place_text;
use super::edge::LockMode;
use super::holds::{FlowKey, HeldLock, HoldMark, held_by};
use crate::contract::{
    About, Claim, ClaimId, Conduct, Error, ErrorKind, Lineage, Name, Part, Parts, Patience, Place,
    host_name,
};
use crate::limits;

/// The variable beside `TENURE_OWNER` in which a process finds what its owner holds.
pub(crate) const VARIABLE: &str = "TENURE_ORDER_HELD";

/// Locks of another process that count as held until this is dropped.
#[derive(Debug)]
#[must_use = "if unused, the locks stop counting as held at once"]
pub struct InheritedHolds {
    _marks: Vec<HoldMark>,
}

/// The locks that an owner and its ancestors hold, as text; none if there are none.
pub(crate) fn held_text(lineage: &Lineage) -> Option<String> {
    let held = held_by(Some(lineage), None, None);
    let mut text = String::new();
    for one in &held {
        for part in one.claim.parts.as_slice().iter().filter(|part| !part.name().is_reserved()) {
            let place = place_text(&one.claim.about);
            let fields = [
                part.name().as_str(),
                LockMode::of(part.is_shared()).word(),
                one.level.as_deref().unwrap_or_default(),
                &place,
            ];
            if !text.is_empty() {
                text.push(';');
            }
            for (at, field) in fields.into_iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                encode(&mut text, field);
            }
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Counts the locks in `text` as held by an owner.
pub(crate) fn inherit(lineage: &Lineage, text: &str) -> Result<InheritedHolds, Error> {
    let locks: Vec<&str> = text.split(';').collect();
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

impl InheritedHolds {
    /// Lets the locks count as held for as long as the process lives.
    pub(crate) fn for_ever(self) {
        std::mem::forget(self);
    }
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

fn encode(text: &mut String, field: &str) {
    for byte in field.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.:/*".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
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
    Error::new(ErrorKind::InvalidOption, "this is not the locks of an owner as text")
        .with_help(format!("leave {VARIABLE} as `tenure run` set it, or unset it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::OwnerId;

    #[test]
    fn what_an_owner_holds_survives_the_environment() {
        let (parent, child) = (Lineage::root(OwnerId::new()), Lineage::root(OwnerId::new()));
        let text = "a%20b%2c;x,shared,account,src/a.rs:7";
        assert!(inherit(&parent, text).is_err());
        let text = "a%20b%2c,exclusive,,process%207;account:7,shared,account,src/a.rs:7";
        let holds = inherit(&parent, text).unwrap();
        assert_eq!(held_text(&parent).as_deref(), Some(text));
        let second = inherit(&child, &held_text(&parent).unwrap()).unwrap();
        drop(holds);
        assert_eq!(held_text(&parent), None);
        assert_eq!(held_text(&child).as_deref(), Some(text));
        drop(second);
        for bad in ["", "a", "a,b,c,d", "a,shared,,%4", "a,shared,,%zz", "%ff,shared,,"] {
            assert!(inherit(&child, bad).is_err(), "{bad:?}");
        }
        assert!(inherit(&child, &["a,shared,,"; 200].join(";")).is_err());
    }
}

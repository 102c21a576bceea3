//! A claim as text: written by the client, kept by the scripts, and parsed again for `inspect`. The
//! format is described in `lua/slot.lua`.

use std::time::Duration;

use super::keys::RedisKeys;
use crate::contract::{
    About, Arrival, Claim, ClaimId, ClaimRef, Fence, HolderView, Lineage, OwnerId, Patience,
    SessionId, Shape, WaiterView,
};
use crate::engine::common::redis::codec::{
    parse_about_words, push_about, push_number, push_option,
};
use crate::limits;

/// Appends the text of a claim, which scripts store unchanged.
///
/// Written by hand rather than by formatting: it is made for every claim.
pub(super) fn push_claim(text: &mut String, claim: &Claim, keys: &RedisKeys) {
    let mode = match (claim.patience, claim.replaces) {
        (Patience::Wait, None) => 'w',
        (Patience::Try, None) => 't',
        (Patience::Wait, Some(_)) => 'x',
        (Patience::Try, Some(_)) => 'y',
    };
    let parts = claim.parts.as_slice();
    push_ref(text, claim.id, parts.len(), claim.lease);
    text.push(' ');
    text.push(mode);
    text.push(' ');
    push_option(text, claim.session.map(SessionId::as_u128), push_hex);
    for (at, owner) in claim.lineage.all().enumerate() {
        text.push(if at == 0 { ' ' } else { ',' });
        push_hex(text, owner.as_u128());
    }
    text.push(' ');
    push_number(text, claim.lock_delay.as_micros(), 1);
    text.push(' ');
    push_option(text, claim.replaces.map(ClaimId::as_u128), push_hex);
    for (at, part) in parts.iter().enumerate() {
        text.push(if at == 0 { ' ' } else { ';' });
        push_shape(text, part.shape());
        text.push(':');
        // The writer of a lock has no number, so that the text of a mutex stays short.
        let weight = if part.weight() == limits::FULL_WEIGHT { 0 } else { part.weight() };
        push_number(text, weight.into(), 1);
        text.push(':');
        if parts.len() == 1 {
            // The slot where the text is stored.
            text.push('.');
        } else {
            keys.push_slot(text, part.name());
        }
    }
    push_about(text, &claim.about);
}

/// Returns the TTL, in milliseconds, of the key of a lone holder; none if the claim cannot have
/// that form, because it has a lock delay or replaces another claim.
pub(super) fn plain_lease(claim: &Claim) -> Option<u64> {
    let plain = claim.lock_delay.is_zero() && claim.replaces.is_none();
    plain.then(|| u64::try_from(claim.lease.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX))
}

/// Appends the reference of a claim, in the form it has in the key of a lone holder.
pub(super) fn push_reference(text: &mut String, claim: &ClaimRef) {
    text.push_str("- 0 ");
    push_ref(text, claim.id, claim.parts.as_slice().len(), claim.lease);
}

/// The widths are fixed: scripts find these fields by their offset.
fn push_ref(text: &mut String, id: ClaimId, parts: usize, lease: Duration) {
    push_number(text, parts as u128, 2);
    text.push(' ');
    push_number(text, lease.as_micros(), 11);
    text.push(' ');
    push_hex(text, id.as_u128());
}

/// Appends 32 hexadecimal digits.
fn push_hex(text: &mut String, id: u128) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 32];
    for (two, byte) in digits.chunks_exact_mut(2).zip(id.to_be_bytes()) {
        two[0] = DIGITS[usize::from(byte >> 4)];
        two[1] = DIGITS[usize::from(byte & 15)];
    }
    text.push_str(std::str::from_utf8(&digits).unwrap_or_default());
}

/// Appends a shape.
fn push_shape(text: &mut String, shape: Shape) {
    match shape {
        Shape::Lock => text.push('l'),
        Shape::Semaphore(permits) => {
            text.push('s');
            push_number(text, permits.into(), 1);
        }
    }
}

/// Parses a shape.
pub(super) fn shape(text: &str) -> Option<Shape> {
    match text {
        "l" => Some(Shape::Lock),
        _ => text.strip_prefix('s')?.parse().ok().map(Shape::Semaphore),
    }
}

/// The fields of a claim's text that `inspect` shows.
pub(super) struct ClaimText {
    claim: ClaimId,
    session: Option<SessionId>,
    lineage: Lineage,
    shape: Shape,
    weight: u32,
    pub(super) about: About,
}

/// Parses the text of a claim that is stored at the slot with this key; `None` if it is not one.
pub(super) fn parse_claim(text: &str, key: &str) -> Option<ClaimText> {
    let mut words = text.split(' ').skip(2);
    let claim = words.next()?.parse().ok()?;
    let session = match words.nth(1)? {
        "-" => None,
        hex => Some(hex.parse().ok()?),
    };
    let owners = words.next()?.split(',').map(|hex| hex.parse().ok());
    let owners: Vec<OwnerId> = owners.collect::<Option<_>>()?;
    let lineage = Lineage::nested(*owners.first()?, &owners[1..]).ok()?;
    // Skip the lock delay and the replaced claim.
    let mut words = words.skip(2);
    let (shape, weight) = words.next()?.split(';').find_map(|part| {
        let (kind, rest) = part.split_once(':')?;
        let (weight, slot) = rest.split_once(':')?;
        let found = slot == "." || slot == key || key.is_empty();
        found.then(|| Some((shape(kind)?, weight.parse().ok()?)))?
    })?;
    let weight = if weight == 0 { limits::FULL_WEIGHT } else { weight };
    let about = parse_about_words(words)?;
    Some(ClaimText { claim, session, lineage, shape, weight, about })
}

/// Parses holds, each given by its text and the key of its slot; the oldest first.
pub(super) fn holders<'a>(
    holds: impl Iterator<Item = Option<(&'a str, &'a str)>>,
    now: u64,
) -> Option<Vec<HolderView>> {
    let holder = |hold: Option<(&str, &str)>| hold.and_then(|(text, key)| holder(text, key, now));
    let mut all: Vec<_> = holds.map(holder).collect::<Option<_>>()?;
    all.sort_by_key(|(order, _)| *order);
    Some(all.into_iter().map(|(_, holder)| holder).collect())
}

/// Parses the key of a lone holder ("FROM FENCE ARRIVAL SINCE - 0 TEXT"). Returns the shape of its
/// slot, too.
pub(super) fn lone_holder(text: &str, key: &str, now: u64) -> Option<(HolderView, Shape)> {
    let mut words = text.splitn(7, ' ');
    let from: u64 = words.next()?.parse().ok()?;
    let claim = words.nth(5)?;
    let lease: u64 = claim.split(' ').nth(1)?.parse().ok()?;
    let shape = parse_claim(claim, key)?.shape;
    let (_, holder) = holder(&format!("{} {text}", from.checked_add(lease)?), key, now)?;
    Some((holder, shape))
}

/// Parses a hold ("EXPIRES FROM FENCE ARRIVAL SINCE GROUP RESERVED TEXT"). Returns its sort key,
/// too.
fn holder(text: &str, key: &str, now: u64) -> Option<((u64, u64), HolderView)> {
    let mut words = text.splitn(8, ' ');
    let expires: u64 = words.next()?.parse().ok()?;
    let fence: u64 = words.nth(1)?.parse().ok()?;
    let arrival: u64 = words.next()?.parse().ok()?;
    let since: u64 = words.next()?.parse().ok()?;
    let reserved = words.nth(1)? == "1";
    let parsed = parse_claim(words.next()?, key)?;
    let view = HolderView {
        claim: parsed.claim,
        session: parsed.session,
        lineage: parsed.lineage,
        weight: parsed.weight,
        fence: Fence::new(fence),
        reserved,
        held_for: micros(now.saturating_sub(since)),
        expires_in: micros(expires.saturating_sub(now)),
        about: parsed.about,
    };
    Some(((since, arrival), view))
}

/// Parses a waiter: "ARRIVAL SINCE TEXT".
pub(super) fn waiter(
    text: &str,
    key: &str,
    expires: u64,
    ahead: bool,
    now: u64,
) -> Option<WaiterView> {
    let mut words = text.splitn(3, ' ');
    let arrival = words.next()?.parse().ok()?;
    let since: u64 = words.next()?.parse().ok()?;
    let parsed = parse_claim(words.next()?, key)?;
    Some(WaiterView {
        claim: parsed.claim,
        session: parsed.session,
        lineage: parsed.lineage,
        weight: parsed.weight,
        ahead,
        arrival: Arrival(arrival),
        waited_for: micros(now.saturating_sub(since)),
        expires_in: micros(expires.saturating_sub(now)),
        about: parsed.about,
    })
}

pub(super) fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Conduct, Label, Part, Parts, Place};

    #[test]
    fn ids_are_written_as_formatting_would() {
        let id = ClaimId::new();
        let mut text = String::new();
        push_hex(&mut text, id.as_u128());
        assert_eq!(text, id.to_hex());
    }

    #[test]
    fn what_is_written_of_a_claim_is_read_again() {
        let name = |text: &str| crate::contract::Name::try_from(text).unwrap();
        let lineage = Lineage::nested(OwnerId::new(), &[OwnerId::new()]).unwrap();
        let parts = [Part::write(name("a b")), Part::permits(name("c"), 2, 9).unwrap()];
        let label = Some(Label::try_from("- = %\u{e9}").unwrap());
        let place = Some(Place::Told("src/a b.rs:7".into()));
        let conduct = Conduct { breakable: true, held_up: 1, priority: -7, flow: 9 };
        let claim = Claim {
            id: ClaimId::new(),
            session: None,
            lineage,
            parts: Parts::set(parts).unwrap(),
            lease: Duration::from_secs(30),
            lock_delay: Duration::from_millis(5),
            patience: Patience::Try,
            replaces: Some(ClaimId::new()),
            about: About { host: "h-1".into(), pid: 42, place, label, conduct },
        };
        let keys = RedisKeys::new(&crate::contract::Namespace::default());
        let (mut text, mut reference) = (String::new(), String::new());
        push_claim(&mut text, &claim, &keys);
        push_reference(&mut reference, &claim.to_ref());
        assert!(text.starts_with(&format!("{} y - ", &reference["- 0 ".len()..])), "{text}");
        assert_eq!(reference.len(), 51, "scripts look for it by its place");
        for (slot, weight) in [("a b", limits::FULL_WEIGHT), ("c", 2)] {
            let parsed = parse_claim(&text, &keys.slot(&name(slot))).unwrap();
            assert_eq!((parsed.claim, parsed.session, parsed.weight), (claim.id, None, weight));
            assert_eq!((&parsed.lineage, &parsed.about), (&claim.lineage, &claim.about));
        }
        assert!(parse_claim(&text, &keys.slot(&name("b"))).is_none(), "it has no part there");
    }
}

//! A claim as the text that scripts keep and hand back, and what can be seen of it. Knows the
//! format that `lua/slot.lua` describes, not connections.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::keys::{Keys, encode};
use crate::contract::{
    About, Claim, ClaimId, Fence, HolderView, Label, Lineage, OwnerId, Patience, Place, SessionId,
    Shape, WaiterView,
};

/// What a script keeps of a claim and never changes.
pub(super) fn claim_text(claim: &Claim, keys: &Keys) -> String {
    let mode = match (claim.patience, claim.replaces) {
        (Patience::Wait, None) => 'w',
        (Patience::Try, None) => 't',
        (Patience::Wait, Some(_)) => 'x',
        (Patience::Try, Some(_)) => 'y',
    };
    let mut text = String::with_capacity(256);
    text.push(mode);
    text.push_str(&ref_text(claim.id, claim.parts.as_slice().len(), claim.lease));
    // Writing to a String cannot fail.
    match claim.session {
        Some(session) => _ = write!(text, " {} ", session.to_hex()),
        None => text.push_str(" - "),
    }
    for (at, owner) in claim.lineage.all().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        _ = write!(text, "{comma}{}", owner.to_hex());
    }
    _ = write!(text, " {} ", claim.lock_delay.as_micros());
    match claim.replaces {
        Some(old) => _ = write!(text, "{} ", old.to_hex()),
        None => text.push_str("- "),
    }
    for (at, part) in claim.parts.as_slice().iter().enumerate() {
        let semicolon = if at == 0 { "" } else { ";" };
        let shape = shape_text(part.shape());
        _ = write!(text, "{semicolon}{shape}:{}:{}", part.weight(), keys.slot(part.name()));
    }
    let about = &claim.about;
    _ = write!(text, " ={} {} ", encode(&about.host), about.pid);
    option(&mut text, about.place.as_ref().map(ToString::to_string).as_deref());
    text.push(' ');
    option(&mut text, about.label.as_ref().map(Label::as_str));
    text
}

/// What finds a claim again: on how many slots, its lease, its id. The widths are fixed.
pub(super) fn ref_text(id: ClaimId, parts: usize, lease: Duration) -> String {
    format!("{parts:02} {:011} {}", lease.as_micros(), id.to_hex())
}

fn option(text: &mut String, value: Option<&str>) {
    match value {
        Some(value) => _ = write!(text, "={}", encode(value)),
        None => text.push('-'),
    }
}

/// A shape as scripts write it.
fn shape_text(shape: Shape) -> String {
    match shape {
        Shape::Mutex => "m".to_owned(),
        Shape::ReadWrite => "rw".to_owned(),
        Shape::Semaphore(permits) => format!("s{permits}"),
    }
}

/// The shape that a script wrote.
pub(super) fn shape(text: &str) -> Option<Shape> {
    match text {
        "m" => Some(Shape::Mutex),
        "rw" => Some(Shape::ReadWrite),
        _ => text.strip_prefix('s')?.parse().ok().map(Shape::Semaphore),
    }
}

/// What a claim's text says of who asks.
pub(super) struct Told {
    claim: ClaimId,
    session: Option<SessionId>,
    lineage: Lineage,
    weight: u32,
    pub(super) about: About,
}

/// Reads a claim's text, as it stands at the slot with this key; `None` if it is not one.
pub(super) fn told(text: &str, key: &str) -> Option<Told> {
    let mut words = text.split(' ').skip(2);
    let claim = words.next()?.parse().ok()?;
    let session = match words.next()? {
        "-" => None,
        hex => Some(hex.parse().ok()?),
    };
    let owners = words.next()?.split(',').map(|hex| hex.parse().ok());
    let owners: Vec<OwnerId> = owners.collect::<Option<_>>()?;
    let lineage = Lineage::nested(*owners.first()?, &owners[1..]).ok()?;
    // Delay, and what it replaces.
    let mut words = words.skip(2);
    let weight = words.next()?.split(';').find_map(|part| {
        let (_, rest) = part.split_once(':')?;
        let (weight, slot) = rest.split_once(':')?;
        (slot == key || key.is_empty()).then(|| weight.parse().ok())?
    })?;
    let host = decoded(words.next()?)?.unwrap_or_default().into();
    let pid = words.next()?.parse().ok()?;
    let place = decoded(words.next()?)?.map(|text| Place::Told(text.into()));
    let label = decoded(words.next()?)?.and_then(|text| Label::try_from(&*text).ok());
    Some(Told { claim, session, lineage, weight, about: About { host, pid, place, label } })
}

/// A word that stands for nothing (`-`) or for a text (`=` and the text).
#[allow(clippy::option_option, reason = "no such word, no text, a text")]
fn decoded(word: &str) -> Option<Option<String>> {
    if word == "-" {
        return Some(None);
    }
    let text = percent_decode_str(word.strip_prefix('=')?).decode_utf8().ok()?;
    Some(Some(text.chars().filter(|c| !c.is_control()).collect()))
}

/// What can be seen of holds, longest first.
pub(super) fn holders<'a>(
    texts: impl Iterator<Item = Option<&'a str>>,
    key: &str,
    now: u64,
) -> Option<Vec<HolderView>> {
    let mut all: Vec<_> = texts.map(|text| holder(text?, key, now)).collect::<Option<_>>()?;
    all.sort_by_key(|(order, _)| *order);
    Some(all.into_iter().map(|(_, holder)| holder).collect())
}

/// What can be seen of a hold ("EXPIRES FROM FENCE ARRIVAL SINCE GROUP RESERVED TEXT"), after its
/// place among those of its slot.
fn holder(text: &str, key: &str, now: u64) -> Option<((u64, u64), HolderView)> {
    let mut words = text.splitn(8, ' ');
    let expires: u64 = words.next()?.parse().ok()?;
    let fence: u64 = words.nth(1)?.parse().ok()?;
    let arrival: u64 = words.next()?.parse().ok()?;
    let since: u64 = words.next()?.parse().ok()?;
    let reserved = words.nth(1)? == "1";
    let told = told(words.next()?, key)?;
    let view = HolderView {
        claim: told.claim,
        session: told.session,
        lineage: told.lineage,
        weight: told.weight,
        fence: Fence::new(fence),
        reserved,
        held_for: micros(now.saturating_sub(since)),
        expires_in: micros(expires.saturating_sub(now)),
        about: told.about,
    };
    Some(((since, arrival), view))
}

/// What can be seen of a waiter: "ARRIVAL SINCE TEXT".
pub(super) fn waiter(
    text: &str,
    key: &str,
    expires: u64,
    ahead: bool,
    now: u64,
) -> Option<WaiterView> {
    let mut words = text.splitn(3, ' ');
    let since: u64 = words.nth(1)?.parse().ok()?;
    let told = told(words.next()?, key)?;
    Some(WaiterView {
        claim: told.claim,
        session: told.session,
        lineage: told.lineage,
        weight: told.weight,
        ahead,
        waited_for: micros(now.saturating_sub(since)),
        expires_in: micros(expires.saturating_sub(now)),
        about: told.about,
    })
}

pub(super) fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// The reason of a forced release, as it was told.
pub(super) fn reason(text: &str) -> Arc<str> {
    text.chars().filter(|c| !c.is_control()).collect::<String>().into()
}

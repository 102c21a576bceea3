//! The values at the keys of claims, as text.
//!
//! Fields are separated by a space, so that `etcdctl get --prefix` shows readable text. The first
//! field is the version of the layout. Malformed text decodes to `None`, never panics.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::contract::{
    About, Claim, ClaimId, Conduct, Label, Lineage, Name, OwnerId, Part, Parts, Patience, Place,
    SessionId, Shape,
};
use crate::limits;

/// The first field of every record. Another number is another layout.
const LAYOUT: &str = "1";

/// Characters that are escaped because they separate fields.
const SPECIAL: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b':').add(b';').add(b',');

/// The value of one key of a claim.
#[derive(Clone, Debug)]
pub(super) struct ClaimRecord {
    pub(super) claim: Arc<Claim>,
    /// The client's wall clock when the key was created, in microseconds. Only shown.
    pub(super) since: u64,
    /// The revision of its arrival, if that created another key.
    pub(super) arrival: Option<u64>,
    /// How its fence is found.
    pub(super) fence: FenceSource,
    /// Of a hold: it is part of a set that waits for other parts. Of a ticket: the claim that it
    /// replaces held this slot when it was queued, and the ticket ends with that claim.
    pub(super) reserved: bool,
    /// The claims that share its fence.
    pub(super) group: Option<FenceGroup>,
}

/// How a fence is found. The revision of a write is not known when the value is written, so the
/// value only says which revision of the key counts. It has the amount by which fences were raised,
/// so that a client that does not know of the raise reads the same fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FenceSource {
    /// The revision that created the key, raised by this.
    Created(u64),
    /// The revision that last wrote the key, raised by this.
    Written(u64),
    /// It is this fence.
    Known(u64),
}

/// Claims that share one fence. Every living member has the same record of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FenceGroup {
    pub(super) key: u64,
    pub(super) fence: FenceSource,
    pub(super) spent: bool,
    /// The members. One that is named here and has no hold expired: a release takes its name out.
    pub(super) members: Vec<ClaimId>,
}

impl ClaimRecord {
    /// The record of a claim that gets its first key in a slot.
    pub(super) fn new(claim: &Arc<Claim>, since: u64) -> Self {
        Self {
            claim: Arc::clone(claim),
            since,
            arrival: None,
            fence: FenceSource::Created(0),
            reserved: false,
            group: None,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let claim = &*self.claim;
        let mut text = String::with_capacity(256);
        let _ = write!(text, "{LAYOUT} {:032x} ", claim.id.as_u128());
        write_or_dash(&mut text, claim.session.map(SessionId::as_u128));
        text.push(' ');
        for (at, owner) in claim.lineage.all().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(text, "{comma}{:032x}", owner.as_u128());
        }
        let waits = if claim.patience == Patience::Wait { 'w' } else { 't' };
        let (lease, delay) = (claim.lease.as_micros(), claim.lock_delay.as_micros());
        let _ = write!(text, " {lease} {delay} {waits} ");
        write_or_dash(&mut text, claim.replaces.map(ClaimId::as_u128));
        let _ = write!(text, " {} ", self.since);
        match self.arrival {
            None => text.push('-'),
            Some(arrival) => _ = write!(text, "{arrival}"),
        }
        let reserved = u8::from(self.reserved);
        let _ = write!(text, " {} {reserved} ", self.fence);
        match &self.group {
            None => text.push('-'),
            Some(group) => group.encode_into(&mut text),
        }
        for (at, part) in claim.parts.as_slice().iter().enumerate() {
            let name = utf8_percent_encode(part.name().as_str(), SPECIAL);
            let (first, shape) = (if at == 0 { ' ' } else { ';' }, shape_text(part.shape()));
            let _ = write!(text, "{first}{shape}:{}:{name}", part.weight());
        }
        encode_about(&mut text, &claim.about);
        text.into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut fields = text.split(' ');
        let mut next = || fields.next();
        if next()? != LAYOUT {
            return None;
        }
        let id = next()?.parse().ok()?;
        let session = option(next()?)?;
        let owners = next()?.split(',').map(|text| text.parse().ok());
        let owners: Vec<OwnerId> = owners.collect::<Option<_>>()?;
        let lineage = Lineage::nested(*owners.first()?, &owners[1..]).ok()?;
        let lease = micros(next()?)?;
        let lock_delay = micros(next()?)?;
        let patience = if next()? == "w" { Patience::Wait } else { Patience::Try };
        let replaces = option(next()?)?;
        let since = next()?.parse().ok()?;
        let arrival = option(next()?)?;
        let fence = FenceSource::decode(next()?)?;
        let reserved = next()? == "1";
        let group = match next()? {
            "-" => None,
            text => Some(FenceGroup::decode(text)?),
        };
        let parts: Vec<Part> = next()?.split(';').map(decode_part).collect::<Option<_>>()?;
        let parts = Parts::set(parts).ok()?;
        let about = About {
            host: unescape(next()?)?.into(),
            pid: next()?.parse().ok()?,
            place: optional_text(next()?)?.map(|text| Place::Told(text.into())),
            label: match optional_text(next()?)? {
                Some(text) => Some(Label::try_from(&*text).ok()?),
                None => None,
            },
            conduct: match next() {
                Some(code) => Conduct::from_code(code.parse().ok()?),
                None => Conduct::default(),
            },
        };
        let claim =
            Claim { id, session, lineage, parts, lease, lock_delay, patience, replaces, about };
        Some(Self { claim: Arc::new(claim), since, arrival, fence, reserved, group })
    }
}

impl fmt::Display for FenceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Created(0) => f.write_str("c"),
            Self::Written(0) => f.write_str("m"),
            Self::Created(raised) => write!(f, "c{raised}"),
            Self::Written(raised) => write!(f, "m{raised}"),
            Self::Known(fence) => write!(f, "{fence}"),
        }
    }
}

impl FenceSource {
    fn decode(text: &str) -> Option<Self> {
        let raised = |by: &str| if by.is_empty() { Some(0) } else { by.parse().ok() };
        match (text.strip_prefix('c'), text.strip_prefix('m')) {
            (Some(by), _) => raised(by).map(Self::Created),
            (_, Some(by)) => raised(by).map(Self::Written),
            _ => text.parse().ok().map(Self::Known),
        }
    }
}

impl FenceGroup {
    fn encode_into(&self, text: &mut String) {
        let _ = write!(text, "{}:{}:{}", self.key, self.fence, u8::from(self.spent));
        for member in &self.members {
            let _ = write!(text, ":{}", member.to_hex());
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let mut fields = text.split(':');
        let key = fields.next()?.parse().ok()?;
        let fence = FenceSource::decode(fields.next()?)?;
        let spent = fields.next()? == "1";
        let members = fields.map(|text| text.parse().ok()).collect::<Option<_>>()?;
        Some(Self { key, fence, spent, members })
    }
}

fn encode_about(text: &mut String, about: &About) {
    let host = utf8_percent_encode(&about.host, SPECIAL);
    let _ = write!(text, " {host} {} ", about.pid);
    match &about.place {
        None => text.push('-'),
        Some(place) => {
            let place = place.to_string();
            let _ = write!(text, "={}", utf8_percent_encode(&place, SPECIAL));
        }
    }
    match &about.label {
        None => text.push_str(" -"),
        Some(label) => {
            let _ = write!(text, " ={}", utf8_percent_encode(label.as_str(), SPECIAL));
        }
    }
    let conduct = about.conduct.to_code();
    if conduct != 0 {
        let _ = write!(text, " {conduct}");
    }
}

/// Writes the digits of an id, or `-`.
fn write_or_dash(text: &mut String, id: Option<u128>) {
    match id {
        None => text.push('-'),
        Some(id) => _ = write!(text, "{id:032x}"),
    }
}

/// Parses `-` or a value.
#[allow(clippy::option_option, reason = "not given and not legible are different things")]
fn option<T: FromStr>(text: &str) -> Option<Option<T>> {
    if text == "-" { Some(None) } else { text.parse().ok().map(Some) }
}

#[allow(clippy::option_option, reason = "not given and not legible are different things")]
fn optional_text(text: &str) -> Option<Option<String>> {
    match text.strip_prefix('=') {
        Some(text) => unescape(text).map(Some),
        None => (text == "-").then_some(None),
    }
}

fn unescape(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

fn micros(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_micros)
}

fn shape_text(shape: Shape) -> String {
    match shape {
        Shape::Lock => "l".to_owned(),
        Shape::Semaphore(permits) => format!("s{permits}"),
    }
}

fn decode_part(text: &str) -> Option<Part> {
    let mut fields = text.splitn(3, ':');
    let shape = fields.next()?;
    let weight: u32 = fields.next()?.parse().ok()?;
    let name = Name::from_store(&unescape(fields.next()?)?).ok()?;
    match shape {
        "l" if weight == limits::FULL_WEIGHT => Some(Part::write(name)),
        "l" => Some(Part::read(name)),
        _ => Part::permits(name, weight, shape.strip_prefix('s')?.parse().ok()?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    fn record() -> ClaimRecord {
        let parts = Parts::set([
            Part::write(name("a b;c:d%,é")),
            Part::write(name("w")),
            Part::read(name("r")),
            Part::permits(name("s"), 2, 7).unwrap(),
        ]);
        let claim = Claim {
            id: ClaimId::new(),
            session: Some(SessionId::new()),
            lineage: Lineage::nested(OwnerId::new(), &[OwnerId::new()]).unwrap(),
            parts: parts.unwrap(),
            lease: Duration::from_millis(1_234),
            lock_delay: Duration::from_secs(7),
            patience: Patience::Wait,
            replaces: Some(ClaimId::new()),
            about: About {
                host: "h o".into(),
                pid: 7,
                place: Some(Place::Told("src/a.rs:7".into())),
                label: Some(Label::try_from("x y").unwrap()),
                conduct: Conduct { breakable: true, held_up: 2, priority: -3, flow: 8 },
            },
        };
        let (fence, members) = (FenceSource::Written(0), vec![ClaimId::new(), claim.id]);
        let group = FenceGroup { key: 9, fence: FenceSource::Known(11), spent: true, members };
        let claim = Arc::new(claim);
        ClaimRecord { claim, since: 5, arrival: Some(3), fence, reserved: true, group: Some(group) }
    }

    #[test]
    fn a_record_survives_its_text() {
        let full = record();
        let read = ClaimRecord::decode(&full.encode()).unwrap();
        assert_eq!(read.claim, full.claim);
        assert_eq!(read.group, full.group);
        let rest = |it: &ClaimRecord| (it.since, it.arrival, it.fence, it.reserved);
        assert_eq!(rest(&read), rest(&full));
        for fence in [FenceSource::Created(0), FenceSource::Created(7), FenceSource::Written(8)] {
            let raised = ClaimRecord { fence, ..full.clone() };
            assert_eq!(ClaimRecord::decode(&raised.encode()).unwrap().fence, fence);
        }
        let mut plain = (*full.claim).clone();
        plain.session = None;
        plain.replaces = None;
        plain.lineage = Lineage::root(OwnerId::new());
        plain.about = About {
            host: "".into(),
            pid: 1,
            place: None,
            label: None,
            conduct: crate::contract::Conduct::default(),
        };
        let plain = ClaimRecord::new(&Arc::new(plain), 1);
        assert_eq!(ClaimRecord::decode(&plain.encode()).unwrap().claim, plain.claim);
    }

    #[test]
    fn text_that_is_not_ours_is_no_record() {
        let text = String::from_utf8(record().encode()).unwrap();
        for end in 0..text.len() - 4 {
            // A shorter record may be one, but nothing panics.
            let _ = ClaimRecord::decode(&text.as_bytes()[..end]);
        }
        for bad in ["", "1", "2 - x", "hello", &text.replacen('1', "9", 1)] {
            assert!(ClaimRecord::decode(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(ClaimRecord::decode(&[0xff, 0xfe]).is_none());
    }
}

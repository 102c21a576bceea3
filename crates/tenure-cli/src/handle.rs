//! The handle of a detached claim, as text that a script can keep. Knows letters, not stores.
//!
//! ```text
//! t1.CLAIM.OWNER.LEASE_MS.NAMESPACE.PART[.PART ...]     PART: r-NAME  w-NAME  s3-NAME  s3x2-NAME
//! ```
//!
//! `s3x2` are two of three permits; `s3` is one of them. Ids are 32 hexadecimal digits; names are
//! percent-encoded, so that no shell and no terminal can stumble over a handle. It is the right to
//! renew and release the claim.

use std::time::Duration;

use tenure::contract::{ClaimId, ClaimRef, OwnerId, Parts, Shape};
use tenure::{Error, Name, Namespace, Part, limits};

use crate::failure::Failure;

/// The first word, with the version of all that follows.
const VERSION: &str = "t1";

/// A detached claim, as its owner keeps it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Handle {
    pub(crate) claim: ClaimRef,
    pub(crate) owner: OwnerId,
    pub(crate) namespace: String,
}

impl Handle {
    /// The handle as text.
    pub(crate) fn to_text(&self) -> String {
        let ClaimRef { id, parts, lease } = &self.claim;
        let mut words = vec![
            VERSION.to_owned(),
            id.to_hex(),
            self.owner.to_hex(),
            lease.as_millis().to_string(),
            encode(&self.namespace),
        ];
        words.extend(parts.as_slice().iter().map(|part| {
            let kind = match part.shape() {
                Shape::Lock if part.is_shared() => "r".to_owned(),
                Shape::Lock => "w".to_owned(),
                Shape::Semaphore(permits) if part.weight() == 1 => format!("s{permits}"),
                Shape::Semaphore(permits) => format!("s{permits}x{}", part.weight()),
            };
            format!("{kind}-{}", encode(part.name().as_str()))
        }));
        words.join(".")
    }

    /// The handle that a text is.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let refused = |why: &str| {
            let next = "pass it exactly as `tenure acquire` printed it";
            Failure::usage(format!("this is not a handle: {why}; {next}"))
        };
        let mut words = text.trim().split('.');
        if words.next() != Some(VERSION) {
            return Err(refused(&format!("it does not begin with {VERSION}.")));
        }
        let mut next = |what: &str| words.next().ok_or_else(|| refused(&format!("no {what}")));
        let id = next("claim")?.parse::<ClaimId>().map_err(|_| refused("its claim is none"))?;
        let owner = next("owner")?.parse::<OwnerId>().map_err(|_| refused("its owner is none"))?;
        let millis = next("lease")?.parse().map_err(|_| refused("its lease is no number"))?;
        let lease = Duration::from_millis(millis);
        if !(limits::MIN_LEASE..=limits::MAX_LEASE).contains(&lease) {
            return Err(refused("its lease is outside the limits"));
        }
        let namespace = decode(next("namespace")?).ok_or_else(|| refused("a bad escape"))?;
        Namespace::try_from(namespace.as_str()).map_err(|error| refused(&error.to_string()))?;
        let parts: Option<Vec<Part>> = words.map(part).collect();
        let parts = parts.ok_or_else(|| refused("it names no lock, or a bad one"))?;
        let parts = Parts::set(parts).map_err(|error| refused(&error.to_string()))?;
        Ok(Self { claim: ClaimRef { id, parts, lease }, owner, namespace })
    }
}

fn part(word: &str) -> Option<Part> {
    let (kind, name) = word.split_once('-')?;
    let name: Result<Name, Error> = decode(name)?.parse();
    let name = name.ok()?;
    Some(match kind {
        "r" => Part::read(name),
        "w" => Part::write(name),
        _ => {
            let permits = kind.strip_prefix('s')?;
            let (of, weight) = permits.split_once('x').unwrap_or((permits, "1"));
            Part::permits(name, weight.parse().ok()?, of.parse().ok()?).ok()?
        }
    })
}

/// Letters, digits and `_` stand for themselves, every other byte for `%` and two digits.
fn encode(text: &str) -> String {
    let letter = |byte: u8| match byte {
        b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => char::from(byte).to_string(),
        byte => format!("%{byte:02x}"),
    };
    text.bytes().map(letter).collect()
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => hex(rest.next()?)? << 4 | hex(rest.next()?)?,
            byte if byte.is_ascii_alphanumeric() || byte == b'_' => byte,
            _ => return None,
        });
    }
    String::from_utf8(bytes).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> Handle {
        let name = |text: &str| Name::try_from(text).unwrap();
        let parts = [
            Part::write(name("account:17")),
            Part::read(name("naïve 名前.%-/\"'$")),
            Part::write(name("w")),
            Part::permits(name("encoders"), 1, 3).unwrap(),
            Part::permits(name("gpus"), 2, 8).unwrap(),
        ];
        let parts = Parts::set(parts).unwrap();
        let lease = Duration::from_millis(1_500);
        Handle {
            claim: ClaimRef { id: ClaimId::new(), parts, lease },
            owner: OwnerId::new(),
            namespace: "team a".to_owned(),
        }
    }

    #[test]
    fn a_handle_survives_as_text() {
        let handle = handle();
        assert_eq!(Handle::parse(&handle.to_text()).unwrap(), handle);
        assert_eq!(Handle::parse(&format!("{}\n", handle.to_text())).unwrap(), handle);
    }

    #[test]
    fn no_shell_can_stumble_over_it() {
        let safe = |c: char| c.is_ascii_alphanumeric() || "._%-".contains(c);
        let text = handle().to_text();
        assert!(text.chars().all(safe), "{text}");
    }

    #[test]
    fn text_that_is_no_handle_is_refused_with_the_reason() {
        let good = handle().to_text();
        let bare = good.split('.').take(5).collect::<Vec<_>>().join(".");
        for (text, why) in [
            ("", "begin with t1"),
            ("t2.x", "begin with t1"),
            ("t1", "no claim"),
            ("t1.xyz", "claim"),
            (bare.as_str(), "empty"),
            (&format!("{bare}.m-"), "names no lock"),
            (&format!("{bare}.q-x"), "names no lock"),
            (&format!("{bare}.m-%zz"), "names no lock"),
            (&good.replace(".1500.", ".1."), "outside the limits"),
        ] {
            let failure = Handle::parse(text).unwrap_err();
            assert!(failure.to_string().contains(why), "{text:?}: {failure}");
        }
    }
}

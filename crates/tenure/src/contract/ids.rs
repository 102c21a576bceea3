//! Ids as types of their own, so that an owner can never be passed where a claim is meant.
//!
//! Knows how ids look, not what they stand for. A whole claim id is a capability (it releases the
//! claim), therefore `Debug` and `Display` show only its beginning.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::str::FromStr;

use super::error::{Error, ErrorKind};
use crate::sync::random_bytes;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name([u8; 16]);

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                // Half of a random id is as good as a hash of the whole.
                let [a, b, c, d, e, f, g, h, ..] = self.0;
                state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
            }
        }

        impl $name {
            /// A new id, which cannot be guessed.
            #[must_use]
            #[allow(clippy::new_without_default, reason = "two defaults would differ")]
            pub fn new() -> Self {
                Self(random_bytes())
            }

            /// The id with this value, for stores that keep ids as numbers.
            #[must_use]
            pub const fn from_u128(value: u128) -> Self {
                // As bytes, because a u128 is aligned to 16 and pads whatever holds it.
                Self(value.to_be_bytes())
            }

            /// The whole value, for stores. Not for people: see `Display`.
            #[must_use]
            pub const fn as_u128(self) -> u128 {
                u128::from_be_bytes(self.0)
            }

            /// All 32 hexadecimal digits.
            #[must_use]
            pub fn to_hex(self) -> String {
                format!("{:032x}", self.as_u128())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:08x}", self.as_u128() >> 96)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                let parsed = if hex { u128::from_str_radix(text, 16).ok() } else { None };
                parsed.map(Self::from_u128).ok_or_else(|| {
                    Error::invalid(
                        ErrorKind::InvalidOption,
                        concat!("a ", stringify!($name), " must be 32 hexadecimal digits"),
                    )
                    .with_help("pass the id exactly as it was handed out")
                })
            }
        }
    };
}

id! {
    /// One request for weight on one slot or on a set of slots. Made by the caller.
    ClaimId
}
id! {
    /// One flow of control that holds, waits and re-enters.
    OwnerId
}
id! {
    /// The connection of one process to one engine; its claims belong to it.
    SessionId
}

/// The number a store gave to one arrival of a claim.
///
/// Answers and pushes name it. A push counts only if its number equals that of the latest answer,
/// so that a push from an earlier life of the claim cannot become a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival(pub u64);

/// A map by ids. They are random already, so each is its own hash.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Takes an id's own bits as its hash.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Ids come as one number; anything else still gets a hash, if a slow one.
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 ^= number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_and_survive_text() {
        let (one, two) = (ClaimId::new(), ClaimId::new());
        assert_ne!(one, two);
        assert_eq!(one.to_hex().parse::<ClaimId>().unwrap(), one);
    }

    #[test]
    fn people_never_see_a_whole_id() {
        let id = ClaimId::new();
        assert!(!format!("{id} {id:?}").contains(&id.to_hex()));
    }

    #[test]
    fn text_that_is_not_an_id_is_refused() {
        for text in ["", "12", "+0000000000000000000000000000001", &"g".repeat(32)] {
            let error = text.parse::<OwnerId>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{text:?}");
        }
    }
}

//! What an advisory lock is named by. Pure: knows numbers and texts, not servers.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// The number, or the two numbers, by which the server knows an advisory lock.
///
/// A name becomes the first eight bytes of the SHA-256 of its UTF-8, read as a signed number with
/// the most significant byte first. Every language can compute that, and so can the server:
///
/// ```sql
/// SELECT ('x' || encode(substr(sha256(convert_to('reports', 'UTF8')), 1, 8),
/// 'hex'))::bit(64)::bigint;
/// ```
///
/// Two numbers are a space of their own: `(0, 7)` and `7` are different locks. Locks of different
/// databases are different. A key that was made from a name shows both the name and the number,
/// which `pg_locks` knows it by; keys are equal if their numbers are.
///
/// # Examples
/// ```
/// # use tenure_postgres::advisory::Key;
/// assert_eq!(Key::from("reports"), Key::from(9_162_028_425_427_799_623));
/// assert_ne!(Key::from((0, 7)), Key::from(7_i64));
/// assert_eq!(Key::from("reports").to_string(), "\"reports\" (9162028425427799623)");
/// ```
#[derive(Clone, Debug)]
pub struct Key {
    pub(super) number: Number,
    /// The name that the number was made from, for people.
    name: Option<Arc<str>>,
}

/// What the server knows an advisory lock by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Number {
    One(i64),
    Two(i32, i32),
}

impl Number {
    /// The number, if it is one.
    pub(super) fn one(self) -> Option<i64> {
        match self {
            Self::One(number) => Some(number),
            Self::Two(..) => None,
        }
    }

    /// As arguments of the server's functions.
    pub(super) fn arguments(self) -> String {
        match self {
            // In quotes: a minus would bind less than the cast, and the lowest number overflow.
            Self::One(number) => format!("'{number}'::bigint"),
            Self::Two(first, second) => format!("'{first}'::int, '{second}'::int"),
        }
    }

    /// The rows of `pg_locks` that are about it.
    pub(super) fn rows(self) -> String {
        let (class, object, sub) = match self {
            Self::One(number) => {
                let bytes = number.to_be_bytes();
                let half = |at: usize| {
                    let half = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
                    u32::from_be_bytes(half)
                };
                (half(0), half(4), 1)
            }
            Self::Two(first, second) => (first.cast_unsigned(), second.cast_unsigned(), 2),
        };
        format!(
            "locktype = 'advisory' AND classid = {class} AND objid = {object} AND objsubid = {sub} \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(number) => write!(f, "{number}"),
            Self::Two(first, second) => write!(f, "({first}, {second})"),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name:?} ({})", self.number),
            None => self.number.fmt(f),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl From<i64> for Key {
    fn from(number: i64) -> Self {
        Self { number: Number::One(number), name: None }
    }
}

impl From<(i32, i32)> for Key {
    fn from((first, second): (i32, i32)) -> Self {
        Self { number: Number::Two(first, second), name: None }
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        let number = Number::One(i64::from_be_bytes(first));
        Self { number, name: Some(Arc::from(name)) }
    }
}

impl From<&String> for Key {
    fn from(name: &String) -> Self {
        Self::from(name.as_str())
    }
}

/// Alone, or with others who share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Exclusive,
    Shared,
}

impl Mode {
    /// What the server's functions have in their names.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Exclusive => "",
            Self::Shared => "_shared",
        }
    }

    /// What `pg_locks` calls it.
    pub(super) fn lock(self) -> &'static str {
        match self {
            Self::Exclusive => "ExclusiveLock",
            Self::Shared => "ShareLock",
        }
    }
}

/// Gives back what may or may not be held: a wait that is ended from outside at the moment it is
/// granted leaves the lock behind, although it fails. Says nothing if there is none, where
/// a bare unlock would write a warning into the server's log.
pub(super) fn undo(key: Number, mode: Mode) -> String {
    format!(
        "SELECT pg_advisory_unlock{}({}) FROM pg_locks WHERE {} AND mode = '{}' \
         AND pid = pg_backend_pid() AND granted",
        mode.suffix(),
        key.arguments(),
        key.rows(),
        mode.lock(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other programs compute the same numbers: they must never change.
    #[test]
    fn names_become_these_numbers_for_ever() {
        for (name, number) in [
            ("", -2_039_914_840_885_289_964),
            ("a", -3_848_465_438_864_589_366),
            ("reports", 9_162_028_425_427_799_623),
            ("account:17", -197_918_084_828_335_431),
            ("Straße", 6_387_080_140_136_126_246),
        ] {
            assert_eq!(Key::from(name), Key::from(number), "{name:?}");
        }
    }

    #[test]
    fn the_servers_view_of_a_key_is_found_again() {
        let rows = Key::from(-1_i64).number.rows();
        assert!(rows.contains("classid = 4294967295 AND objid = 4294967295 AND objsubid = 1"));
        let rows = Key::from((-1, 7)).number.rows();
        assert!(rows.contains("classid = 4294967295 AND objid = 7 AND objsubid = 2"));
    }
}

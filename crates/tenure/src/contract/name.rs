//! Names of locks and namespaces, parsed once at the door. Knows text, not stores.
//!
//! A lock looks its name up in several maps: the session's index of holds, the ledger's slots. So
//! a name carries the hash of its text, which is computed once, when the name is made. The hash is
//! kept before the text, in the same allocation: a field of its own would make every copy of a name
//! larger, and maps of names have many. As the allocation is text, each of its eight bytes has
//! seven bits of the hash; [`Name::hash`] spreads the 56 bits over 64. The keys of the hash are
//! chosen at random for each process, so that no client can choose names that collide.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use super::error::{Error, ErrorKind};
use super::ids::{IdHasher, OwnerId};
use crate::limits;

/// A map by names. Each carries its hash.
pub(crate) type NameMap<V> = HashMap<Name, V, BuildHasherDefault<IdHasher>>;

/// The name of a lock: 1 to 255 bytes of UTF-8 without control characters.
///
/// Any other text is allowed, slashes, braces and stars too: each engine escapes or hashes names
/// so that no two can meet. Cheap to clone.
///
/// # Examples
/// ```
/// # use tenure::Name;
/// let name: Name = "reports/2024".parse()?;
/// assert_eq!(name.as_str(), "reports/2024");
/// assert!("".parse::<Name>().is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct Name {
    /// The hash of the text, [`HASH_BYTES`] characters below 128, and then the text.
    hashed: Arc<str>,
}

const HASH_BYTES: usize = 8;

/// Keeps the locks of one application or environment apart from others in the same store.
///
/// Follows the rules of a [`Name`]. The default is `default`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Name);

/// The kind of the names of marks.
const UPDATE_MARK: &str = "update";
/// The first character of every reserved name. No user's name has it: it is a control character.
const RESERVED: char = '\u{1}';

impl Name {
    /// The name with this text, which was checked.
    fn of(text: &str) -> Self {
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let bytes = KEYS.hash_one(text).to_le_bytes();
        let hash = bytes.iter().map(|byte| char::from(byte & 0x7f));
        let mut hashed = String::with_capacity(HASH_BYTES + text.len());
        hashed.extend(hash);
        hashed.push_str(text);
        Self { hashed: hashed.into() }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.hashed[HASH_BYTES..]
    }

    /// The name of something that Tenure itself keeps: `kind` says what, `name` whose. No text of a
    /// user parses to it, and it sorts before every name that does.
    #[allow(dead_code, reason = "for features that a build may leave out")]
    pub(crate) fn reserved(kind: &str, name: &Name) -> Result<Self, Error> {
        let text = format!("{RESERVED}{kind}:{name}");
        if text.len() <= limits::NAME_BYTES {
            return Ok(Self::of(&text));
        }
        let most = limits::NAME_BYTES - kind.len() - 2;
        let what =
            format!("a name of this kind has at most {most} bytes, not {}", name.as_str().len());
        let help = "choose a shorter name: the rest is needed for the kind";
        Err(Error::invalid(ErrorKind::InvalidName, what).on(name).with_help(help))
    }

    /// The name of something that Tenure itself keeps for an owner.
    pub(crate) fn reserved_for_owner(kind: &str, owner: OwnerId) -> Self {
        Self::of(&format!("{RESERVED}{kind}:{}", owner.to_hex()))
    }

    /// The name by which an owner says that it uses a connection to the database: the process of
    /// the server and when it was started, in microseconds, because its number is used again.
    #[cfg(feature = "postgres")]
    pub(crate) fn reserved_for_backend(pid: i32, started: i64) -> Self {
        Self::of(&format!("{RESERVED}backend:{pid}-{started}"))
    }

    /// The name as people see it: `@` stands for the first character of a reserved one.
    #[must_use]
    pub fn shown(&self) -> Cow<'_, str> {
        match self.as_str().strip_prefix(RESERVED) {
            Some(rest) => Cow::Owned(format!("@{rest}")),
            None => Cow::Borrowed(self.as_str()),
        }
    }

    /// Whether Tenure itself keeps what has this name.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.as_str().starts_with(RESERVED)
    }

    /// The name as a user knows it: of a reserved name, what follows its kind.
    #[must_use]
    pub fn user_part(&self) -> &str {
        self.reserved_parts().map_or(self.as_str(), |(_, name)| name)
    }

    /// What all reserved names of a kind begin with.
    #[allow(dead_code, reason = "for engines that a build may leave out")]
    pub(crate) fn reserved_prefix(kind: &str) -> String {
        format!("{RESERVED}{kind}:")
    }

    /// The mark with which an update reserves the cell of this name: a cell of its own.
    ///
    /// # Errors
    /// `InvalidName` if the name is too long to have one.
    pub fn update_mark(&self) -> Result<Self, Error> {
        Self::reserved(UPDATE_MARK, self)
    }

    /// The cell that this mark reserves; `None` if it is no mark of an update.
    #[must_use]
    pub fn marked_cell(&self) -> Option<Self> {
        let (kind, cell) = self.reserved_parts()?;
        (kind == UPDATE_MARK).then(|| Self::of(cell))
    }

    /// What a reserved name is for.
    pub(crate) fn reserved_kind(&self) -> Option<&str> {
        self.reserved_parts().map(|(kind, _)| kind)
    }

    fn reserved_parts(&self) -> Option<(&str, &str)> {
        self.as_str().strip_prefix(RESERVED)?.split_once(':')
    }

    /// Sorts after all reserved names and before all others: where a list of users' names begins.
    pub(crate) fn after_reserved() -> Self {
        Self::of("\u{1f}")
    }

    /// Where names that begin with this text begin in a sorted list. It may be no name itself.
    pub(crate) fn bound(text: &str) -> Self {
        Self::of(text)
    }

    /// Parses a name that a store has kept, reserved ones included: for engines. What a user calls
    /// refuses to write the cell of a reserved name.
    ///
    /// # Errors
    /// `InvalidName` if it is neither a name of a user nor a reserved one.
    pub fn from_store(text: &str) -> Result<Self, Error> {
        let checked = text.strip_prefix(RESERVED).unwrap_or(text);
        check("name", checked)?;
        Ok(Self::of(text))
    }
}

impl Namespace {
    /// The namespace as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self(Name::of("default"))
    }
}

impl TryFrom<&str> for Name {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        check("name", text)?;
        Ok(Self::of(text))
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::try_from(text)
    }
}

impl TryFrom<&str> for Namespace {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        check("namespace", text)?;
        Ok(Self(Name::of(text)))
    }
}

impl FromStr for Namespace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::try_from(text)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        // Equal texts have equal hashes, so the whole is compared; unequal ones mostly differ in
        // the first bytes.
        self.hashed == other.hashed
    }
}

impl Eq for Name {}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let carried = self.hashed.as_bytes().first_chunk::<HASH_BYTES>();
        let carried = u64::from_le_bytes(carried.copied().unwrap_or_default());
        // Maps use the lowest and the highest bits, and one bit of each byte is always 0.
        let spread = carried.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state.write_u64(spread ^ (spread >> 32));
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    /// In quotes and escaped; a reserved name as its kind and the user's name: `election "x"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reserved_parts() {
            Some((kind, name)) => write!(f, "{kind} {name:?}"),
            None => fmt::Debug::fmt(self.as_str(), f),
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Whether a character could make shown text lie: it moves the cursor or the reading direction.
pub(crate) fn deceives(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2028}'..='\u{2029}' | '\u{2066}'..='\u{2069}')
}

fn check(what: &str, text: &str) -> Result<(), Error> {
    let example = if what == "namespace" { "\"staging\"" } else { "\"reports\" or \"account:17\"" };
    let problem = if text.is_empty() {
        format!("a {what} must not be empty")
    } else if text.len() > limits::NAME_BYTES {
        format!("a {what} has at most {} bytes, this one has {}", limits::NAME_BYTES, text.len())
    } else if let Some((at, bad)) = text.char_indices().find(|(_, c)| deceives(*c)) {
        format!(
            "a {what} must not contain control or text-direction characters; \
             byte {at} is U+{:04X}",
            u32::from(bad)
        )
    } else {
        return Ok(());
    };
    Err(Error::invalid(ErrorKind::InvalidName, problem)
        .with_help(format!("choose a printable text such as {example}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_and_odd_but_printable_names_are_fine() {
        for text in ["a", "account:17", "{x}", "*", "a/b\\c", "naïve 名前 🔒", &"x".repeat(255)]
        {
            assert_eq!(Name::try_from(text).unwrap().as_str(), text);
            assert_eq!(Namespace::try_from(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn equal_names_have_equal_hashes_and_others_are_spread_over_all_bits() {
        let hash = |name: &Name| BuildHasherDefault::<IdHasher>::default().hash_one(name);
        let names: Vec<Name> =
            (0..4_096).map(|at| Name::try_from(&*format!("account:{at}")).unwrap()).collect();
        assert_eq!(hash(&names[7]), hash(&"account:7".parse().unwrap()));
        assert_ne!(names[7], names[8]);
        let hashes: Vec<u64> = names.iter().map(hash).collect();
        for bit in 0..64 {
            let set = hashes.iter().filter(|hash| **hash >> bit & 1 == 1).count();
            assert!((1_500..2_600).contains(&set), "bit {bit} is set in {set} of 4096");
        }
        // Buckets of a map: by the lowest bits.
        let buckets: std::collections::HashSet<u64> =
            hashes.iter().map(|hash| hash & 0xfff).collect();
        assert!(buckets.len() > 2_300, "{} of 4096 buckets", buckets.len());
    }

    #[test]
    fn names_are_ordered_by_their_text_alone() {
        let mut names: Vec<Name> =
            ["b", "a", "aa", "c", "B"].map(|text| text.parse().unwrap()).into();
        names.sort();
        let texts: Vec<&str> = names.iter().map(Name::as_str).collect();
        assert_eq!(texts, ["B", "a", "aa", "b", "c"]);
    }

    #[test]
    fn reserved_names_are_out_of_reach_and_come_first() {
        let user = Name::try_from("!").unwrap();
        let reserved = Name::reserved("election", &user).unwrap();
        assert!(reserved.is_reserved() && !user.is_reserved());
        assert_eq!((&*reserved.shown(), &*user.shown()), ("@election:!", "!"));
        assert!(Name::try_from(reserved.as_str()).is_err());
        assert_eq!(format!("{reserved:?}"), "election \"!\"");
        assert_eq!((reserved.user_part(), user.user_part()), ("!", "!"));
        assert_eq!(Name::from_store(reserved.as_str()).unwrap(), reserved);
        let mark = user.update_mark().unwrap();
        assert_eq!((mark.marked_cell(), reserved.marked_cell()), (Some(user.clone()), None));
        assert_eq!(user.marked_cell(), None);
        assert_eq!(Name::from_store("!").unwrap(), user);
        assert!(Name::from_store("a\u{1}").is_err() && Name::from_store("\u{1}\n").is_err());
        let space = Name::try_from(" ").unwrap();
        assert!(reserved < Name::after_reserved() && Name::after_reserved() < space);
        let long = Name::try_from(&*"x".repeat(limits::NAME_BYTES)).unwrap();
        let error = Name::reserved("election", &long).unwrap_err();
        assert!(error.to_string().contains("at most 245 bytes, not 255"), "{error}");
    }

    #[test]
    fn names_that_could_deceive_or_overflow_are_refused_with_the_place() {
        let long = "x".repeat(256);
        let cases = [
            ("", "must not be empty"),
            (long.as_str(), "at most 255 bytes, this one has 256"),
            ("a\0b", "byte 1 is U+0000"),
            ("a\nb", "U+000A"),
            ("ab\u{7f}", "byte 2 is U+007F"),
            ("\u{85}", "U+0085"),
            ("x\u{202e}y", "U+202E"),
            ("x\u{2066}y", "U+2066"),
            ("x\u{200f}y", "U+200F"),
        ];
        for (text, expected) in cases {
            let error = Name::try_from(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName);
            assert!(error.to_string().contains(expected), "{text:?}: {error}");
            let error = Namespace::try_from(text).unwrap_err();
            assert!(error.to_string().contains("namespace"), "{error}");
        }
    }
}

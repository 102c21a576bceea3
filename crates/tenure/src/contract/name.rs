//! Names of locks and namespaces, parsed once at the door. Knows text, not stores.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::error::{Error, ErrorKind};
use super::ids::OwnerId;
use crate::limits;

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
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Keeps the locks of one application or environment apart from others in the same store.
///
/// Follows the rules of a [`Name`]. The default is `default`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Name);

/// The kind of the names of marks.
const UPDATE_MARK: &str = "update";
/// The first character of every reserved name. No user's name has it: it is a control character.
pub(super) const RESERVED: char = '\u{1}';

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of something that Tenure itself keeps: `kind` says what, `name` whose. No text of a
    /// user parses to it, and it sorts before every name that does.
    #[allow(dead_code, reason = "for features that a build may leave out")]
    pub(crate) fn reserved(kind: &str, name: &Name) -> Result<Self, Error> {
        let text = format!("{RESERVED}{kind}:{name}");
        if text.len() <= limits::NAME_BYTES {
            return Ok(Self(text.into()));
        }
        let most = limits::NAME_BYTES - kind.len() - 2;
        let what = format!("a name of this kind has at most {most} bytes, not {}", name.0.len());
        let help = "choose a shorter name: the rest is needed for the kind";
        Err(Error::invalid(ErrorKind::InvalidName, what).on(name).with_help(help))
    }

    /// The name of something that Tenure itself keeps for an owner.
    pub(crate) fn reserved_for_owner(kind: &str, owner: OwnerId) -> Self {
        Self(format!("{RESERVED}{kind}:{}", owner.to_hex()).into())
    }

    /// The name by which an owner says that it uses a connection to the database: the process of
    /// the server and when it was started, in microseconds, because its number is used again.
    #[cfg(feature = "postgres")]
    pub(crate) fn reserved_for_backend(pid: i32, started: i64) -> Self {
        Self(format!("{RESERVED}backend:{pid}-{started}").into())
    }

    /// The name as people see it: `@` stands for the first character of a reserved one.
    #[must_use]
    pub fn shown(&self) -> Cow<'_, str> {
        match self.0.strip_prefix(RESERVED) {
            Some(rest) => Cow::Owned(format!("@{rest}")),
            None => Cow::Borrowed(&self.0),
        }
    }

    /// Whether Tenure itself keeps what has this name.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(RESERVED)
    }

    /// The name as a user knows it: of a reserved name, what follows its kind.
    #[must_use]
    pub fn user_part(&self) -> &str {
        self.reserved_parts().map_or(&self.0, |(_, name)| name)
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
        (kind == UPDATE_MARK).then(|| Self(Arc::from(cell)))
    }

    /// What a reserved name is for.
    pub(crate) fn reserved_kind(&self) -> Option<&str> {
        self.reserved_parts().map(|(kind, _)| kind)
    }

    fn reserved_parts(&self) -> Option<(&str, &str)> {
        self.0.strip_prefix(RESERVED)?.split_once(':')
    }

    /// Sorts after all reserved names and before all others: where a list of users' names begins.
    pub(crate) fn after_reserved() -> Self {
        Self(Arc::from("\u{1f}"))
    }

    /// Parses a name that a store has kept, reserved ones included.
    ///
    /// # Errors
    /// `InvalidName` if it is neither a name of a user nor a reserved one.
    pub fn from_store(text: &str) -> Result<Self, Error> {
        let checked = text.strip_prefix(RESERVED).unwrap_or(text);
        check("name", checked)?;
        Ok(Self(Arc::from(text)))
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
        Self(Name(Arc::from("default")))
    }
}

impl TryFrom<&str> for Name {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        check("name", text)?;
        Ok(Self(Arc::from(text)))
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
        Ok(Self(Name(Arc::from(text))))
    }
}

impl FromStr for Namespace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::try_from(text)
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    /// In quotes and escaped; a reserved name as its kind and the user's name: `election "x"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reserved_parts() {
            Some((kind, name)) => write!(f, "{kind} {name:?}"),
            None => fmt::Debug::fmt(&*self.0, f),
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

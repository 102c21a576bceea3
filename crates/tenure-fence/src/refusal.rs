//! What a refused write is told, and who else is: the refusal as a value, as an error, and for an
//! observer that counts. Knows fences and names, not resources.
//!
//! The observer is one for the process, as a logger is: refusals come from places that have no
//! session (a handler of requests, a script at another server), and a count of them is wanted over
//! all of these. [`report`] logs a refusal, then calls the observer, then makes it an error.

use std::error::Error as StdError;
use std::fmt;
use std::sync::OnceLock;

use tenure::limits::FENCE;
use tenure::{Error, ErrorKind, Fence};

/// Characters of a resource's name that a refusal shows.
const SHOWN: usize = 200;

/// A writer came too late: another holder has written with a larger fence.
///
/// Checks return it as the cause of an error of the kind [`ErrorKind::Conflict`];
/// [`in_error`](Self::in_error) takes it out again.
///
/// # Examples
/// ```
/// use tenure::Fence;
/// use tenure_fence::{Refusal, Resource};
///
/// let refusal = Refusal::new(Resource::File, "/srv/report.csv", Fence::new(8), Fence::new(9));
/// assert_eq!(
///     refusal.to_string(),
///     r#"stale fence refused: file "/srv/report.csv" has fence 9, the writer has 8"#
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    resource: Resource,
    name: String,
    given: Fence,
    seen: Fence,
}

impl Refusal {
    /// A refusal by this resource. Of a long name, the beginning is kept.
    #[must_use]
    pub fn new(resource: Resource, name: &str, given: Fence, seen: Fence) -> Self {
        let mut shown: String = name.chars().take(SHOWN).collect();
        if shown.len() < name.len() {
            shown.push_str("..");
        }
        Self { resource, name: shown, given, seen }
    }

    /// What an error is about, if a resource refused a stale fence.
    #[must_use]
    pub fn in_error(error: &Error) -> Option<&Self> {
        error.source()?.downcast_ref()
    }

    /// What kind of resource refused.
    #[must_use]
    pub fn resource(&self) -> Resource {
        self.resource
    }

    /// Which one: its key, path or name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fence of the writer that was refused.
    #[must_use]
    pub fn given(&self) -> Fence {
        self.given
    }

    /// The larger fence that the resource has seen.
    #[must_use]
    pub fn seen(&self) -> Fence {
        self.seen
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, name, given, seen } = self;
        // As a literal, so that a name with a line break stays one line.
        write!(
            f,
            "stale fence refused: {resource} {name:?} has fence {seen}, the writer has {given}"
        )
    }
}

impl StdError for Refusal {}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(ErrorKind::Conflict, refusal.to_string())
            .with_help("the lock was lost, and another holder has written: stop, and take it again")
            .caused_by(refusal)
    }
}

/// The kinds of resources that check fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// A value or a hash of Redis.
    Redis,
    /// A key of etcd.
    Etcd,
    /// A file.
    File,
    /// An object of an object store.
    Object,
    /// A resource behind an HTTP service.
    Http,
    /// A resource of your own, for [`report`]: a row, a device, a queue.
    Other(&'static str),
}

impl Resource {
    /// Its name, for a label of a metric.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Etcd => "etcd",
            Self::File => "file",
            Self::Object => "object",
            Self::Http => "http",
            Self::Other(name) => name,
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

type Observer = Box<dyn Fn(&Refusal) + Send + Sync>;

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Sets what is called for each refusal in this process, by whichever check, before its caller has
/// the error: for a counter such as `tenure_fence_refusals_total`, labelled by
/// [`Resource::as_str`]. It must be quick and must not block.
///
/// Returns false, and changes nothing, if an observer was set before.
///
/// # Examples
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tenure::{ErrorKind, Fence};
/// use tenure_fence::{Refusal, Resource, observe_refusals, report};
///
/// static REFUSALS: AtomicU64 = AtomicU64::new(0);
/// assert!(observe_refusals(|_refusal| {
///     REFUSALS.fetch_add(1, Ordering::Relaxed);
/// }));
///
/// // A check of your own reports its refusals to the same counter.
/// let row = Resource::Other("row");
/// let error = report(Refusal::new(row, "account 17", Fence::new(8), Fence::new(9)));
/// assert_eq!(error.kind(), ErrorKind::Conflict);
/// assert_eq!(REFUSALS.load(Ordering::Relaxed), 1);
/// ```
pub fn observe_refusals(observer: impl Fn(&Refusal) + Send + Sync + 'static) -> bool {
    OBSERVER.set(Box::new(observer)).is_ok()
}

/// Logs a refusal as a warning, calls the observer, and returns the refusal as an error.
///
/// The checks of this crate do this themselves; a check of your own may use it too.
pub fn report(refusal: Refusal) -> Error {
    tracing::warn!("{refusal}");
    if let Some(observer) = OBSERVER.get() {
        observer(&refusal);
    }
    refusal.into()
}

/// Compares a fence with the largest that a resource has seen: the rule itself. Equal passes, it is
/// the same holder.
#[allow(dead_code, reason = "for resources that a build may leave out")]
pub(crate) fn check(
    resource: Resource,
    name: &str,
    given: Fence,
    seen: Option<Fence>,
) -> Result<(), Error> {
    match seen.filter(|seen| *seen > given) {
        Some(seen) => Err(report(Refusal::new(resource, name, given, seen))),
        None => Ok(()),
    }
}

/// Checks that a number is a fence of Tenure, before it is sent or stored.
#[allow(dead_code, reason = "for resources that a build may leave out")]
pub(crate) fn valid(fence: Fence) -> Result<u64, Error> {
    let number = fence.get();
    if number < FENCE {
        return Ok(number);
    }
    let what = format!("{fence} is no fence of Tenure: they stay below 2^53");
    Err(Error::new(ErrorKind::InvalidOption, what).with_help("hand on what the guard says"))
}

/// A fence as text of a fixed length, so that the order of texts is the order of numbers: 2^53 has
/// 16 digits.
#[allow(dead_code, reason = "for resources that a build may leave out")]
pub(crate) fn padded(fence: Fence) -> Result<String, Error> {
    Ok(format!("{:016}", valid(fence)?))
}

/// Parses the digits of a fence.
#[allow(dead_code, reason = "for resources that a build may leave out")]
pub(crate) fn parse(digits: &[u8]) -> Option<Fence> {
    let digits = std::str::from_utf8(digits).ok()?;
    // `parse` alone would take a sign, and any number of zeros.
    let plain =
        (1..=16).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = plain.then(|| digits.parse().ok()).flatten()?;
    (number < FENCE).then(|| Fence::new(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_line_break_stays_one_short_line() {
        let name = format!("a\nb{}", "x".repeat(500));
        let refusal = Refusal::new(Resource::Redis, &name, Fence::new(1), Fence::new(2));
        let line = refusal.to_string();
        assert!(line.starts_with(r#"stale fence refused: redis "a\nbxxx"#), "{line}");
        assert!(line.ends_with(r#"xx.." has fence 2, the writer has 1"#), "{line}");
        assert!(line.len() < 300 && line.lines().count() == 1, "{line}");
    }

    #[test]
    fn an_error_hands_its_refusal_back() {
        let refusal = Refusal::new(Resource::Etcd, "k", Fence::new(1), Fence::new(2));
        let error = Error::from(refusal.clone());
        assert_eq!(Refusal::in_error(&error), Some(&refusal));
        assert_eq!(Refusal::in_error(&Error::new(ErrorKind::Conflict, "other")), None);
    }

    #[test]
    fn equal_and_larger_fences_pass_and_smaller_ones_do_not() {
        let check = |given, seen| check(Resource::File, "f", Fence::new(given), seen);
        let seen = Some(Fence::new(5));
        assert!(check(0, None).is_ok() && check(5, seen).is_ok() && check(6, seen).is_ok());
        let error = check(4, seen).unwrap_err();
        let refusal = Refusal::in_error(&error).unwrap();
        assert_eq!((refusal.given().get(), refusal.seen().get()), (4, 5));
    }

    #[test]
    fn digits_are_parsed_and_nothing_else_is() {
        let largest = Fence::new(FENCE - 1);
        assert_eq!(parse(b"9007199254740991"), Some(largest));
        assert_eq!(parse(padded(largest).unwrap().as_bytes()), Some(largest));
        assert_eq!(parse(padded(Fence::new(17)).unwrap().as_bytes()), Some(Fence::new(17)));
        for bad in
            ["", "+1", "-1", " 1", "1 ", "1e3", "0x1", "9007199254740992", "00000000000000001"]
        {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert!(padded(Fence::new(FENCE)).is_err());
    }
}

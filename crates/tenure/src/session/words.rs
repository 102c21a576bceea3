//! What a caller is told who did not get a lock. Knows words, and what was seen when they were due.

use super::Wait;
use crate::contract::{Claim, Error, ErrorKind, HolderView, Loss, Name, Refusal, Shape, Verb};
use crate::limits;

/// The error for a claim that the store refused.
pub(super) fn refusal_error(refusal: Refusal, asked: Shape) -> Error {
    match refusal {
        Refusal::Shape { name, stands } => {
            let what = format!("the name is in use as {stands}, not as {asked}");
            let next = match (stands, asked) {
                (Shape::Semaphore(_), Shape::Semaphore(_)) => {
                    "state the same number of permits everywhere, or wait until it is free"
                }
                _ => "use one name for one kind of lock, or wait until it is free",
            };
            Error::new(ErrorKind::Shape, what).on(&name).with_help(next)
        }
        Refusal::Upgrade { by } => {
            let what = format!("another reader already waits to write: {by}");
            Error::new(ErrorKind::UpgradeConflict, what)
                .with_help("release the read lock and take the write lock from the start")
        }
        Refusal::Full { name, limit } => {
            let what = format!("{limit} claims hold or wait already");
            Error::new(ErrorKind::Limit, what).on(&name).with_help("come back when fewer do")
        }
        Refusal::NothingToReplace => {
            Error::new(ErrorKind::Lost, "what should be upgraded or downgraded is no longer held")
                .because_of(Loss::Forgotten)
        }
        Refusal::Withdrawn => {
            Error::new(ErrorKind::Lost, "the claim was withdrawn before it arrived")
        }
        Refusal::Held { by, .. } => {
            Error::new(ErrorKind::TimedOut, "it is held").blocked_by(by, None)
        }
    }
}

/// A wait that has reached its limit.
pub(super) struct TooLate<'a> {
    pub(super) wait: Wait,
    /// What was waited for.
    pub(super) name: &'a Name,
    /// Who holds it.
    pub(super) holders: Vec<HolderView>,
    /// The place in line, if we had one.
    pub(super) place: Option<usize>,
    /// The hold of the same task or thread on that name, if there is one.
    pub(super) own_hold: Option<&'a Claim>,
    /// Why the store has not answered of late, if it has not.
    pub(super) trouble: Option<Box<str>>,
}

/// The error for a wait that has reached its limit.
pub(super) fn timed_out_error(late: TooLate<'_>) -> Error {
    let mut holders = late.holders;
    holders.truncate(limits::NAMED_HOLDERS);
    let next = match late.own_hold {
        Some(own) => {
            let place = own.about.place.as_ref().map(ToString::to_string).unwrap_or_default();
            format!(
                "it was taken by this same task or thread, at {place}: if one flow wants it twice, \
                 run it in a scope; branches of a join! need a scope each"
            )
        }
        None => "wait longer, find out why the holder takes so long, or, if you hold other locks \
                 meanwhile, take them all at once"
            .to_owned(),
    };
    let mut limit = match late.wait {
        Wait::Limit(limit) => format!("not granted within {limit:?}"),
        _ => "not granted within the wait limit".to_owned(),
    };
    if let Some(trouble) = late.trouble {
        limit = format!("{limit}, and the store does not answer: {trouble}");
    }
    Error::new(ErrorKind::TimedOut, limit)
        .during(Verb::Claim)
        .on(late.name)
        .blocked_by(holders, late.place)
        .with_help(next)
}

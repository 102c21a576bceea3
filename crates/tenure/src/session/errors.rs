//! Builds the errors for refused and timed-out claims.

use super::Wait;
use super::deadlock::Suspicion;
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

/// The error for a wait that was refused to break a deadlock.
pub(super) fn victim_error(words: &str) -> Error {
    let what = format!("refused to break a deadlock: {words}");
    Error::new(ErrorKind::Deadlock, what)
        .because_of(Loss::Deadlock { words: words.into() })
        .with_help(
            "release what you hold and start over (retry_on_deadlock does), or take the locks at \
             once as a set",
        )
}

/// A wait that timed out.
pub(super) struct WaitTimeout<'a> {
    pub(super) wait: Wait,
    /// The name that was waited for.
    pub(super) name: &'a Name,
    /// Whether it is one name of a set.
    pub(super) in_set: bool,
    /// The holders of that name.
    pub(super) holders: Vec<HolderView>,
    /// The place in the queue, if the claim had one.
    pub(super) place: Option<usize>,
    /// The hold of the same task or thread on that name, if there is one.
    pub(super) own_hold: Option<&'a Claim>,
    /// Why the last renewal failed, if it did.
    pub(super) trouble: Option<Box<str>>,
    /// The deadlock that the last look found, in words.
    pub(super) deadlock: Option<Suspicion>,
}

/// What to do where a claim waited for a lock that its own task or thread holds.
pub(super) fn own_hold_help(own: &Claim) -> String {
    let place = own.about.place.as_ref().map(ToString::to_string).unwrap_or_default();
    format!(
        "it was taken by this same task or thread, at {place}: if one flow wants it twice, run it \
         in a scope; branches of a join! need a scope each"
    )
}

/// The error for a wait that timed out.
pub(super) fn timed_out_error(timeout: WaitTimeout<'_>) -> Error {
    let mut holders = timeout.holders;
    holders.truncate(limits::NAMED_HOLDERS);
    let next = match timeout.own_hold {
        Some(own) => own_hold_help(own),
        None if timeout.deadlock.is_some() => {
            timeout.deadlock.as_ref().map_or("", |found| found.advice).to_owned()
        }
        None if timeout.in_set => {
            "wait longer, or find out why the holder takes so long; no other name of the set is \
             held by this claim any more"
                .to_owned()
        }
        None => "wait longer, find out why the holder takes so long, or, if you hold other locks \
                 meanwhile, take them all at once"
            .to_owned(),
    };
    let mut limit = match timeout.wait {
        Wait::Limit(limit) => format!("not granted within {limit:?}"),
        _ => "not granted within the wait limit".to_owned(),
    };
    if let Some(trouble) = timeout.trouble {
        limit = format!("{limit}, and the store does not answer: {trouble}");
    }
    if let Some(Suspicion { words, .. }) = timeout.deadlock {
        limit = format!("{limit}: a deadlock: {words}");
    }
    Error::new(ErrorKind::TimedOut, limit)
        .during(Verb::Claim)
        .on(timeout.name)
        .blocked_by(holders, timeout.place)
        .with_help(next)
}

//! The conversion of claims to the parameters of calls. `functions.rs` has the functions.
//!
//! A set is passed as parallel arrays: the names of all claims in a row, and for each claim how
//! many of them are its own.

use std::time::Duration;

use tokio_postgres::types::ToSql;
use uuid::Uuid;

pub(super) use super::functions::Function;
use crate::contract::{Claim, ClaimRef, Name, OwnerId, Part, Patience, Pattern, Shape};

/// The parameters of a call, in the order of the function's declaration.
pub(super) type Parameters = Vec<Box<dyn ToSql + Send + Sync>>;

/// The parameters of `claim_one`.
pub(super) fn claim_of_one(claim: &Claim, part: &Part, ns: i32, is_async: bool) -> Parameters {
    vec![
        Box::new(ns),
        Box::new(is_async),
        Box::new(uuid(claim.id.as_u128())),
        Box::new(part.name().as_str().to_owned()),
        Box::new(shape_number(part.shape())),
        Box::new(weight(part)),
        Box::new(micros(claim.lease)),
        Box::new(micros(claim.lock_delay)),
        Box::new(claim.patience == Patience::Wait),
        Box::new(claim.replaces.map(|id| uuid(id.as_u128()))),
        Box::new(claim.session.map(|id| uuid(id.as_u128()))),
        Box::new(lineage(claim)),
        Box::new(claim.about.host.to_string()),
        Box::new(i64::from(claim.about.pid)),
        Box::new(claim.about.place.as_ref().map(ToString::to_string)),
        Box::new(claim.about.label.as_ref().map(ToString::to_string)),
        Box::new(conduct(claim)),
    ]
}

/// The number of a claim's conduct, which is below 2^31.
fn conduct(claim: &Claim) -> i32 {
    i32::try_from(claim.about.conduct.to_code()).unwrap_or_default()
}

/// The parameters of `claim`, for one claim on several names.
pub(super) fn claim_of_set(claim: &Claim, parts: &[Part], ns: i32, is_async: bool) -> Parameters {
    let owners: Vec<String> = lineage(claim).iter().map(ToString::to_string).collect();
    vec![
        Box::new(ns),
        Box::new(is_async),
        Box::new(vec![uuid(claim.id.as_u128())]),
        Box::new(vec![count(parts.len())]),
        Box::new(names(claim.parts.names())),
        Box::new(parts.iter().map(|part| shape_number(part.shape())).collect::<Vec<_>>()),
        Box::new(parts.iter().map(weight).collect::<Vec<_>>()),
        Box::new(vec![micros(claim.lease)]),
        Box::new(vec![micros(claim.lock_delay)]),
        Box::new(vec![claim.patience == Patience::Wait]),
        Box::new(vec![claim.replaces.map(|id| uuid(id.as_u128()))]),
        Box::new(vec![claim.session.map(|id| uuid(id.as_u128()))]),
        Box::new(vec![format!("{{{}}}", owners.join(","))]),
        Box::new(vec![claim.about.host.to_string()]),
        Box::new(vec![i64::from(claim.about.pid)]),
        Box::new(vec![claim.about.place.as_ref().map(ToString::to_string)]),
        Box::new(vec![claim.about.label.as_ref().map(ToString::to_string)]),
        Box::new(vec![conduct(claim)]),
    ]
}

/// The parameters that `renew` and `release` begin with.
pub(super) fn batch<'a, I>(claims: impl Fn() -> I, ns: i32, is_async: bool) -> Parameters
where
    I: Iterator<Item = &'a ClaimRef>,
{
    vec![
        Box::new(ns),
        Box::new(is_async),
        Box::new(claims().map(|claim| uuid(claim.id.as_u128())).collect::<Vec<_>>()),
        Box::new(claims().map(|claim| count(claim.parts.as_slice().len())).collect::<Vec<_>>()),
        Box::new(names(claims().flat_map(|claim| claim.parts.names()))),
        Box::new(claims().map(|claim| micros(claim.lease)).collect::<Vec<_>>()),
    ]
}

/// The names that a page may have, for functions that read pages in the order of names.
pub(super) struct NameBounds {
    /// Only names after this one. Empty at the begin.
    after: String,
    /// None before this one: what all matches begin with.
    from: String,
    /// Only names before this one, if given: the first that does not begin so.
    before: Option<String>,
}

impl NameBounds {
    pub(super) fn new(pattern: &Pattern, after: Option<&Name>) -> Self {
        let from = pattern.literal_prefix();
        let before = successor(&from);
        Self { after: after.map_or(String::new(), |name| name.as_str().to_owned()), from, before }
    }

    /// The bounds of the next page.
    pub(super) fn continue_after(&mut self, last: &Name) {
        last.as_str().clone_into(&mut self.after);
    }

    /// Appends the three parameters.
    pub(super) fn push_onto(&self, parameters: &mut Parameters) {
        parameters.push(Box::new(self.after.clone()));
        parameters.push(Box::new(self.from.clone()));
        parameters.push(Box::new(self.before.clone()));
    }
}

/// Returns the first text, in the order of bytes, after all that begin with `prefix`; `None` if
/// there is none. The order of UTF-8 is that of characters.
fn successor(prefix: &str) -> Option<String> {
    let mut rest = prefix.to_owned();
    while let Some(last) = rest.pop() {
        // The step of a range skips what is no character.
        if let Some(next) = (last..=char::MAX).nth(1) {
            rest.push(next);
            return Some(rest);
        }
    }
    None
}

pub(super) fn names<'a>(names: impl Iterator<Item = &'a Name>) -> Vec<String> {
    names.map(|name| name.as_str().to_owned()).collect()
}

pub(super) fn uuid(value: u128) -> Uuid {
    Uuid::from_u128(value)
}

pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// The number by which the schema stores a shape.
pub(super) fn shape_number(shape: Shape) -> i32 {
    match shape {
        Shape::Lock => -1,
        Shape::Semaphore(permits) => i32::try_from(permits).unwrap_or(i32::MAX),
    }
}

fn lineage(claim: &Claim) -> Vec<Uuid> {
    claim.lineage.all().map(OwnerId::as_u128).map(uuid).collect()
}

fn weight(part: &Part) -> i32 {
    i32::try_from(part.weight()).unwrap_or(i32::MAX)
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_bounded_by_what_its_pattern_begins_with() {
        let bounds = NameBounds::new(&Pattern::new("a:b*c"), None);
        assert_eq!((&*bounds.from, bounds.before.as_deref()), ("a:b", Some("a:c")));
        let cases = [
            ("", None),
            ("\u{d7ff}", Some("\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
            ("\u{7f}", Some("\u{80}")),
        ];
        for (prefix, after) in cases {
            assert_eq!(successor(prefix).as_deref(), after, "{prefix:?}");
        }
    }
}

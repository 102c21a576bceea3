//! The functions of the schema that are called, the SQL text of each call, and the conversion of
//! claims to its parameters.
//!
//! A call is always `SELECT columns FROM schema.function($1, ..)`: values are parameters, never
//! part of the text. The types are stated rather than inferred, because behind a pooler a call is
//! sent as text without being prepared first. A set is passed as parallel arrays: the names of all
//! claims in a row, and for each claim how many of them are its own.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::replies::COLUMNS;
use crate::contract::{Claim, ClaimRef, Name, OwnerId, Part, Patience, Pattern, Shape};

/// The parameters of a call, in the order of the function's declaration.
pub(super) type Parameters = Vec<Box<dyn ToSql + Send + Sync>>;

const CLAIM_ONE: &[Type] = &[
    Type::INT4,
    Type::BOOL,
    Type::UUID,
    Type::TEXT,
    Type::INT4,
    Type::INT4,
    Type::INT8,
    Type::INT8,
    Type::BOOL,
    Type::UUID,
    Type::UUID,
    Type::UUID_ARRAY,
    Type::TEXT,
    Type::INT8,
    Type::TEXT,
    Type::TEXT,
    Type::INT4,
];
const CLAIM: &[Type] = &[
    Type::INT4,
    Type::BOOL,
    Type::UUID_ARRAY,
    Type::INT4_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT4_ARRAY,
    Type::INT4_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::BOOL_ARRAY,
    Type::UUID_ARRAY,
    Type::UUID_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT4_ARRAY,
];
const WRITE: &[Type] = &[
    Type::INT4,
    Type::INT8,
    Type::UUID,
    Type::INT8,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::BOOL_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
];

const TAKE: &[Type] = &[
    Type::INT4,
    Type::TEXT,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8,
    Type::INT8,
    Type::BOOL,
];
const SETTLE: &[Type] = &[
    Type::INT4,
    Type::TEXT,
    Type::INT8_ARRAY,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8_ARRAY,
];

/// A function of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    ClaimOne,
    Claim,
    Renew,
    ReleaseOne,
    Release,
    Evict,
    RefuseVictim,
    RaiseFences,
    Inspect,
    Reach,
    Names,
    Sweep,
    Notify,
    NotifyLater,
    Write,
    Cell,
    Cells,
    Take,
    Settle,
    Reset,
}

impl Function {
    /// All functions, in the order of their discriminants: a prepared statement is found by it.
    pub(super) const ALL: [Self; 20] = [
        Self::ClaimOne,
        Self::Claim,
        Self::Renew,
        Self::ReleaseOne,
        Self::Release,
        Self::Evict,
        Self::RefuseVictim,
        Self::RaiseFences,
        Self::Inspect,
        Self::Reach,
        Self::Names,
        Self::Sweep,
        Self::Notify,
        Self::NotifyLater,
        Self::Write,
        Self::Cell,
        Self::Cells,
        Self::Take,
        Self::Settle,
        Self::Reset,
    ];

    /// Returns whether the reply has one or two rows.
    pub(super) fn has_short_reply(self) -> bool {
        matches!(
            self,
            Self::ClaimOne
                | Self::ReleaseOne
                | Self::Notify
                | Self::Cell
                | Self::Take
                | Self::Settle
        )
    }

    fn name(self) -> &'static str {
        match self {
            Self::ClaimOne => "claim_one",
            Self::Claim => "claim",
            Self::Renew => "renew",
            Self::ReleaseOne => "release_one",
            Self::Release => "release",
            Self::Evict => "evict",
            Self::RefuseVictim => "refuse_victim",
            Self::RaiseFences => "raise_fences",
            Self::Inspect => "inspect",
            Self::Reach => "reach",
            Self::Names => "names",
            Self::Sweep => "sweep",
            Self::Notify => "notify",
            Self::NotifyLater => "notify_later",
            Self::Write => "write",
            Self::Cell => "cell",
            Self::Cells => "cells_after",
            Self::Take => "take",
            Self::Settle => "settle",
            Self::Reset => "reset",
        }
    }

    /// The types of the parameters.
    pub(super) fn types(self) -> &'static [Type] {
        match self {
            Self::ClaimOne => CLAIM_ONE,
            Self::Claim => CLAIM,
            Self::Renew => &[
                Type::INT4,
                Type::BOOL,
                Type::UUID_ARRAY,
                Type::INT4_ARRAY,
                Type::TEXT_ARRAY,
                Type::INT8_ARRAY,
            ],
            Self::ReleaseOne => &[
                Type::INT4,
                Type::BOOL,
                Type::UUID,
                Type::TEXT,
                Type::INT8,
                Type::BOOL,
                Type::BOOL,
            ],
            Self::Release => &[
                Type::INT4,
                Type::BOOL,
                Type::UUID_ARRAY,
                Type::INT4_ARRAY,
                Type::TEXT_ARRAY,
                Type::INT8_ARRAY,
                Type::BOOL_ARRAY,
            ],
            Self::Evict => &[Type::INT4, Type::BOOL, Type::TEXT, Type::INT8, Type::TEXT],
            Self::RefuseVictim => &[
                Type::INT4,
                Type::BOOL,
                Type::TEXT,
                Type::UUID,
                Type::TEXT_ARRAY,
                Type::UUID_ARRAY,
                Type::TEXT_ARRAY,
                Type::UUID_ARRAY,
                Type::UUID_ARRAY,
                Type::TEXT,
            ],
            Self::RaiseFences => &[Type::INT8],
            Self::Inspect => &[Type::INT4, Type::BOOL, Type::TEXT_ARRAY],
            Self::Reach => &[Type::INT4, Type::BOOL, Type::UUID, Type::INT4],
            Self::Names => {
                &[Type::INT4, Type::TEXT, Type::TEXT, Type::TEXT, Type::BOOL, Type::INT4]
            }
            Self::Sweep => &[Type::INT4, Type::BOOL],
            Self::Notify => &[Type::TEXT_ARRAY, Type::TEXT_ARRAY],
            Self::NotifyLater => &[],
            Self::Write => WRITE,
            Self::Cell | Self::Reset => &[Type::INT4, Type::TEXT],
            Self::Cells => &[Type::INT4, Type::TEXT, Type::TEXT, Type::TEXT, Type::INT4],
            Self::Take => TAKE,
            Self::Settle => SETTLE,
        }
    }

    /// The text of the call. `schema` is quoted already.
    pub(super) fn text(self, schema: &str) -> String {
        let columns = match self {
            Self::Names => "names",
            Self::Notify | Self::NotifyLater => "1",
            Self::Write => "kind, part, value, version, fence, expires_in, watched",
            Self::Take => "taken, wait, last, stamp, used, clear, stands",
            Self::Settle => "settle",
            Self::Reset => "reset",
            Self::Cell | Self::Cells => "name, value, version, fence, expires_in",
            _ => COLUMNS,
        };
        let parameters: Vec<String> =
            (1..=self.types().len()).map(|number| format!("${number}")).collect();
        let (name, parameters) = (self.name(), parameters.join(", "));
        format!("SELECT {columns} FROM {schema}.{name}({parameters})")
    }
}

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
    fn each_function_stands_at_its_number() {
        for (number, function) in Function::ALL.into_iter().enumerate() {
            assert_eq!(function as usize, number);
        }
    }

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

    #[test]
    fn values_are_never_part_of_a_statement() {
        let text = Function::Names.text("\"my locks\"");
        assert_eq!(text, "SELECT names FROM \"my locks\".names($1, $2, $3, $4, $5, $6)");
    }
}

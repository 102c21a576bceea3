//! The calls that can be made: their statements and the types of what goes with them. Knows the
//! functions of the schema by name, not what they do.

use tokio_postgres::types::Type;

use super::replies::COLUMNS;

/// What a claim on one name is made of.
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
];
/// The same for several, each with some of the names.
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
];

/// A function of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    ClaimOne,
    Claim,
    Renew,
    ReleaseOne,
    Release,
    Evict,
    RaiseFences,
    Inspect,
    Reach,
    Names,
    Sweep,
    Notify,
    Tell,
    Put,
    Cells,
}

impl Call {
    /// All of them, in the order of their numbers.
    pub(super) const ALL: [Self; 15] = [
        Self::ClaimOne,
        Self::Claim,
        Self::Renew,
        Self::ReleaseOne,
        Self::Release,
        Self::Evict,
        Self::RaiseFences,
        Self::Inspect,
        Self::Reach,
        Self::Names,
        Self::Sweep,
        Self::Notify,
        Self::Tell,
        Self::Put,
        Self::Cells,
    ];

    /// Whether its answer is a row or two.
    pub(super) fn is_short(self) -> bool {
        matches!(self, Self::ClaimOne | Self::ReleaseOne | Self::Notify)
    }

    fn function(self) -> &'static str {
        match self {
            Self::ClaimOne => "claim_one",
            Self::Claim => "claim",
            Self::Renew => "renew",
            Self::ReleaseOne => "release_one",
            Self::Release => "release",
            Self::Evict => "evict",
            Self::RaiseFences => "raise_fences",
            Self::Inspect => "inspect",
            Self::Reach => "reach",
            Self::Names => "names",
            Self::Sweep => "sweep",
            Self::Notify => "notify",
            Self::Tell => "tell_later",
            Self::Put => "put",
            Self::Cells => "cells_after",
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
            Self::RaiseFences => &[Type::INT8],
            Self::Inspect => &[Type::INT4, Type::BOOL, Type::TEXT_ARRAY],
            Self::Reach => &[Type::INT4, Type::BOOL, Type::UUID, Type::INT4],
            Self::Names => &[Type::INT4, Type::TEXT, Type::INT4],
            Self::Sweep => &[Type::INT4, Type::BOOL],
            Self::Notify => &[Type::TEXT_ARRAY, Type::TEXT_ARRAY],
            Self::Tell => &[],
            Self::Put => &[Type::INT4, Type::TEXT, Type::TEXT, Type::INT8, Type::BYTEA, Type::INT8],
            Self::Cells => &[Type::INT4, Type::TEXT, Type::BOOL, Type::INT4],
        }
    }

    /// The statement, in a schema whose name is quoted already.
    pub(super) fn text(self, schema: &str) -> String {
        let columns = match self {
            Self::Names => "names",
            Self::Notify | Self::Tell => "1",
            Self::Put => "kind, value, version, fence, expires_in",
            Self::Cells => "name, value, version, fence, expires_in",
            _ => COLUMNS,
        };
        let parameters: Vec<String> =
            (1..=self.types().len()).map(|number| format!("${number}")).collect();
        let (function, parameters) = (self.function(), parameters.join(", "));
        format!("SELECT {columns} FROM {schema}.{function}({parameters})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_stands_at_its_number() {
        for (number, call) in Call::ALL.into_iter().enumerate() {
            assert_eq!(call as usize, number);
        }
    }

    #[test]
    fn values_are_never_part_of_a_statement() {
        let text = Call::Names.text("\"my locks\"");
        assert_eq!(text, "SELECT names FROM \"my locks\".names($1, $2, $3)");
    }
}

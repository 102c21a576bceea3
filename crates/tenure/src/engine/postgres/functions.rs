//! The functions of the schema that are called, and the SQL text of each call.
//!
//! A call is always `SELECT columns FROM schema.function($1, ..)`, or without `FROM` if it has one
//! value: values are parameters, never part of the text. The types are stated rather than inferred,
//! because behind a pooler a call is sent as text without being prepared first.

use tokio_postgres::types::Type;

use super::replies::COLUMNS;

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
const REFUSE_VICTIM: &[Type] = &[
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

const TAKE: &[Type] =
    &[Type::INT4, Type::TEXT, Type::INT8_ARRAY, Type::INT8_ARRAY, Type::INT8, Type::INT8];
const SETTLE: &[Type] = &[
    Type::INT4,
    Type::TEXT,
    Type::INT8_ARRAY,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8_ARRAY,
];

const PUSH_JOBS: &[Type] = &[
    Type::INT4,
    Type::TEXT,
    Type::BOOL,
    Type::BOOL,
    Type::BYTEA_ARRAY,
    Type::INT4_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT4_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT4_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT4_ARRAY,
];
const TURN: &[Type] = &[
    Type::INT4,
    Type::TEXT,
    Type::TEXT,
    Type::BOOL,
    Type::UUID,
    Type::UUID,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::BOOL_ARRAY,
    Type::INT8_ARRAY,
    Type::INT4_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::INT4,
    Type::BOOL,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::BOOL,
    Type::BOOL,
    Type::BOOL,
    Type::BOOL,
];
/// The columns of `job_view`, in the order in which `jobs.rs` reads them.
const JOB_VIEW: &str = "id, state, priority, due, pushed, ended, attempts, max_attempts, crashes, \
                        key, mode, lane, worker, fence, cancelled, progress, tried, at, errors, \
                        payload";

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
    PushJobs,
    WakeLater,
    Turn,
    ChangeJob,
    Job,
    JobsAfter,
    JobCounts,
    QueueNames,
    SweepJobs,
}

impl Function {
    /// All functions, in the order of their discriminants: a prepared statement is found by it.
    pub(super) const ALL: [Self; 29] = [
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
        Self::PushJobs,
        Self::WakeLater,
        Self::Turn,
        Self::ChangeJob,
        Self::Job,
        Self::JobsAfter,
        Self::JobCounts,
        Self::QueueNames,
        Self::SweepJobs,
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
                | Self::ChangeJob
                | Self::Job
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
            Self::PushJobs => "push_jobs",
            Self::WakeLater => "wake_later",
            Self::Turn => "turn",
            Self::ChangeJob => "change_job",
            Self::Job => "job",
            Self::JobsAfter => "jobs_after",
            Self::JobCounts => "job_counts",
            Self::QueueNames => "queue_names",
            Self::SweepJobs => "sweep_jobs",
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
            Self::RefuseVictim => REFUSE_VICTIM,
            Self::RaiseFences => &[Type::INT8],
            Self::Inspect => &[Type::INT4, Type::BOOL, Type::TEXT_ARRAY],
            Self::Reach => &[Type::INT4, Type::BOOL, Type::UUID, Type::INT4],
            Self::Names => {
                &[Type::INT4, Type::TEXT, Type::TEXT, Type::TEXT, Type::BOOL, Type::INT4]
            }
            Self::Sweep => &[Type::INT4, Type::BOOL],
            Self::Notify => &[Type::TEXT_ARRAY, Type::TEXT_ARRAY],
            Self::NotifyLater | Self::WakeLater => &[],
            Self::Write => WRITE,
            Self::Cell | Self::Reset | Self::JobCounts => &[Type::INT4, Type::TEXT],
            Self::Cells => &[Type::INT4, Type::TEXT, Type::TEXT, Type::TEXT, Type::INT4],
            Self::Take => TAKE,
            Self::Settle => SETTLE,
            Self::PushJobs => PUSH_JOBS,
            Self::Turn => TURN,
            Self::ChangeJob => &[
                Type::INT4,
                Type::TEXT,
                Type::TEXT,
                Type::INT8,
                Type::INT8,
                Type::INT8,
                Type::INT8,
            ],
            Self::Job => &[Type::INT4, Type::TEXT, Type::INT8],
            Self::JobsAfter => &[Type::INT4, Type::TEXT, Type::TEXT, Type::INT8, Type::INT4],
            Self::QueueNames | Self::SweepJobs => &[Type::INT4],
        }
    }

    /// The text of the call. `schema` is quoted already.
    pub(super) fn text(self, schema: &str) -> String {
        let columns = match self {
            Self::Names => "names",
            Self::Notify | Self::NotifyLater | Self::WakeLater | Self::SweepJobs => "1",
            Self::Write => "kind, part, value, version, fence, expires_in, watched",
            Self::Settle => "settle",
            Self::Reset => "reset",
            Self::PushJobs => "kind, id, instead_of",
            Self::Turn => {
                "kind, item, id, fence, number, most, crashes, payload, progress, class, place, \
                 wait, key"
            }
            Self::ChangeJob => "kind, state",
            Self::Job | Self::JobsAfter => JOB_VIEW,
            Self::JobCounts => "state, jobs, paused, keep_dead, keep_done, aging",
            Self::QueueNames => "queue_names",
            Self::Cell | Self::Cells => "name, value, version, fence, expires_in",
            _ => COLUMNS,
        };
        let parameters: Vec<String> =
            (1..=self.types().len()).map(|number| format!("${number}")).collect();
        let (name, parameters) = (self.name(), parameters.join(", "));
        if self == Self::Take {
            // One value. A function behind FROM would cost the server a table of its rows.
            return format!("SELECT {schema}.{name}({parameters})");
        }
        format!("SELECT {columns} FROM {schema}.{name}({parameters})")
    }
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
    fn values_are_never_part_of_a_statement() {
        let text = Function::Names.text("\"my locks\"");
        assert_eq!(text, "SELECT names FROM \"my locks\".names($1, $2, $3, $4, $5, $6)");
    }
}

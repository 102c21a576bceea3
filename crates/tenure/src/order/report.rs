//! The reports of the order checker, as text: a cycle, names taken out of order, or a habit that
//! ends in deadlock. Formats only; `checker.rs` decides.

use std::fmt;

use super::edge::OrderEdge;

/// One finding of the order checker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OrderReport {
    /// What was found.
    pub kind: ReportKind,
    /// The edges of the cycle, each with its service, places in the code and first sighting; the
    /// last one closed the cycle. Empty for a habit.
    pub edges: Vec<OrderEdge>,
    /// What else there is to say: for a habit, which locks and where.
    pub detail: String,
}

/// What the order checker found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ReportKind {
    /// Classes of locks are taken in orders that together form a cycle: a deadlock that has not
    /// happened yet.
    Cycle,
    /// The same, but a wait in the cycle has a time limit: the deadlock would end by itself.
    SelfHealingCycle,
    /// Locks of one class are taken now in one order of their names and now in another.
    NamesOutOfOrder,
    /// A class comes before another in the declared order, and was acquired after it.
    AgainstDeclaredOrder,
    /// A wait without a limit while another lock is held.
    UnlimitedWaitWhileHolding,
    /// A lock was held for longer than the set time.
    LongHold,
    /// An owner was sent to another service while it held a lock.
    HeldAcrossCall,
}

impl ReportKind {
    /// Whether `deny` refuses the lock: habits and cycles that end by themselves are only told.
    pub(super) fn is_refused(self) -> bool {
        matches!(self, Self::Cycle | Self::NamesOutOfOrder)
    }

    /// The kind as a word for machines.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::SelfHealingCycle => "self-healing-cycle",
            Self::NamesOutOfOrder => "names-out-of-order",
            Self::AgainstDeclaredOrder => "against-declared-order",
            Self::UnlimitedWaitWhileHolding => "unlimited-wait-while-holding",
            Self::LongHold => "long-hold",
            Self::HeldAcrossCall => "held-across-call",
        }
    }
}

impl fmt::Display for OrderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ReportKind::Cycle => "lock order: these orders together can deadlock",
            ReportKind::SelfHealingCycle => {
                "lock order: these orders together can deadlock until a time limit ends it"
            }
            ReportKind::NamesOutOfOrder => {
                "lock order: locks of one class are taken in different orders of their names"
            }
            ReportKind::AgainstDeclaredOrder => "lock order: against the declared order",
            ReportKind::UnlimitedWaitWhileHolding => {
                "lock order: a wait without a time limit while another lock is held"
            }
            ReportKind::LongHold => "lock order: a lock is held for long",
            ReportKind::HeldAcrossCall => {
                "lock order: a lock is held while its owner was sent to another service"
            }
        })?;
        for edge in &self.edges {
            write!(f, "; {}", edge.describe())?;
        }
        if !self.detail.is_empty() {
            write!(f, "; {}", self.detail)?;
        }
        Ok(())
    }
}

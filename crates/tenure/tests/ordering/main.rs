//! The order of locks: levels, the learned order, what services learn of each other.

mod checker;
mod habits;
mod levels;
mod patterns;
mod services;
mod stuck;
mod upgrades;

use std::sync::Arc;

use tenure::engine::memory::MemoryEngine;
use tenure::{Builder, LockOrder, OrderReport, ReportKind, Tenure};

/// A session with a store of its own.
fn opened(builder: Builder) -> Tenure {
    builder.open(Arc::new(MemoryEngine::new())).unwrap()
}

/// A session with a store of its own and these settings of the checker.
fn ordered(order: impl Into<LockOrder>) -> Tenure {
    opened(Tenure::builder().order(order))
}

/// The reports about the order itself, without those about habits.
fn cycles(tenure: &Tenure) -> Vec<OrderReport> {
    use ReportKind::{Cycle, NamesOutOfOrder, SelfHealingCycle};
    let mut reports = tenure.order().unwrap().reports();
    reports.retain(|report| matches!(report.kind, Cycle | SelfHealingCycle | NamesOutOfOrder));
    reports
}

/// The line number of the place that a text shows last for a file of these tests.
fn places(text: &str) -> usize {
    text.matches("tests/ordering/").count()
}

//! The order of locks: declared levels, and a checker that learns which classes of locks are taken
//! while which are held and finds the deadlock before it happens.
//!
//! ```text
//! request --check--> checker.rs --never seen--> learning.rs --> search.rs (limits of waits)
//!             |          |                          |               |
//!             |      holds.rs, levels.rs         share.rs       finder.rs (cycles)
//!             |                                     |               |
//!             |                             cells of the store  topology.rs (their order)
//!             '--granted--> a mark in the guard
//! ```
//!
//! `edge.rs`, `document.rs`, `report.rs` and `silence.rs` are what goes in and out as text;
//! `inherited.rs` carries holds to other processes; `upgrade.rs` checks a reader that wants to
//! write; `habits.rs` warns of what is no cycle yet.
//! This room knows claims and cells, neither sessions nor guards: `primitives/request.rs` asks it
//! before and after each acquisition, only if a checker was set.

mod builds;
mod checker;
mod classes;
#[cfg(feature = "config")]
mod config;
mod document;
mod edge;
mod finder;
mod habits;
mod holds;
mod inherited;
mod learning;
mod levels;
mod name_order;
mod report;
mod search;
mod settings;
mod share;
mod silence;
#[cfg(test)]
mod tests;
mod topology;
mod upgrade;

pub use checker::OrderChecker;
pub(crate) use checker::{OrderRequest, WaitLimit};
pub use document::OrderGraph;
pub use edge::{LockMode, OrderEdge};
pub(crate) use habits::owner_sent;
pub(crate) use holds::{FlowKey, HoldMark};
pub(crate) use inherited::{InheritedHolds, SEPARATOR as HELD_SEPARATOR, append_held, inherit};
pub use levels::Levels;
pub use name_order::NameOrders;
pub use report::{OrderReport, ReportKind};
pub use settings::{LockOrder, OrderMode};
pub(crate) use share::stored_graph;
pub use silence::SilencedEdges;

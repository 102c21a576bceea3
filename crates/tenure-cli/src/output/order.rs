//! A lock order as JSON: graphs, edges and reports.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use tenure::{OrderEdge, OrderGraph, OrderReport};

/// A graph as JSON.
#[derive(Serialize)]
pub(crate) struct GraphJson {
    classes: Vec<String>,
    edges: Vec<EdgeJson>,
}

impl GraphJson {
    pub(crate) fn new(graph: &OrderGraph) -> Self {
        let edges = graph.edges().iter().map(EdgeJson::new).collect();
        Self { classes: graph.classes(), edges }
    }
}

/// An edge as JSON.
#[derive(Serialize)]
pub(crate) struct EdgeJson {
    held: String,
    held_mode: &'static str,
    held_at: String,
    acquired: String,
    acquired_mode: &'static str,
    acquired_at: String,
    bounded: bool,
    service: String,
    build: String,
    first_seen: String,
    last_seen: String,
}

impl EdgeJson {
    pub(crate) fn new(edge: &OrderEdge) -> Self {
        let time = |seconds: u64| {
            let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH);
            humantime::format_rfc3339_seconds(time).to_string()
        };
        Self {
            held: edge.held.clone(),
            held_mode: edge.held_mode.word(),
            held_at: edge.held_at.clone(),
            acquired: edge.acquired.clone(),
            acquired_mode: edge.acquired_mode.word(),
            acquired_at: edge.acquired_at.clone(),
            bounded: edge.bounded,
            service: edge.service.clone(),
            build: edge.build.clone(),
            first_seen: time(edge.first_seen),
            last_seen: time(edge.last_seen),
        }
    }
}

/// A report as JSON.
#[derive(Serialize)]
pub(crate) struct ReportJson<'a> {
    kind: &'static str,
    text: String,
    detail: &'a str,
    edges: Vec<EdgeJson>,
}

impl<'a> ReportJson<'a> {
    pub(crate) fn new(report: &'a OrderReport) -> Self {
        Self {
            kind: report.kind.word(),
            text: report.to_string(),
            detail: &report.detail,
            edges: report.edges.iter().map(EdgeJson::new).collect(),
        }
    }
}

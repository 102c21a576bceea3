//! Jobs and queues as rows and as JSON. A payload that is text is shown as text, any other as
//! hexadecimal digits.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tenure::{JobView, Name, QueueCounts, RecurringJob};

use super::{Row, hex};

/// One queue.
#[derive(Debug, Serialize)]
pub(crate) struct QueueRow {
    queue: String,
    ready: u64,
    running: u64,
    scheduled: u64,
    blocked: u64,
    dead: u64,
    done: u64,
    paused: bool,
    keep_dead_s: u64,
    keep_done_s: u64,
    aging_s: f64,
}

impl QueueRow {
    pub(crate) fn new(name: &Name, counts: &QueueCounts) -> Self {
        Self {
            queue: name.to_string(),
            ready: counts.ready,
            running: counts.running,
            scheduled: counts.scheduled,
            blocked: counts.blocked,
            dead: counts.dead,
            done: counts.done,
            paused: counts.paused,
            keep_dead_s: counts.settings.keep_dead.as_secs(),
            keep_done_s: counts.settings.keep_done.as_secs(),
            aging_s: counts.settings.aging.as_secs_f64(),
        }
    }
}

impl Row for QueueRow {
    const HEAD: &'static [&'static str] =
        &["QUEUE", "READY", "RUNNING", "SCHEDULED", "BLOCKED", "DEAD", "DONE", "PAUSED"];
    const NARROW: usize = 8;

    fn cells(&self) -> Vec<String> {
        let counts = [self.ready, self.running, self.scheduled, self.blocked, self.dead, self.done];
        let mut cells = vec![self.queue.clone()];
        cells.extend(counts.map(|count| count.to_string()));
        cells.push(if self.paused { "yes" } else { "no" }.to_owned());
        cells
    }
}

/// One recurring job.
#[derive(Debug, Serialize)]
pub(crate) struct RecurringRow {
    name: String,
    expression: String,
    zone: String,
    next: Option<String>,
    priority: u8,
    lane: Option<String>,
    max_attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_hex: Option<String>,
}

impl RecurringRow {
    pub(crate) fn new(recurring: &RecurringJob) -> Self {
        let RecurringJob { name, schedule, job, next_micros } = recurring;
        let text = std::str::from_utf8(&job.payload).ok().map(ToOwned::to_owned);
        Self {
            name: name.to_string(),
            expression: schedule.expression().to_owned(),
            zone: schedule.zone().to_owned(),
            next: next_micros.map(time),
            priority: job.priority,
            lane: job.lane.as_ref().map(|lane| lane.name.to_string()),
            max_attempts: job.max_attempts,
            payload_hex: text.is_none().then(|| hex(&job.payload)),
            payload: text,
        }
    }
}

impl Row for RecurringRow {
    const HEAD: &'static [&'static str] =
        &["NAME", "EXPRESSION", "ZONE", "NEXT", "PRIORITY", "LANE", "PAYLOAD"];
    const NARROW: usize = 7;

    fn cells(&self) -> Vec<String> {
        let dash = |text: Option<&String>| text.map_or("-", String::as_str).to_owned();
        let payload = self.payload.as_ref().or(self.payload_hex.as_ref());
        let payload = payload.map(|text| text.chars().take(40).flat_map(escape).collect());
        vec![
            self.name.clone(),
            self.expression.clone(),
            self.zone.clone(),
            dash(self.next.as_ref()),
            self.priority.to_string(),
            dash(self.lane.as_ref()),
            payload.unwrap_or_default(),
        ]
    }
}

/// One job.
#[derive(Debug, Serialize)]
pub(crate) struct JobRow {
    id: u64,
    state: &'static str,
    priority: u8,
    due: String,
    pushed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    attempts: u32,
    max_attempts: u32,
    crashes: u32,
    key: Option<String>,
    lane: Option<String>,
    fence: Option<u64>,
    worker: Option<String>,
    cancelled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<String>,
    errors: Vec<ErrorRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_hex: Option<String>,
}

/// An attempt that failed.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorRow {
    attempt: u32,
    at: String,
    error: String,
}

impl JobRow {
    /// A job as a list shows it.
    pub(crate) fn new(view: &JobView) -> Self {
        let error = |error: &tenure::AttemptError| ErrorRow {
            attempt: error.attempt,
            at: time(error.at_micros),
            error: error.error.clone(),
        };
        Self {
            id: view.id.0,
            state: view.state.word(),
            priority: view.priority,
            due: time(view.due_micros),
            pushed: time(view.pushed_micros),
            ended: (view.ended_micros > 0).then(|| time(view.ended_micros)),
            attempts: view.attempts,
            max_attempts: view.max_attempts,
            crashes: view.crashes,
            key: view.key.as_ref().map(|key| key.key.shown().into_owned()),
            lane: view.lane.as_ref().map(ToString::to_string),
            fence: view.running.map(|(_, fence)| fence.get()),
            worker: view.running.map(|(worker, _)| worker.to_string()),
            cancelled: view.cancelled,
            progress: (!view.progress.is_empty())
                .then(|| String::from_utf8_lossy(&view.progress).into_owned()),
            errors: view.errors.iter().map(error).collect(),
            payload: None,
            payload_hex: None,
        }
    }

    /// A job in full.
    pub(crate) fn in_full(view: &JobView) -> Self {
        let text = std::str::from_utf8(&view.payload).ok().map(ToOwned::to_owned);
        let payload_hex = text.is_none().then(|| hex(&view.payload));
        Self { payload: text, payload_hex, ..Self::new(view) }
    }

    /// The lines that `show` prints for people.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("job", self.id.to_string()),
            ("state", self.state.to_owned()),
            ("priority", self.priority.to_string()),
            ("due", self.due.clone()),
            ("pushed", self.pushed.clone()),
            ("attempts", format!("{} of {}", self.attempts, self.max_attempts)),
            ("crashes", self.crashes.to_string()),
        ];
        let optional = [
            ("ended", self.ended.clone()),
            ("key", self.key.clone()),
            ("lane", self.lane.clone()),
            ("fence", self.fence.map(|fence| fence.to_string())),
            ("worker", self.worker.clone()),
            ("cancelled", self.cancelled.then(|| "yes: its worker is told".to_owned())),
            ("progress", self.progress.clone()),
            ("payload", self.payload.clone().or_else(|| self.payload_hex.clone())),
        ];
        lines.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
        let error = |error: &ErrorRow| {
            ("error", format!("{} attempt {}: {}", error.at, error.attempt, error.error))
        };
        lines.extend(self.errors.iter().map(error));
        let shown = |(name, text): (&'static str, String)| {
            (name, text.chars().flat_map(escape).collect::<String>())
        };
        lines.into_iter().map(shown).collect()
    }
}

impl Row for JobRow {
    const HEAD: &'static [&'static str] =
        &["JOB", "STATE", "PRIORITY", "ATTEMPTS", "DUE", "KEY", "LANE", "LAST ERROR"];
    const NARROW: usize = 8;

    fn cells(&self) -> Vec<String> {
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let error = self.errors.last().map(|error| error.error.chars().take(40).collect());
        let error: Option<String> =
            error.map(|text: String| text.chars().flat_map(escape).collect());
        vec![
            self.id.to_string(),
            self.state.to_owned(),
            self.priority.to_string(),
            format!("{}/{}", self.attempts, self.max_attempts),
            self.due.clone(),
            dash(&self.key),
            dash(&self.lane),
            dash(&error),
        ]
    }
}

/// Nothing that moves a cursor.
fn escape(char: char) -> Vec<char> {
    if char.is_control() { char.escape_debug().collect() } else { vec![char] }
}

fn time(micros: u64) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
    humantime::format_rfc3339_millis(at).to_string()
}

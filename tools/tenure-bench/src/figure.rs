//! One measured figure and how it is shown. Knows text, not how it was measured.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

/// What one benchmark found.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) bench: Cow<'static, str>,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// To a reference measured in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    /// What clients asked of the store for each acquisition.
    #[serde(skip_serializing_if = "Option::is_none")]
    commands: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    waited: Option<Waited>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    costs: Option<Costs>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    judged: Option<Judged>,
    /// For people: what the ratio refers to, or what is aimed at.
    #[serde(skip)]
    note: &'static str,
}

impl Figure {
    pub(crate) fn new(
        bench: impl Into<Cow<'static, str>>,
        value: f64,
        unit: &'static str,
        note: &'static str,
    ) -> Self {
        let (bench, value) = (bench.into(), rounded(value));
        let (ratio, commands, waited, costs, judged) = (None, None, None, None, None);
        Self { bench, value, unit, ratio, commands, waited, costs, judged, note }
    }

    /// Compares with a reference of the same unit.
    pub(crate) fn relative_to(self, reference: f64) -> Self {
        let ratio = (reference > 0.0).then(|| rounded(self.value / reference));
        Self { ratio, ..self }
    }

    /// Adds what clients asked of the store for each acquisition.
    pub(crate) fn with_commands(self, commands: f64) -> Self {
        Self { commands: Some(rounded(commands)), ..self }
    }

    /// Adds which share of the acquisitions had to wait, ours and the reference's.
    pub(crate) fn with_waited(self, ours: f64, reference: f64) -> Self {
        let waited =
            Waited { waited_share: rounded(ours), reference_waited_share: rounded(reference) };
        Self { waited: Some(waited), ..self }
    }

    /// Adds what a pair costs the client's process, ours and the reference's.
    pub(crate) fn with_costs(self, ours: PairCost, reference: PairCost) -> Self {
        let ratio = (reference.cpu_us > 0.0).then(|| rounded(ours.cpu_us / reference.cpu_us));
        let costs = Costs { cpu_ratio: ratio, per_pair: ours, reference_per_pair: reference };
        Self { costs: Some(costs), ..self }
    }

    /// Says whether an aim is met: by the commands, else by the ratio, else by the value.
    pub(crate) fn judged_by(self, aim: Aim) -> Self {
        let number = self.commands.or(self.ratio).unwrap_or(self.value);
        Self { judged: Some(Judged { aim: aim.to_string(), met: aim.is_met(number) }), ..self }
    }

    /// The same, where there is an aim.
    pub(crate) fn judged_by_any(self, aim: Option<Aim>) -> Self {
        match aim {
            Some(aim) => self.judged_by(aim),
            None => self,
        }
    }

    /// What stands in the last column.
    fn remark(&self) -> String {
        let commands = self.commands.map(|commands| format!("{commands:.2} commands"));
        let judged = self.judged.as_ref().map(|Judged { aim, met }| {
            let met = if *met { "met" } else { "MISSED" };
            format!("aim {aim}: {met}")
        });
        let costs = self.costs.as_ref().map(Costs::remark);
        let waited = self.waited.as_ref().map(|waited| {
            let Waited { waited_share: ours, reference_waited_share: other } = waited;
            format!("{:.1} % ({:.1} %) waited", ours * 100.0, other * 100.0)
        });
        let parts = [Some(self.note.to_owned()), waited, costs, commands, judged];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// What one lock and its release cost the process that makes them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PairCost {
    /// Processor time of all threads, in microseconds.
    cpu_us: f64,
    allocations: f64,
    /// Where they can be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    system_calls: Option<f64>,
    /// Bytes through sockets, both ways.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<f64>,
}

impl PairCost {
    pub(crate) fn new(cpu_us: f64, allocations: f64) -> Self {
        let (cpu_us, allocations) = (rounded(cpu_us), rounded(allocations));
        Self { cpu_us, allocations, system_calls: None, bytes: None }
    }

    pub(crate) fn with_system_calls(self, system_calls: Option<f64>) -> Self {
        Self { system_calls: system_calls.map(rounded), ..self }
    }

    pub(crate) fn with_bytes(self, bytes: Option<f64>) -> Self {
        Self { bytes: bytes.map(rounded), ..self }
    }
}

/// Which share of the acquisitions had to wait.
#[derive(Debug, Serialize)]
struct Waited {
    waited_share: f64,
    reference_waited_share: f64,
}

/// What a pair costs, ours beside the reference of the same run.
#[derive(Debug, Serialize)]
struct Costs {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ratio: Option<f64>,
    per_pair: PairCost,
    reference_per_pair: PairCost,
}

impl Costs {
    /// Ours, and the reference's in parentheses.
    fn remark(&self) -> String {
        let (ours, other) = (&self.per_pair, &self.reference_per_pair);
        let mut parts = Vec::new();
        if let Some(ratio) = self.cpu_ratio {
            parts.push(format!("cpu x {ratio:.2}"));
        }
        let allocations = (Some(ours.allocations), Some(other.allocations), "allocations");
        let calls = (ours.system_calls, other.system_calls, "system calls");
        let bytes = (ours.bytes, other.bytes, "bytes");
        for (ours, other, what) in [allocations, calls, bytes] {
            if let (Some(ours), Some(other)) = (ours, other) {
                parts.push(format!("{ours:.1} ({other:.1}) {what}"));
            }
        }
        parts.join(", ")
    }
}

/// What is aimed at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim {
    AtMost(f64),
    AtLeast(f64),
    Below(f64),
}

impl Aim {
    fn is_met(self, number: f64) -> bool {
        match self {
            Self::AtMost(most) => number <= most,
            Self::AtLeast(least) => number >= least,
            Self::Below(limit) => number < limit,
        }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::Below(limit) => write!(f, "< {limit}"),
        }
    }
}

/// An aim, and whether it is met.
#[derive(Debug, Serialize)]
struct Judged {
    aim: String,
    met: bool,
}

/// How figures are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layout {
    Json,
    Table,
}

impl Layout {
    /// What stands above all figures.
    pub(crate) fn head(self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Json => Ok(()),
            Self::Table => {
                writeln!(to, "{:<25}{:>10} {:<6}{:>7}  note", "bench", "value", "unit", "ratio")
            }
        }
    }

    /// Says which version of a peer takes part, or that it is left out.
    pub(crate) fn peer(
        self,
        to: &mut impl Write,
        (peer, version): (&str, Option<&str>),
    ) -> io::Result<()> {
        match (self, version) {
            (Self::Json, _) => {
                writeln!(to, "{}", serde_json::json!({ "peer": peer, "version": version }))
            }
            (Self::Table, Some(version)) => writeln!(to, "beside {peer} {version}"),
            (Self::Table, None) => writeln!(to, "left out: {peer}, which is not installed"),
        }
    }

    pub(crate) fn line(self, to: &mut impl Write, figure: &Figure) -> io::Result<()> {
        match self {
            Self::Json => writeln!(to, "{}", serde_json::to_string(figure)?),
            Self::Table => {
                let Figure { bench, value, unit, .. } = figure;
                let decimals = if *value < 100.0 { 2 } else { 0 };
                let ratio = figure.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
                let remark = figure.remark();
                writeln!(to, "{bench:<25}{value:>10.decimals$} {unit:<6}{ratio:>7}  {remark}")
            }
        }
    }
}

/// More digits than these are noise.
fn rounded(value: f64) -> f64 {
    let parts = if value.abs() < 0.1 { 10_000.0 } else { 100.0 };
    (value * parts).round() / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(layout: Layout, figure: &Figure) -> String {
        let mut text = Vec::new();
        layout.line(&mut text, figure).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_figure_without_a_reference_has_no_ratio() {
        let figure = Figure::new("reentry", 123.456, "ns", "aim < 1000");
        let json = "{\"bench\":\"reentry\",\"value\":123.46,\"unit\":\"ns\"}\n";
        assert_eq!(shown(Layout::Json, &figure), json);
    }

    #[test]
    fn a_ratio_is_to_the_reference_of_the_same_run() {
        let figure = Figure::new("pair", 900.0, "ns", "x bare engine").relative_to(300.0);
        assert!(shown(Layout::Json, &figure).ends_with("\"unit\":\"ns\",\"ratio\":3.0}\n"));
        assert!(shown(Layout::Table, &figure).contains("900 ns       3.00  x bare engine"));
    }

    #[test]
    fn costs_stand_beside_those_of_the_reference() {
        let ours = PairCost::new(3.0, 9.0).with_system_calls(Some(6.0)).with_bytes(Some(539.0));
        let other = PairCost::new(1.5, 2.0).with_bytes(Some(231.0));
        let figure = Figure::new("pair_1", 60.0, "us", "x by hand").with_costs(ours, other);
        let json = shown(Layout::Json, &figure);
        let ours = "{\"cpu_us\":3.0,\"allocations\":9.0,\"system_calls\":6.0,\"bytes\":539.0}";
        let other = "{\"cpu_us\":1.5,\"allocations\":2.0,\"bytes\":231.0}";
        let costs =
            format!("\"cpu_ratio\":2.0,\"per_pair\":{ours},\"reference_per_pair\":{other}}}\n");
        assert!(json.ends_with(&costs), "{json}");
        let table = shown(Layout::Table, &figure);
        let remark = "x by hand; cpu x 2.00, 9.0 (2.0) allocations, 539.0 (231.0) bytes\n";
        assert!(table.ends_with(remark), "{table}");
    }

    #[test]
    fn shares_of_those_that_waited_are_shown_as_percent() {
        let figure = Figure::new("handoff_16_procs", 9_000.0, "1/s", "x bare");
        let figure = figure.with_waited(0.996, 0.98);
        let json = shown(Layout::Json, &figure);
        assert!(
            json.ends_with("\"waited_share\":1.0,\"reference_waited_share\":0.98}\n"),
            "{json}"
        );
        assert!(shown(Layout::Table, &figure).ends_with("x bare; 100.0 % (98.0 %) waited\n"));
    }

    #[test]
    fn an_aim_is_judged_by_what_tells_most() {
        let figure = Figure::new("handoff_2", 190.0, "us", "p50").with_commands(2.004);
        let figure = figure.judged_by(Aim::AtMost(2.0));
        let json = shown(Layout::Json, &figure);
        assert!(json.ends_with("\"commands\":2.0,\"aim\":\"<= 2\",\"met\":true}\n"), "{json}");
        assert!(shown(Layout::Table, &figure).ends_with("p50; 2.00 commands; aim <= 2: met\n"));

        let slow = Figure::new("pair_1", 60.0, "us", "x by hand").relative_to(50.0);
        let slow = slow.judged_by(Aim::AtMost(1.15));
        assert!(shown(Layout::Table, &slow).ends_with("x by hand; aim <= 1.15: MISSED\n"));
        assert!(!Aim::Below(100.0).is_met(100.0) && Aim::AtLeast(1.0).is_met(1.0));
    }
}

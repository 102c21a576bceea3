//! One measured figure and how it is shown. Knows text, not how it was measured.

use std::io::{self, Write};

use serde::Serialize;

/// What one benchmark found.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) bench: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// To a reference measured in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    /// For people: what the ratio refers to, or what is aimed at.
    #[serde(skip)]
    note: &'static str,
}

impl Figure {
    pub(crate) fn new(
        bench: &'static str,
        value: f64,
        unit: &'static str,
        note: &'static str,
    ) -> Self {
        Self { bench, value: hundredths(value), unit, ratio: None, note }
    }

    /// Compares with a reference of the same unit.
    pub(crate) fn relative_to(self, reference: f64) -> Self {
        let ratio = (reference > 0.0).then(|| hundredths(self.value / reference));
        Self { ratio, ..self }
    }
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
                writeln!(to, "{:<22}{:>10} {:<6}{:>7}  note", "bench", "value", "unit", "ratio")
            }
        }
    }

    pub(crate) fn line(self, to: &mut impl Write, figure: &Figure) -> io::Result<()> {
        match self {
            Self::Json => writeln!(to, "{}", serde_json::to_string(figure)?),
            Self::Table => {
                let Figure { bench, value, unit, note, .. } = figure;
                let decimals = if *value < 100.0 { 2 } else { 0 };
                let ratio = figure.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
                writeln!(to, "{bench:<22}{value:>10.decimals$} {unit:<6}{ratio:>7}  {note}")
            }
        }
    }
}

/// More digits than these are noise.
fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
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
}

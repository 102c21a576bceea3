//! Cells and their changes as rows and as JSON. A value that is text is shown as text, any other as
//! hexadecimal digits.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::SystemTime;

use serde::Serialize;
use tenure::contract::short;
use tenure::{Cell, CellChange, Name};

use super::{Row, STRONG, millis};

/// How much of a value a table shows.
const SHOWN: usize = 40;

/// One cell.
#[derive(Debug, Serialize)]
pub(crate) struct CellRow {
    name: String,
    version: u64,
    fence: Option<u64>,
    expires_in_ms: Option<u64>,
    #[serde(flatten)]
    value: CellValue,
}

/// A value, as text if it is text.
#[derive(Debug, Serialize)]
enum CellValue {
    #[serde(rename = "value")]
    Text(String),
    #[serde(rename = "value_hex")]
    Hex(String),
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl CellValue {
    fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Hex(hex(bytes)),
        }
    }

    /// The beginning of the value in one line, with nothing that moves a cursor.
    fn short(&self) -> String {
        let (Self::Text(text) | Self::Hex(text)) = self;
        let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
        if text.chars().nth(SHOWN).is_some() {
            shown.push_str("...");
        }
        shown
    }
}

impl CellRow {
    pub(crate) fn new(name: &Name, cell: &Cell) -> Self {
        Self {
            name: name.shown().into_owned(),
            version: cell.version.0,
            fence: cell.fence.map(tenure::Fence::get),
            expires_in_ms: cell.expires_in.map(millis),
            value: CellValue::new(&cell.value),
        }
    }
}

impl Row for CellRow {
    const HEAD: &'static [&'static str] = &["NAME", "VERSION", "FENCE", "EXPIRES", "VALUE"];
    const NARROW: usize = 5;

    fn cells(&self) -> Vec<String> {
        let dash = || "-".to_owned();
        let expires = |millis| short(std::time::Duration::from_millis(millis));
        vec![
            self.name.clone(),
            self.version.to_string(),
            self.fence.map_or_else(dash, |fence| fence.to_string()),
            self.expires_in_ms.map_or_else(dash, expires),
            self.value.short(),
        ]
    }
}

/// One change of a watched cell.
#[derive(Debug, Serialize)]
pub(crate) struct CellEvent {
    at: String,
    /// `put`, `removed` or `gap`.
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    cell: Option<CellRow>,
}

impl CellEvent {
    pub(crate) fn new(change: &CellChange, at: SystemTime) -> Self {
        let at = humantime::format_rfc3339_millis(at).to_string();
        let (event, name, cell) = match change {
            CellChange::Put(name, cell) => ("put", None, Some(CellRow::new(name, cell))),
            CellChange::Removed(name) => ("removed", Some(name.shown().into_owned()), None),
            CellChange::Gap => ("gap", None, None),
        };
        Self { at, event, name, cell }
    }

    /// Writes the change for people.
    pub(crate) fn line(&self, out: &mut impl Write) -> io::Result<()> {
        let time = self.at.get(11..23).unwrap_or_default();
        let name = self.cell.as_ref().map(|cell| &cell.name).or(self.name.as_ref());
        let name = name.map(String::as_str).unwrap_or_default();
        let value = self.cell.as_ref().map(|cell| cell.value.short()).unwrap_or_default();
        writeln!(out, "{time}  {:<8}{STRONG}{name}{STRONG:#}  {value}", self.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_as_text_and_bytes_as_digits_and_nothing_moves_the_cursor() {
        assert_eq!(CellValue::new(b"on\x1b[2J\n").short(), r"on\u{1b}[2J\n");
        assert_eq!(CellValue::new(&[0xff, 0x00]).short(), "ff00");
        assert_eq!(CellValue::new("é".repeat(41).as_bytes()).short(), "é".repeat(40) + "...");
    }
}

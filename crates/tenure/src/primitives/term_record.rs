//! What the cell of an election contains: the term, the claim of its leader, and the value.
//!
//! ```text
//! byte 0: format (1) | 1..9: term | 9..25: claim id | 25..: value     numbers big-endian
//! ```
//!
//! The cell outlives the leader, so a record alone does not say that its leader leads: its claim
//! has to hold the slot as well (`observer.rs`). Pure: no session here.

use crate::contract::{ClaimId, Error, ErrorKind, Fence, HolderView, Name, Verb};
use crate::limits;

/// The format of a record.
const FORMAT: u8 = 1;
/// Bytes before the value.
const HEADER: usize = 25;
/// The largest value that a leader may publish.
const MOST: usize = limits::CELL_BYTES - HEADER;

/// The record of one term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TermRecord {
    pub(super) term: Fence,
    pub(super) claim: ClaimId,
    pub(super) value: Vec<u8>,
}

impl TermRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.value.len());
        bytes.push(FORMAT);
        bytes.extend_from_slice(&self.term.get().to_be_bytes());
        bytes.extend_from_slice(&self.claim.as_u128().to_be_bytes());
        bytes.extend_from_slice(&self.value);
        bytes
    }

    pub(super) fn decode(bytes: &[u8], name: &Name) -> Result<Self, Error> {
        let decoded = || {
            let (format, rest) = bytes.split_first()?;
            let (term, rest) = rest.split_first_chunk()?;
            let (claim, value) = rest.split_first_chunk()?;
            (*format == FORMAT).then(|| Self {
                term: Fence::new(u64::from_be_bytes(*term)),
                claim: ClaimId::from_u128(u128::from_be_bytes(*claim)),
                value: value.to_vec(),
            })
        };
        decoded().ok_or_else(|| {
            let what = "the record of the leader has a format that this version does not know";
            let help = "let all clients of the namespace have the same version of Tenure";
            Error::new(ErrorKind::Corrupt, what).during(Verb::Cell).on(name).with_help(help)
        })
    }

    /// Whether this holder of the slot is the leader that wrote the record.
    pub(super) fn is_of(&self, holder: &HolderView) -> bool {
        self.claim == holder.claim && self.term == holder.fence
    }
}

/// Refuses a value that is too large to be published.
pub(super) fn check_value(value: &[u8], name: &Name) -> Result<(), Error> {
    if value.len() <= MOST {
        return Ok(());
    }
    let what = format!("the value of a leader has at most {MOST} bytes, not {}", value.len());
    let help = "keep the value elsewhere, and publish its address";
    Err(Error::invalid(ErrorKind::InvalidOption, what).on(name).with_help(help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_cell_and_a_foreign_one_is_refused() {
        let name: Name = "x".parse().unwrap();
        for value in [&b""[..], b"host:1", &[0; 300]] {
            let (term, claim) = (Fence::new(limits::FENCE - 1), ClaimId::new());
            let record = TermRecord { term, claim, value: value.to_vec() };
            assert_eq!(TermRecord::decode(&record.encode(), &name).unwrap(), record);
        }
        for bytes in [&[][..], &[FORMAT; HEADER - 1], &[FORMAT + 1; HEADER]] {
            let error = TermRecord::decode(bytes, &name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        check_value(&vec![0; MOST], &name).unwrap();
        let error = check_value(&vec![0; MOST + 1], &name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
    }
}

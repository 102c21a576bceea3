//! How the file of a fence is laid out. Knows bytes, not locks; its caller has the lock.
//!
//! Two slots of one line each, in blocks of their own. A write goes to the slot that does not have
//! the largest fence, so that a write which is cut off by a loss of power leaves that one whole.
//! The number stands twice in its line: a line that was half written does not pass for another
//! number.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tenure::Fence;

use super::step;
use crate::refusal::{padded, parse};

/// Where the slots begin.
const PLACES: [u64; 2] = [0, 4096];
const HEAD: &[u8] = b"tenure-fence ";
const LINE: usize = HEAD.len() + 16 + 1 + 16 + 1;

/// What the file of a fence has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots([Slot; 2]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Empty,
    Has(Fence),
    /// Half written, or not written by us.
    Broken,
}

impl Slots {
    pub(super) fn read(file: &File) -> io::Result<Self> {
        Ok(Self([slot_at(file, PLACES[0])?, slot_at(file, PLACES[1])?]))
    }

    /// The largest fence, `Some(None)` before the first. `None` if the file has something else.
    #[allow(clippy::option_option, reason = "a file without a fence is not a broken one")]
    pub(super) fn largest(&self) -> Option<Option<Fence>> {
        let largest = self.0.iter().filter_map(Slot::fence).max();
        let broken = self.0.contains(&Slot::Broken);
        if largest.is_none() && broken { None } else { Some(largest) }
    }

    /// Stores a fence that is not smaller than the largest, and syncs it.
    pub(super) fn raise(&self, file: &File, fence: Fence) -> io::Result<()> {
        let [first, second] = self.0.map(|slot| slot.fence());
        if first.max(second) != Some(fence) {
            let place = PLACES[usize::from(first > second)];
            file.write_all_at(line(fence)?.as_bytes(), place)?;
            step();
        }
        // Also if it stands there already: a writer that was killed may not have come to it.
        file.sync_all()
    }
}

impl Slot {
    fn fence(&self) -> Option<Fence> {
        if let Self::Has(fence) = self { Some(*fence) } else { None }
    }
}

fn line(fence: Fence) -> io::Result<String> {
    let digits = padded(fence).map_err(io::Error::other)?;
    Ok(format!("tenure-fence {digits} {digits}\n"))
}

fn slot_at(file: &File, place: u64) -> io::Result<Slot> {
    let (mut line, mut length) = ([0; LINE], 0);
    while length < LINE {
        match file.read_at(&mut line[length..], place + length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(parse_line(&line))
}

fn parse_line(line: &[u8; LINE]) -> Slot {
    if line.iter().all(|byte| *byte == 0) {
        return Slot::Empty;
    }
    let numbers = line.strip_prefix(HEAD).and_then(|rest| rest.strip_suffix(b"\n"));
    let twice = numbers.map(|rest| (&rest[..16], rest[16], &rest[17..]));
    match twice {
        Some((one, b' ', two)) if one == two => parse(one).map_or(Slot::Broken, Slot::Has),
        _ => Slot::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(number: u64) -> Slot {
        Slot::Has(Fence::new(number))
    }

    #[test]
    fn the_larger_slot_counts_and_the_other_is_written() {
        let file = tempfile::tempfile().unwrap();
        let mut expected = [Slot::Empty; 2];
        for (number, place) in [(3, 0), (5, 1), (5, 1), (9, 0), (10, 1)] {
            Slots::read(&file).unwrap().raise(&file, Fence::new(number)).unwrap();
            expected[place] = has(number);
            let slots = Slots::read(&file).unwrap();
            assert_eq!(slots, Slots(expected));
            assert_eq!(slots.largest(), Some(Some(Fence::new(number))));
        }
    }

    #[test]
    fn a_half_written_slot_leaves_the_other_one_and_is_written_again() {
        let file = tempfile::tempfile().unwrap();
        for number in [3, 5] {
            Slots::read(&file).unwrap().raise(&file, Fence::new(number)).unwrap();
        }
        // As if a loss of power had cut off the write of 17 to the first slot, at every length.
        let (old, new) = (line(Fence::new(3)).unwrap(), line(Fence::new(17)).unwrap());
        for length in 1..LINE {
            let torn = [&new.as_bytes()[..length], &old.as_bytes()[length..]].concat();
            file.write_all_at(&torn, PLACES[0]).unwrap();
            let slots = Slots::read(&file).unwrap();
            let largest = slots.largest().unwrap().unwrap().get();
            assert!(
                largest == 5 || (largest == 17 && torn == new.as_bytes()),
                "{length}: {slots:?}"
            );
            slots.raise(&file, Fence::new(18)).unwrap();
            assert_eq!(Slots::read(&file).unwrap().largest(), Some(Some(Fence::new(18))));
            file.write_all_at(line(Fence::new(5)).unwrap().as_bytes(), PLACES[1]).unwrap();
        }
    }

    #[test]
    fn a_file_of_another_program_is_not_taken_for_an_empty_one() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Slots::read(&file).unwrap().largest(), Some(None));
        file.write_all_at(b"something else", 0).unwrap();
        assert_eq!(Slots::read(&file).unwrap().largest(), None);
    }
}

//! In which order the locks of one class are taken: `account:1` before `account:2`.
//!
//! A class says nothing about its members, so an edge from a class to itself is neither right nor
//! wrong. What is wrong is to take two members now in one order and now in the other. So each pair
//! of names that was taken leaves those of four orders that it agrees with: by bytes or with
//! numbers by their value, ascending or descending. As long as one order is left, every pair that
//! was seen agrees with it, and no two flows can wait for each other. When none is left, two
//! pairs contradict each other.

use std::cmp::Ordering;

/// A set of orders of names, as four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameOrders(u8);

const BYTES_UP: u8 = 1;
const BYTES_DOWN: u8 = 2;
const NUMBERS_UP: u8 = 4;
const NUMBERS_DOWN: u8 = 8;

impl NameOrders {
    /// Every order: no pair was seen.
    pub const ALL: Self = Self(15);

    /// The orders in which `first` comes before `second`.
    #[must_use]
    pub fn of_pair(first: &str, second: &str) -> Self {
        let bytes = match first.cmp(second) {
            Ordering::Less => BYTES_UP,
            Ordering::Greater => BYTES_DOWN,
            Ordering::Equal => BYTES_UP | BYTES_DOWN,
        };
        let numbers = match by_numbers(first, second) {
            Ordering::Less => NUMBERS_UP,
            Ordering::Greater => NUMBERS_DOWN,
            Ordering::Equal => NUMBERS_UP | NUMBERS_DOWN,
        };
        Self(bytes | numbers)
    }

    /// The orders that are in both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether no order is left.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set as a number from 0 to 15, for a file.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The set with this number.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }
}

/// Compares runs of digits by their value and the rest byte by byte.
fn by_numbers(first: &str, second: &str) -> Ordering {
    let (mut first, mut second) = (first.as_bytes(), second.as_bytes());
    loop {
        match (first.first(), second.first()) {
            (Some(a), Some(b)) if a.is_ascii_digit() && b.is_ascii_digit() => {
                let (one, other) = (digits(&mut first), digits(&mut second));
                let order = one.len().cmp(&other.len()).then_with(|| one.cmp(other));
                if order.is_ne() {
                    return order;
                }
            }
            (Some(a), Some(b)) if a == b => {
                (first, second) = (&first[1..], &second[1..]);
            }
            (a, b) => return a.cmp(&b),
        }
    }
}

/// Cuts a run of digits off and returns it without leading zeros.
fn digits<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (run, rest) = text.split_at(end);
    *text = rest;
    let zeros = run.iter().take_while(|byte| **byte == b'0').count();
    &run[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pairs: &[(&str, &str)]) -> NameOrders {
        let left = |orders: NameOrders, pair: &(&str, &str)| {
            orders.and(NameOrders::of_pair(pair.0, pair.1))
        };
        pairs.iter().fold(NameOrders::ALL, left)
    }

    #[test]
    fn sorted_loops_of_every_kind_agree_with_an_order() {
        for pairs in [
            [("a:1", "a:2"), ("a:2", "a:3")],
            [("a:3", "a:2"), ("a:2", "a:1")],
            [("a:9", "a:10"), ("a:10", "a:11")],
            [("a:10", "a:9"), ("a:9", "a:8")],
            [("a:10", "a:11"), ("a:11", "a:9")],
            [("a:007", "a:8"), ("a:8", "a:0010")],
        ] {
            assert!(!all(&pairs).is_empty(), "{pairs:?}");
        }
    }

    #[test]
    fn a_pair_in_both_orders_agrees_with_none() {
        assert!(all(&[("a:1", "a:2"), ("a:2", "a:1")]).is_empty());
        assert!(all(&[("a:1", "a:2"), ("a:9", "a:3")]).is_empty());
        // Numbers up and bytes up, but not for the same reason.
        assert!(all(&[("a:9", "a:10"), ("a:10", "a:9")]).is_empty());
        assert_eq!(NameOrders::from_bits(all(&[("a", "b")]).bits()), all(&[("a", "b")]));
    }
}

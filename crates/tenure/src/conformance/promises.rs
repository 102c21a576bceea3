//! The numbered promises as data, so that a failed scenario and a violation print the sentence and
//! not only a number. `docs/model.md` has each of them in full; `tidy` compares the two, and finds
//! citations of a number that is not here.

/// One sentence per promise, in order: promise 1 is the first.
pub const PROMISES: [&str; 11] = [
    "By the store's clock, living holders never weigh more than the capacity.",
    "Living waiters are served first come, first served; a dead waiter is skipped in the same \
     atomic step that would have served it.",
    "Fences of one name strictly grow.",
    "A claim has one expiry, waiting or holding, and its holder declares loss before that expiry.",
    "A repeated claim renews the living claim of that id and returns the same answer.",
    "A claim that was withdrawn or released is refused if a late copy of it arrives.",
    "A dropped future withdraws its claim, and a dropped guard releases its lock.",
    "A lost push never loses a wake-up.",
    "Release, renew and withdraw act on exactly one claim id.",
    "Nothing waits for ever by accident.",
    "No claim is refused as a deadlock victim unless it is in a deadlock at that instant.",
];

/// The sentence of a promise; empty for a number that is none.
#[must_use]
pub fn sentence(number: u8) -> &'static str {
    let at = usize::from(number).checked_sub(1);
    at.and_then(|at| PROMISES.get(at)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_start_at_one_and_end_with_the_list() {
        assert_eq!(sentence(3), "Fences of one name strictly grow.");
        assert_eq!(sentence(11), PROMISES[10]);
        assert_eq!((sentence(0), sentence(12)), ("", ""));
    }
}

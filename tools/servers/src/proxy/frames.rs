//! Where messages of RESP2 and RESP3 begin and end. Pure: knows bytes, not connections.

/// Reads what a server says, in pieces of any size, and tells pushes from the rest.
///
/// Answers are passed on as they come, however big. A push is kept until it is whole, so that it
/// can be left out as a whole. What is not RESP, TLS for instance, is passed on unread.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    reading: Reading,
    /// Elements that are still to come before the message is whole; none between messages.
    owed: u64,
    /// The beginning of the line being read: a letter and a number.
    head: Vec<u8>,
    /// The push being read.
    push: Option<Vec<u8>>,
}

#[derive(Debug, Default, Clone, Copy)]
enum Reading {
    #[default]
    Line,
    /// Bytes of a string that are still to come, its line end included.
    Body(u64),
    /// Not RESP.
    Opaque,
}

/// The longest line that may say a length. Lines of text may be longer; nobody needs their end.
const HEAD: usize = 32;

impl Frames {
    /// Takes the next bytes and returns those to pass on. Each whole push that is not a
    /// confirmation of a subscription is left out if `lose` says so.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut lose: impl FnMut() -> bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        while let Some(first) = bytes.first() {
            if self.owed == 0 {
                self.owed = 1;
                self.push = (*first == b'>').then(Vec::new);
            }
            let taken = match self.reading {
                Reading::Line => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let taken = end.map_or(bytes.len(), |at| at + 1);
                    let room = HEAD.saturating_sub(self.head.len());
                    self.head.extend_from_slice(&bytes[..taken.min(room)]);
                    taken
                }
                Reading::Body(left) => {
                    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
                }
                Reading::Opaque => bytes.len(),
            };
            let (now, later) = bytes.split_at(taken);
            self.push.as_mut().unwrap_or(&mut out).extend_from_slice(now);
            bytes = later;
            self.advance(now);
            if self.owed == 0 || matches!(self.reading, Reading::Opaque) {
                self.deliver(&mut out, &mut lose);
            }
        }
        out
    }

    /// What is left of a push that broke off.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        self.push.take().unwrap_or_default()
    }

    fn advance(&mut self, taken: &[u8]) {
        match self.reading {
            Reading::Line if taken.ends_with(b"\n") => {
                let head = std::mem::take(&mut self.head);
                if self.line(&head).is_none() {
                    self.reading = Reading::Opaque;
                }
            }
            Reading::Line if self.head.first().is_some_and(|kind| !is_kind(*kind)) => {
                self.reading = Reading::Opaque;
            }
            Reading::Body(left) => {
                let left = left - taken.len() as u64;
                self.reading = if left == 0 { Reading::Line } else { Reading::Body(left) };
                self.owed -= u64::from(left == 0);
            }
            Reading::Line | Reading::Opaque => {}
        }
    }

    /// Takes the beginning of a line that is whole; none if it is not RESP.
    fn line(&mut self, head: &[u8]) -> Option<()> {
        let (kind, rest) = head.split_first()?;
        if matches!(kind, b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(') {
            self.owed -= 1;
            return Some(());
        }
        let number: i64 = std::str::from_utf8(rest.strip_suffix(b"\r\n")?).ok()?.parse().ok()?;
        // A length below zero is how RESP2 says that there is nothing.
        let count = u64::try_from(number).ok();
        match (kind, count) {
            (b'$' | b'!' | b'=', Some(length)) => {
                self.reading = Reading::Body(length.checked_add(2)?);
            }
            (b'*' | b'~' | b'>', Some(entries)) => {
                self.owed = (self.owed - 1).checked_add(entries)?;
            }
            (b'%', Some(pairs)) => {
                self.owed = (self.owed - 1).checked_add(pairs.checked_mul(2)?)?;
            }
            // Attributes stand before an element and are none.
            (b'|', Some(pairs)) => self.owed = self.owed.checked_add(pairs.checked_mul(2)?)?,
            (b'$' | b'*', None) => self.owed -= 1,
            _ => return None,
        }
        Some(())
    }

    fn deliver(&mut self, out: &mut Vec<u8>, lose: &mut impl FnMut() -> bool) {
        let Some(push) = self.push.take() else { return };
        let is_whole = self.owed == 0;
        if !(is_whole && !confirms(&push) && lose()) {
            out.extend_from_slice(&push);
        }
    }
}

fn is_kind(letter: u8) -> bool {
    b"+-:_,#($!=*~>%|".contains(&letter)
}

/// Whether a push confirms a subscription or its end. In RESP3 these answers come as pushes, but a
/// server that is asked never leaves them out.
fn confirms(push: &[u8]) -> bool {
    let mut lines = push.split(|byte| *byte == b'\n');
    lines.nth(2).is_some_and(|name| name.trim_ascii_end().ends_with(b"subscribe"))
}

#[cfg(test)]
mod tests {
    use super::Frames;

    const MESSAGE: &str = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\na\r\n\r\n";
    const CONFIRMED: &str = ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    const ANSWERS: &str = "+OK\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n\
        *2\r\n:1\r\n*2\r\n$4\r\n>1\r\n\r\n#t\r\n\
        %1\r\n+a\r\n~1\r\n,1.5\r\n|1\r\n+ttl\r\n:9\r\n=6\r\ntxt:>\n\r\n_\r\n(12\r\n!3\r\nERR\r\n\
        -ERR a rather long complaint, longer than any number would be\r\n";

    /// What comes through when every push that may be lost is, fed in pieces of one size.
    fn without_pushes(said: &str, piece: usize) -> String {
        let mut frames = Frames::default();
        let pieces = said.as_bytes().chunks(piece);
        let passed: Vec<u8> = pieces.flat_map(|piece| frames.feed(piece, || true)).collect();
        String::from_utf8(passed).unwrap()
    }

    #[test]
    fn pushes_are_left_out_wherever_the_pieces_break() {
        let said = format!("{MESSAGE}{ANSWERS}{MESSAGE}{MESSAGE}{ANSWERS}{MESSAGE}");
        for piece in 1..=said.len() {
            assert_eq!(without_pushes(&said, piece), ANSWERS.repeat(2), "pieces of {piece}");
        }
    }

    #[test]
    fn confirmations_of_subscriptions_always_pass() {
        assert_eq!(without_pushes(&format!("{CONFIRMED}{MESSAGE}"), 3), CONFIRMED);
    }

    #[test]
    fn only_as_many_are_lost_as_asked() {
        let mut frames = Frames::default();
        let mut left = 1;
        let lose = || std::mem::replace(&mut left, 0) > 0;
        let passed = frames.feed(format!("{MESSAGE}{MESSAGE}+OK\r\n").as_bytes(), lose);
        assert_eq!(passed, format!("{MESSAGE}+OK\r\n").as_bytes());
    }

    #[test]
    fn what_is_not_resp_passes_unread() {
        for said in ["\u{16}\u{3}\u{1}>1\r\n+a\r\n", "R\0\0\0\u{8}", "$abc\r\n>1\r\n+a\r\n"] {
            for piece in 1..=said.len() {
                assert_eq!(without_pushes(said, piece), said, "pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_push_that_breaks_off_is_passed_on_as_far_as_it_came() {
        let mut frames = Frames::default();
        let half = &MESSAGE.as_bytes()[..9];
        assert!(frames.feed(half, || true).is_empty());
        assert_eq!(frames.rest(), half);
    }
}

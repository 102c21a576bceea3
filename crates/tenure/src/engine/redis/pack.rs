//! Commands as bytes. Knows how RESP writes them, and which are answered by pushes.

use redis::PushKind;

/// Packs a command: its name and its arguments.
pub(crate) fn pack(arguments: &[&[u8]]) -> Vec<u8> {
    let bytes = arguments.iter().map(|argument| argument.len() + 16).sum::<usize>();
    let mut packed = Vec::with_capacity(bytes + 16);
    push_count(&mut packed, arguments.len());
    for argument in arguments {
        push_word(&mut packed, argument);
    }
    packed
}

/// Begins a command of so many words.
pub(super) fn push_count(packed: &mut Vec<u8>, words: usize) {
    head(packed, b'*', words);
}

/// Adds a word of a command.
pub(super) fn push_word(packed: &mut Vec<u8>, word: &[u8]) {
    head(packed, b'$', word.len());
    packed.extend_from_slice(word);
    packed.extend_from_slice(b"\r\n");
}

/// What ends the wait for a command's answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// One reply.
    Reply,
    /// So many pushes of this kind, one per channel; or one reply, if it is an error.
    Pushes(PushKind, usize),
}

impl Answer {
    /// What will answer a packed command.
    pub(super) fn to(packed: &[u8]) -> Self {
        // `*2\r\n$9\r\nSUBSCRIBE`: all others are told by a few bytes, without parsing.
        let Some((count, rest)) = number(packed, b'*') else { return Self::Reply };
        let Some((length, rest)) = number(rest, b'$') else { return Self::Reply };
        let kind = match rest.get(..length) {
            Some(b"SUBSCRIBE") => PushKind::Subscribe,
            Some(b"UNSUBSCRIBE") => PushKind::Unsubscribe,
            Some(b"SSUBSCRIBE") => PushKind::SSubscribe,
            Some(b"SUNSUBSCRIBE") => PushKind::SUnsubscribe,
            _ => return Self::Reply,
        };
        Self::Pushes(kind, count.saturating_sub(1).max(1))
    }
}

/// A mark, a number and the end of its line.
fn head(packed: &mut Vec<u8>, mark: u8, number: usize) {
    packed.push(mark);
    let mut digits = [0; 20];
    let (mut at, mut left) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(left % 10).unwrap_or_default();
        left /= 10;
        if left == 0 {
            break;
        }
    }
    packed.extend_from_slice(&digits[at..]);
    packed.extend_from_slice(b"\r\n");
}

/// The number after a mark, and what follows its line.
fn number(bytes: &[u8], mark: u8) -> Option<(usize, &[u8])> {
    let rest = bytes.strip_prefix(&[mark])?;
    let end = rest.iter().take(20).position(|byte| *byte == b'\r')?;
    let number = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    Some((number, rest.get(end + 2..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_packed_as_redis_packs_them() {
        let long = vec![b'x'; 1234];
        let commands: [&[&[u8]]; 4] =
            [&[b"PING"], &[b"SET", b"k", b""], &[b"a\r\nb", b"\0\xff"], &[b"GET", &long]];
        for arguments in commands {
            let mut other = redis::Cmd::new();
            for argument in arguments {
                other.arg(argument);
            }
            assert_eq!(pack(arguments), other.get_packed_command());
        }
    }

    #[test]
    fn subscriptions_are_answered_by_one_push_for_each_channel() {
        let pushes = |kind, count| Answer::Pushes(kind, count);
        for (arguments, answer) in [
            (&[&b"SUBSCRIBE"[..], b"a"][..], pushes(PushKind::Subscribe, 1)),
            (&[b"SUBSCRIBE", b"a", b"b"], pushes(PushKind::Subscribe, 2)),
            (&[b"UNSUBSCRIBE", b"a"], pushes(PushKind::Unsubscribe, 1)),
            (&[b"SSUBSCRIBE", b"a"], pushes(PushKind::SSubscribe, 1)),
            (&[b"SUNSUBSCRIBE", b"a"], pushes(PushKind::SUnsubscribe, 1)),
            (&[b"PUBLISH", b"SUBSCRIBE", b""], Answer::Reply),
            (&[b"SUBSCRIBER"], Answer::Reply),
        ] {
            assert_eq!(Answer::to(&pack(arguments)), answer);
        }
        assert_eq!(Answer::to(b"PING\r\n"), Answer::Reply);
        assert_eq!(Answer::to(b"*1\r\n$99\r\nSUBSCRIBE"), Answer::Reply);
    }
}

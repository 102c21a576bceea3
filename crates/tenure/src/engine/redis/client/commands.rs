//! Commands as bytes, and which kind of reply each of them has.
//!
//! A command is an array of bulk strings: `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`. All have one reply,
//! except those of the `SUBSCRIBE` family: RESP3 answers them with one push for each channel, or
//! with one error.

use redis::{PushKind, Value};

use super::connection::MultiplexedConnection;
use super::errors::RequestError;
use super::resp::{list, text};

/// How many keys a server looks at in one step of a scan.
const SCAN_COUNT: &[u8] = b"1000";

/// Returns all keys of one server that match a pattern. A key that is written or removed meanwhile
/// may be returned or not, and a key may be returned twice: that is what `SCAN` guarantees.
pub(in crate::engine) async fn scan(
    connection: &MultiplexedConnection,
    pattern: &str,
) -> Result<Vec<Vec<u8>>, RequestError> {
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let words: [&[u8]; 6] =
            [b"SCAN", cursor.as_bytes(), b"MATCH", pattern.as_bytes(), b"COUNT", SCAN_COUNT];
        let value = connection.call(&pack(&words)).await?;
        let Some([next, keys]) = list(&value) else {
            return Err(RequestError::strange(&value));
        };
        for key in list(keys).unwrap_or_default() {
            if let Value::BulkString(key) = key {
                found.push(key.clone());
            }
        }
        text(next).ok_or_else(|| RequestError::strange(&value))?.clone_into(&mut cursor);
        // The server returns 0 when it has looked at every key; an empty page in between is none.
        if cursor == "0" {
            return Ok(found);
        }
    }
}

/// Packs a command: its name and its arguments.
pub(in crate::engine) fn pack(arguments: &[&[u8]]) -> Vec<u8> {
    let bytes = arguments.iter().map(|argument| argument.len() + 16).sum::<usize>();
    let mut packed = Vec::with_capacity(bytes + 16);
    push_count(&mut packed, arguments.len());
    for argument in arguments {
        push_argument(&mut packed, argument);
    }
    packed
}

/// Appends the head of a command that has `count` arguments, its name included.
pub(in crate::engine) fn push_count(packed: &mut Vec<u8>, count: usize) {
    head(packed, b'*', count);
}

/// Appends an argument of a command.
pub(in crate::engine) fn push_argument(packed: &mut Vec<u8>, argument: &[u8]) {
    head(packed, b'$', argument.len());
    packed.extend_from_slice(argument);
    packed.extend_from_slice(b"\r\n");
}

/// The reply that a request waits for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ExpectedReply {
    /// One value.
    Single,
    /// So many pushes of this kind, one per channel; or one value, if it is an error.
    Pushes(PushKind, usize),
}

impl ExpectedReply {
    /// Returns the reply that a packed command will have.
    pub(super) fn to(packed: &[u8]) -> Self {
        // `*2\r\n$9\r\nSUBSCRIBE`: all others are recognized by a few bytes, without parsing.
        let Some((count, rest)) = number(packed, b'*') else { return Self::Single };
        let Some((length, rest)) = number(rest, b'$') else { return Self::Single };
        let kind = match rest.get(..length) {
            Some(b"SUBSCRIBE") => PushKind::Subscribe,
            Some(b"UNSUBSCRIBE") => PushKind::Unsubscribe,
            Some(b"SSUBSCRIBE") => PushKind::SSubscribe,
            Some(b"SUNSUBSCRIBE") => PushKind::SUnsubscribe,
            _ => return Self::Single,
        };
        Self::Pushes(kind, count.saturating_sub(1).max(1))
    }
}

/// Appends a type byte, a number and CRLF.
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

/// Parses a type byte, a number and CRLF. Returns the number and the rest.
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
        let pushes = |kind, count| ExpectedReply::Pushes(kind, count);
        for (arguments, answer) in [
            (&[&b"SUBSCRIBE"[..], b"a"][..], pushes(PushKind::Subscribe, 1)),
            (&[b"SUBSCRIBE", b"a", b"b"], pushes(PushKind::Subscribe, 2)),
            (&[b"UNSUBSCRIBE", b"a"], pushes(PushKind::Unsubscribe, 1)),
            (&[b"SSUBSCRIBE", b"a"], pushes(PushKind::SSubscribe, 1)),
            (&[b"SUNSUBSCRIBE", b"a"], pushes(PushKind::SUnsubscribe, 1)),
            (&[b"PUBLISH", b"SUBSCRIBE", b""], ExpectedReply::Single),
            (&[b"SUBSCRIBER"], ExpectedReply::Single),
        ] {
            assert_eq!(ExpectedReply::to(&pack(arguments)), answer);
        }
        assert_eq!(ExpectedReply::to(b"PING\r\n"), ExpectedReply::Single);
        assert_eq!(ExpectedReply::to(b"*1\r\n$99\r\nSUBSCRIBE"), ExpectedReply::Single);
    }
}

//! A small client of Redis that blocks. Knows RESP2 and RESP3, not what the commands mean.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer may take. Nothing here waits for ever.
const PATIENCE: Duration = Duration::from_secs(20);

/// What Redis answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A number; also true (1) and false (0).
    Int(i64),
    /// A status, a string or a number that is no integer. Bytes that are no UTF-8 are replaced.
    Text(String),
    /// Nothing.
    Nil,
    /// An array or a set, or the keys and values of a map in turn.
    List(Vec<Reply>),
    /// The server refused.
    Error(String),
}

impl Reply {
    /// The number, if it is one, also in a string.
    #[must_use]
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The entries, if it is a list; otherwise none.
    #[must_use]
    pub fn list(&self) -> &[Reply] {
        if let Self::List(entries) = self { entries } else { &[] }
    }

    /// What the server said when it refused, if it did.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        if let Self::Error(text) = self { Some(text) } else { None }
    }
}

/// One connection to a Redis, for conversations that need one: subscriptions, pipelines, `WAIT`.
///
/// After an error the connection may be in the middle of an answer; take a new one.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Stream>,
    pushes: VecDeque<Vec<Reply>>,
}

impl Client {
    /// Connects over TCP.
    ///
    /// # Errors
    /// When nobody listens there, or does not accept within 20 s.
    pub fn connect(to: impl ToSocketAddrs) -> Result<Self, String> {
        let address = one_address(to)?;
        let stream = TcpStream::connect_timeout(&address, PATIENCE);
        let stream = stream.map_err(|error| format!("no connection to {address}: {error}"))?;
        let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
        set.and_then(|()| stream.set_write_timeout(Some(PATIENCE))).map_err(lost)?;
        Ok(Self::over(Stream::Tcp(stream)))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect_unix(path: &Path) -> Result<Self, String> {
        let stream = UnixStream::connect(path);
        let stream =
            stream.map_err(|error| format!("no connection to {}: {error}", path.display()))?;
        let set = stream.set_read_timeout(Some(PATIENCE));
        set.and_then(|()| stream.set_write_timeout(Some(PATIENCE))).map_err(lost)?;
        Ok(Self::over(Stream::Unix(stream)))
    }

    fn over(stream: Stream) -> Self {
        Self { stream: BufReader::new(stream), pushes: VecDeque::new() }
    }

    /// Sends a command and waits for its answer; pushes that come first are kept.
    ///
    /// # Errors
    /// When the connection ends, or no answer comes within 20 s. A refusal is an answer.
    pub fn cmd<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Result<Reply, String> {
        self.send(words)?;
        self.reply()
    }

    /// Sends a command without waiting for its answer.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Result<(), String> {
        self.send_raw(&encode(words))
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.get_mut().write_all(bytes).map_err(lost)
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// As [`cmd`](Self::cmd).
    pub fn reply(&mut self) -> Result<Reply, String> {
        loop {
            match self.read()? {
                Message::Reply(reply) => return Ok(reply),
                Message::Push(push) => self.pushes.push_back(push),
            }
        }
    }

    /// Waits for the next push. Confirmations of subscriptions are pushes too, in RESP3.
    ///
    /// # Errors
    /// When the connection ends, an answer comes that nobody waits for, or no push within 20 s.
    pub fn push(&mut self) -> Result<Vec<Reply>, String> {
        if let Some(push) = self.pushes.pop_front() {
            return Ok(push);
        }
        match self.read()? {
            Message::Push(push) => Ok(push),
            Message::Reply(reply) => Err(format!("an answer instead of a push: {reply:?}")),
        }
    }

    /// Whether something has arrived that was not read yet, the end of the connection included.
    ///
    /// # Errors
    /// When the connection was reset.
    pub fn has_news(&mut self) -> Result<bool, String> {
        if !self.pushes.is_empty() || !self.stream.buffer().is_empty() {
            return Ok(true);
        }
        self.stream.get_ref().set_nonblocking(true).map_err(lost)?;
        let news = match self.stream.fill_buf() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(lost(error)),
        };
        self.stream.get_ref().set_nonblocking(false).map_err(lost)?;
        news
    }

    fn read(&mut self) -> Result<Message, String> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or("an empty line is no answer")?;
        let count = || rest.parse::<i64>().map_err(|_| format!("no length in {line:?}"));
        Ok(Message::Reply(match kind {
            "+" | "," | "(" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(count()?),
            "#" => Reply::Int(i64::from(rest == "t")),
            "_" => Reply::Nil,
            "$" | "!" | "=" => match usize::try_from(count()?) {
                Err(_) => Reply::Nil,
                Ok(length) => self.body(kind, length)?,
            },
            "*" | "~" | "%" | ">" | "|" => match usize::try_from(count()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let in_pairs = matches!(kind, "%" | "|");
                    let entries = self.entries(if in_pairs { 2 * length } else { length })?;
                    match kind {
                        ">" => return Ok(Message::Push(entries)),
                        // Attributes are remarks about the answer that follows.
                        "|" => return self.read(),
                        _ => Reply::List(entries),
                    }
                }
            },
            _ => return Err(format!("this is not RESP: {line:?}")),
        }))
    }

    fn entries(&mut self, count: usize) -> Result<Vec<Reply>, String> {
        let mut entries = Vec::new();
        for _ in 0..count {
            match self.read()? {
                Message::Reply(reply) => entries.push(reply),
                Message::Push(_) => return Err("a push inside an answer".to_owned()),
            }
        }
        Ok(entries)
    }

    fn body(&mut self, kind: &str, length: usize) -> Result<Reply, String> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).map_err(lost)?;
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        Ok(match kind {
            "!" => Reply::Error(text),
            // Three letters say what kind of text it is.
            "=" => Reply::Text(text.get(4..).unwrap_or_default().to_owned()),
            _ => Reply::Text(text),
        })
    }

    fn line(&mut self) -> Result<String, String> {
        let mut bytes = Vec::new();
        self.stream.read_until(b'\n', &mut bytes).map_err(lost)?;
        match bytes.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None => Err("the connection has ended".to_owned()),
        }
    }
}

enum Message {
    Reply(Reply),
    Push(Vec<Reply>),
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(on),
            Self::Unix(stream) => stream.set_nonblocking(on),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(from),
            Self::Unix(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A command as it goes over the wire.
fn encode<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

pub(crate) fn one_address(to: impl ToSocketAddrs) -> Result<SocketAddr, String> {
    let mut found = to.to_socket_addrs().map_err(|error| format!("no such address: {error}"))?;
    found.next().ok_or_else(|| "this name has no address".to_owned())
}

#[expect(clippy::needless_pass_by_value, reason = "this is how `map_err` hands it over")]
fn lost(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer within {} s", PATIENCE.as_secs())
        }
        io::ErrorKind::UnexpectedEof => "the connection has ended".to_owned(),
        _ => format!("the connection has ended: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Client, Reply, Stream, encode};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn client_hearing(said: &str) -> (Client, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(said.as_bytes()).unwrap();
        (Client::over(Stream::Unix(ours)), theirs)
    }

    fn text(text: &str) -> Reply {
        Reply::Text(text.to_owned())
    }

    #[test]
    fn every_kind_of_answer_is_understood() {
        for (said, meant) in [
            ("+OK\r\n", text("OK")),
            ("-ERR no\r\n", Reply::Error("ERR no".to_owned())),
            (":-7\r\n", Reply::Int(-7)),
            ("$5\r\na\r\nbc\r\n", text("a\r\nbc")),
            ("$0\r\n\r\n", text("")),
            ("$-1\r\n", Reply::Nil),
            ("*-1\r\n", Reply::Nil),
            ("_\r\n", Reply::Nil),
            ("#t\r\n", Reply::Int(1)),
            (",1.5\r\n", text("1.5")),
            ("(123\r\n", text("123")),
            ("!5\r\nERR x\r\n", Reply::Error("ERR x".to_owned())),
            ("=6\r\ntxt:hi\r\n", text("hi")),
            ("*2\r\n:1\r\n*1\r\n+a\r\n", {
                Reply::List(vec![Reply::Int(1), Reply::List(vec![text("a")])])
            }),
            ("~1\r\n:1\r\n", Reply::List(vec![Reply::Int(1)])),
            ("%1\r\n+a\r\n:1\r\n", Reply::List(vec![text("a"), Reply::Int(1)])),
            ("|1\r\n+ttl\r\n:9\r\n:1\r\n", Reply::Int(1)),
        ] {
            let (mut client, _theirs) = client_hearing(said);
            assert_eq!(client.reply(), Ok(meant), "{said:?}");
            assert_eq!(client.has_news(), Ok(false), "{said:?}");
        }
    }

    #[test]
    fn pushes_wait_until_they_are_asked_for() {
        let (mut client, _theirs) = client_hearing(">1\r\n+a\r\n:1\r\n>1\r\n+b\r\n");
        assert_eq!(client.reply(), Ok(Reply::Int(1)));
        assert_eq!(client.push(), Ok(vec![text("a")]));
        assert_eq!(client.push(), Ok(vec![text("b")]));
    }

    #[test]
    fn half_an_answer_is_none() {
        for said in ["", "+O", "$5\r\nab", "*2\r\n:1\r\n", "hello\r\n"] {
            let (mut client, theirs) = client_hearing(said);
            drop(theirs);
            assert!(client.reply().is_err(), "{said:?}");
        }
    }

    #[test]
    fn commands_are_counted_in_bytes() {
        assert_eq!(encode(&["GET", "\u{e9}"]), "*2\r\n$3\r\nGET\r\n$2\r\n\u{e9}\r\n".as_bytes());
    }
}

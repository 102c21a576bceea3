//! A fake server: parses commands; each test decides what it replies.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The reply to `HELLO 3`, as far as the client reads it.
pub(super) const HELLO: &str = "%1\r\n+proto\r\n:3\r\n";

pub(super) struct FakeServer(TcpListener);

impl FakeServer {
    pub(super) async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(super) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    pub(super) async fn tcp(&self) -> TcpStream {
        let (stream, _) = self.0.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Accepts the next connection; nothing was exchanged yet.
    pub(super) async fn accept(&self) -> Peer<TcpStream> {
        Peer::new(self.tcp().await)
    }

    /// Accepts the next connection and replies to its `HELLO`.
    pub(super) async fn accept_hello(&self) -> Peer<TcpStream> {
        let mut peer = self.accept().await;
        peer.hello().await;
        peer
    }
}

/// The server's side of one connection.
pub(super) struct Peer<S> {
    stream: S,
    inbox: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, inbox: Vec::new() }
    }

    pub(super) async fn hello(&mut self) -> Vec<String> {
        let hello = self.command().await;
        assert_eq!(hello[..2], ["HELLO", "3"]);
        self.say(HELLO).await;
        hello
    }

    pub(super) async fn say(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).await.unwrap();
    }

    /// Returns the next command, argument by argument.
    pub(super) async fn command(&mut self) -> Vec<String> {
        loop {
            if let Some((command, length)) = parse(&self.inbox) {
                self.inbox.drain(..length);
                return command;
            }
            assert!(self.fill().await > 0, "the client left: {:?}", self.inbox);
        }
    }

    /// Returns all whole commands of one read.
    pub(super) async fn burst(&mut self) -> Vec<Vec<String>> {
        assert!(self.inbox.is_empty(), "a test mixed bursts and commands");
        assert!(self.fill().await > 0, "the client left");
        let mut commands = Vec::new();
        while let Some((command, length)) = parse(&self.inbox) {
            self.inbox.drain(..length);
            commands.push(command);
        }
        commands
    }

    /// Returns true if the client closes the connection next.
    pub(super) async fn is_left(&mut self) -> bool {
        self.inbox.is_empty() && self.fill().await == 0
    }

    /// Replies to each command with its last argument, until the client disconnects.
    pub(super) async fn echo(mut self) {
        loop {
            let mut answers = String::new();
            while let Some((command, length)) = parse(&self.inbox) {
                self.inbox.drain(..length);
                answers += &bulk(command.last().unwrap());
            }
            self.say(&answers).await;
            if self.fill().await == 0 {
                return;
            }
        }
    }

    async fn fill(&mut self) -> usize {
        let mut room = vec![0; 1 << 20];
        let read = self.stream.read(&mut room).await.unwrap_or(0);
        self.inbox.extend_from_slice(&room[..read]);
        read
    }
}

impl Peer<TcpStream> {
    /// Returns the connection for reads that block the thread of the test.
    pub(super) fn into_blocking(self) -> std::net::TcpStream {
        assert!(self.inbox.is_empty(), "something was read too much");
        let stream = self.stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    }
}

pub(super) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// A push with these elements.
pub(super) fn push(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| bulk(word)).collect();
    format!(">{}\r\n{}", words.len(), words.concat())
}

/// A push that confirms a subscription, or its end.
pub(super) fn confirm(kind: &str, channel: &str) -> String {
    format!(">3\r\n{}{}:1\r\n", bulk(kind), bulk(channel))
}

/// Parses the first command, if all of it is there. Returns its length, too.
fn parse(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let mut number = || -> Option<usize> {
        let rest = &bytes[at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        at += end + 2;
        Some(std::str::from_utf8(&rest[1..end]).unwrap().parse().unwrap())
    };
    let count = number()?;
    let mut words = Vec::new();
    for _ in 0..count {
        let rest = bytes.get(at..)?;
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let length: usize = std::str::from_utf8(&rest[1..end]).unwrap().parse().unwrap();
        let word = rest.get(end + 2..end + 2 + length)?;
        rest.get(end + 2 + length + 1)?;
        words.push(String::from_utf8_lossy(word).into_owned());
        at += end + 2 + length + 2;
    }
    Some((words, at))
}

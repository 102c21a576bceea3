//! RESP over a transport: bytes out, values in; and how to read the parts of a value.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use redis::{Value, ValueCodec};
use tokio_util::codec::Decoder;

use super::stream::{Transport, WriteHalf};
use crate::contract::Error;
use crate::engine::common::redis::url::Location;

/// How much is read at once: a few hundred replies.
const READ_BUFFER: usize = 32 * 1024;

/// The reason to close a connection on which something arrived that is not RESP.
pub(super) const NOT_RESP: &str = "the server does not speak RESP";

/// Why a connection was closed, for logs and errors.
pub(super) type CloseReason = Arc<str>;

/// One connection, and what was read from it but not decoded yet.
pub(in crate::engine) struct RespStream {
    transport: Transport,
    codec: ValueCodec,
    undecoded: BytesMut,
    read_buffer: Box<[u8]>,
}

impl RespStream {
    /// Connects; sends nothing.
    pub(in crate::engine) async fn connect(location: &Location) -> Result<Self, Error> {
        Ok(Self {
            transport: Transport::connect(location).await?,
            codec: ValueCodec::default(),
            undecoded: BytesMut::new(),
            read_buffer: vec![0; READ_BUFFER].into_boxed_slice(),
        })
    }

    /// Returns the half that other threads may write to; none under TLS.
    pub(super) fn writer(&self) -> Option<Arc<WriteHalf>> {
        self.transport.writer()
    }

    /// Reads once. Returns true if the buffer was filled, so that more may be waiting.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, CloseReason>> {
        let read = ready!(self.transport.poll_read(cx, &mut self.read_buffer));
        let read = read.map_err(|error| reason(&error))?;
        if read == 0 {
            return Poll::Ready(Err("the server closed it".into()));
        }
        self.undecoded.extend_from_slice(&self.read_buffer[..read]);
        Poll::Ready(Ok(read == self.read_buffer.len()))
    }

    /// Decodes the next value; none if not all of it was read.
    pub(super) fn next_value(&mut self) -> Result<Option<Value>, CloseReason> {
        if self.undecoded.is_empty() {
            return Ok(None);
        }
        // The parser's message would repeat what was read, which may be a secret.
        self.codec.decode(&mut self.undecoded).map_err(|_| NOT_RESP.into())
    }

    /// Writes some of the bytes.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, CloseReason>> {
        match ready!(self.transport.poll_write(cx, bytes)) {
            Ok(0) => Poll::Ready(Err("the server accepts no more bytes".into())),
            Ok(written) => Poll::Ready(Ok(written)),
            Err(error) => Poll::Ready(Err(reason(&error))),
        }
    }

    /// Flushes what TLS still buffers.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        self.transport.poll_flush(cx).map_err(|error| reason(&error))
    }

    /// Writes all of the bytes.
    pub(super) async fn send(&mut self, mut bytes: &[u8]) -> Result<(), CloseReason> {
        while !bytes.is_empty() {
            let written = poll_fn(|cx| self.poll_write(cx, bytes)).await?;
            bytes = &bytes[written..];
        }
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Waits for the next value.
    pub(super) async fn recv(&mut self) -> Result<Value, CloseReason> {
        loop {
            if let Some(value) = self.next_value()? {
                return Ok(value);
            }
            poll_fn(|cx| self.poll_fill(cx)).await?;
        }
    }
}

fn reason(error: &io::Error) -> CloseReason {
    error.to_string().into()
}

/// Returns the elements of an array.
pub(in crate::engine) fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(list) => Some(list),
        _ => None,
    }
}

/// Returns an integer that is not negative.
pub(in crate::engine) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// Returns a string that is UTF-8.
pub(in crate::engine) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::SimpleString(text) => Some(text),
        _ => std::str::from_utf8(bytes(value)?).ok(),
    }
}

/// Returns a string that may also be a verbatim one: reports like `INFO`.
pub(in crate::engine) fn info_text(value: &Value) -> Option<&str> {
    match value {
        Value::VerbatimString { text, .. } => Some(text),
        other => text(other),
    }
}

/// Returns the bytes of a bulk string.
pub(in crate::engine) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

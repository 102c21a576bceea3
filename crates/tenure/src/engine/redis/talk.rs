//! RESP over a stream: bytes out, values in. Knows no commands and no order of replies.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use redis::{Value, ValueCodec};
use tokio_util::codec::Decoder;

use super::stream::{Stream, WriteHalf};
use super::url::Location;
use crate::contract::Error;

/// How much is read at once: a few hundred replies.
const ROOM: usize = 32 * 1024;

/// Said of a connection on which something came that is no reply.
pub(super) const NOT_RESP: &str = "the server does not speak RESP";

/// Why a connection is of no more use, for people.
pub(super) type Why = Arc<str>;

/// One connection and what was read from it but not yet understood.
pub(super) struct Talk {
    stream: Stream,
    codec: ValueCodec,
    inbox: BytesMut,
    room: Box<[u8]>,
}

impl Talk {
    /// Connects, and says nothing yet.
    pub(super) async fn connect(location: &Location) -> Result<Self, Error> {
        Ok(Self {
            stream: Stream::connect(location).await?,
            codec: ValueCodec::default(),
            inbox: BytesMut::new(),
            room: vec![0; ROOM].into_boxed_slice(),
        })
    }

    /// Where others may write, if anywhere.
    pub(super) fn writer(&self) -> Option<Arc<WriteHalf>> {
        self.stream.writer()
    }

    /// Reads once. Whether the room was filled, so that more may be waiting.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Why>> {
        let read = ready!(self.stream.poll_read(cx, &mut self.room)).map_err(|e| why(&e))?;
        if read == 0 {
            return Poll::Ready(Err("the server closed it".into()));
        }
        self.inbox.extend_from_slice(&self.room[..read]);
        Poll::Ready(Ok(read == self.room.len()))
    }

    /// The next value, if all of it was read.
    pub(super) fn next(&mut self) -> Result<Option<Value>, Why> {
        if self.inbox.is_empty() {
            return Ok(None);
        }
        // The parser's own words would repeat what was read; that may be anybody's data.
        self.codec.decode(&mut self.inbox).map_err(|_| NOT_RESP.into())
    }

    /// Writes some of the bytes.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, Why>> {
        match ready!(self.stream.poll_write(cx, bytes)) {
            Ok(0) => Poll::Ready(Err("the server takes no more".into())),
            Ok(written) => Poll::Ready(Ok(written)),
            Err(error) => Poll::Ready(Err(why(&error))),
        }
    }

    /// Sends what a layer in between still keeps.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Why>> {
        self.stream.poll_flush(cx).map_err(|error| why(&error))
    }

    /// Writes all of the bytes.
    pub(super) async fn say(&mut self, mut bytes: &[u8]) -> Result<(), Why> {
        while !bytes.is_empty() {
            let written = poll_fn(|cx| self.poll_write(cx, bytes)).await?;
            bytes = &bytes[written..];
        }
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Waits for the next value.
    pub(super) async fn hear(&mut self) -> Result<Value, Why> {
        loop {
            if let Some(value) = self.next()? {
                return Ok(value);
            }
            poll_fn(|cx| self.poll_fill(cx)).await?;
        }
    }
}

fn why(error: &io::Error) -> Why {
    error.to_string().into()
}

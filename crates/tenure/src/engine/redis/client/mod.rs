//! A Redis client that knows nothing of locks: commands as bytes, multiplexed connections that
//! reconnect, sentinels. `engine/redis` and `engine/redlock` are built on it.
//!
//! ```text
//! callers ─> connection.rs ─> pending.rs <─> driver.rs ─> resp.rs ─> stream.rs ═══ server
//!            call, send       one mutex      one task     framing    TCP, TLS, Unix
//! ```
//!
//! # The life of a connection
//!
//! A [`MultiplexedConnection`] is shared by all its callers and exists until it is dropped; the
//! socket below it comes and goes. Its states ([`pending::ConnectivityState`]):
//!
//! ```text
//!               handshake done
//! Connecting ──────────────────▶ Ready ──┐ the socket broke, the server was silent for too
//!   ▲  │ ▲ └──────────◀──────────────────┘ long, or the primary is another server by now
//!   │  │ └ retry after a backoff
//!   │  ▼ the server rejects us (password, protocol, settings)
//! Rejected                       Closed: dropped, or no runtime is left to run the task on
//! ```
//!
//! While `Connecting`, requests queue up and wait for the attempt. If the attempt fails with an
//! error that may pass, all of them fail with it; if the error needs a person (`Rejected`), later
//! requests fail at once as well, until an attempt succeeds. A request is never sent on two
//! connections: to repeat one is for the caller to decide, who knows whether it may be repeated.
//!
//! # Invariants
//!
//! 1. *Replies arrive in the order of requests.* The server guarantees it for one connection. So
//!    the only state is a FIFO of requests in flight; a reply belongs to its head. It is correct
//!    because bytes and queue entries are appended under the same mutex (`pending.rs`): the order
//!    of the bytes on the socket is the order of the queue, whether the caller itself or the
//!    connection's task writes them.
//! 2. *Pushes are no replies.* RESP3 marks them. The exception are the commands of the `SUBSCRIBE`
//!    family, which are answered by one push for each channel; `commands.rs` knows them, and only
//!    such a request at the head of the queue consumes a push.
//! 3. *What is known when a connection breaks.* Each request remembers at which byte of the stream
//!    it ends, and the connection counts the bytes that the socket accepted. A server runs a
//!    command when it has its last byte: a request whose end was not accepted had no effect
//!    ([`Effect::None`](crate::contract::Effect)), every other one may have run, and its effect is
//!    unknown.
//! 4. *No callback runs under the mutex.* Replies, pushes and wake-ups are delivered after it was
//!    released, so that a callback may send the next request.
//! 5. *A silent server is a broken connection.* While requests are in flight, a timer of the task
//!    ends the connection if nothing arrives; callers need no timer of their own for that.
//!
//! The task of a connection runs on the runtime of its callers, where a wake-up needs no other
//! thread. A runtime can be shut down at any time; the task notices (it is dropped) and continues
//! on the engine's own thread ([`TaskRuntimes`]).

mod backoff;
mod commands;
mod connection;
mod driver;
pub(in crate::engine) mod errors;
mod handshake;
mod pending;
mod resp;
pub(in crate::engine) mod sentinel;
mod server_info;
mod stream;
#[cfg(test)]
mod tests;

pub(in crate::engine) use self::commands::{pack, push_argument, push_count, scan};
pub(crate) use self::connection::PendingReply;
pub(in crate::engine) use self::connection::{
    ConnectionHandler, MultiplexedConnection, RequestSource, TaskRuntimes,
};
pub(in crate::engine) use self::errors::{RequestError, into_result, strange};
pub(in crate::engine) use self::handshake::{IgnorePushes, ServerKind, hello, request_all};
pub(crate) use self::pending::RequestResult;
pub(in crate::engine) use self::pending::{ReplyTo, RequestBatch};
pub(in crate::engine) use self::resp::{RespStream, bytes, info_text, list, number, text};
pub(in crate::engine) use self::server_info::ServerInfo;

//! How signals reach sessions: those of this process by a call of their listener, those of other
//! processes by a datagram to their socket.
//!
//! A datagram stays in the socket's buffer until it is read, so a signal is delayed at most, never
//! lost, when the reader of a socket changes. There are two kinds of readers:
//!
//! - **The event loop** polls the sockets of all sessions. A signal then costs a switch of threads.
//! - **A caller that blocks its thread anyway** reads the socket itself ([`InlineWait`]). It pauses
//!   the polling of that socket, and polling stays paused after the caller has left: such callers
//!   come again and again, and the loop would be woken in vain. The loop checks paused sockets
//!   every 20 ms and resumes those that had no inline reader since its last check.
//!
//! One caller at a time reads inline. Another one that finds the socket taken waits for its waker,
//! which only the event loop calls; so it sets `second_waiter`, and the inline reader resumes the
//! polling when it leaves.
//!
//! An interrupt is a datagram too. The event loop may read one that is meant for an inline reader
//! which has not blocked yet: the loop then sends it again and reads no further.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::StepScope;
use super::codec::{self, Damaged, Writer};
use super::datagrams::SendOutcome;
use super::event_loop::LoopRequest;
use super::sessions::{LocalSession, Sessions};
use crate::contract::{InlineWait, SessionId, Signal, SignalListener};

/// Which thread reads the socket of a session.
#[derive(Default)]
pub(super) struct SocketReaders {
    /// A caller reads the socket inline now.
    inline: AtomicBool,
    /// The event loop does not poll the socket.
    paused: AtomicBool,
    /// Another caller wanted to read inline while one did.
    second_waiter: AtomicBool,
    /// A caller has read inline since the event loop checked last.
    used: AtomicBool,
}

impl Sessions {
    /// Delivers each signal to its session: a call within this process, a datagram to others.
    pub(super) fn deliver(&self, signals: Vec<(SessionId, Signal)>, scope: &StepScope) {
        for (session, signal) in signals {
            let local = self.local();
            let listener = local.get(&session).map(|local| local.listener.upgrade());
            drop(local);
            match listener {
                Some(Some(listener)) => listener.on_signal(signal),
                Some(None) => {}
                None => self.send_to(session, &signal, scope),
            }
        }
    }

    fn send_to(&self, session: SessionId, signal: &Signal, scope: &StepScope) {
        let mut writer = Writer::default();
        if codec::write_signal(&mut writer, signal).is_none() {
            return;
        }
        match self.sender().send(session, writer.bytes()) {
            SendOutcome::Delivered => {}
            SendOutcome::Full => {
                self.event_loop().request(LoopRequest::Send(session, writer.bytes().to_vec()));
            }
            // A session without a socket was granted a lock: the next waiter must not wait for it.
            SendOutcome::NoReceiver => self.watch(&[session], scope),
        }
    }

    /// Delivers a signal to every session of this process.
    pub(super) fn deliver_to_all(&self, signal: &Signal) {
        let listeners: Vec<_> =
            self.local().values().filter_map(|local| local.listener.upgrade()).collect();
        for listener in listeners {
            listener.on_signal(signal.clone());
        }
    }

    /// Makes every session of this process renew what it waits for.
    pub(super) fn resync(&self) {
        self.deliver_to_all(&Signal::Resync);
    }

    /// Reads all datagrams of the session that the event loop knows by this token.
    pub(super) fn receive(&self, token: u64) {
        let local = self.local();
        let session = local.iter().find(|(_, one)| one.token == token).map(|(id, _)| *id);
        drop(local);
        match session {
            Some(session) => while self.receive_one(session) {},
            None => self.receive_cells(token),
        }
    }

    /// Reads one datagram on the event loop. Returns whether to read another.
    fn receive_one(&self, session: SessionId) -> bool {
        let local = self.local();
        let Some(one) = local.get(&session) else { return false };
        let read = |bytes: &[u8]| (bytes == codec::INTERRUPT, codec::read_signal(bytes));
        let Some((interrupt, signal)) = one.socket.take(read) else { return false };
        let listener = one.listener.upgrade();
        let inline = one.readers.inline.load(Ordering::SeqCst);
        drop(local);
        if interrupt && inline {
            // Meant for the inline reader, not for this thread.
            self.interrupt(session);
            return false;
        }
        notify(listener, signal);
        true
    }

    /// Resumes the polling of sockets that had no inline reader since the last call. Returns
    /// whether any socket is still paused.
    pub(super) fn resume_unused(&self) -> bool {
        let mut paused = false;
        for local in self.local().values() {
            if !local.readers.paused.load(Ordering::SeqCst) {
                continue;
            }
            let used = local.readers.used.swap(false, Ordering::SeqCst);
            if used || local.readers.inline.load(Ordering::SeqCst) {
                paused = true;
            } else {
                self.resume(local);
            }
        }
        paused
    }

    fn resume(&self, local: &LocalSession) {
        local.readers.paused.store(false, Ordering::SeqCst);
        self.event_loop().poll_socket(local.socket.fd(), local.token, true);
    }
}

impl InlineWait for Sessions {
    fn wait(&self, session: SessionId, wanted: &dyn Fn() -> bool) -> bool {
        let local = self.local();
        let Some(one) = local.get(&session) else { return false };
        let (socket, readers) = (Arc::clone(&one.socket), Arc::clone(&one.readers));
        let listener = Weak::clone(&one.listener);
        if readers.inline.swap(true, Ordering::SeqCst) {
            readers.second_waiter.store(true, Ordering::SeqCst);
            return false;
        }
        readers.used.store(true, Ordering::SeqCst);
        if !readers.paused.swap(true, Ordering::SeqCst) {
            self.event_loop().poll_socket(socket.fd(), one.token, false);
            self.event_loop().request(LoopRequest::ResumeUnused);
        }
        drop(local);
        let reading = InlineReadGuard(&readers.inline);
        if wanted()
            && let Some(signal) = socket.wait(codec::read_signal)
        {
            notify(listener.upgrade(), signal);
        }
        drop(reading);
        if readers.second_waiter.swap(false, Ordering::SeqCst)
            && let Some(local) = self.local().get(&session)
        {
            self.resume(local);
        }
        true
    }

    fn interrupt(&self, session: SessionId) {
        if let Some(local) = self.local().get(&session) {
            local.socket.interrupt(codec::INTERRUPT);
        }
    }
}

/// Ends an inline read, also after a panic.
struct InlineReadGuard<'a>(&'a AtomicBool);

impl Drop for InlineReadGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Calls the listener. Bytes that are not a signal, such as an interrupt, are dropped.
fn notify(listener: Option<Arc<dyn SignalListener>>, signal: Result<Signal, Damaged>) {
    if let (Some(listener), Ok(signal)) = (listener, signal) {
        listener.on_signal(signal);
    }
}

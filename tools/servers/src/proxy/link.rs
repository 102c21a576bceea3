//! One connection through the proxy: two lanes, each read and written by threads of its own. Knows
//! faults as they are set, not who sets them.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::patience::within;
use crate::process::locked;

use super::frames::Frames;
use super::{Faults, Shared};

/// How much one lane keeps before it stops reading. Whoever sends more then waits, as before a
/// peer that does not read.
const MOST_HELD: usize = 64 << 20;

/// How long a write may block before the writer looks whether it was cut.
const LOOK_UP: Duration = Duration::from_millis(20);

/// Longer than a connection on loopback takes, unless the server is stopped and its queue full.
const CONNECT: Duration = Duration::from_secs(5);

/// A lane goes to the server or to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    ToServer,
    ToClient,
}

pub(super) struct Link {
    client: TcpStream,
    /// There once the first byte may pass.
    server: OnceLock<TcpStream>,
    state: Mutex<State>,
    changed: Condvar,
    shared: Arc<Shared>,
}

struct State {
    faults: Faults,
    to_server: Lane,
    to_client: Lane,
    is_cut: bool,
    threads: usize,
}

/// What has been read and not yet been passed on.
#[derive(Default)]
struct Lane {
    parcels: VecDeque<(Instant, Parcel)>,
    bytes: usize,
}

enum Parcel {
    Bytes(Vec<u8>),
    /// The sender has said all.
    End,
    /// The sender is gone.
    Lost,
}

impl Link {
    /// Starts to serve a connection that was accepted.
    pub(super) fn start(client: TcpStream, faults: Faults, shared: &Arc<Shared>) -> Arc<Self> {
        let (to_server, to_client) = (Lane::default(), Lane::default());
        let state = State { faults, to_server, to_client, is_cut: false, threads: 0 };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::clone(shared);
        let link = Arc::new(Self { client, server: OnceLock::new(), state, changed, shared });
        prepare(&link.client);
        link.spawn(|link| link.read(Way::ToServer));
        link.spawn(Self::open);
        link
    }

    /// Changes what is wrong with this connection.
    pub(super) fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut locked(&self.state).faults);
        self.changed.notify_all();
    }

    /// Stops holding back. If something was held back, it is lost and so is the connection: no
    /// stream of bytes goes on after a gap. Says whether it was cut.
    pub(super) fn heal_dropping(&self) -> bool {
        let mut state = locked(&self.state);
        let held = state.holds(Way::ToServer) || state.holds(Way::ToClient);
        state.faults.black_hole = false;
        state.faults.hold_replies = false;
        // In the same step, so that no writer finds the lane open.
        state.is_cut |= held;
        drop(state);
        self.changed.notify_all();
        if held {
            self.cut();
        }
        held
    }

    /// Ends the connection: the client sees a reset. The server sees a plain end, after whatever
    /// was passed on to it: a reset could overtake a command that counts as delivered.
    pub(super) fn cut(&self) {
        locked(&self.state).is_cut = true;
        self.changed.notify_all();
        // Whatever fails here, fails because the other side has ended the connection before us.
        let _ = rustix::net::sockopt::set_socket_linger(&self.client, Some(Duration::ZERO));
        // A plain shutdown of both halves would send an orderly end; the reset is sent when the
        // last thread lets go of the socket. This only wakes the reader.
        let _ = self.client.shutdown(Shutdown::Read);
        if let Some(server) = self.server.get() {
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Waits until nobody but the asker holds it, which after a cut is a matter of microseconds.
    /// When the asker lets go too, its sockets are closed.
    pub(super) fn wait_for_end(link: &Arc<Self>) {
        within(Duration::from_secs(2), || Arc::strong_count(link) == 1);
    }

    pub(super) fn is_open(&self) -> bool {
        let state = locked(&self.state);
        state.threads > 0 && !state.is_cut
    }

    /// Bytes that were read and not yet passed on.
    pub(super) fn held(&self, way: Way) -> u64 {
        locked(&self.state).lane(way).bytes as u64
    }

    fn spawn(self: &Arc<Self>, work: fn(&Arc<Self>)) {
        locked(&self.state).threads += 1;
        let link = Arc::clone(self);
        let thread = std::thread::Builder::new().name("proxy".to_owned()).stack_size(256 << 10);
        let serve = move || {
            work(&link);
            locked(&link.state).threads -= 1;
        };
        thread.spawn(serve).expect("a thread for the proxy");
    }

    /// Connects to the server, and from then on writes to it. Through a black hole nothing goes,
    /// the beginning of a connection neither.
    fn open(self: &Arc<Self>) {
        if !self.wait_while(|state| state.faults.black_hole) {
            return;
        }
        let Ok(server) = TcpStream::connect_timeout(&self.shared.upstream(), CONNECT) else {
            return self.cut();
        };
        prepare(&server);
        let _ = self.server.set(server);
        // Whoever cut the connection meanwhile did not see the server's half.
        if locked(&self.state).is_cut {
            return self.cut();
        }
        self.spawn(|link| link.read(Way::ToClient));
        self.spawn(|link| link.write(Way::ToClient));
        self.write(Way::ToServer);
    }

    /// Reads what one side says, as long as it says something.
    fn read(&self, way: Way) {
        let mut frames = Frames::default();
        let mut buffer = vec![0; 64 << 10];
        let Some(mut from) = self.source(way) else { return };
        loop {
            let parcel = match from.read(&mut buffer) {
                Ok(0) => Parcel::End,
                Ok(length) if way == Way::ToServer => Parcel::Bytes(buffer[..length].to_vec()),
                Ok(length) => Parcel::Bytes(frames.feed(&buffer[..length], || self.loses_a_push())),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => Parcel::Lost,
            };
            let is_last = !matches!(parcel, Parcel::Bytes(_));
            if is_last {
                self.put(way, Parcel::Bytes(frames.rest()));
            }
            let goes_on = self.put(way, parcel);
            if is_last || !goes_on {
                return;
            }
        }
    }

    /// Passes on what was read, when its time has come.
    fn write(&self, way: Way) {
        while let Some(parcel) = self.take(way) {
            let done = match parcel {
                Parcel::Bytes(bytes) if way == Way::ToServer => self.deliver_until_cut(&bytes),
                Parcel::Bytes(bytes) => self.deliver(way, &bytes),
                Parcel::End => {
                    let target = self.source(way.other());
                    // It may have gone by itself.
                    let _ = target.map(|target| target.shutdown(Shutdown::Write));
                    return;
                }
                Parcel::Lost => Err(ErrorKind::ConnectionReset.into()),
            };
            if done.is_err() {
                return self.cut();
            }
        }
    }

    /// Passes on no more than may pass before the cut that was asked for.
    fn deliver_until_cut(&self, bytes: &[u8]) -> io::Result<()> {
        let own = allowance(&mut locked(&self.state).faults.cut_after, bytes.len());
        let allowed = own.and(self.shared.allowance(bytes.len()));
        if allowed.is_last {
            // Before the last byte goes out: no answer to it may slip through.
            locked(&self.state).is_cut = true;
        }
        self.deliver(Way::ToServer, &bytes[..allowed.bytes])?;
        if allowed.is_last { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    fn deliver(&self, way: Way, mut bytes: &[u8]) -> io::Result<()> {
        let Some(mut target) = self.source(way.other()) else { return Ok(()) };
        while !bytes.is_empty() {
            // Counted before: whoever has got an answer finds it in the counts.
            self.shared.will_pass(way, bytes.len());
            let written = target.write(bytes);
            let length = *written.as_ref().unwrap_or(&0);
            self.shared.did_not_pass(way, bytes.len() - length);
            bytes = &bytes[length..];
            match written.map_err(|error| error.kind()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) | Err(ErrorKind::Interrupted) => {}
                Err(ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if locked(&self.state).is_cut {
                        return Err(ErrorKind::ConnectionAborted.into());
                    }
                }
                Err(kind) => return Err(kind.into()),
            }
        }
        Ok(())
    }

    /// Puts a parcel on a lane and waits while the lane is full; false after a cut.
    fn put(&self, way: Way, parcel: Parcel) -> bool {
        let mut state = locked(&self.state);
        let lane = state.lane(way);
        match &parcel {
            // A push that was lost leaves nothing behind.
            Parcel::Bytes(bytes) if bytes.is_empty() => return !state.is_cut,
            Parcel::Bytes(bytes) => lane.bytes += bytes.len(),
            Parcel::End | Parcel::Lost => {}
        }
        lane.parcels.push_back((Instant::now(), parcel));
        drop(state);
        self.changed.notify_all();
        self.wait_while(|state| state.lane(way).bytes > MOST_HELD)
    }

    /// The next parcel of a lane, when it may pass; none after a cut.
    fn take(&self, way: Way) -> Option<Parcel> {
        let mut state = locked(&self.state);
        loop {
            if state.is_cut {
                return None;
            }
            let delay = state.faults.delay(way);
            let may_pass = !state.is_closed(way);
            let lane = state.lane(way);
            let waits = lane.parcels.front().map(|(came, _)| delay.saturating_sub(came.elapsed()));
            match waits.filter(|_| may_pass) {
                Some(Duration::ZERO) => {
                    let (_, parcel) = lane.parcels.pop_front()?;
                    if let Parcel::Bytes(bytes) = &parcel {
                        lane.bytes -= bytes.len();
                    }
                    drop(state);
                    // The reader may have waited for room.
                    self.changed.notify_all();
                    return Some(parcel);
                }
                Some(waits) => {
                    let woken = self.changed.wait_timeout(state, waits);
                    state = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => {
                    let woken = self.changed.wait(state);
                    state = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Waits while a condition holds; false after a cut.
    fn wait_while(&self, mut condition: impl FnMut(&mut State) -> bool) -> bool {
        let state = locked(&self.state);
        let woken = self.changed.wait_while(state, |state| !state.is_cut && condition(state));
        !woken.unwrap_or_else(PoisonError::into_inner).is_cut
    }

    fn loses_a_push(&self) -> bool {
        let own = &mut locked(&self.state).faults.drop_pushes;
        self.shared.saw_push(own)
    }

    /// Where a lane comes from.
    fn source(&self, way: Way) -> Option<&TcpStream> {
        match way {
            Way::ToServer => Some(&self.client),
            Way::ToClient => self.server.get(),
        }
    }
}

impl State {
    fn lane(&mut self, way: Way) -> &mut Lane {
        match way {
            Way::ToServer => &mut self.to_server,
            Way::ToClient => &mut self.to_client,
        }
    }

    /// Whether a lane is held back.
    fn is_closed(&self, way: Way) -> bool {
        self.faults.black_hole || (self.faults.hold_replies && way == Way::ToClient)
    }

    fn holds(&mut self, way: Way) -> bool {
        self.is_closed(way) && !self.lane(way).parcels.is_empty()
    }
}

impl Way {
    fn other(self) -> Self {
        match self {
            Self::ToServer => Self::ToClient,
            Self::ToClient => Self::ToServer,
        }
    }
}

/// How much of some bytes may pass, and whether the connection ends with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowance {
    bytes: usize,
    is_last: bool,
}

impl Allowance {
    /// What two budgets allow together.
    fn and(self, other: Self) -> Self {
        match self.bytes.cmp(&other.bytes) {
            Less => self,
            Greater => other,
            Equal => Self { is_last: self.is_last || other.is_last, ..self },
        }
    }
}

/// Takes from a budget what the bytes need; a budget that is used up is gone.
pub(super) fn allowance(budget: &mut Option<u64>, bytes: usize) -> Allowance {
    let Some(left) = budget else { return Allowance { bytes, is_last: false } };
    match usize::try_from(*left) {
        Ok(last) if last <= bytes => {
            *budget = None;
            Allowance { bytes: last, is_last: true }
        }
        _ => {
            *left -= bytes as u64;
            Allowance { bytes, is_last: false }
        }
    }
}

fn prepare(stream: &TcpStream) {
    // A socket that refuses these is one that has ended; the first read will tell.
    let _ = stream.set_nodelay(true);
    let _ = stream.set_write_timeout(Some(LOOK_UP));
}

#[cfg(test)]
mod tests {
    use super::{Allowance, allowance};

    #[test]
    fn a_budget_ends_with_the_byte_that_uses_it_up() {
        let mut budget = Some(5);
        assert_eq!(allowance(&mut budget, 3), Allowance { bytes: 3, is_last: false });
        assert_eq!(allowance(&mut budget, 9), Allowance { bytes: 2, is_last: true });
        assert_eq!(budget, None);
        assert_eq!(allowance(&mut budget, 9), Allowance { bytes: 9, is_last: false });
        assert_eq!(allowance(&mut Some(4), 4), Allowance { bytes: 4, is_last: true });
        assert_eq!(allowance(&mut Some(0), 4), Allowance { bytes: 0, is_last: true });
    }

    #[test]
    fn of_two_budgets_the_smaller_decides() {
        let (all, some) =
            (Allowance { bytes: 9, is_last: false }, Allowance { bytes: 4, is_last: true });
        assert_eq!(all.and(some), some);
        assert_eq!(some.and(all), some);
        let exact = Allowance { bytes: 9, is_last: true };
        assert_eq!(all.and(exact), exact);
    }
}

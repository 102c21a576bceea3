//! A TCP proxy that misbehaves when told to. Knows connections as a whole; one of them is known to
//! `link`, and what is inside to `frames`.

mod frames;
mod link;

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::process::locked;
use crate::resp::one_address;

use link::{Allowance, Link, Way, allowance};

/// A proxy on a free loopback port, in front of a server.
///
/// Every fault takes effect when the call returns, for what arrives from then on, on the
/// connections there are and on those to come. [`next`](Self::next) is for a single connection.
/// Dropping the proxy cuts all connections.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

/// What is wrong with a connection; by default nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// How much later everything reaches the server.
    pub delay_to_server: Duration,
    /// How much later everything reaches the client.
    pub delay_to_client: Duration,
    /// The connection is reset as soon as it is there.
    pub refuse: bool,
    /// Nothing passes in either direction, and nobody is told; see [`Proxy::black_hole`].
    pub black_hole: bool,
    /// Commands pass, answers are held back.
    pub hold_replies: bool,
    /// So many pushes of this connection are lost.
    pub drop_pushes: u64,
    /// The connection is cut when so many more bytes have gone to the server.
    pub cut_after: Option<u64>,
}

/// What a proxy has seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that were accepted, refused ones included.
    pub connections: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that stand now.
    pub open: u64,
    /// Bytes that were passed on to the server.
    pub to_server: u64,
    /// Bytes that were passed on to clients.
    pub to_client: u64,
    /// Bytes for the server that have arrived and wait: held back or delayed.
    pub held_to_server: u64,
    /// Bytes for clients that have arrived and wait.
    pub held_to_client: u64,
    /// Pushes the server has sent, those that were lost included; confirmations do not count.
    pub pushes: u64,
    /// Pushes that were lost.
    pub pushes_dropped: u64,
}

impl Proxy {
    /// A proxy in front of an address, for instance `("127.0.0.1", redis.port())`.
    ///
    /// # Panics
    /// When the address cannot be understood, or no port is left.
    #[must_use]
    pub fn to(upstream: impl ToSocketAddrs) -> Self {
        let upstream = one_address(upstream).unwrap_or_else(|error| panic!("proxy: {error}"));
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listener = bound.unwrap_or_else(|error| panic!("no port for a proxy: {error}"));
        let port = listener.local_addr().expect("a listener has an address").port();
        let shared = Arc::new(Shared::new(upstream));
        let serving = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || serving.accept(&listener));
        Self { shared, port, acceptor: Some(acceptor) }
    }

    /// Where clients connect.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn redis_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends new connections elsewhere. Those that stand stay where they are.
    ///
    /// # Panics
    /// When the address cannot be understood.
    pub fn point_to(&self, upstream: impl ToSocketAddrs) {
        let upstream = one_address(upstream).unwrap_or_else(|error| panic!("proxy: {error}"));
        locked(&self.shared.settings).upstream = upstream;
    }

    /// Gives the next connection faults of its own instead of those of all. Called twice, it is
    /// for the next two. What is set for all later, is set for these as well.
    pub fn next(&self, faults: Faults) {
        locked(&self.shared.settings).next.push_back(faults);
    }

    /// Makes everything arrive so much later; throughput is not limited.
    pub fn delay(&self, to_server: Duration, to_client: Duration) {
        self.change(|faults| {
            faults.delay_to_server = to_server;
            faults.delay_to_client = to_client;
        });
    }

    /// Cuts all connections now. Clients see a reset, the server an end. New ones are welcome.
    pub fn cut(&self) {
        let links = self.shared.links();
        for link in &links {
            link.cut();
        }
        links.iter().for_each(Link::wait_for_end);
    }

    /// Resets new connections as soon as they are there. Those that stand are left alone.
    pub fn refuse(&self, on: bool) {
        self.change(|faults| faults.refuse = on);
    }

    /// Lets nothing pass, in either direction, and closes nothing: what a cable that was pulled
    /// looks like. New connections are accepted, as a firewall in between may do, and get nowhere.
    /// `false` is [`heal_delivering`](Self::heal_delivering) for black holes only.
    pub fn black_hole(&self, on: bool) {
        self.change(|faults| faults.black_hole = on);
    }

    /// Holds back what the server says; what clients say passes. `false` delivers it, in order.
    pub fn hold_replies(&self, on: bool) {
        self.change(|faults| faults.hold_replies = on);
    }

    /// Ends black holes and held replies: all that was held back is delivered late, in order.
    pub fn heal_delivering(&self) {
        self.change(|faults| {
            faults.black_hole = false;
            faults.hold_replies = false;
        });
    }

    /// Ends black holes and held replies: what was held back is lost, and connections on which
    /// something was held back are cut. No stream goes on after a gap.
    pub fn heal_dropping(&self) {
        let mut settings = locked(&self.shared.settings);
        let Settings { faults, next, .. } = &mut *settings;
        for faults in next.iter_mut().chain([faults]) {
            faults.black_hole = false;
            faults.hold_replies = false;
        }
        let mut links = self.shared.links();
        drop(settings);
        links.retain(|link| link.heal_dropping());
        links.iter().for_each(Link::wait_for_end);
    }

    /// Loses the next pushes, on whichever connection they come; `u64::MAX` loses all, 0 no more.
    /// Only RESP3 tells pushes from answers. Confirmations of subscriptions are answers.
    pub fn drop_pushes(&self, count: u64) {
        *locked(&self.shared.lose) = count;
    }

    /// Cuts a connection when so many more bytes have gone to the server, counted over all of
    /// them: the one that carries the last byte is cut, once. The server has that byte and none
    /// after it. With 0 the next byte is already too much.
    pub fn cut_after(&self, bytes: u64) {
        *locked(&self.shared.cut_after) = Some(bytes);
    }

    /// What was seen so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let shared = &*self.shared;
        let links = shared.links();
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Counts {
            connections: count(&shared.connections),
            refused: count(&shared.refused),
            open: links.iter().filter(|link| link.is_open()).count() as u64,
            to_server: count(&shared.to_server),
            to_client: count(&shared.to_client),
            held_to_server: links.iter().map(|link| link.held(Way::ToServer)).sum(),
            held_to_client: links.iter().map(|link| link.held(Way::ToClient)).sum(),
            pushes: count(&shared.pushes),
            pushes_dropped: count(&shared.pushes_dropped),
        }
    }

    fn change(&self, change: impl Fn(&mut Faults)) {
        let mut settings = locked(&self.shared.settings);
        change(&mut settings.faults);
        settings.next.iter_mut().for_each(&change);
        // Still under the lock: a connection that begins now has either the old faults and is in
        // the list, or the new ones.
        self.shared.links().iter().for_each(|link| link.change(&change));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        // Wakes the acceptor. If it cannot be reached, it is gone.
        let _ = TcpStream::connect(self.addr());
        if let Some(acceptor) = self.acceptor.take() {
            // It panics only where a thread cannot be made, and has said so.
            let _ = acceptor.join();
        }
        self.cut();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Proxy");
        it.field("addr", &self.addr()).field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// What the proxy and all its connections see. Locks are taken from the top to the bottom; those
/// of a connection come after `links`, and the two budgets last.
struct Shared {
    settings: Mutex<Settings>,
    /// Weak: a connection ends when its last thread lets go of it.
    links: Mutex<Vec<Weak<Link>>>,
    /// Pushes still to be lost.
    lose: Mutex<u64>,
    /// Bytes to the server before a cut.
    cut_after: Mutex<Option<u64>>,
    is_closing: AtomicBool,
    connections: AtomicU64,
    refused: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
    pushes: AtomicU64,
    pushes_dropped: AtomicU64,
}

struct Settings {
    upstream: SocketAddr,
    faults: Faults,
    next: VecDeque<Faults>,
}

impl Shared {
    fn new(upstream: SocketAddr) -> Self {
        let settings = Settings { upstream, faults: Faults::default(), next: VecDeque::new() };
        Self {
            settings: Mutex::new(settings),
            links: Mutex::default(),
            lose: Mutex::default(),
            cut_after: Mutex::default(),
            is_closing: AtomicBool::default(),
            connections: AtomicU64::default(),
            refused: AtomicU64::default(),
            to_server: AtomicU64::default(),
            to_client: AtomicU64::default(),
            pushes: AtomicU64::default(),
            pushes_dropped: AtomicU64::default(),
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.is_closing.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else {
                // Out of descriptors, most likely; others may give some back.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let mut settings = locked(&self.settings);
            let faults = settings.next.pop_front().unwrap_or(settings.faults);
            self.connections.fetch_add(1, Ordering::SeqCst);
            if faults.refuse {
                self.refused.fetch_add(1, Ordering::SeqCst);
                // If this fails the client sees a plain end, which is a refusal too.
                let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
                continue;
            }
            let link = Link::start(stream, faults, self);
            let mut links = locked(&self.links);
            links.retain(|link| link.strong_count() > 0);
            links.push(Arc::downgrade(&link));
        }
    }

    fn links(&self) -> Vec<Arc<Link>> {
        locked(&self.links).iter().filter_map(Weak::upgrade).collect()
    }

    fn upstream(&self) -> SocketAddr {
        locked(&self.settings).upstream
    }

    fn will_pass(&self, way: Way, bytes: usize) {
        self.passed(way).fetch_add(bytes as u64, Ordering::SeqCst);
    }

    fn did_not_pass(&self, way: Way, bytes: usize) {
        self.passed(way).fetch_sub(bytes as u64, Ordering::SeqCst);
    }

    fn passed(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::ToServer => &self.to_server,
            Way::ToClient => &self.to_client,
        }
    }

    /// What may still go to the server, on whichever connection.
    fn allowance(&self, bytes: usize) -> Allowance {
        allowance(&mut locked(&self.cut_after), bytes)
    }

    /// Counts a push; true if it is to be lost, at the cost of its connection or of all.
    fn saw_push(&self, own: &mut u64) -> bool {
        self.pushes.fetch_add(1, Ordering::SeqCst);
        let mut all = locked(&self.lose);
        let budget = if *own > 0 { own } else { &mut *all };
        let is_lost = *budget > 0;
        // "All" stays all.
        if is_lost && *budget < u64::MAX {
            *budget -= 1;
        }
        self.pushes_dropped.fetch_add(u64::from(is_lost), Ordering::SeqCst);
        is_lost
    }
}

impl Faults {
    fn delay(&self, way: Way) -> Duration {
        match way {
            Way::ToServer => self.delay_to_server,
            Way::ToClient => self.delay_to_client,
        }
    }
}

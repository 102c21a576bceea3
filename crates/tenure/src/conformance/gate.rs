//! A gate on the way of requests and replies. While it is closed every request stops before it is
//! sent and again when its reply has come; a scenario lets them pass one at a time. With one gate
//! for each of two calls, [`Gate::orders`] plays all orders in which their requests and replies can
//! reach the store and come back.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use super::waiting::Waiting;

/// How long to wait before a look whether a call has come to its gate.
const NAP: Duration = Duration::from_micros(50);

/// How often that is done: two calls that are held back by gates alone take less than minutes.
const NAPS: usize = 2_000_000;

/// A gate that requests and replies pass. Open at first.
#[derive(Debug, Default)]
pub struct RequestGate {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// How many have come to the closed gate, and how many of them may pass.
    arrived: u64,
    admitted: u64,
    wakers: Vec<Waker>,
}

impl RequestGate {
    /// Passes the gate, as soon as it may.
    ///
    /// # Cancel safety
    /// Its turn is lost with the future: another one has to be admitted.
    pub async fn pass(&self) {
        let mut place = None;
        poll_fn(|cx| {
            let mut state = self.lock();
            if !state.closed {
                return Poll::Ready(());
            }
            let place = *place.get_or_insert_with(|| {
                state.arrived += 1;
                state.arrived
            });
            if place <= state.admitted {
                return Poll::Ready(());
            }
            state.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Whether the gate is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Closes the gate: from now on everything stops here.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.admitted = state.arrived;
    }

    /// Opens the gate for all.
    pub fn open(&self) {
        self.change(|state| state.closed = false);
    }

    /// Lets the one pass that came first.
    fn admit(&self) {
        self.change(|state| state.admitted += 1);
    }

    /// Whether something waits at the gate.
    fn is_reached(&self) -> bool {
        let state = self.lock();
        state.closed && state.admitted < state.arrived
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plays every order of two calls, each behind a gate of its own. `play` gets the number of the
    /// order and a function that drives both calls to their end in this order. Returns how many
    /// orders there were.
    pub fn orders(gates: [&Self; 2], mut play: impl FnMut(usize, &mut GateOrder<'_>)) -> usize {
        let mut choices: Vec<bool> = Vec::new();
        for number in 0.. {
            let mut order = GateOrder { gates, choices, at: 0 };
            play(number, &mut order);
            choices = order.choices;
            // The next order differs at the last place where the first call went first.
            while choices.pop_if(|second| *second).is_some() {}
            match choices.last_mut() {
                Some(last) => *last = true,
                None => return number + 1,
            }
        }
        unreachable!("there are not that many orders")
    }
}

/// One order in which two calls pass their gates.
#[derive(Debug)]
pub struct GateOrder<'a> {
    gates: [&'a RequestGate; 2],
    /// Whether the second call goes first, for each time that both wait.
    choices: Vec<bool>,
    at: usize,
}

impl GateOrder<'_> {
    /// Drives both calls to their end. The gates are closed meanwhile and open afterwards.
    ///
    /// # Panics
    /// If a call neither ends nor comes to its gate.
    pub fn drive<A, B>(
        &mut self,
        start: impl FnOnce() -> (Waiting<A>, Waiting<B>),
    ) -> (Waiting<A>, Waiting<B>) {
        self.gates.iter().for_each(|gate| gate.close());
        let (mut first, mut second) = start();
        let mut naps = 0;
        while !(first.poll() & second.poll()) {
            let still = [!first.is_served(), !second.is_served()];
            let reached = self.gates.map(RequestGate::is_reached);
            if (0..2).any(|call| still[call] && !reached[call]) {
                naps += 1;
                assert!(naps < NAPS, "a call neither ends nor comes to its gate");
                thread::sleep(NAP);
                continue;
            }
            let next = if still[0] && still[1] {
                usize::from(self.choose())
            } else {
                usize::from(still[1])
            };
            self.gates[next].admit();
        }
        self.gates.iter().for_each(|gate| gate.open());
        (first, second)
    }

    fn choose(&mut self) -> bool {
        if self.at == self.choices.len() {
            self.choices.push(false);
        }
        self.at += 1;
        self.choices[self.at - 1]
    }
}

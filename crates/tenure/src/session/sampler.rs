//! A sampler: repeated looks at the store that any number of viewers share.
//!
//! A look asks for the contended slots, which an index of the store answers, and now and then for
//! everything, which may be a scan. Each has a pace of its own, so that the store spends a bounded
//! share of its time on being looked at:
//!
//! - after a look at the contended slots, a pause of the interval, or of [`PAUSE`] times what the
//!   look took if that is longer;
//! - after a look at everything, a pause of [`LONG_PAUSE`] times what it took. A look in between
//!   takes over what the last one saw of slots without waiters, and reads those whose queue has
//!   ended since.
//!
//! There is no thread. The first viewer who finds that a look is due makes it, the others wait for
//! its result; if that viewer's future is dropped, the next one looks. So no look is made that is
//! not wanted, and N viewers cost as much as one.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::park::sleep_until;
use super::{Core, Session, closed_error};
use crate::contract::{Error, Name, Page, Pattern, Query, SlotView, Verb};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::Tick;

/// How many times as long as a look at the contended slots took, the next one waits at least: 5 %.
const PAUSE: u32 = 20;
/// The same for a look at everything: 2 %.
const LONG_PAUSE: u32 = 50;

/// Repeated looks at the store, shared by all viewers. Made by
/// [`Tenure::sampler`](crate::Tenure::sampler). Cheap to clone: clones share their samples.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tenure::{Pattern, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.mutex("reports")?.lock().await?;
/// let sampler = tenure.sampler(Pattern::all(), Duration::from_millis(10));
/// let first = sampler.next(0).await?; // at once
/// assert_eq!(first.slots[0].name.as_str(), "reports");
/// guard.release().await?;
/// let second = sampler.next(first.number).await?; // after the interval
/// assert!(second.slots.is_empty());
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Sampler {
    shared: Arc<SharedSamples>,
}

/// What a [`Sampler`] saw.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Sample {
    /// Grows by one with each sample. The first is 1.
    pub number: u64,
    /// The slots, by name. Those without waiters are as they were [`age`](Self::age) ago.
    pub slots: Vec<SlotView>,
    /// How long before this sample everything was looked at. Zero if it was now.
    pub age: Duration,
    /// How long the store took to reply.
    pub took: Duration,
    /// How long until the next sample: longer than the interval if the store is slow.
    pub next_in: Duration,
}

struct SharedSamples {
    session: Session,
    pattern: Pattern,
    interval: Duration,
    state: Mutex<SamplerState>,
}

#[derive(Default)]
struct SamplerState {
    sample: Option<Arc<Sample>>,
    /// When the next look is due, and when the next one at everything.
    due: Tick,
    everything_due: Tick,
    /// When everything was looked at last.
    everything_at: Tick,
    /// A viewer makes a look now; others wait.
    looking: bool,
    waiting: Vec<Waker>,
}

impl Sampler {
    pub(crate) fn new(session: Session, pattern: Pattern, interval: Duration) -> Self {
        let state = Mutex::default();
        Self { shared: Arc::new(SharedSamples { session, pattern, interval, state }) }
    }

    /// Returns the first sample whose number is larger than `after`; 0 stands for any. Waits until
    /// the next look is due, and makes it unless another viewer does.
    ///
    /// # Errors
    /// As [`Tenure::inspect`](crate::Tenure::inspect). The next call looks again.
    ///
    /// # Cancel safety
    /// Looking changes nothing. If the future that looks is dropped, another viewer does.
    pub async fn next(&self, after: u64) -> Result<Arc<Sample>, Error> {
        let core = Arc::clone(self.shared.session.core());
        loop {
            match self.shared.step(after, core.clock.now()) {
                Step::Seen(sample) => return Ok(sample),
                Step::Wait => self.shared.looked().await,
                Step::Sleep(until) => {
                    sleep_until(&core, until).await;
                    if core.lock().closed {
                        return Err(closed_error(Verb::Inspect));
                    }
                    core.check_process(Verb::Inspect)?;
                }
                Step::Look(look) => return look.run(&core).await,
            }
        }
    }

    /// The blocking form of [`next`](Self::next): see [`Sampler`] for an example.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn blocking_next(&self, after: u64) -> Result<Arc<Sample>, Error> {
        super::block_on(self.next(after))
    }

    /// The pause between two samples, while the store is quick.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.shared.interval
    }
}

/// What a viewer does next.
enum Step<'a> {
    Seen(Arc<Sample>),
    Wait,
    Sleep(Tick),
    Look(Look<'a>),
}

/// The right to make the next look. Dropping it lets another viewer look.
struct Look<'a> {
    shared: &'a SharedSamples,
    everything: bool,
}

impl SharedSamples {
    fn lock(&self) -> MutexGuard<'_, SamplerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, after: u64, now: Tick) -> Step<'_> {
        let mut state = self.lock();
        if let Some(sample) = state.sample.as_ref().filter(|sample| sample.number > after) {
            return Step::Seen(Arc::clone(sample));
        }
        if state.looking {
            return Step::Wait;
        }
        if now < state.due {
            return Step::Sleep(state.due);
        }
        state.looking = true;
        Step::Look(Look { shared: self, everything: now >= state.everything_due })
    }

    /// Resolves when no look is under way.
    async fn looked(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if !state.looking {
                return Poll::Ready(());
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Look<'_> {
    async fn run(self, core: &Core) -> Result<Arc<Sample>, Error> {
        let shared = self.shared;
        let began = core.clock.now();
        let page = Page { pattern: shared.pattern.clone(), ..Page::default() };
        let mut seen = read_pages(core, Page { contended: !self.everything, ..page }).await?;
        let known = shared.lock().sample.clone();
        let known = known.as_ref().map(|sample| &*sample.slots).unwrap_or_default();
        // Queues that have ended: the slot has another holder now, or none.
        let mut ended: Vec<Name> = Vec::new();
        if !self.everything {
            let waited = known.iter().filter(|slot| !slot.queue.is_empty());
            let is_gone = |slot: &&SlotView| seen.iter().all(|one| one.name != slot.name);
            ended.extend(waited.filter(is_gone).map(|slot| slot.name.clone()));
        }
        for name in &ended {
            let query = Query::Slot(name.clone());
            let one = core.limited(Verb::Inspect, || core.engine.inspect(&query)).await?;
            seen.extend(one.slots);
        }
        let now = core.clock.now();
        let took = now.since(began);
        let mut state = shared.lock();
        let before = state.sample.take();
        let (slots, pause) = if self.everything {
            state.everything_at = now;
            state.everything_due = now + took * LONG_PAUSE;
            (seen, shared.interval)
        } else {
            (overlay(known, &ended, seen), shared.interval.max(took * PAUSE))
        };
        state.due = now + pause;
        let sample = Arc::new(Sample {
            number: before.map_or(1, |before| before.number + 1),
            slots,
            age: now.since(state.everything_at),
            took,
            next_in: pause,
        });
        state.sample = Some(Arc::clone(&sample));
        Ok(sample)
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.looking = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// What was known, without the slots whose queues have ended, and with those that were seen now.
fn overlay(known: &[SlotView], ended: &[Name], seen: Vec<SlotView>) -> Vec<SlotView> {
    let known = known.iter().filter(|slot| !ended.contains(&slot.name)).cloned();
    let mut all: BTreeMap<Name, SlotView> = known.map(|slot| (slot.name.clone(), slot)).collect();
    all.extend(seen.into_iter().map(|slot| (slot.name.clone(), slot)));
    all.into_values().collect()
}

/// Reads all pages.
async fn read_pages(core: &Core, mut page: Page) -> Result<Vec<SlotView>, Error> {
    let mut slots = Vec::new();
    loop {
        let query = Query::Page(page.without_reserved());
        let seen = core.limited(Verb::Inspect, || core.engine.inspect(&query)).await?;
        slots.extend(seen.slots);
        page.after = seen.more_after;
        if page.after.is_none() {
            return Ok(slots);
        }
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").field("interval", &self.shared.interval).finish_non_exhaustive()
    }
}

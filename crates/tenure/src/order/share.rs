//! What services learn of each other: edges in the cells of the store.
//!
//! Each edge of each service is one cell with a reserved name, whose value is the edge's line of
//! text. Only an edge that this process sees for the first time leads to a call: if the store does
//! not have it from this service, it is written, and **then** all edges are read. Writing comes
//! first, so that of two services which see the two halves of a cycle at the same instant, at least
//! one reads both. A service that starts again finds its edges in the store: one read, no write.
//!
//! After a deploy every edge is new, since each belongs to a build. So in mode `warn` all edges are
//! read again at most once in [`limits::ORDER_REREAD_EVERY`]: an edge that is written sooner is
//! compared by a later lock. Mode `deny` reads each time: its verdict must come before the lock.
//!
//! Edges of dead builds age out. The cell of an edge belongs to one build of a service, and says
//! when that build was last seen. A process that learns an edge whose cell is older than
//! [`limits::ORDER_SEEN_EVERY`] writes it again, and a process that goes on checking locks writes
//! one of its edges again as often, beside those that the store will not keep for much longer
//! ([`limits::ORDER_KEPT`]). When all edges are read, those of builds that are gone are left out
//! (`builds.rs`); a newer build of the same service removes them.
//!
//! The store is no part of the lock: if it has no cells, or fails, the lock is acquired all the
//! same, and the edges are shared with the next one that is learned, or with a lock that comes
//! [`RETRY_AFTER`] later. Nor does it delay a lock for long: `primitives/ordered.rs` drops an
//! exchange that takes longer than one call may.

use std::cell::Cell;
use std::time::Duration;

use super::builds::split_off_gone;
use super::checker::{OrderChecker, OrderRequest, lock};
use super::document::OrderGraph;
use super::edge::OrderEdge;
use super::finder::EdgeKey;
use super::settings::OrderMode;
use crate::contract::{Batch, CellQuery, Cells, Error, ErrorKind, Expect, Name, Pattern, Put};
use crate::limits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::Clock;

/// The kind of reserved names that edges have.
const KIND: &str = "order";

/// How soon the store is tried again when it failed, in seconds.
const RETRY_AFTER: u64 = 60;
/// The clock is read at one of so many checks of a thread: it costs more than they do.
const LOOK_EVERY: u8 = 16;

/// When the edges of all services were read after a write, and when that is due again, in
/// microseconds of the wall clock.
#[derive(Debug, Default)]
pub(super) struct Rereads {
    last: AtomicU64,
    /// 0: nothing was written since.
    due_at: AtomicU64,
    is_due: AtomicBool,
}

impl Rereads {
    /// Whether they may be read again now; if not, that is due later.
    fn may_begin(&self, now: u64) -> bool {
        let every = micros(limits::ORDER_REREAD_EVERY);
        let last = self.last.load(Ordering::Relaxed);
        // The wall clock may have been set back.
        let may = last == 0 || now < last || now - last >= every;
        if may {
            self.last.store(now.max(1), Ordering::Relaxed);
        }
        self.due_at.store(if may { 0 } else { last + every }, Ordering::Relaxed);
        may
    }

    /// Whether the time for it has come. Of many threads, one is told.
    fn falls_due(&self, clock: &dyn Clock) -> bool {
        let due_at = self.due_at.load(Ordering::Relaxed);
        if due_at == 0 {
            return false;
        }
        let (now, order) = (clock.wall_micros(), Ordering::Relaxed);
        let set_back = due_at.saturating_sub(now) > micros(limits::ORDER_REREAD_EVERY);
        let due = (now >= due_at || set_back)
            && self.due_at.compare_exchange(due_at, 0, order, order).is_ok();
        if due {
            self.is_due.store(true, order);
        }
        due
    }
}

impl OrderChecker {
    /// Shares what was learned since the last time, and learns what other services have.
    ///
    /// # Errors
    /// In mode `deny`, if the request closes a cycle with edges of other services.
    pub(crate) async fn share(
        &self,
        cells: &dyn Cells,
        request: &OrderRequest<'_>,
        clock: &dyn Clock,
    ) -> Result<(), Error> {
        let news = lock(&self.0.learned).unshared.clone();
        // If the exchange fails, or its caller does not wait for the end, a later lock tries again.
        self.0.next_seen.store(seconds(clock) + RETRY_AFTER, Ordering::Relaxed);
        match self.exchange(cells, &news, clock.wall_micros()).await {
            Ok(()) => lock(&self.0.learned).unshared.retain(|key| !news.contains(key)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.0.alone.store(true, Ordering::Relaxed);
            }
            Err(error) => tracing::debug!(%error, "the lock order could not be shared"),
        }
        if self.mode() != OrderMode::Deny {
            return Ok(());
        }
        match news.iter().find_map(|key| self.refused(*key)) {
            Some(report) => Err(request.refusal(&report)),
            None => Ok(()),
        }
    }

    /// Whether the store is to be told that this build is still seen, or read again. Of many
    /// threads, one is told.
    pub(super) fn is_seen_due(&self, clock: &dyn Clock) -> bool {
        thread_local! {
            static CHECKS: Cell<u8> = const { Cell::new(0) };
        }
        if self.0.rereads.falls_due(clock) {
            return true;
        }
        let checks = CHECKS.get().wrapping_add(1);
        CHECKS.set(checks);
        if !checks.is_multiple_of(LOOK_EVERY) {
            return false;
        }
        let (now, next) = (seconds(clock), self.0.next_seen.load(Ordering::Relaxed));
        let due = next != 0 && now >= next && {
            let later = now + RETRY_AFTER;
            let (order, none) = (Ordering::Relaxed, Ordering::Relaxed);
            self.0.next_seen.compare_exchange(next, later, order, none).is_ok()
        };
        if due {
            self.0.seen_is_due.store(true, Ordering::Relaxed);
        }
        due
    }

    async fn exchange(
        &self,
        cells: &dyn Cells,
        news: &[EdgeKey],
        now_micros: u64,
    ) -> Result<(), Error> {
        let now = now_micros / 1_000_000;
        let due = self.0.seen_is_due.swap(false, Ordering::Relaxed);
        let reread = self.0.rereads.is_due.swap(false, Ordering::Relaxed)
            && self.0.rereads.may_begin(now_micros);
        if due || reread || !self.is_loaded() {
            self.load(cells, news).await?;
        }
        let mut told = false;
        for (key, edge) in self.unstored(news, due, now) {
            let put = Put::new(cell_name(&edge)?, edge.to_line());
            let put = put.time_to_live(limits::ORDER_KEPT);
            cells.write(&Batch::from(&put)).await?;
            told |= news.contains(&key);
            lock(&self.0.learned).stored.insert(key, (edge, limits::ORDER_KEPT.as_secs()));
        }
        let denies = self.mode() == OrderMode::Deny;
        if told && (denies || self.0.rereads.may_begin(now_micros)) {
            self.load(cells, news).await?;
        }
        let next = now + limits::ORDER_SEEN_EVERY.as_secs();
        self.0.next_seen.store(next, Ordering::Relaxed);
        Ok(())
    }

    /// Reads all edges in the store, and removes those of earlier builds of this service that are
    /// gone.
    async fn load(&self, cells: &dyn Cells, news: &[EdgeKey]) -> Result<(), Error> {
        let mut edges = list(cells).await?;
        let gone = split_off_gone(&mut edges, |(edge, _)| edge);
        self.merge(edges, news);
        let older =
            |edge: &&OrderEdge| edge.service == self.0.service && edge.build != self.build();
        let gone = gone.iter().map(|(edge, _)| edge).filter(older);
        for edge in gone.take(limits::ORDER_REFRESHED) {
            cells.write(&Batch::new().remove(cell_name(edge)?, Expect::Anything)).await?;
        }
        Ok(())
    }

    fn is_loaded(&self) -> bool {
        lock(&self.0.learned).loaded
    }

    /// The edges to write: of `news` those that the store does not have as they are, or has not
    /// heard of for long. If it is `due`, also those that the store has lost or will not keep for
    /// much longer, and at least one, which tells that this build is still seen.
    fn unstored(&self, news: &[EdgeKey], due: bool, now: u64) -> Vec<(EdgeKey, OrderEdge)> {
        let learned = lock(&self.0.learned);
        // An edge that is refused was not taken, and is not shared.
        let denies = self.mode() == OrderMode::Deny;
        let shared = |key: &EdgeKey| !denies || self.refused(*key).is_none();
        let own = |key: EdgeKey| learned.own_edge(key).cloned().map(|edge| (key, edge));
        let is_new = |(key, edge): &(EdgeKey, OrderEdge)| match learned.stored.get(key) {
            None => true,
            Some((stored, kept)) => {
                let unseen = now.saturating_sub(stored.last_seen);
                unseen >= limits::ORDER_SEEN_EVERY.as_secs()
                    || ages(*kept)
                    || stored.clone().absorb(edge)
            }
        };
        let news = news.iter().copied().filter(shared).filter_map(own);
        let mut chosen: Vec<(EdgeKey, OrderEdge)> = news.filter(is_new).collect();
        if due {
            let chosen_already: Vec<EdgeKey> = chosen.iter().map(|(key, _)| *key).collect();
            let mut own = learned.own_edges();
            own.retain(|(key, _)| shared(key) && !chosen_already.contains(key));
            let is_lost =
                |key: &EdgeKey| learned.stored.get(key).is_none_or(|(_, kept)| ages(*kept));
            let lost = own.iter().filter(|(key, _)| is_lost(key)).cloned();
            chosen.extend(lost.take(limits::ORDER_REFRESHED));
            if chosen.is_empty() {
                chosen.extend(own.into_iter().next());
            }
        }
        for (key, edge) in &mut chosen {
            if let Some((stored, _)) = learned.stored.get(key) {
                edge.absorb(stored);
            }
            edge.last_seen = now.max(edge.last_seen);
        }
        chosen
    }
}

/// Whether the store will not keep an edge for much longer.
fn ages(kept: u64) -> bool {
    kept <= limits::ORDER_KEPT.as_secs() / 2
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn seconds(clock: &dyn Clock) -> u64 {
    clock.wall_micros() / 1_000_000
}

/// All edges that services have written to a store, except those of builds that are gone.
pub(crate) async fn stored_graph(cells: &dyn Cells) -> Result<OrderGraph, Error> {
    let mut graph = OrderGraph::default();
    let mut edges = list(cells).await?;
    split_off_gone(&mut edges, |(edge, _)| edge);
    for (edge, _) in edges {
        graph.add(edge);
    }
    Ok(graph)
}

/// The edges in the store, each with the seconds for which it is kept. A cell that is none, of a
/// later version of this library, is skipped.
async fn list(cells: &dyn Cells) -> Result<Vec<(OrderEdge, u64)>, Error> {
    let pattern = Pattern::prefix(
        Name::reserved(KIND, &Name::try_from("0")?)?.as_str().trim_end_matches('0'),
    );
    let mut found = Vec::new();
    let mut after: Option<Name> = None;
    loop {
        let query = CellQuery { pattern: &pattern, after: after.as_ref(), limit: limits::PAGE };
        let page = cells.list(query).await?;
        for (_, cell) in &page {
            let line = std::str::from_utf8(&cell.value).ok();
            if let Some(edge) = line.and_then(|line| OrderEdge::from_line(line).ok()) {
                found.push((edge, cell.expires_in.map_or(u64::MAX, |left| left.as_secs())));
            }
        }
        if page.len() < limits::PAGE {
            // The same order for all: of a cycle, the edge that was seen last closes it.
            found.sort_by(|(a, _), (b, _)| {
                (a.first_seen, a.identity()).cmp(&(b.first_seen, b.identity()))
            });
            return Ok(found);
        }
        after = page.into_iter().next_back().map(|(name, _)| name);
    }
}

/// The name of the cell of an edge: a hash of what makes it the same edge.
fn cell_name(edge: &OrderEdge) -> Result<Name, Error> {
    let ((held, acquired, held_mode, acquired_mode), service, build) = edge.identity();
    let fields = [held, held_mode.word(), acquired, acquired_mode.word(), service, build];
    // Two hashes with different starts (FNV-1a), together 128 bits.
    let hash = |start: u64| {
        let bytes = fields.iter().flat_map(|field| field.bytes().chain([0]));
        bytes.fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let text = format!("{:016x}{:016x}", hash(0xcbf2_9ce4_8422_2325), hash(0x9e37_79b9_7f4a_7c15));
    Name::reserved(KIND, &Name::try_from(text.as_str())?)
}

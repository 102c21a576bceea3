//! What services learn of each other: edges in the cells of the store.
//!
//! Each edge of each service is one cell with a reserved name, whose value is the edge's line of
//! text. Only an edge that this process sees for the first time leads to a call: if the store does
//! not have it from this service, it is written, and **then** all edges are read. Writing comes
//! first, so that of two services which see the two halves of a cycle at the same instant, at least
//! one reads both. A service that starts again finds its edges in the store: one read, no write.
//!
//! A cell is kept for [`limits::ORDER_KEPT`]. A process that learns an edge of which less than half
//! of that time is left writes it again; edges that no running build takes any more age out.
//!
//! The store is no part of the lock: if it has no cells, or fails, the lock is acquired all the
//! same, and the edges are shared with the next one that is learned.

use super::checker::{OrderChecker, OrderRequest, lock};
use super::document::OrderGraph;
use super::edge::OrderEdge;
use super::finder::EdgeKey;
use super::settings::OrderMode;
use crate::contract::{Batch, Cells, Error, ErrorKind, Name, Pattern, Put};
use crate::limits;
use crate::sync::atomic::Ordering;

/// The kind of reserved names that edges have.
const KIND: &str = "order";

impl OrderChecker {
    /// Shares what was learned since the last time, and learns what other services have.
    ///
    /// # Errors
    /// In mode `deny`, if the request closes a cycle with edges of other services.
    pub(crate) async fn share(
        &self,
        cells: &dyn Cells,
        request: &OrderRequest<'_>,
    ) -> Result<(), Error> {
        let news = lock(&self.0.learned).unshared.clone();
        match self.exchange(cells, &news).await {
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

    async fn exchange(&self, cells: &dyn Cells, news: &[EdgeKey]) -> Result<(), Error> {
        if !self.is_loaded() {
            self.merge(list(cells).await?, news);
        }
        let mut written = false;
        for edge in news.iter().filter_map(|key| self.unstored(*key)) {
            let put = Put::new(cell_name(&edge)?, edge.to_line());
            let put = put.time_to_live(limits::ORDER_KEPT);
            cells.write(&Batch::from(&put)).await?;
            written = true;
        }
        if written {
            self.merge(list(cells).await?, news);
        }
        Ok(())
    }

    fn is_loaded(&self) -> bool {
        lock(&self.0.learned).loaded
    }

    /// The edge to write, unless the store has it as it is and keeps it for long enough. An edge
    /// that is refused was not taken, and is not shared.
    fn unstored(&self, key: EdgeKey) -> Option<OrderEdge> {
        if self.mode() == OrderMode::Deny && self.refused(key).is_some() {
            return None;
        }
        let learned = lock(&self.0.learned);
        let mut edge = learned.own_edge(key)?.clone();
        if let Some((stored, kept)) = learned.stored.get(&key) {
            let fresh = *kept > limits::ORDER_KEPT.as_secs() / 2;
            if !edge.absorb(stored) && !stored.clone().absorb(&edge) && fresh {
                return None;
            }
        }
        Some(edge)
    }
}

/// All edges that services have written to a store.
pub(crate) async fn stored_graph(cells: &dyn Cells) -> Result<OrderGraph, Error> {
    let mut graph = OrderGraph::default();
    for (edge, _) in list(cells).await? {
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
        let page = cells.list(&pattern, after.as_ref(), limits::PAGE).await?;
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
    let (held, acquired, held_mode, acquired_mode, service) = edge.identity();
    let fields = [held, held_mode.word(), acquired, acquired_mode.word(), service];
    // Two hashes with different starts (FNV-1a), together 128 bits.
    let hash = |start: u64| {
        let bytes = fields.iter().flat_map(|field| field.bytes().chain([0]));
        bytes.fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let text = format!("{:016x}{:016x}", hash(0xcbf2_9ce4_8422_2325), hash(0x9e37_79b9_7f4a_7c15));
    Name::reserved(KIND, &Name::try_from(text.as_str())?)
}

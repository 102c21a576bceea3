//! The cells of a session: those of its engine, with the session's rules. Every call has the
//! timeout of a call, and none is made once the session is closed.
//!
//! A write with an id is repeated when its reply is lost: the store recognizes the repeat. Without
//! an id the caller gets an error of unknown effect, since a repeat could write twice. Which age of
//! the id goes with the call is decided in `sent_ids.rs`.

use std::time::Duration;

use super::Core;
use super::park::sleep_until;
use crate::contract::{
    Batch, BatchVerdict, Cell, CellQuery, CellRange, Cells, Delivery, Effect, Error, ErrorKind,
    Name, Pending, Verb, WeakWatcher, WriteId,
};
use crate::limits;
use crate::sync::PoisonError;
use crate::time::back_off;

impl Core {
    /// Makes one call to the engine's cells, or returns the reason why it has none.
    fn cell_call<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a dyn Cells) -> Pending<'a, T> + Send + 'a,
    ) -> Pending<'a, T> {
        Box::pin(self.limited(Verb::Cell, move || match self.engine.cells() {
            Some(cells) => call(cells),
            None => Box::pin(std::future::ready(Err(self.no_cells()))),
        }))
    }

    fn no_cells(&self) -> Error {
        let what = "use an engine that promises cells: `tenure promises` lists them";
        self.engine.promises().lacks("cells").with_help(what)
    }

    /// Writes a batch whose id was made for it just now: its first attempt is no repeat, however
    /// many others write the cell meanwhile.
    pub(crate) async fn write_new(&self, batch: &Batch) -> Result<BatchVerdict, Error> {
        batch.check_limits()?;
        match batch.id {
            Some(id) => self.write_repeatedly(batch, id, true).await,
            None => self.attempt(batch).await,
        }
    }

    async fn write_repeatedly(
        &self,
        batch: &Batch,
        id: WriteId,
        is_new: bool,
    ) -> Result<BatchVerdict, Error> {
        let mut batch = batch.clone();
        let mut unknown = false;
        let began = self.clock.now();
        for tries in 1.. {
            let age = self.age_on_arrival(id);
            batch.age = if is_new && tries == 1 { Duration::ZERO } else { age };
            let error = match self.attempt(&batch).await {
                Ok(verdict) => return Ok(verdict),
                Err(error) => error,
            };
            unknown |= error.effect() == Effect::Unknown;
            let now = self.clock.now();
            if error.kind() != ErrorKind::Unavailable || tries >= limits::CLAIM_TRIES {
                let error = error.tried(tries, now.since(began));
                return Err(if unknown { error.effect_unknown() } else { error });
            }
            sleep_until(self, now + back_off(tries, self.jitter())).await;
        }
        unreachable!("the loop returns")
    }

    fn age_on_arrival(&self, id: WriteId) -> Duration {
        let mut ids = self.sent_ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.age_on_arrival(id, self.clock.now(), self.settings.call)
    }

    async fn attempt(&self, batch: &Batch) -> Result<BatchVerdict, Error> {
        self.cell_call(|cells| cells.write(batch)).await
    }
}

impl Cells for Core {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        self.cell_call(move |cells| cells.get(name))
    }

    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        Box::pin(async move {
            batch.check_limits()?;
            if !self.engine.promises().atomic_sets && batch.only_cell().is_none() {
                return Err(self.engine.promises().lacks("writes of several cells in one step"));
            }
            match batch.id {
                Some(id) => self.write_repeatedly(batch, id, false).await,
                None => self.attempt(batch).await,
            }
        })
    }

    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        self.cell_call(move |cells| cells.list(query))
    }

    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery> {
        self.cell_call(move |cells| cells.watch(range, watcher))
    }
}

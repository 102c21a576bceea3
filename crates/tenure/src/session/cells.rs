//! The cells of a session: those of its engine, with the session's rules. Every call has the
//! timeout of a call, and none is made once the session is closed.

use super::Core;
use crate::contract::{Cell, Cells, Error, Expect, Name, Pattern, Pending, Put, PutVerdict, Verb};

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
}

impl Cells for Core {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        self.cell_call(move |cells| cells.get(name))
    }

    fn put<'a>(&'a self, put: &'a Put) -> Pending<'a, PutVerdict> {
        self.cell_call(move |cells| cells.put(put))
    }

    fn remove<'a>(&'a self, name: &'a Name, expect: Expect) -> Pending<'a, PutVerdict> {
        self.cell_call(move |cells| cells.remove(name, expect))
    }

    fn list<'a>(
        &'a self,
        pattern: &'a Pattern,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Pending<'a, Vec<(Name, Cell)>> {
        self.cell_call(move |cells| cells.list(pattern, after, limit))
    }
}

//! The cells of a session: those of its engine, with the session's rules. Every call has the time
//! limit of a call, and none is made once the session is closed.

use super::Core;
use crate::contract::{Cell, Cells, Expect, Name, Pattern, Pending, Put, PutVerdict, Verb};

impl Cells for Core {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        Box::pin(self.limited(Verb::Cell, move || self.engine.cells().get(name)))
    }

    fn put<'a>(&'a self, put: &'a Put) -> Pending<'a, PutVerdict> {
        Box::pin(self.limited(Verb::Cell, move || self.engine.cells().put(put)))
    }

    fn remove<'a>(&'a self, name: &'a Name, expect: Expect) -> Pending<'a, PutVerdict> {
        Box::pin(self.limited(Verb::Cell, move || self.engine.cells().remove(name, expect)))
    }

    fn list<'a>(
        &'a self,
        pattern: &'a Pattern,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Pending<'a, Vec<(Name, Cell)>> {
        Box::pin(self.limited(Verb::Cell, move || self.engine.cells().list(pattern, after, limit)))
    }
}

//! What the library logs, kept for tests to read. Knows text, not who wrote it.

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static LOGS: Mutex<String> = Mutex::new(String::new());

/// Everything that was logged by this process since the first call.
pub(crate) fn logs() -> String {
    static FIRST: Once = Once::new();
    // Threads of the engine log as well, so one collector serves the whole process.
    FIRST.call_once(|| tracing::subscriber::set_global_default(Collector).unwrap());
    kept().clone()
}

fn kept() -> MutexGuard<'static, String> {
    LOGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps every event and the fields of every span, whatever its level.
struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut Scribe);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut Scribe);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Scribe);
        kept().push('\n');
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Scribe;

impl Visit for Scribe {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(kept(), "{field}={value:?} ").unwrap();
    }
}

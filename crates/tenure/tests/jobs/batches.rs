//! How many calls a busy worker makes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tenure::contract::{Claim, Verb};
use tenure::time::Tick;
use tenure::{Event, NewJob, StoreCall, Tenure, Witness};
use tokio::sync::Notify;

const SLOTS: u32 = 256;

/// For each call about jobs, how many items it had: the reports of a turn and the jobs it wants.
#[derive(Debug, Default)]
struct Items(Mutex<Vec<usize>>);

impl Witness for Items {
    fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, _event: &Event) {}

    fn on_call(&self, call: &StoreCall) {
        if call.verb == Verb::Job {
            self.0.lock().unwrap().push(call.items);
        }
    }
}

/// Handlers that end together are reported by one turn. There was a turn for the first of them, and
/// one for the others: a busy worker made twice as many calls as it has batches.
#[tokio::test]
async fn handlers_that_end_together_are_reported_together() {
    let items = Arc::new(Items::default());
    let builder = Tenure::builder().witness(Arc::clone(&items) as Arc<dyn Witness>);
    let queue = builder.connect("memory:batches").await.unwrap().queue("mail").unwrap();
    let jobs = 3 * SLOTS;
    queue.push_many((0..jobs).map(|_| NewJob::new("x"))).await.unwrap();
    items.0.lock().unwrap().clear();
    let (left, none) = (AtomicU32::new(jobs), Notify::new());
    let handler = async |_| {
        if left.fetch_sub(1, Ordering::SeqCst) == 1 {
            none.notify_one();
        }
        Ok(())
    };
    queue.work_until(SLOTS as usize, none.notified(), handler).await.unwrap();
    let items = items.0.lock().unwrap();
    let full = items.iter().filter(|items| **items >= SLOTS as usize).count();
    // Looks for recurring jobs have one item or none.
    assert_eq!(items.iter().filter(|items| **items > 1).count(), full, "{items:?}");
    assert_eq!(full, 4, "three claims, and the last reports: {items:?}");
}

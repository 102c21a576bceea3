//! Those who take a lock and give it back, for benchmarks that compare them. Knows Tenure's own
//! mutex; others are next to what they are compared with.

use tenure::{Error, Mutex, MutexGuard};

/// Takes one lock and gives it back.
pub(crate) trait Taker: Send + 'static {
    type Held: Send;

    fn take(&mut self) -> impl Future<Output = Result<Self::Held, Error>> + Send;

    fn give(&mut self, held: Self::Held) -> impl Future<Output = Result<(), Error>> + Send;

    /// Which process it stands for, if several of a process take part: what they hand to each other
    /// never leaves it, and is not measured.
    fn process(&self) -> Option<u32> {
        None
    }

    /// Takes it and gives it back, so many times.
    fn pairs(&mut self, pairs: u32) -> impl Future<Output = Result<(), Error>> + Send {
        async move {
            for _ in 0..pairs {
                let held = self.take().await?;
                self.give(held).await?;
            }
            Ok(())
        }
    }
}

impl Taker for Mutex {
    type Held = MutexGuard;

    async fn take(&mut self) -> Result<MutexGuard, Error> {
        self.lock().await
    }

    async fn give(&mut self, held: MutexGuard) -> Result<(), Error> {
        held.release().await
    }
}

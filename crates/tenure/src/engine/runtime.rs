//! A thread with a runtime of its own, for connections that must live when the caller's runtime is
//! busy or gone. Knows threads, not connections.

use std::fmt;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::contract::{Error, ErrorKind};

/// The engine's own thread. Dropping it ends the thread and what runs there, without waiting.
pub(crate) struct Own {
    handle: Handle,
    /// Dropped with us, which is what the thread waits for.
    _alive: oneshot::Sender<()>,
}

impl Own {
    /// Starts the thread, with a name for who looks at threads.
    ///
    /// # Errors
    /// If the system gives no thread, or no descriptors for a runtime.
    pub(crate) fn start(name: &str) -> Result<Self, Error> {
        let refused = |error: std::io::Error| {
            Error::new(ErrorKind::Limit, format!("the system gives no thread: {error}"))
                .next("raise the limits of threads and open files")
                .caused_by(error)
        };
        // Made here, so that its trouble is heard by the caller.
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let handle = runtime.handle().clone();
        let (alive, over) = oneshot::channel::<()>();
        let work = move || {
            // The error is the news: the other end is gone.
            let _ = runtime.block_on(over);
            // A lookup of a host name may hang in a helper thread; nobody waits for it any more.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(refused)?;
        Ok(Self { handle, _alive: alive })
    }

    /// Where to spawn.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells when it is dropped.
    struct Told(Option<oneshot::Sender<()>>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.take().unwrap().send(());
        }
    }

    fn with_a_task_that_never_ends() -> (Own, oneshot::Receiver<()>) {
        let own = Own::start("test").unwrap();
        let (tell, told) = oneshot::channel();
        let guard = Told(Some(tell));
        own.handle().spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        (own, told)
    }

    #[test]
    fn work_runs_on_a_thread_of_its_own() {
        let own = Own::start("test").unwrap();
        let (tell, told) = oneshot::channel();
        own.handle().spawn(async { tell.send(std::thread::current().id()) });
        assert_ne!(told.blocking_recv().unwrap(), std::thread::current().id());
    }

    #[test]
    fn dropping_it_ends_what_runs_there() {
        let (own, told) = with_a_task_that_never_ends();
        drop(own);
        told.blocking_recv().unwrap();
    }

    #[tokio::test]
    async fn it_may_be_dropped_by_async_code() {
        let (own, told) = with_a_task_that_never_ends();
        drop(own);
        told.await.unwrap();
    }
}

//! The same locks for programs without a runtime.

pub use self::park::wait;

mod park {
    //! x
    use std::future::Future;
    /// Runs a future on this thread.
    pub fn wait<F: Future>(future: F) -> F::Output {
        crate::session::block_on(future)
    }
}

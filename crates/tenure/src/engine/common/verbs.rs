//! The verbs of an engine whose methods are async functions.
//!
//! [`Engine`](crate::contract::Engine) is used as a trait object, so its verbs return boxed
//! futures. An engine writes each verb as a plain async method of the same name, in a file of the
//! same name, and `boxed_verbs!()` inside of its `impl Engine` boxes them. A method of a type is
//! found before a method of a trait, so `self.claim` is the engine's, not the trait's; without one
//! the build fails by the lint against unconditional recursion.

/// Implements the five verbs by boxing the methods of the same names.
macro_rules! boxed_verbs {
    () => {
        fn claim<'a>(
            &'a self,
            claim: &'a std::sync::Arc<$crate::contract::Claim>,
        ) -> $crate::contract::Pending<'a, $crate::contract::Verdict> {
            Box::pin(self.claim(claim))
        }

        fn renew<'a>(
            &'a self,
            batch: &'a [$crate::contract::ClaimRef],
        ) -> $crate::contract::Pending<'a, Vec<$crate::contract::Renewed>> {
            Box::pin(self.renew(batch))
        }

        fn release<'a>(
            &'a self,
            batch: &'a [$crate::contract::Release],
        ) -> $crate::contract::Pending<'a, Vec<$crate::contract::Released>> {
            Box::pin(self.release(batch))
        }

        fn inspect<'a>(
            &'a self,
            query: &'a $crate::contract::Query,
        ) -> $crate::contract::Pending<'a, $crate::contract::Snapshot> {
            Box::pin(self.inspect(query))
        }

        fn evict<'a>(
            &'a self,
            eviction: &'a $crate::contract::Eviction,
        ) -> $crate::contract::Pending<'a, $crate::contract::Evicted> {
            Box::pin(self.evict(eviction))
        }
    };
}

pub(in crate::engine) use boxed_verbs;

//! Bugs on purpose, to see whether the judges bite. Knows their names and which one is on.
//!
//! Behind the feature `seeded-bugs`, which nothing but the project's own tests should turn on; even
//! then a bug is on only if `TENURE_SEEDED_BUG` names it. Without the feature every question here
//! is answered with a constant `false`.

/// A bug that can be put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "the names say it; only tests see them")]
pub enum Bug {
    Barging,
    FenceReuse,
    ReleaseByName,
    DeadlineFromReply,
    NoTombstone,
    PromotionRenews,
    RenewAfterReleaseIsLoss,
    DeadHeadServed,
    LostPushNeverRead,
    SetTakenPiecemeal,
    UpgradeKeepsFence,
    VictimUnchecked,
}

/// Whether this bug is on.
#[cfg(not(feature = "seeded-bugs"))]
pub(crate) const fn on(_: Bug) -> bool {
    false
}

#[cfg(feature = "seeded-bugs")]
pub(crate) use switched::on;
#[cfg(feature = "seeded-bugs")]
pub use switched::without;

#[cfg(feature = "seeded-bugs")]
mod switched {
    use std::cell::Cell;
    use std::sync::OnceLock;

    use super::Bug;

    impl Bug {
        /// All bugs.
        pub const ALL: [Self; 12] = [
            Self::Barging,
            Self::FenceReuse,
            Self::ReleaseByName,
            Self::DeadlineFromReply,
            Self::NoTombstone,
            Self::PromotionRenews,
            Self::RenewAfterReleaseIsLoss,
            Self::DeadHeadServed,
            Self::LostPushNeverRead,
            Self::SetTakenPiecemeal,
            Self::UpgradeKeepsFence,
            Self::VictimUnchecked,
        ];
    }

    thread_local! {
        static SUSPENDED: Cell<bool> = const { Cell::new(false) };
    }

    pub(crate) fn on(bug: Bug) -> bool {
        static ACTIVE: OnceLock<Option<Bug>> = OnceLock::new();
        let active = ACTIVE.get_or_init(|| {
            let name = std::env::var("TENURE_SEEDED_BUG").ok()?;
            Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name)
        });
        *active == Some(bug) && !SUSPENDED.get()
    }

    /// Runs a judge's own reference without any bug.
    pub fn without<T>(reference: impl FnOnce() -> T) -> T {
        let before = SUSPENDED.replace(true);
        let answer = reference();
        SUSPENDED.set(before);
        answer
    }
}

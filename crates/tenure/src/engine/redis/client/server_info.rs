//! What a server reports of itself (`INFO`).

use std::sync::Arc;

/// The reply to `INFO`: lines of `name:value`.
#[derive(Clone, Debug)]
pub(in crate::engine) struct ServerInfo {
    info: Arc<str>,
}

impl ServerInfo {
    pub(in crate::engine) fn new(info: &str) -> Self {
        Self { info: info.into() }
    }

    /// Returns the value of a field.
    pub(in crate::engine) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    /// Returns the major and the minor version; zeros if there is none.
    pub(in crate::engine) fn version(&self) -> (u32, u32) {
        let version = self.field("redis_version").unwrap_or_default();
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// Returns the policy by which the server evicts keys when memory is short, if it may.
    pub(in crate::engine) fn evicts(&self) -> Option<&str> {
        let limited = self.field("maxmemory").is_some_and(|most| most != "0");
        let policy = self.field("maxmemory_policy").unwrap_or("noeviction");
        (limited && policy != "noeviction").then_some(policy)
    }
}

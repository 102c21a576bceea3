//! Elections between real processes, which are killed and stopped wherever they happen to be. This
//! binary starts itself again as the candidates.
#![cfg(all(feature = "embedded", target_os = "linux"))]

mod candidate;
mod judge;
mod terms;

/// Where another process of a test begins. Does nothing in the process that runs the tests.
#[test]
fn candidate() {
    if let Ok(order) = std::env::var(candidate::ORDER) {
        candidate::serve(&order);
    }
}

//! The embedded engine between real processes: this binary starts itself again as the other ones.
#![cfg(all(feature = "embedded", target_os = "linux"))]

mod cells;
mod damage;
mod durability;
mod dying;
mod forking;
mod history;
mod host;
mod letters;
mod looking;
mod place;
mod space;
mod stopping;
mod traffic;
mod worker;

/// Where another process of a test begins. Does nothing in the process that runs the tests.
#[test]
fn worker() {
    if std::env::var_os(host::WORKER).is_some() {
        worker::serve();
    }
}

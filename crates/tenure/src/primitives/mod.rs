//! What users hold in their hands: locks, guards, owners, presets. Thin shapes over one session;
//! knows no store and no rules.

mod all;
mod asking;
mod family;
mod guard;
mod mutex;
mod options;
mod owner;
mod preset;
mod run;
mod rwlock;
mod semaphore;
mod tenure;

pub use all::All;
pub use family::Family;
pub use guard::{Guard, Held, Permit, ReadGuard, SetGuard, Unchanged, WriteGuard};
pub use mutex::Mutex;
pub(crate) use owner::new_scope_owner;
pub use owner::{Owner, Scope, scope};
pub use preset::Preset;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use tenure::{Builder, Tenure};

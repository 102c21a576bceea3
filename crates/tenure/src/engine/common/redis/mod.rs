//! What the two engines over Redis servers, `redis` and `redlock`, share beside the client
//! (`redis/client/`): URLs, the names of keys and channels, the text of a claim's origin, scripts,
//! published signals, and the errors that scripts raise.
//!
//! Neither engine imports the other. Both keep the terms of a namespace under the same key
//! ([`keys::NamespaceKeys::terms`]), so that each refuses a namespace that the other has opened.

pub(in crate::engine) mod codec;
pub(in crate::engine) mod errors;
pub(in crate::engine) mod keys;
pub(in crate::engine) mod scripts;
pub(in crate::engine) mod signals;
pub(in crate::engine) mod terms;
pub(in crate::engine) mod url;

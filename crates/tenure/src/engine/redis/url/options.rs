//! The options of a URL: what stands behind its question mark. Knows their names and values, not
//! what comes of them.

use std::path::PathBuf;

use super::{Kind, decode, read_db, wrong};
use crate::contract::Error;

/// Every option, for people who wrote another one.
const OPTIONS: &str = "password_file, ca, cert, key, allow_plaintext, eviction, grace, new, db for \
                       redis+unix, sentinel_user and sentinel_password_file for redis+sentinel";

#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(super) struct Options {
    pub(super) password_file: Option<PathBuf>,
    pub(super) ca: Option<PathBuf>,
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    pub(super) db: Option<u32>,
    /// What sentinels call the server, in the words of another client.
    pub(super) primary: Option<String>,
    pub(super) sentinel_user: Option<String>,
    pub(super) sentinel_password_file: Option<PathBuf>,
    pub(super) allow_plaintext: bool,
    pub(super) eviction_allowed: bool,
    pub(super) grace: bool,
    pub(super) new: bool,
}

impl Options {
    pub(super) fn read(query: &str, tls: bool, kind: Kind) -> Result<Self, Error> {
        let mut options = Self::default();
        let (mut cert, mut key) = (None, None);
        let mut seen = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| wrong("an option has no value"))?;
            if seen.contains(&name) {
                return Err(wrong("an option is given twice"));
            }
            seen.push(name);
            match name {
                "password_file" => options.password_file = Some(file(value)?),
                "ca" if tls => options.ca = Some(file(value)?),
                "cert" if tls => cert = Some(file(value)?),
                "key" if tls => key = Some(file(value)?),
                "ca" | "cert" | "key" => {
                    return Err(wrong("certificates are for rediss:// alone"));
                }
                "db" if kind == Kind::Unix => options.db = Some(read_db(value)?),
                "sentinel_user" if kind == Kind::Sentinel => {
                    options.sentinel_user = Some(decode(value)?);
                }
                "sentinel_password_file" if kind == Kind::Sentinel => {
                    options.sentinel_password_file = Some(file(value)?);
                }
                "sentinelMasterId" if kind == Kind::Sentinel => {
                    options.primary = Some(decode(value)?);
                }
                "db" => return Err(wrong("the database is a path here: redis://host/1")),
                "allow_plaintext" => options.allow_plaintext = yes(value)?,
                "grace" | "new" if kind == Kind::Cluster => {
                    // What is there of a name tells nothing of what was lost of another.
                    return Err(wrong(
                        "a cluster cannot tell whether it lost memory: no grace there",
                    ));
                }
                "grace" => options.grace = yes(value)?,
                "new" => options.new = yes(value)?,
                "eviction" if value == "allow" => options.eviction_allowed = true,
                "eviction" => return Err(wrong("the option eviction is `allow` or left out")),
                _ => return Err(wrong(format!("an option is none of {OPTIONS}"))),
            }
        }
        options.identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(wrong("a client certificate takes both cert= and key=")),
        };
        Ok(options)
    }
}

fn yes(value: &str) -> Result<bool, Error> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(wrong("an option that is `yes` or `no` has another value")),
    }
}

fn file(value: &str) -> Result<PathBuf, Error> {
    let path = decode(value)?;
    if path.is_empty() || path.contains('\0') {
        return Err(wrong("an option that names a file is empty or has a zero byte"));
    }
    Ok(path.into())
}

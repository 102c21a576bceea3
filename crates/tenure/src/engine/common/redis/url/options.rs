//! The options of a Redis URL, behind its question mark.

use std::path::PathBuf;

use super::{Kind, read_db, wrong};
use crate::contract::Error;
use crate::engine::common::url::{TlsFiles, decode, file, unknown_option, yes_or_no};

/// Every option, for an error about another one.
const KNOWN: &[&str] = &[
    "password_file",
    "ca",
    "cert",
    "key",
    "allow_plaintext",
    "eviction",
    "grace",
    "new",
    "db for redis+unix",
    "sentinel_user for redis+sentinel",
    "sentinel_password_file for redis+sentinel",
];

#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(super) struct UrlOptions {
    pub(super) password_file: Option<PathBuf>,
    pub(super) tls: TlsFiles,
    pub(super) db: Option<u32>,
    /// What sentinels call the primary, in the words of another client.
    pub(super) primary: Option<String>,
    pub(super) sentinel_user: Option<String>,
    pub(super) sentinel_password_file: Option<PathBuf>,
    pub(super) allow_plaintext: bool,
    pub(super) eviction_allowed: bool,
    pub(super) grace: bool,
    pub(super) new: bool,
}

impl UrlOptions {
    pub(super) fn read(pairs: &[(&str, &str)], tls: bool, kind: Kind) -> Result<Self, Error> {
        let mut options = Self::default();
        let (mut ca, mut cert, mut key) = (None, None, None);
        for (name, value) in pairs.iter().copied() {
            let path = || file(value).map_err(wrong);
            let text = || decode(value).map_err(wrong);
            match name {
                "password_file" => options.password_file = Some(path()?),
                "ca" if tls => ca = Some(path()?),
                "cert" if tls => cert = Some(path()?),
                "key" if tls => key = Some(path()?),
                "ca" | "cert" | "key" => {
                    return Err(wrong("certificates are for rediss:// alone"));
                }
                "db" if kind == Kind::Unix => options.db = Some(read_db(value)?),
                "sentinel_user" if kind == Kind::Sentinel => options.sentinel_user = Some(text()?),
                "sentinel_password_file" if kind == Kind::Sentinel => {
                    options.sentinel_password_file = Some(path()?);
                }
                "sentinelMasterId" if kind == Kind::Sentinel => options.primary = Some(text()?),
                "db" => return Err(wrong("the database is a path here: redis://host/1")),
                "grace" | "new" if kind == Kind::Cluster => {
                    // What is there of one name says nothing of what was lost of another.
                    return Err(wrong(
                        "a cluster cannot tell whether it lost memory: no grace there",
                    ));
                }
                "allow_plaintext" => {
                    options.allow_plaintext = yes_or_no("allow_plaintext", value).map_err(wrong)?;
                }
                "grace" => options.grace = yes_or_no("grace", value).map_err(wrong)?,
                "new" => options.new = yes_or_no("new", value).map_err(wrong)?,
                "eviction" if value == "allow" => options.eviction_allowed = true,
                "eviction" => return Err(wrong("the option eviction is `allow` or left out")),
                _ => return Err(wrong(unknown_option(name, KNOWN))),
            }
        }
        options.tls = TlsFiles::new(ca, cert, key).map_err(wrong)?;
        Ok(options)
    }
}

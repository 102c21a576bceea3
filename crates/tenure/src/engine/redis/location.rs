//! Which server a URL names, and what to tell it. Knows text, not connections.
//!
//! An error about a URL repeats none of it: where a slash or a question mark was not escaped, a
//! piece of the password stands where a port or an option would.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

use crate::contract::{Error, ErrorKind};

/// Where a password is, for programs that do not want it in a URL.
const PASSWORD_FILE: &str = "TENURE_PASSWORD_FILE";

/// Every option, for people who wrote another one.
const OPTIONS: &str = "password_file, ca, cert, key, allow_plaintext, eviction, grace, new \
                       (and db for redis+unix)";

/// One server, one database, and how to be let in.
#[derive(Clone)]
pub(crate) struct Location {
    address: Address,
    db: u32,
    user: Option<String>,
    password: Password,
    tls: Option<Tls>,
    eviction_allowed: bool,
    grace: bool,
    new: bool,
}

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A host and a port.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// Its port.
        port: u16,
    },
    /// A socket of this host.
    Unix(PathBuf),
}

/// What TLS needs to know beyond the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Whom to trust; the system's roots if not given.
    pub(crate) ca: Option<PathBuf>,
    /// Our own certificate and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, PartialEq, Eq)]
enum Password {
    None,
    Given(String),
    /// Read at each connect, so that a password can be changed under a running program.
    File(PathBuf),
}

impl Location {
    /// Reads a URL, and the environment for a password that the URL does not have.
    ///
    /// # Errors
    /// If the URL does not name one server, or would send a password in plain text.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        read(url, std::env::var_os(PASSWORD_FILE))
    }

    /// Where the server listens.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Which of its databases.
    pub(crate) fn db(&self) -> u32 {
        self.db
    }

    /// How to encrypt, if at all.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Whether the engine may use a server that evicts keys when it is full.
    pub(crate) fn eviction_allowed(&self) -> bool {
        self.eviction_allowed
    }

    /// Whether to wait for old leases to end after a restart that lost memory.
    pub(crate) fn grace(&self) -> bool {
        self.grace
    }

    /// Whether the caller declares that nobody has used this store yet.
    pub(crate) fn is_new(&self) -> bool {
        self.new
    }

    /// The user and the password to greet the server with, if there are any.
    ///
    /// # Errors
    /// If the password is in a file that cannot be read.
    pub(crate) fn credentials(&self) -> Result<Option<(String, String)>, Error> {
        let password = match &self.password {
            Password::None if self.user.is_none() => return Ok(None),
            // A user whom the server lets in with any password.
            Password::None => String::new(),
            Password::Given(password) => password.clone(),
            Password::File(path) => password_in(path)?,
        };
        let user = self.user.clone().unwrap_or_else(|| "default".to_owned());
        Ok(Some((user, password)))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = self.user.is_some() || self.password != Password::None;
        let secret = if secret { "***@" } else { "" };
        let db = self.db;
        match &self.address {
            Address::Tcp { host, port } => {
                let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{secret}{open}{host}{close}:{port}/{db}")
            }
            Address::Unix(path) => write!(f, "redis+unix://{secret}{}?db={db}", path.display()),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

fn password_in(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::new(ErrorKind::InvalidOption, format!("the password file cannot be read: {error}"))
            .next(format!("check password_file= or {PASSWORD_FILE}: {}", path.display()))
            .caused_by(error)
    })?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

fn read(url: &str, password_file: Option<OsString>) -> Result<Location, Error> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("the URL has no ://"))?;
    let (tls, unix) = match &*scheme.to_ascii_lowercase() {
        "redis" | "valkey" => (false, false),
        "rediss" | "valkeys" => (true, false),
        "redis+unix" => (false, true),
        _ => return Err(wrong("the scheme is not one of Redis")),
    };
    if rest.contains('#') {
        return Err(wrong("the URL has a fragment; a # inside a password is written %23"));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (login, host) = authority.rsplit_once('@').map_or((None, authority), |(l, h)| (Some(l), h));
    let (user, password) = login.map_or(Ok((None, None)), read_login)?;
    let options = Options::read(query, tls, unix)?;
    let (address, db) = if unix {
        (read_socket(host, path)?, options.db.unwrap_or(0))
    } else {
        (read_host(host)?, read_db(path.strip_prefix('/').unwrap_or(path))?)
    };
    let password = match (password, options.password_file) {
        (Some(_), Some(_)) => {
            return Err(wrong("the URL has a password and a password_file; which one counts?"));
        }
        (Some(password), None) => Password::Given(password),
        (None, Some(path)) => Password::File(path),
        (None, None) => password_file.map_or(Password::None, |path| Password::File(path.into())),
    };
    if password != Password::None && !tls && !is_near(&address) && !options.allow_plaintext {
        return Err(Error::new(
            ErrorKind::InvalidOption,
            "the password would be sent to another host in plain text",
        )
        .next("use rediss://, or allow_plaintext=yes where the network itself is encrypted"));
    }
    Ok(Location {
        address,
        db,
        user,
        password,
        tls: tls.then_some(Tls { ca: options.ca, identity: options.identity }),
        eviction_allowed: options.eviction_allowed,
        grace: options.grace,
        new: options.new,
    })
}

/// `user`, `user:password` or `:password`.
fn read_login(login: &str) -> Result<(Option<String>, Option<String>), Error> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(decode(password)?)),
        None => (login, None),
    };
    let user = decode(user)?;
    Ok(((!user.is_empty()).then_some(user), password.filter(|password| !password.is_empty())))
}

fn read_host(host: &str) -> Result<Address, Error> {
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (host, after) =
                rest.split_once(']').ok_or_else(|| wrong("a bracket of the address is open"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(wrong("the address in brackets is not an IPv6 address"));
            }
            let port = match after.strip_prefix(':') {
                Some(port) => Some(port),
                None if after.is_empty() => None,
                None => return Err(wrong("after the address in brackets comes a port")),
            };
            (host, port)
        }
        None => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(wrong("the URL names no host"));
    }
    if host.contains(',') {
        return Err(wrong("the URL names several hosts, which takes another scheme"));
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if !host.chars().all(legal) {
        return Err(wrong("the host has a character that no host name has"));
    }
    let port = match port {
        None => 6379,
        Some(port) => digits(port)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0)
            .ok_or_else(|| wrong("the port is not a number from 1 to 65535"))?,
    };
    Ok(Address::Tcp { host: host.to_owned(), port })
}

fn read_socket(host: &str, path: &str) -> Result<Address, Error> {
    if !host.is_empty() {
        return Err(wrong("a Unix socket is on this host, not on another"));
    }
    let path = decode(path)?;
    if path.len() < 2 || path.contains('\0') {
        return Err(wrong("the URL names no path of a Unix socket"));
    }
    Ok(Address::Unix(path.into()))
}

fn read_db(text: &str) -> Result<u32, Error> {
    if text.is_empty() {
        return Ok(0);
    }
    digits(text).ok_or_else(|| wrong("the database is not a number"))
}

/// A number written in digits alone: `+1` is none.
fn digits(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
struct Options {
    password_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    db: Option<u32>,
    allow_plaintext: bool,
    eviction_allowed: bool,
    grace: bool,
    new: bool,
}

impl Options {
    fn read(query: &str, tls: bool, unix: bool) -> Result<Self, Error> {
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
                "db" if unix => options.db = Some(read_db(value)?),
                "db" => return Err(wrong("the database is a path here: redis://host/1")),
                "allow_plaintext" => options.allow_plaintext = yes(value)?,
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

fn decode(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| wrong("a part of the URL is not UTF-8"))
}

/// Whether what we send stays on this host.
pub(super) fn is_near(address: &Address) -> bool {
    match address {
        Address::Unix(_) => true,
        Address::Tcp { host, .. } => {
            host.eq_ignore_ascii_case("localhost")
                || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    }
}

fn wrong(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOption, what).next(
        "use redis://[user:password@]host[:port][/db][?option=value] or redis+unix:///path; \
         / ? # @ : % in a password are written %2F %3F %23 %40 %3A %25",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Never to be seen in an error, nor in what is printed of a location.
    const CANARY: &str = "c4n4ry";

    /// Each wrong in its own way.
    const BAD: &str = "
        redis:h mysql://h redis:// redis:///1 redis://:6379 redis://u@ redis://h:0
        redis://h:65536 redis://h:+1 redis://h:x redis://h: redis://h/x redis://h/-1
        redis://h/1/2 redis://h/4294967296 redis://h#f redis://h/# redis://h1,h2 redis://h%20
        redis://[::1 redis://[::1]x redis://[h] redis://::1 redis://h?x=1 redis://h?grace
        redis://h?grace=1 redis://h?grace= redis://h?grace=yes&grace=yes redis://h?eviction=yes
        redis://h?db=1 redis://h?ca=/x redis://h?cert=/x rediss://h?cert=/x rediss://h?key=/x
        rediss://h?ca= rediss://h?ca=%00 rediss://h?ca=%ff redis+unix:// redis+unix:///
        redis+unix://h/s redis+unix:///s?db=x redis+unix:///s%00 redis+unix:///%ff
        rediss://%ff:p@h rediss://u:%ff@h redis://u:p@far redis://:p@10.0.0.1
        redis://far?password_file=/x redis://:p@localhost.far rediss://:p@h?password_file=/x
    ";

    /// Wrong as well, with a password (PIN) where it may be taken for something else.
    const LEAKY: &str = "
        redis://u:PIN@far redis://:a/PIN@h redis://:a?PIN@h redis://:a?PIN=1@h redis://:a#PIN@h
        redis://:a:PIN redis://PIN:x redis://u:a@b@PIN% PIN://h
        rediss://u:PIN@h?password_file=/x redis://h?password_file=PIN rediss://u:PIN@h?x=1
    ";

    fn at(url: &str) -> Location {
        read(url, None).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn urls_name_one_server_and_one_database() {
        for (url, shown) in [
            ("redis://h", "redis://h:6379/0"),
            ("valkey://h:1/", "redis://h:1/0"),
            ("REDIS://h.example-1.org:65535/15", "redis://h.example-1.org:65535/15"),
            ("rediss://h/3", "rediss://h:6379/3"),
            ("valkeys://h?ca=%2Fa%20b&cert=/c&key=/k", "rediss://h:6379/0"),
            ("redis://[::1]:7/2", "redis://[::1]:7/2"),
            ("redis://[2001:db8::1]", "redis://[2001:db8::1]:6379/0"),
            ("redis://127.0.0.1?", "redis://127.0.0.1:6379/0"),
            ("redis+unix:///run/r%20s.sock?db=4", "redis+unix:///run/r s.sock?db=4"),
            ("redis+unix://u:p@/run/r.sock", "redis+unix://***@/run/r.sock?db=0"),
            ("redis://u@h", "redis://***@h:6379/0"),
            ("rediss://u:p@h", "rediss://***@h:6379/0"),
        ] {
            let location = at(url);
            assert_eq!(location.to_string(), shown, "{url}");
            assert_eq!(format!("{location:?}"), format!("Location({shown})"), "{url}");
        }
        let tls = at("valkeys://h?ca=%2Fa%20b&cert=/c&key=/k").tls.unwrap();
        assert_eq!(tls.ca, Some("/a b".into()));
        assert_eq!(tls.identity, Some(("/c".into(), "/k".into())));
        let all = at("redis://h?eviction=allow&grace=yes&new=yes");
        assert!(all.eviction_allowed() && all.grace() && all.is_new());
        let none = at("redis://h?grace=no");
        assert!(!none.eviction_allowed() && !none.grace() && !none.is_new());
    }

    #[test]
    fn users_and_passwords_are_decoded() {
        for (url, user, password) in [
            ("rediss://u:p%40%2F%3a@h", "u", "p@/:"),
            ("rediss://:p:q@h", "default", "p:q"),
            ("rediss://u%20v@h", "u v", ""),
            ("redis://u:p@localhost", "u", "p"),
            ("redis://u:p@127.8.9.1", "u", "p"),
            ("redis://u:p@[::1]", "u", "p"),
            ("redis+unix://u:p@/s", "u", "p"),
            ("redis://u:p@far?allow_plaintext=yes", "u", "p"),
        ] {
            let found = at(url).credentials().unwrap();
            assert_eq!(found, Some((user.to_owned(), password.to_owned())), "{url}");
        }
        assert_eq!(at("redis://h").credentials().unwrap(), None);
        assert_eq!(at("redis://:@h").credentials().unwrap(), None);
    }

    #[test]
    fn a_bad_url_is_refused_without_repeating_any_of_it() {
        for url in BAD.split_whitespace().chain(["redis://h h"]) {
            let error = read(url, None).map(|ok| panic!("{url}: {ok}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{url}");
            assert!(!error.next_step().is_empty(), "{url}");
        }
        for url in LEAKY.split_whitespace().map(|url| url.replace("PIN", CANARY)) {
            let error = read(&url, None).map(|ok| panic!("{url}: {ok}")).unwrap_err();
            assert!(!format!("{error} {error:?}").contains(CANARY), "{error}");
        }
    }

    #[test]
    fn a_plaintext_password_is_refused_with_the_way_out() {
        let error = read("redis://:p@far", None).unwrap_err();
        assert!(error.to_string().contains("use rediss://"), "{error}");
        assert!(read("redis://far", Some("/x".into())).is_err(), "also one from the environment");
    }

    #[test]
    fn a_password_file_is_read_at_each_connect() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let location = at(&format!("rediss://u@h?password_file={}", path.display()));
        let error = location.credentials().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        for (text, password) in [("one\n", "one"), ("two\r\n", "two"), (" three \n\n", " three \n")]
        {
            std::fs::write(&path, text).unwrap();
            assert_eq!(location.credentials().unwrap().unwrap().1, password);
        }
        let shown = format!("{location} {location:?}");
        assert!(!shown.contains("three") && shown.contains("***"), "{shown}");
        let from_env = |url| read(url, Some(path.clone().into())).unwrap().credentials().unwrap();
        assert_eq!(from_env("rediss://h"), Some(("default".into(), " three \n".into())));
        assert_eq!(from_env("rediss://:own@h"), Some(("default".into(), "own".into())));
    }

    #[test]
    fn a_given_password_is_never_shown() {
        let location = at(&format!("rediss://{CANARY}:{CANARY}@h/1"));
        let shown = format!("{location} {location:?} {location:#?}");
        assert!(!shown.contains(CANARY), "{shown}");
    }
}

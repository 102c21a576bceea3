//! Which server a URL names, and what to tell it; or which sentinels know that server, or nodes
//! that know their cluster. Knows text, not connections.
//!
//! An error about a URL repeats none of it: where a slash or a question mark was not escaped, a
//! piece of the password stands where a port or an option would.

mod options;

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

use self::options::Options;
use crate::contract::{Error, ErrorKind};

/// Where a password is, for programs that do not want it in a URL.
const PASSWORD_FILE: &str = "TENURE_PASSWORD_FILE";

/// The port of a server, and that of a sentinel, if the URL names none.
const PORTS: (u16, u16) = (6379, 26379);

/// One server, one database, and how to be let in.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct Location {
    address: Address,
    db: u32,
    login: Login,
    /// For sentinels, which have users of their own.
    sentinel_login: Login,
    tls: Option<Tls>,
    /// A password may be sent to another host as it is.
    allow_plaintext: bool,
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
    /// Wherever these say.
    Sentinels {
        /// The hosts and ports of the sentinels.
        hosts: Vec<(String, u16)>,
        /// What they call the server.
        primary: String,
    },
    /// Wherever the nodes of a cluster say, of which these are some.
    Cluster(Vec<(String, u16)>),
}

/// Whom to be let in as.
#[derive(Clone, Default, PartialEq, Eq)]
struct Login {
    user: Option<String>,
    password: Password,
}

/// What TLS needs to know beyond the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Whom to trust; the system's roots if not given.
    pub(crate) ca: Option<PathBuf>,
    /// Our own certificate and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, Default, PartialEq, Eq)]
enum Password {
    #[default]
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
        let Login { user, password } = &self.login;
        let password = match password {
            Password::None if user.is_none() => return Ok(None),
            // A user whom the server lets in with any password.
            Password::None => String::new(),
            Password::Given(password) => password.clone(),
            Password::File(path) => password_in(path)?,
        };
        let user = user.clone().unwrap_or_else(|| "default".to_owned());
        Ok(Some((user, password)))
    }

    /// What the sentinels call the server, if there are any to ask.
    pub(crate) fn primary(&self) -> Option<&str> {
        match &self.address {
            Address::Sentinels { primary, .. } => Some(primary),
            Address::Tcp { .. } | Address::Unix(_) | Address::Cluster(_) => None,
        }
    }

    /// Host and port, or path, for people.
    pub(crate) fn place(&self) -> String {
        match &self.address {
            Address::Tcp { host, port } => host_and_port(host, *port),
            Address::Unix(path) => path.display().to_string(),
            Address::Sentinels { primary, .. } => primary.clone(),
            Address::Cluster(hosts) => {
                let hosts = hosts.iter().map(|(host, port)| host_and_port(host, *port));
                hosts.collect::<Vec<_>>().join(",")
            }
        }
    }

    /// The sentinels to ask, each as a server with its own user.
    pub(crate) fn sentinels(&self) -> Vec<Self> {
        let Address::Sentinels { hosts, .. } = &self.address else { return Vec::new() };
        let one = |(host, port): &(String, u16)| Self {
            address: Address::Tcp { host: host.clone(), port: *port },
            db: 0,
            login: self.sentinel_login.clone(),
            ..self.clone()
        };
        hosts.iter().map(one).collect()
    }

    /// The nodes to ask for all others, if the URL names a cluster.
    pub(crate) fn seeds(&self) -> &[(String, u16)] {
        match &self.address {
            Address::Cluster(seeds) => seeds,
            Address::Tcp { .. } | Address::Unix(_) | Address::Sentinels { .. } => &[],
        }
    }

    /// The server that the sentinels named, or other nodes of the cluster.
    ///
    /// # Errors
    /// If it is on another host, and the password would be sent there in plain text.
    pub(crate) fn moved_to(&self, host: &str, port: u16) -> Result<Self, Error> {
        let address = Address::Tcp { host: host.to_owned(), port };
        // What is for the sentinels alone does not go there.
        let location = Self { address, sentinel_login: Login::default(), ..self.clone() };
        location.check_plaintext()?;
        Ok(location)
    }

    /// Refuses to send a password where others could read it.
    fn check_plaintext(&self) -> Result<(), Error> {
        let has = |login: &Login| login.password != Password::None;
        let secret = has(&self.login) || has(&self.sentinel_login);
        if !secret || self.tls.is_some() || self.allow_plaintext || is_near(&self.address) {
            return Ok(());
        }
        let secure = match &self.address {
            Address::Tcp { .. } | Address::Unix(_) => "rediss",
            Address::Sentinels { .. } => "rediss+sentinel",
            Address::Cluster(_) => "rediss+cluster",
        };
        let what = "the password would be sent to another host in plain text";
        let next = "or allow_plaintext=yes where the network itself is encrypted";
        Err(Error::new(ErrorKind::InvalidOption, what)
            .with_help(format!("use {secure}://, {next}")))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = self.login != Login::default();
        let secret = if secret { "***@" } else { "" };
        let db = self.db;
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        match &self.address {
            Address::Tcp { host, port } => {
                write!(f, "{scheme}://{secret}{}/{db}", host_and_port(host, *port))
            }
            Address::Unix(path) => write!(f, "redis+unix://{secret}{}?db={db}", path.display()),
            Address::Sentinels { hosts, primary } => {
                write!(f, "{scheme}+sentinel://{secret}{}/{primary}/{db}", hosts_and_ports(hosts))
            }
            Address::Cluster(seeds) => {
                write!(f, "{scheme}+cluster://{secret}{}", hosts_and_ports(seeds))
            }
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

/// As in a URL.
fn host_and_port(host: &str, port: u16) -> String {
    let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
    format!("{open}{host}{close}:{port}")
}

fn hosts_and_ports(hosts: &[(String, u16)]) -> String {
    let hosts: Vec<_> = hosts.iter().map(|(host, port)| host_and_port(host, *port)).collect();
    hosts.join(",")
}

fn password_in(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::new(ErrorKind::InvalidOption, format!("the password file cannot be read: {error}"))
            .with_help(format!("check password_file= or {PASSWORD_FILE}: {}", path.display()))
            .caused_by(error)
    })?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

fn read(url: &str, password_file: Option<OsString>) -> Result<Location, Error> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("the URL has no ://"))?;
    let scheme = scheme.to_ascii_lowercase();
    let (tls, kind) = match &*scheme {
        "redis" | "valkey" => (false, Kind::Host),
        "rediss" | "valkeys" => (true, Kind::Host),
        "redis+unix" => (false, Kind::Unix),
        "redis+sentinel" | "redis-sentinel" | "valkey+sentinel" => (false, Kind::Sentinel),
        "rediss+sentinel" | "rediss-sentinel" | "valkeys+sentinel" => (true, Kind::Sentinel),
        "redis+cluster" | "valkey+cluster" => (false, Kind::Cluster),
        "rediss+cluster" | "valkeys+cluster" => (true, Kind::Cluster),
        _ => return Err(wrong("the scheme is not one of Redis")),
    };
    // Lettuce writes the name of the primary there.
    let (rest, fragment) = match rest.split_once('#') {
        Some((rest, name)) if kind == Kind::Sentinel => (rest, Some(name)),
        Some(_) => {
            return Err(wrong("the URL has a fragment; a # inside a password is written %23"));
        }
        None => (rest, None),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (login, host) = authority.rsplit_once('@').map_or((None, authority), |(l, h)| (Some(l), h));
    let (user, password) = login.map_or(Ok((None, None)), read_login)?;
    let options = Options::read(query, tls, kind)?;
    let path_below = path.strip_prefix('/').unwrap_or(path);
    let (address, db) = match kind {
        Kind::Unix => (read_socket(host, path)?, options.db.unwrap_or(0)),
        Kind::Host => {
            let (host, port) = read_host(host, PORTS.0)?;
            (Address::Tcp { host, port }, read_db(path_below)?)
        }
        Kind::Cluster => {
            if read_db(path_below)? != 0 {
                return Err(wrong("a cluster has no database but 0"));
            }
            (Address::Cluster(read_hosts(host, PORTS.0)?), 0)
        }
        Kind::Sentinel => read_sentinels(host, path_below, options.primary.as_deref(), fragment)?,
    };
    let password = match (password, options.password_file) {
        (Some(_), Some(_)) => {
            return Err(wrong("the URL has a password and a password_file; which one counts?"));
        }
        (Some(password), None) => Password::Given(password),
        (None, Some(path)) => Password::File(path),
        (None, None) => password_file.map_or(Password::None, |path| Password::File(path.into())),
    };
    let sentinel_password = options.sentinel_password_file.map_or(Password::None, Password::File);
    let location = Location {
        address,
        db,
        login: Login { user, password },
        sentinel_login: Login { user: options.sentinel_user, password: sentinel_password },
        tls: tls.then_some(Tls { ca: options.ca, identity: options.identity }),
        allow_plaintext: options.allow_plaintext,
        eviction_allowed: options.eviction_allowed,
        grace: options.grace,
        new: options.new,
    };
    location.check_plaintext()?;
    Ok(location)
}

/// What the authority of a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Host,
    Unix,
    Sentinel,
    Cluster,
}

/// The sentinels; the name of the primary, which is the first part of the path unless it is told in
/// the ways of other clients; and the database.
fn read_sentinels(
    hosts: &str,
    path: &str,
    option: Option<&str>,
    fragment: Option<&str>,
) -> Result<(Address, u32), Error> {
    let (primary, db) = match (option, fragment) {
        (None, None) => path.split_once('/').unwrap_or((path, "")),
        (Some(name), None) | (None, Some(name)) => (name, path),
        (Some(_), Some(_)) => return Err(wrong("the URL names the primary twice")),
    };
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if primary.is_empty() || !primary.chars().all(legal) {
        return Err(wrong("the URL does not say what the sentinels call the primary"));
    }
    let hosts = read_hosts(hosts, PORTS.1)?;
    Ok((Address::Sentinels { hosts, primary: primary.to_owned() }, read_db(db)?))
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

fn read_hosts(hosts: &str, default: u16) -> Result<Vec<(String, u16)>, Error> {
    hosts.split(',').map(|host| read_host(host, default)).collect()
}

fn read_host(host: &str, default: u16) -> Result<(String, u16), Error> {
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
        None => default,
        Some(port) => digits(port)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0)
            .ok_or_else(|| wrong("the port is not a number from 1 to 65535"))?,
    };
    Ok((host.to_owned(), port))
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

fn decode(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| wrong("a part of the URL is not UTF-8"))
}

/// Whether what we send stays on this host.
pub(super) fn is_near(address: &Address) -> bool {
    let near = |host: &str| {
        host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    match address {
        Address::Unix(_) => true,
        Address::Tcp { host, .. } => near(host),
        Address::Sentinels { hosts, .. } | Address::Cluster(hosts) => {
            hosts.iter().all(|(host, _)| near(host))
        }
    }
}

fn wrong(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOption, what).with_help(
        "use redis://[user:password@]host[:port][/db][?option=value], redis+unix:///path, \
         redis+sentinel://[user:password@]host[:port],host[:port]/primary[/db], or \
         redis+cluster://[user:password@]host[:port],host[:port]; \
         / ? # @ : % in a password are written %2F %3F %23 %40 %3A %25",
    )
}

#[cfg(test)]
mod tests;

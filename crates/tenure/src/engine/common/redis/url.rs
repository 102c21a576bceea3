//! The URLs of Redis and Valkey: one server, sentinels that know which server is the primary, or
//! nodes of a cluster. What URLs of all engines have in common is in `common/url.rs`.

mod options;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use self::options::UrlOptions;
use crate::contract::{Error, ErrorKind};
use crate::engine::common::url::{
    Host, PASSWORD_FILE, Password, SplitUrl, TlsFiles, decode, digits, joined, refuse_plaintext,
};

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
    tls: Option<TlsFiles>,
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
    Tcp(Host),
    /// A socket of this host.
    Unix(PathBuf),
    /// The primary, which sentinels name.
    Sentinels {
        /// Where the sentinels listen.
        hosts: Vec<Host>,
        /// What they call the primary.
        primary: String,
    },
    /// The nodes of a cluster, which these seeds name.
    Cluster(Vec<Host>),
}

/// A user and its password.
#[derive(Clone, Default, PartialEq, Eq)]
struct Login {
    user: Option<String>,
    password: Password,
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
    pub(crate) fn tls(&self) -> Option<&TlsFiles> {
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

    /// Whether the caller declares that no client has used this store yet.
    pub(crate) fn is_new(&self) -> bool {
        self.new
    }

    /// The user and the password to greet the server with, if there are any.
    ///
    /// # Errors
    /// If the password is in a file that cannot be read.
    pub(crate) fn credentials(&self) -> Result<Option<(String, String)>, Error> {
        let Login { user, password } = &self.login;
        if user.is_none() && password.is_none() {
            return Ok(None);
        }
        // A user without a password: the server lets it in with any.
        let password = password.read()?.unwrap_or_default();
        Ok(Some((user.clone().unwrap_or_else(|| "default".to_owned()), password)))
    }

    /// What the sentinels call the server, if there are any to ask.
    pub(crate) fn primary(&self) -> Option<&str> {
        match &self.address {
            Address::Sentinels { primary, .. } => Some(primary),
            Address::Tcp(_) | Address::Unix(_) | Address::Cluster(_) => None,
        }
    }

    /// Host and port, or path, for people.
    pub(crate) fn place(&self) -> String {
        match &self.address {
            Address::Tcp(host) => host.to_string(),
            Address::Unix(path) => path.display().to_string(),
            Address::Sentinels { primary, .. } => primary.clone(),
            Address::Cluster(seeds) => joined(seeds),
        }
    }

    /// The sentinels to ask, each as a server with its own user.
    pub(crate) fn sentinels(&self) -> Vec<Self> {
        let Address::Sentinels { hosts, .. } = &self.address else { return Vec::new() };
        let one = |host: &Host| Self {
            address: Address::Tcp(host.clone()),
            db: 0,
            login: self.sentinel_login.clone(),
            ..self.clone()
        };
        hosts.iter().map(one).collect()
    }

    /// The nodes to ask for all others, if the URL names a cluster.
    pub(crate) fn seeds(&self) -> Vec<(String, u16)> {
        let Address::Cluster(seeds) = &self.address else { return Vec::new() };
        seeds.iter().map(|seed| (seed.name.clone(), seed.port)).collect()
    }

    /// The server that the sentinels named, or other nodes of the cluster.
    ///
    /// # Errors
    /// If it is on another host, and the password would be sent there in plain text.
    pub(crate) fn moved_to(&self, host: &str, port: u16) -> Result<Self, Error> {
        let address = Address::Tcp(Host { name: host.to_owned(), port });
        // What is for the sentinels alone does not go there.
        let location = Self { address, sentinel_login: Login::default(), ..self.clone() };
        location.check_plaintext()?;
        Ok(location)
    }

    /// Refuses to send a password where others could read it.
    fn check_plaintext(&self) -> Result<(), Error> {
        let secret = !self.login.password.is_none() || !self.sentinel_login.password.is_none();
        if !secret || self.tls.is_some() || self.allow_plaintext || is_near(&self.address) {
            return Ok(());
        }
        Err(refuse_plaintext(match &self.address {
            Address::Tcp(_) | Address::Unix(_) => "rediss",
            Address::Sentinels { .. } => "rediss+sentinel",
            Address::Cluster(_) => "rediss+cluster",
        }))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = self.login != Login::default();
        let secret = if secret { "***@" } else { "" };
        let db = self.db;
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        match &self.address {
            Address::Tcp(host) => write!(f, "{scheme}://{secret}{host}/{db}"),
            Address::Unix(path) => write!(f, "redis+unix://{secret}{}?db={db}", path.display()),
            Address::Sentinels { hosts, primary } => {
                write!(f, "{scheme}+sentinel://{secret}{}/{primary}/{db}", joined(hosts))
            }
            Address::Cluster(seeds) => {
                write!(f, "{scheme}+cluster://{secret}{}", joined(seeds))
            }
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

fn read(url: &str, password_file: Option<OsString>) -> Result<Location, Error> {
    let split = SplitUrl::of(url).map_err(wrong)?;
    let (tls, kind) = match &*split.scheme {
        "redis" | "valkey" => (false, Kind::Host),
        "rediss" | "valkeys" => (true, Kind::Host),
        "redis+unix" => (false, Kind::Unix),
        "redis+sentinel" | "redis-sentinel" | "valkey+sentinel" => (false, Kind::Sentinel),
        "rediss+sentinel" | "rediss-sentinel" | "valkeys+sentinel" => (true, Kind::Sentinel),
        "redis+cluster" | "valkey+cluster" => (false, Kind::Cluster),
        "rediss+cluster" | "valkeys+cluster" => (true, Kind::Cluster),
        _ => return Err(wrong("the scheme is not one of Redis")),
    };
    // Lettuce writes the name of the primary in the fragment.
    let split =
        if kind == Kind::Sentinel { split } else { split.without_fragment().map_err(wrong)? };
    let (user, password) = split.user_and_password().map_err(wrong)?;
    let options = UrlOptions::read(&split.options().map_err(wrong)?, tls, kind)?;
    let below = split.path.strip_prefix('/').unwrap_or(split.path);
    let (address, db) = match kind {
        Kind::Unix => (read_socket(split.hosts, split.path)?, options.db.unwrap_or(0)),
        Kind::Host => {
            (Address::Tcp(Host::read(split.hosts, PORTS.0).map_err(wrong)?), read_db(below)?)
        }
        Kind::Cluster => {
            if read_db(below)? != 0 {
                return Err(wrong("a cluster has no database but 0"));
            }
            (Address::Cluster(Host::read_all(split.hosts, PORTS.0).map_err(wrong)?), 0)
        }
        Kind::Sentinel => {
            read_sentinels(split.hosts, below, options.primary.as_deref(), split.fragment)?
        }
    };
    let password =
        Password::choose(password, options.password_file, password_file).map_err(wrong)?;
    let sentinel_password = options.sentinel_password_file.map_or(Password::None, Password::InFile);
    let location = Location {
        address,
        db,
        login: Login { user, password },
        sentinel_login: Login { user: options.sentinel_user, password: sentinel_password },
        tls: tls.then_some(options.tls),
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
    let hosts = Host::read_all(hosts, PORTS.1).map_err(wrong)?;
    Ok((Address::Sentinels { hosts, primary: primary.to_owned() }, read_db(db)?))
}

fn read_socket(host: &str, path: &str) -> Result<Address, Error> {
    if !host.is_empty() {
        return Err(wrong("a Unix socket is on this host, not on another"));
    }
    let path = decode(path).map_err(wrong)?;
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

/// Whether what is sent there stays on this machine.
pub(in crate::engine) fn is_near(address: &Address) -> bool {
    match address {
        Address::Unix(_) => true,
        Address::Tcp(host) => host.is_loopback(),
        Address::Sentinels { hosts, .. } | Address::Cluster(hosts) => {
            hosts.iter().all(Host::is_loopback)
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

//! Which cluster a URL names, and how to be let in. Knows text, not connections.
//!
//! An error about a URL repeats none of it: where a slash or a question mark was not escaped, a
//! piece of the password stands where a port or an option would.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

use crate::contract::{Error, ErrorKind};

/// Where a password is, for programs that do not want it in a URL.
const PASSWORD_FILE: &str = "TENURE_PASSWORD_FILE";

/// Where our keys stand if the URL does not say.
const PREFIX: &str = "tenure";

/// Longest prefix, in bytes.
const PREFIX_BYTES: usize = 255;

/// Most members in a URL.
const MEMBERS: usize = 16;

/// Every option, for people who wrote another one.
const OPTIONS: &str = "password_file, ca, cert, key, allow_plaintext, restored";

/// The members of one cluster, and how to be let in.
#[derive(Clone)]
pub(super) struct Location {
    /// Host and port of each member, the host in brackets if it needs them.
    members: Vec<String>,
    prefix: String,
    user: Option<String>,
    password: Password,
    tls: Option<Tls>,
    restored: bool,
}

/// What TLS needs to know beyond the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tls {
    /// Whom to trust; the system's roots if not given.
    pub(super) ca: Option<PathBuf>,
    /// Our own certificate and its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, PartialEq, Eq)]
enum Password {
    None,
    Given(String),
    /// Read when connecting, so that a password can be changed between two runs.
    File(PathBuf),
}

impl Location {
    /// Reads a URL, and the environment for a password that the URL does not have.
    ///
    /// # Errors
    /// If the URL does not name a cluster, or would send a password in plain text.
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        read(url, std::env::var_os(PASSWORD_FILE))
    }

    /// The members as a client dials them.
    pub(super) fn endpoints(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.members.iter().map(|member| format!("{scheme}://{member}")).collect()
    }

    /// Below what all keys stand.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How to encrypt, if at all.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Whether the caller knows that the store was restored from a backup, and accepts it.
    pub(super) fn accepts_restored(&self) -> bool {
        self.restored
    }

    /// The user and the password, if there are any.
    ///
    /// # Errors
    /// If the password is in a file that cannot be read.
    pub(super) fn credentials(&self) -> Result<Option<(String, String)>, Error> {
        let Some(user) = self.user.clone() else { return Ok(None) };
        let password = match &self.password {
            Password::None => String::new(),
            Password::Given(password) => password.clone(),
            Password::File(path) => password_in(path)?,
        };
        Ok(Some((user, password)))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        let secret = if self.user.is_some() { "***@" } else { "" };
        write!(f, "{scheme}://{secret}{}/{}", self.members.join(","), self.prefix)
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
            .with_help(format!("check password_file= or {PASSWORD_FILE}: {}", path.display()))
            .caused_by(error)
    })?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

fn read(url: &str, password_file: Option<OsString>) -> Result<Location, Error> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("the URL has no ://"))?;
    let tls = match &*scheme.to_ascii_lowercase() {
        "etcd" => false,
        "etcds" => true,
        _ => return Err(wrong("the scheme is not one of etcd")),
    };
    if rest.contains('#') {
        return Err(wrong("the URL has a fragment; a # inside a password is written %23"));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (login, hosts) =
        authority.rsplit_once('@').map_or((None, authority), |(l, h)| (Some(l), h));
    let (user, password) = login.map_or(Ok((None, None)), read_login)?;
    let options = Options::read(query, tls)?;
    let hosts: Vec<&str> = hosts.split(',').collect();
    if hosts.len() > MEMBERS {
        return Err(wrong(format!("the URL names more than {MEMBERS} members")));
    }
    let members = hosts.iter().map(|host| read_host(host)).collect::<Result<Vec<_>, _>>()?;
    let password = match (password, options.password_file) {
        (Some(_), Some(_)) => {
            return Err(wrong("the URL has a password and a password_file; which one counts?"));
        }
        (Some(password), None) => Password::Given(password),
        (None, Some(path)) => Password::File(path),
        (None, None) => match password_file.filter(|_| user.is_some()) {
            Some(path) => Password::File(path.into()),
            None => Password::None,
        },
    };
    if password != Password::None && user.is_none() {
        return Err(wrong("the URL has a password and no user"));
    }
    if user.is_some() && !tls && !hosts.iter().all(|host| is_near(host)) && !options.plaintext {
        return Err(Error::new(
            ErrorKind::InvalidOption,
            "the password would be sent to another host in plain text",
        )
        .with_help("use etcds://, or allow_plaintext=yes where the network itself is encrypted"));
    }
    Ok(Location {
        members,
        prefix: read_prefix(path)?,
        user,
        password,
        tls: tls.then_some(Tls { ca: options.ca, identity: options.identity }),
        restored: options.restored,
    })
}

/// `user` or `user:password`.
fn read_login(login: &str) -> Result<(Option<String>, Option<String>), Error> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(decode(password)?)),
        None => (login, None),
    };
    let user = decode(user)?;
    Ok(((!user.is_empty()).then_some(user), password.filter(|password| !password.is_empty())))
}

/// A member with its port, as it stands in a URL.
fn read_host(text: &str) -> Result<String, Error> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, after) =
            rest.split_once(']').ok_or_else(|| wrong("a bracket of an address is open"))?;
        if host.parse::<Ipv6Addr>().is_err() {
            return Err(wrong("an address in brackets is not an IPv6 address"));
        }
        match after.strip_prefix(':') {
            Some(port) => (format!("[{host}]"), Some(port)),
            None if after.is_empty() => (format!("[{host}]"), None),
            None => return Err(wrong("after an address in brackets comes a port")),
        }
    } else {
        let (host, port) = text.split_once(':').map_or((text, None), |(h, p)| (h, Some(p)));
        (host.to_owned(), port)
    };
    if host.is_empty() {
        return Err(wrong("a member has no host"));
    }
    let legal =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    if !host.chars().all(legal) {
        return Err(wrong("a host has a character that no host name has"));
    }
    let port = match port {
        None => 2379,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port
            .parse::<u16>()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| wrong("a port is not a number from 1 to 65535"))?,
        Some(_) => return Err(wrong("a port is not a number from 1 to 65535")),
    };
    Ok(format!("{host}:{port}"))
}

/// Whether what is sent there stays on this host.
fn is_near(host: &str) -> bool {
    let host = host
        .strip_prefix('[')
        .and_then(|rest| rest.split(']').next())
        .unwrap_or_else(|| host.split(':').next().unwrap_or(host));
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn read_prefix(path: &str) -> Result<String, Error> {
    let prefix = decode(path.strip_prefix('/').unwrap_or(path))?;
    if prefix.is_empty() {
        return Ok(PREFIX.to_owned());
    }
    if prefix.len() > PREFIX_BYTES || prefix.chars().any(char::is_control) {
        return Err(wrong(format!(
            "the prefix is longer than {PREFIX_BYTES} bytes or has control characters"
        )));
    }
    Ok(prefix)
}

#[derive(Default)]
struct Options {
    password_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    plaintext: bool,
    restored: bool,
}

impl Options {
    fn read(query: &str, tls: bool) -> Result<Self, Error> {
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
                "ca" | "cert" | "key" => return Err(wrong("certificates are for etcds:// alone")),
                "allow_plaintext" if value == "yes" => options.plaintext = true,
                "allow_plaintext" if value == "no" => options.plaintext = false,
                "allow_plaintext" => {
                    return Err(wrong("the option allow_plaintext is `yes` or `no`"));
                }
                "restored" if value == "accept" => options.restored = true,
                "restored" => return Err(wrong("the option restored is `accept` or left out")),
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

fn file(value: &str) -> Result<PathBuf, Error> {
    let path = decode(value)?;
    if path.is_empty() { Err(wrong("a file has no path")) } else { Ok(path.into()) }
}

fn decode(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| wrong("a part of the URL is not UTF-8 once it is decoded"))
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOption, what.into())
        .with_help("use etcd://host:2379,host:2379/prefix or etcds://user:password@host:2379")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Location {
        read(url, None).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn members_prefix_and_login_are_read() {
        let plain = parsed("etcd://h1");
        assert_eq!(plain.endpoints(), ["http://h1:2379"]);
        assert_eq!((plain.prefix(), plain.credentials().unwrap()), ("tenure", None));
        let full = parsed("etcds://al%40ice:p%2Fw@h1:1,[::1]:2/my/place?ca=/ca&cert=/c&key=/k");
        assert_eq!(full.endpoints(), ["https://h1:1", "https://[::1]:2"]);
        assert_eq!(full.prefix(), "my/place");
        assert_eq!(full.credentials().unwrap(), Some(("al@ice".into(), "p/w".into())));
        let tls = full.tls().unwrap();
        assert_eq!(tls.identity, Some(("/c".into(), "/k".into())));
        assert!(parsed("etcd://h?restored=accept").accepts_restored());
    }

    #[test]
    fn what_is_no_cluster_is_refused_and_not_repeated() {
        let bad = [
            "etcd:h",
            "redis://h",
            "etcd://",
            "etcd://h,",
            "etcd://h:0",
            "etcd://h:99999",
            "etcd://h:+1",
            "etcd://[::1",
            "etcd://[zz]:1",
            "etcd://h?x=1",
            "etcd://h?ca=/a",
            "etcds://h?cert=/a",
            "etcd://h?restored=yes",
            "etcd://h/a%09b",
            "etcd://h#f",
            "etcd://:SECRET@localhost",
            "etcd://u:SECRET@h",
            "etcd://u:SECRET@h:x",
            "etcds://u:SECRET@h?password_file=/f",
            "etcd://h?allow_plaintext=maybe",
        ];
        for url in bad {
            let error = read(url, None).map(|_| panic!("{url}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{url}");
            assert!(!format!("{error:?}").contains("SECRET"), "{error:?}");
            assert!(!error.help().is_empty());
        }
    }

    #[test]
    fn nobody_sees_a_password() {
        let location = parsed("etcd://user:SECRET@localhost:1");
        assert_eq!(format!("{location}"), "etcd://***@localhost:1/tenure");
        assert!(!format!("{location:?}").contains("SECRET"));
    }

    #[test]
    fn a_password_may_be_in_a_file() {
        let file = std::env::temp_dir().join(format!("tenure-etcd-{}", std::process::id()));
        std::fs::write(&file, "from file\n").unwrap();
        let by_url = parsed(&format!("etcds://u@h?password_file={}", file.display()));
        assert_eq!(by_url.credentials().unwrap(), Some(("u".into(), "from file".into())));
        let by_env = read("etcds://u@h", Some(file.clone().into())).unwrap();
        assert_eq!(by_env.credentials().unwrap(), Some(("u".into(), "from file".into())));
        std::fs::remove_file(&file).unwrap();
        assert!(by_url.credentials().is_err());
    }
}

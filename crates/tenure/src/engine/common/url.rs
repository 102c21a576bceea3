//! Reads the parts that the URLs of all servers have in common: scheme, login, hosts, options,
//! password files.
//!
//! ```text
//! scheme://user:password@host:port,host:port/path?option=value&option=value#fragment
//!          └── login ──┘ └──── hosts ─────┘└path┘ └────── query ──────────┘
//! ```
//!
//! Each engine says what its path and its options mean; what is the same in all of them is decided
//! here, so that a URL that one engine refuses is not accepted by another.
//!
//! An error never quotes the URL. Where a slash or a question mark in a password was not escaped, a
//! piece of the password stands where a port or an option would. So the functions here return what
//! is wrong as a [`Problem`], and each engine adds how its URLs are written.

#![allow(dead_code, reason = "for engines that a build may leave out")]

use std::borrow::Cow;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use crate::contract::{Error, ErrorKind};

/// The environment variable that names a file with the password, for programs that keep it out of
/// the URL.
pub(in crate::engine) const PASSWORD_FILE: &str = "TENURE_PASSWORD_FILE";

/// How far a misspelt option may be from a known one to be taken for it.
const NEAR: usize = 2;

/// What is wrong with a URL, in words that quote nothing of it.
pub(in crate::engine) type Problem = Cow<'static, str>;

/// The parts of a URL as they are written: nothing is decoded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct SplitUrl<'a> {
    /// In lower case.
    pub(in crate::engine) scheme: String,
    pub(in crate::engine) login: Option<&'a str>,
    pub(in crate::engine) hosts: &'a str,
    /// With the slash it begins with, or empty.
    pub(in crate::engine) path: &'a str,
    pub(in crate::engine) query: &'a str,
    pub(in crate::engine) fragment: Option<&'a str>,
}

impl<'a> SplitUrl<'a> {
    pub(in crate::engine) fn of(url: &'a str) -> Result<Self, Problem> {
        let (scheme, rest) = url.split_once("://").ok_or("the URL has no ://")?;
        let (rest, fragment) = match rest.split_once('#') {
            Some((rest, fragment)) => (rest, Some(fragment)),
            None => (rest, None),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        // The last @: a host has none, a password that was not escaped may.
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        Ok(Self { scheme: scheme.to_ascii_lowercase(), login, hosts, path, query, fragment })
    }

    /// Refuses a fragment, which most often is a `#` in a password.
    pub(in crate::engine) fn without_fragment(self) -> Result<Self, Problem> {
        if self.fragment.is_some() {
            return Err("the URL has a fragment; a # inside a password is written %23".into());
        }
        Ok(self)
    }

    /// User and password; either may be missing.
    pub(in crate::engine) fn user_and_password(
        &self,
    ) -> Result<(Option<String>, Option<String>), Problem> {
        let Some(login) = self.login else { return Ok((None, None)) };
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(decode(password)?)),
            None => (login, None),
        };
        let user = decode(user)?;
        Ok(((!user.is_empty()).then_some(user), password.filter(|password| !password.is_empty())))
    }

    /// The options in the order in which they stand, each with its value as it is written.
    pub(in crate::engine) fn options(&self) -> Result<Vec<(&'a str, &'a str)>, Problem> {
        options(self.query)
    }
}

/// The options of a query. Refuses one without a value, and one that is given twice.
pub(in crate::engine) fn options(query: &str) -> Result<Vec<(&str, &str)>, Problem> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or("an option has no value")?;
        if found.iter().any(|(other, _)| *other == name) {
            return Err("an option is given twice".into());
        }
        found.push((name, value));
    }
    Ok(found)
}

/// Refuses an option that is none of these, of which each may have a remark behind its name. Names
/// the one that was probably meant: a word of ours, never the one that stands in the URL.
pub(in crate::engine) fn unknown_option(name: &str, known: &[&str]) -> Problem {
    let name = name.to_ascii_lowercase();
    let names = known.iter().filter_map(|known| known.split(' ').next());
    let meant = match names.map(|known| (distance(&name, known), known)).min() {
        Some((distance, known)) if distance <= NEAR => format!("; did you mean {known}?"),
        _ => String::new(),
    };
    format!("an option is none of {}{meant}", known.join(", ")).into()
}

/// How many letters have to be inserted, removed or replaced to turn one word into another.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, expected) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *expected);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

/// The value of an option that is `yes` or `no`.
pub(in crate::engine) fn yes_or_no(name: &'static str, value: &str) -> Result<bool, Problem> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("the option {name} is `yes` or `no`").into()),
    }
}

/// The value of an option that names a file.
pub(in crate::engine) fn file(value: &str) -> Result<PathBuf, Problem> {
    let path = decode(value)?;
    if path.is_empty() || path.contains('\0') {
        return Err("an option that names a file is empty or has a zero byte".into());
    }
    Ok(path.into())
}

/// Undoes percent-encoding.
pub(in crate::engine) fn decode(text: &str) -> Result<String, Problem> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "a part of the URL is not UTF-8 once it is decoded".into())
}

/// A number written in digits alone: `+1` is none.
pub(in crate::engine) fn digits(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// A host and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Host {
    /// A name or an address, without brackets.
    pub(in crate::engine) name: String,
    pub(in crate::engine) port: u16,
}

impl Host {
    /// Reads `host`, `host:port`, `[address]` or `[address]:port`.
    pub(in crate::engine) fn read(text: &str, default_port: u16) -> Result<Self, Problem> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, after) =
                    rest.split_once(']').ok_or("a bracket of an address is open")?;
                if address.parse::<Ipv6Addr>().is_err() {
                    return Err("an address in brackets is not an IPv6 address".into());
                }
                match after.strip_prefix(':') {
                    Some(port) => (address, Some(port)),
                    None if after.is_empty() => (address, None),
                    None => return Err("after an address in brackets comes a port".into()),
                }
            }
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        if name.is_empty() {
            return Err("the URL names no host, or there is nothing between two commas".into());
        }
        if name.contains(',') {
            return Err("the URL names several hosts, which takes another scheme".into());
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if !name.chars().all(legal) {
            return Err("a host has a character that no host name has".into());
        }
        let port = match port {
            None => default_port,
            Some(port) => digits(port)
                .and_then(|port| u16::try_from(port).ok())
                .filter(|port| *port > 0)
                .ok_or("a port is not a number from 1 to 65535")?,
        };
        Ok(Self { name: name.to_owned(), port })
    }

    /// Reads hosts that are separated by commas.
    pub(in crate::engine) fn read_all(text: &str, default_port: u16) -> Result<Vec<Self>, Problem> {
        text.split(',').map(|host| Self::read(host, default_port)).collect()
    }

    /// Whether what is sent there stays on this machine.
    pub(in crate::engine) fn is_loopback(&self) -> bool {
        is_loopback(&self.name)
    }
}

/// As in a URL.
impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (open, close) = if self.name.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.name, self.port)
    }
}

/// Hosts as in a URL.
pub(in crate::engine) fn joined(hosts: &[Host]) -> String {
    hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Whether a host, written without brackets, is this machine.
pub(in crate::engine) fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Where a password comes from.
#[derive(Clone, Default, PartialEq, Eq)]
pub(in crate::engine) enum Password {
    #[default]
    None,
    InUrl(String),
    /// Read at each connect, so that a password can be changed under a running program.
    InFile(PathBuf),
}

impl Password {
    /// The one of the URL, else that of the option `password_file`, else that of the environment.
    pub(in crate::engine) fn choose(
        in_url: Option<String>,
        option: Option<PathBuf>,
        environment: Option<OsString>,
    ) -> Result<Self, Problem> {
        Ok(match (in_url, option) {
            (Some(_), Some(_)) => {
                return Err("the URL has a password and a password_file; which one counts?".into());
            }
            (Some(password), None) => Self::InUrl(password),
            (None, Some(path)) => Self::InFile(path),
            (None, None) => environment.map_or(Self::None, |path| Self::InFile(path.into())),
        })
    }

    pub(in crate::engine) fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// The password itself, without the newline at the end of a file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(in crate::engine) fn read(&self) -> Result<Option<String>, Error> {
        let path = match self {
            Self::None => return Ok(None),
            Self::InUrl(password) => return Ok(Some(password.clone())),
            Self::InFile(path) => path,
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            let what = format!("the password file cannot be read: {error}");
            Error::new(ErrorKind::InvalidOption, what)
                .with_help(format!("check password_file= or {PASSWORD_FILE}: {}", path.display()))
                .caused_by(error)
        })?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        Ok(Some(text.strip_suffix('\r').unwrap_or(text).to_owned()))
    }
}

/// The files that TLS reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct TlsFiles {
    /// The certificates of the authorities to trust; those of the system if `None`.
    pub(in crate::engine) ca: Option<PathBuf>,
    /// The certificate of this client, and its key.
    pub(in crate::engine) identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// A certificate without its key, or a key without its certificate, is a mistake.
    pub(in crate::engine) fn new(
        ca: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Result<Self, Problem> {
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err("a client certificate takes both a certificate and its key".into()),
        };
        Ok(Self { ca, identity })
    }
}

/// Refuses to send a password to another machine in plain text.
pub(in crate::engine) fn refuse_plaintext(secure_scheme: &str) -> Error {
    let what = "the password would be sent to another host in plain text";
    Error::new(ErrorKind::InvalidOption, what).with_help(format!(
        "use {secure_scheme}://, or allow_plaintext=yes where the network itself is encrypted"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_where_its_parts_begin() {
        let split = SplitUrl::of("Redis+Cluster://u:p@w@h:1,[::1]:2/a/b?c=d&e=f?g#x").unwrap();
        assert_eq!(split.scheme, "redis+cluster");
        assert_eq!((split.login, split.hosts), (Some("u:p@w"), "h:1,[::1]:2"));
        assert_eq!((split.path, split.query), ("/a/b", "c=d&e=f?g"));
        assert_eq!(split.fragment, Some("x"));
        assert!(split.without_fragment().unwrap_err().contains("%23"));
        assert_eq!(SplitUrl::of("a:b").unwrap_err(), "the URL has no ://");
    }

    #[test]
    fn a_login_may_lack_its_user_or_its_password() {
        let login = |url| SplitUrl::of(url).unwrap().user_and_password().unwrap();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(login("x://h"), (None, None));
        assert_eq!(login("x://u@h"), (text("u"), None));
        assert_eq!(login("x://:p@h"), (None, text("p")));
        assert_eq!(login("x://u:@h"), (text("u"), None));
        assert_eq!(login("x://al%40ice:p%2Fw:x@h"), (text("al@ice"), text("p/w:x")));
        assert!(SplitUrl::of("x://%ff@h").unwrap().user_and_password().is_err());
    }

    #[test]
    fn hosts_are_names_or_addresses_with_a_port() {
        let host = |text| Host::read(text, 7).map(|host| host.to_string());
        assert_eq!(host("h").unwrap(), "h:7");
        assert_eq!(host("a-b_c.d:65535").unwrap(), "a-b_c.d:65535");
        assert_eq!(host("[::1]").unwrap(), "[::1]:7");
        assert_eq!(host("[fe80::1]:2").unwrap(), "[fe80::1]:2");
        for wrong in ["", ":1", "h:0", "h:65536", "h:+1", "h:", "[::1", "[zz]", "[::1]2", "a b"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
        assert!(host("a,b").unwrap_err().contains("several hosts"));
        assert_eq!(Host::read_all("a,b:1", 7).unwrap().len(), 2);
        assert!(Host::read_all("a,,b", 7).unwrap_err().contains("no host"));
    }

    #[test]
    fn this_machine_is_known_by_name_and_by_address() {
        for here in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1"] {
            assert!(is_loopback(here), "{here}");
        }
        for elsewhere in ["localhost.example", "10.0.0.1", "::2", "h", ""] {
            assert!(!is_loopback(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn options_have_a_value_and_occur_once() {
        assert_eq!(options("a=b&&c=").unwrap(), [("a", "b"), ("c", "")]);
        assert_eq!(options("a").unwrap_err(), "an option has no value");
        assert_eq!(options("a=1&b=2&a=1").unwrap_err(), "an option is given twice");
        assert!(yes_or_no("new", "yes").unwrap() && !yes_or_no("new", "no").unwrap());
        assert_eq!(yes_or_no("new", "1").unwrap_err(), "the option new is `yes` or `no`");
        assert!(file("").is_err() && file("a%00b").is_err());
        assert_eq!(file("%2Fa%20b").unwrap(), PathBuf::from("/a b"));
    }

    #[test]
    fn a_misspelt_option_is_told_the_one_that_was_meant_and_not_repeated() {
        let known = ["password_file", "ca", "grace for redis"];
        let problem = |name| unknown_option(name, &known);
        assert!(problem("passwordfile").ends_with("did you mean password_file?"));
        assert!(problem("Grace").ends_with("did you mean grace?"));
        let secret = problem("c4n4ry-of-a-password");
        assert_eq!(secret, "an option is none of password_file, ca, grace for redis");
    }

    #[test]
    fn a_password_comes_from_one_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        std::fs::write(&file, "from file\r\n").unwrap();
        let choose = Password::choose;
        let text = |text: &str| Some(text.to_owned());
        let in_url = choose(text("p"), None, Some("/env".into())).unwrap();
        assert_eq!(in_url.read().unwrap(), text("p"));
        let by_option = choose(None, Some(file.clone()), Some("/env".into())).unwrap();
        assert_eq!(by_option.read().unwrap(), text("from file"));
        let by_environment = choose(None, None, Some(file.clone().into())).unwrap();
        assert_eq!(by_environment.read().unwrap(), text("from file"));
        assert!(choose(None, None, None).unwrap().is_none());
        assert!(choose(text("p"), Some(file.clone()), None).is_err());
        std::fs::remove_file(&file).unwrap();
        let error = by_option.read().unwrap_err();
        assert!(error.help().contains("TENURE_PASSWORD_FILE"), "{error}");
    }

    #[test]
    fn a_client_certificate_has_a_key() {
        let path = |path: &str| Some(PathBuf::from(path));
        assert!(TlsFiles::new(None, path("c"), None).is_err());
        assert!(TlsFiles::new(path("ca"), None, path("k")).is_err());
        let both = TlsFiles::new(None, path("c"), path("k")).unwrap();
        assert_eq!(both.identity, Some(("c".into(), "k".into())));
    }
}

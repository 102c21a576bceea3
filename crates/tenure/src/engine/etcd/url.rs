//! The URLs of etcd: the members of a cluster, and the prefix of the keys. What URLs of all engines
//! have in common is in `common/url.rs`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::contract::{Error, ErrorKind};
use crate::engine::common::url::{
    Host, PASSWORD_FILE, Password, Problem, SplitUrl, TlsFiles, decode, file, joined,
    refuse_plaintext, unknown_option, yes_or_no,
};

/// The port of a member if the URL names none.
const PORT: u16 = 2379;

/// Where our keys stand if the URL does not say.
const PREFIX: &str = "tenure";

/// Longest prefix, in bytes.
const PREFIX_BYTES: usize = 255;

/// Most members in a URL.
const MEMBERS: usize = 16;

/// Every option, for an error about another one.
const KNOWN: &[&str] = &["password_file", "ca", "cert", "key", "allow_plaintext", "restored"];

/// The members of one cluster, and how to be let in.
#[derive(Clone)]
pub(super) struct Location {
    members: Vec<Host>,
    prefix: String,
    user: Option<String>,
    password: Password,
    tls: Option<TlsFiles>,
    restored: bool,
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
    pub(super) fn tls(&self) -> Option<&TlsFiles> {
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
        Ok(Some((user, self.password.read()?.unwrap_or_default())))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        let secret = if self.user.is_some() { "***@" } else { "" };
        write!(f, "{scheme}://{secret}{}/{}", joined(&self.members), self.prefix)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

fn read(url: &str, password_file: Option<OsString>) -> Result<Location, Error> {
    let split = SplitUrl::of(url).and_then(SplitUrl::without_fragment).map_err(wrong)?;
    let tls = match &*split.scheme {
        "etcd" => false,
        "etcds" => true,
        _ => return Err(wrong("the scheme is not one of etcd")),
    };
    let (user, password) = split.user_and_password().map_err(wrong)?;
    let options = Options::read(&split.options().map_err(wrong)?, tls).map_err(wrong)?;
    let members = Host::read_all(split.hosts, PORT).map_err(wrong)?;
    if members.len() > MEMBERS {
        return Err(wrong(format!("the URL names more than {MEMBERS} members")));
    }
    // A password that the environment names is for a user; without a user there is no login.
    let password_file = password_file.filter(|_| user.is_some());
    let password =
        Password::choose(password, options.password_file, password_file).map_err(wrong)?;
    if !password.is_none() && user.is_none() {
        return Err(wrong("the URL has a password and no user"));
    }
    let near = members.iter().all(Host::is_loopback);
    if user.is_some() && !tls && !near && !options.allow_plaintext {
        return Err(refuse_plaintext("etcds"));
    }
    Ok(Location {
        members,
        prefix: read_prefix(split.path)?,
        user,
        password,
        tls: tls.then_some(options.tls),
        restored: options.restored,
    })
}

fn read_prefix(path: &str) -> Result<String, Error> {
    let prefix = decode(path.strip_prefix('/').unwrap_or(path)).map_err(wrong)?;
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
    tls: TlsFiles,
    allow_plaintext: bool,
    restored: bool,
}

impl Options {
    fn read(pairs: &[(&str, &str)], tls: bool) -> Result<Self, Problem> {
        let mut options = Self::default();
        let (mut ca, mut cert, mut key) = (None, None, None);
        for (name, value) in pairs.iter().copied() {
            match name {
                "password_file" => options.password_file = Some(file(value)?),
                "ca" if tls => ca = Some(file(value)?),
                "cert" if tls => cert = Some(file(value)?),
                "key" if tls => key = Some(file(value)?),
                "ca" | "cert" | "key" => return Err("certificates are for etcds:// alone".into()),
                "allow_plaintext" => options.allow_plaintext = yes_or_no("allow_plaintext", value)?,
                "restored" if value == "accept" => options.restored = true,
                "restored" => return Err("the option restored is `accept` or left out".into()),
                _ => return Err(unknown_option(name, KNOWN)),
            }
        }
        options.tls = TlsFiles::new(ca, cert, key)?;
        Ok(options)
    }
}

fn wrong(what: impl Into<Problem>) -> Error {
    Error::new(ErrorKind::InvalidOption, what)
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
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        std::fs::write(&file, "from file\n").unwrap();
        let by_url = parsed(&format!("etcds://u@h?password_file={}", file.display()));
        assert_eq!(by_url.credentials().unwrap(), Some(("u".into(), "from file".into())));
        let by_env = read("etcds://u@h", Some(file.clone().into())).unwrap();
        assert_eq!(by_env.credentials().unwrap(), Some(("u".into(), "from file".into())));
        std::fs::remove_file(&file).unwrap();
        assert!(by_url.credentials().is_err());
    }
}

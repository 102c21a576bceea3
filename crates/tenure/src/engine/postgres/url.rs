//! The URLs of PostgreSQL: those of libpq, read by the client, with a few options of the engine,
//! which are taken out first. What URLs of all engines have in common is in `common/url.rs`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};

use crate::contract::{Error, ErrorKind, host_name};
use crate::engine::common::jitter;
use crate::engine::common::url::{
    PASSWORD_FILE, Password, Problem, TlsFiles, decode, file, is_loopback, options,
};
use crate::limits;

/// How long sent bytes may stay unacknowledged before the kernel gives a connection up.
const UNHEARD: Duration = Duration::from_secs(5);
/// How long a silent connection is left alone before the kernel asks whether the other side lives.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How often it then asks.
const PROBE: Duration = Duration::from_secs(1);
/// How long one host may take to connect and log in, where the URL has no `connect_timeout`. Longer
/// than a call: a server that many clients come to at once starts a process for each.
const HANDSHAKE: Duration = limits::CALL.saturating_mul(2);
/// Longest name of a schema: longer ones are cut off by the server.
const IDENTIFIER: usize = 63;

/// What a grant survives, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// An answer comes when it is on disk.
    Commit,
    /// The reply does not wait for the disk, and after a crash no lock is granted until all old
    /// leases have ended.
    Grace,
}

impl Durability {
    /// As it stands in a URL and in the store.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Grace => "grace",
        }
    }
}

/// One database, one schema in it, and how to be let in.
#[derive(Clone)]
pub(super) struct Location {
    config: Config,
    /// The password, unless it stands in `config`.
    password: Password,
    /// How long one host may take to connect and log in.
    pub(super) handshake: Duration,
    pub(super) schema: String,
    pub(super) durability: Durability,
    pub(super) tls: TlsFiles,
}

impl Location {
    /// Reads a URL, and the environment for a password that the URL does not have.
    ///
    /// # Errors
    /// If the URL does not name a database.
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        read(url, std::env::var_os(PASSWORD_FILE))
    }

    /// How to connect to each host, in the order in which hosts are to be tried. The password file
    /// is read each time, so that a password can be changed under a running program.
    ///
    /// # Errors
    /// If the password is in a file that cannot be read.
    pub(super) fn hosts(&self) -> Result<Vec<Config>, Error> {
        let mut config = self.config.clone();
        if let Some(password) = self.password.read()? {
            config.password(password);
        }
        let count = config.get_hosts().len().max(config.get_hostaddrs().len());
        let mut hosts: Vec<Config> = (0..count).map(|at| only(&config, at)).collect();
        if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            hosts.rotate_left(jitter::index(count));
        }
        Ok(hosts)
    }

    /// Whether TLS may be spoken.
    pub(super) fn may_encrypt(&self) -> bool {
        self.config.get_ssl_mode() != SslMode::Disable
    }

    /// The schema as it stands in a statement.
    pub(super) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema.replace('"', "\"\""))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        if self.config.get_user().is_some() {
            f.write_str("***@")?;
        }
        for (at, host) in self.config.get_hosts().iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            match host {
                Host::Tcp(host) if host.contains(':') => write!(f, "[{host}]")?,
                Host::Tcp(host) => f.write_str(host)?,
                Host::Unix(path) => write!(f, "{}", path.display())?,
            }
            let ports = self.config.get_ports();
            if let Some(port) = ports.get(at).or(ports.first()) {
                write!(f, ":{port}")?;
            }
        }
        write!(f, "/{}", self.config.get_dbname().unwrap_or_default())
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

/// The same for one of several hosts alone. The client would try them in turn by itself, but spends
/// the whole time limit on the first that takes connections and says nothing.
fn only(all: &Config, at: usize) -> Config {
    let mut one = Config::new();
    match all.get_hosts().get(at) {
        Some(Host::Tcp(host)) => _ = one.host(host),
        Some(Host::Unix(path)) => _ = one.host_path(path),
        None => {}
    }
    all.get_hostaddrs().get(at).map(|address| one.hostaddr(*address));
    let ports = all.get_ports();
    ports.get(at).or(ports.first()).map(|port| one.port(*port));
    all.get_user().map(|user| one.user(user));
    all.get_password().map(|password| one.password(password));
    all.get_dbname().map(|name| one.dbname(name));
    all.get_options().map(|options| one.options(options));
    all.get_application_name().map(|name| one.application_name(name));
    all.get_connect_timeout().map(|limit| one.connect_timeout(*limit));
    all.get_tcp_user_timeout().map(|limit| one.tcp_user_timeout(*limit));
    all.get_keepalives_interval().map(|pause| one.keepalives_interval(pause));
    all.get_keepalives_retries().map(|count| one.keepalives_retries(count));
    one.keepalives(all.get_keepalives()).keepalives_idle(all.get_keepalives_idle());
    one.ssl_mode(all.get_ssl_mode()).ssl_negotiation(all.get_ssl_negotiation());
    one.channel_binding(all.get_channel_binding());
    one.target_session_attrs(all.get_target_session_attrs());
    one
}

fn read(url: &str, password_file: Option<OsString>) -> Result<Location, Error> {
    let (plain, query) = url.split_once('?').unwrap_or((url, ""));
    let (ours, theirs) = Options::read(&options(query).map_err(wrong)?).map_err(wrong)?;
    // The client takes all before the first @ for user and password, whatever else stands there.
    if theirs.contains('@') && !plain.contains('@') {
        return Err(wrong("an @ stands behind a ?, so one of both is not what it seems"));
    }
    let plain = if theirs.is_empty() { plain.to_owned() } else { format!("{plain}?{theirs}") };
    // The scheme in any case; all else is for the client to read.
    let plain = plain.split_once("://").ok_or_else(|| wrong("the URL has no ://"))?;
    let mut config: Config =
        format!("postgresql://{}", plain.1).parse().map_err(|_| wrong("PostgreSQL refuses it"))?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(wrong("the URL names no host"));
    }
    // A password of the URL stays where the client has put it, byte by byte.
    let in_url = config.get_password().map(|_| String::new());
    let password = match Password::choose(in_url, ours.password_file, password_file) {
        Ok(Password::InUrl(_)) => Password::None,
        Ok(password) => password,
        Err(problem) => return Err(wrong(problem)),
    };
    if !ours.has_ssl_mode {
        let near = config.get_hosts().iter().all(is_near);
        // What two processes of one host exchange does not pass a network; between hosts it does.
        config.ssl_mode(if near { SslMode::Disable } else { SslMode::Require });
    }
    let handshake = config.get_connect_timeout().copied().unwrap_or(HANDSHAKE);
    furnish(&mut config);
    Ok(Location {
        config,
        password,
        handshake,
        schema: ours.schema.unwrap_or_else(|| "tenure".to_owned()),
        durability: ours.durability.unwrap_or(Durability::Commit),
        tls: TlsFiles::new(ours.ca, ours.cert, ours.key).map_err(wrong)?,
    })
}

/// What we say where the URL says nothing: a lease must not end unnoticed on a dead connection.
fn furnish(config: &mut Config) {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(limits::CALL);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNHEARD);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_idle(KEEPALIVE).keepalives_interval(PROBE);
    }
    if config.get_application_name().is_none() {
        config.application_name(application_name(&host_name(), std::process::id()));
    }
    // A server that only reads is of no use, whatever the URL says.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
}

/// What `pg_stat_activity`, and an error about terms that differ, show of a connection: the server
/// knows only its own backend, and an operator looks for the process.
fn application_name(host: &str, pid: u32) -> String {
    let tail = format!(":{pid}");
    let mut host = host.to_owned();
    while !host.is_ascii() || "tenure ".len() + host.len() + tail.len() > IDENTIFIER {
        if host.pop().is_none() {
            break;
        }
    }
    format!("tenure {host}{tail}")
}

fn is_near(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(host) => is_loopback(host),
    }
}

/// What of a URL is for us.
#[derive(Default)]
struct Options {
    schema: Option<String>,
    durability: Option<Durability>,
    password_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    has_ssl_mode: bool,
}

impl Options {
    /// Those of the engine, and the rest for the client.
    fn read(pairs: &[(&str, &str)]) -> Result<(Self, String), Problem> {
        let mut options = Self::default();
        let mut rest: Vec<String> = Vec::new();
        for (name, value) in pairs.iter().copied() {
            match name {
                "schema" => options.schema = Some(schema(value)?),
                "durability" => options.durability = Some(durability(value)?),
                "password_file" => options.password_file = Some(file(value)?),
                "sslrootcert" => options.ca = Some(file(value)?),
                "sslcert" => options.cert = Some(file(value)?),
                "sslkey" => options.key = Some(file(value)?),
                "sslmode" => {
                    options.has_ssl_mode = true;
                    // Certificates are checked in every mode that encrypts.
                    let strict = matches!(value, "verify-ca" | "verify-full");
                    rest.push(format!("sslmode={}", if strict { "require" } else { value }));
                }
                _ => rest.push(format!("{name}={value}")),
            }
        }
        Ok((options, rest.join("&")))
    }
}

fn schema(value: &str) -> Result<String, Problem> {
    let name = decode(value)?;
    let fine = !name.is_empty()
        && name.len() <= IDENTIFIER
        && !name.starts_with("pg_")
        && !name.chars().any(char::is_control);
    if fine { Ok(name) } else { Err("the schema is not a name for one".into()) }
}

fn durability(value: &str) -> Result<Durability, Problem> {
    [Durability::Commit, Durability::Grace]
        .into_iter()
        .find(|one| one.word() == value)
        .ok_or_else(|| "the option durability is `commit` or `grace`".into())
}

fn wrong(what: impl Into<Problem>) -> Error {
    let what = format!("this URL cannot be used: {}", what.into());
    Error::new(ErrorKind::InvalidOption, what).with_help(
        "write postgres://user:password@host:5432/database?schema=tenure&durability=commit, and \
         / ? # @ : % in a password as %2F %3F %23 %40 %3A %25; other options are those of libpq",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Never to be seen in an error, nor in what is printed of a location.
    const CANARY: &str = "c4n4ry";

    fn at(url: &str) -> Location {
        read(url, None).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn urls_name_hosts_and_a_database() {
        for (url, shown) in [
            ("postgres://h/d", "postgres://h:5432/d"),
            ("POSTGRESQL://u:p@h:1,[::1]:2/d?sslmode=verify-full", "postgres://***@h:1,[::1]:2/d"),
            ("postgres://%2Fvar%2Frun:7/d", "postgres:///var/run:7/d"),
            ("postgres://u@h:1/d?application_name=a@b", "postgres://***@h:1/d"),
            ("postgres://u@h?connect_timeout=3", "postgres://***@h:5432/"),
        ] {
            assert_eq!(at(url).to_string(), shown, "{url}");
        }
        let all = at("postgres://h/d?schema=my%20locks&durability=grace&sslrootcert=%2Fca");
        assert_eq!((&*all.schema, all.durability), ("my locks", Durability::Grace));
        assert_eq!(all.quoted_schema(), "\"my locks\"");
        assert_eq!(all.tls.ca, Some("/ca".into()));
        let none = at("postgres://h/d");
        assert_eq!((&*none.schema, none.durability), ("tenure", Durability::Commit));
    }

    #[test]
    fn each_host_is_tried_with_all_that_the_url_says_of_connections() {
        let all = "user=u password=p dbname=d options='-c a=b' application_name=n sslmode=require \
                   connect_timeout=3 tcp_user_timeout=4 keepalives_idle=5 keepalives_interval=6 \
                   keepalives_retries=7 target_session_attrs=read-write channel_binding=disable \
                   sslnegotiation=direct";
        let hosts = [("one", 1), ("/two", 2)];
        let both: Config = format!("host=one,/two port=1,2 {all}").parse().unwrap();
        for (at, (host, port)) in hosts.into_iter().enumerate() {
            let alone: Config = format!("host={host} port={port} {all}").parse().unwrap();
            assert_eq!(only(&both, at), alone);
        }
        let shared: Config = "hostaddr=127.0.0.1,127.0.0.2 port=7 keepalives=0".parse().unwrap();
        let second: Config = "hostaddr=127.0.0.2 port=7 keepalives=0".parse().unwrap();
        assert_eq!(only(&shared, 1), second);
        let limit = |url: &str| at(url).handshake;
        assert_eq!(limit("postgres://h/d?connect_timeout=3"), Duration::from_secs(3));
        assert_eq!(limit("postgres://h/d"), HANDSHAKE);
    }

    #[test]
    fn other_hosts_are_spoken_to_in_tls_unless_the_url_says_otherwise() {
        for (url, mode) in [
            ("postgres://h/d", SslMode::Require),
            ("postgres://h/d?sslmode=disable", SslMode::Disable),
            ("postgres://h/d?sslmode=verify-full", SslMode::Require),
            ("postgres://127.0.0.1/d", SslMode::Disable),
            ("postgres://localhost,h/d", SslMode::Require),
            ("postgres://%2Ftmp/d", SslMode::Disable),
            ("postgres://localhost/d?sslmode=require", SslMode::Require),
        ] {
            assert_eq!(at(url).config.get_ssl_mode(), mode, "{url}");
        }
    }

    #[test]
    fn a_bad_url_is_refused_without_repeating_any_of_it() {
        for url in "
            postgres:h postgres:// postgres:///d postgres://h:x/d postgres://h/d?x=1
            postgres://h/d?schema= postgres://h/d?schema=pg_x postgres://h/d?schema=a&schema=b
            postgres://h/d?durability=some postgres://h/d?durability postgres://h/d?sslmode=maybe
            postgres://h/d?sslcert=/x postgres://h/d?password_file= postgres://h/d?schema=%ff
            postgres://u:p@h/d?password_file=/x postgres://h/d?target_session_attrs=all
        "
        .split_whitespace()
        {
            let error = read(url, None).map(|ok| panic!("{url}: {ok}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{url}");
            assert!(!error.help().is_empty(), "{url}");
        }
        for url in "
            postgres://u:a?PIN@h/d postgres://u:PIN@h:x/d postgres://h/d?PIN=1 postgres://PIN:x/d
            postgres://u:PIN@h/d?password_file=/x postgres://u:a?b=PIN@h/d
            postgres://h/d?application_name=PIN@h
        "
        .split_whitespace()
        .map(|url| url.replace("PIN", CANARY))
        {
            let error = read(&url, None).map(|ok| panic!("{url}: {ok}")).unwrap_err();
            assert!(!format!("{error} {error:?}").contains(CANARY), "{error}");
        }
    }

    #[test]
    fn a_password_is_never_shown_and_a_file_of_it_is_read_at_each_connect() {
        let location = at(&format!("postgres://{CANARY}:{CANARY}@h/d"));
        assert!(!format!("{location} {location:?} {location:#?}").contains(CANARY));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let location = at(&format!("postgres://u@h/d?password_file={}", path.display()));
        assert_eq!(location.hosts().unwrap_err().kind(), ErrorKind::InvalidOption);
        for (text, password) in [("one\n", "one"), ("two\r\n", "two"), (" three \n\n", " three \n")]
        {
            std::fs::write(&path, text).unwrap();
            let hosts = location.hosts().unwrap();
            assert_eq!(hosts[0].get_password(), Some(password.as_bytes()));
        }
        let from_env = read("postgres://h/d", Some(path.into())).unwrap();
        assert_eq!(from_env.hosts().unwrap()[0].get_password(), Some(&b" three \n"[..]));
    }
}

//! The URLs of a quorum: several servers, and what holds for all of them.
//!
//! `redlock://user:password@host:port,host:port,host:port/db?option=value` names as many servers of
//! the kind that `redis://` names one of; `redlocks://` speaks TLS to each.

use std::sync::Arc;

use crate::contract::{Error, ErrorKind};
use crate::engine::common::redis::url::Location;
use crate::engine::common::url::{Problem, SplitUrl, yes_or_no};

/// Fewer nodes have no majority that survives the loss of one.
const LEAST: usize = 3;
/// More nodes make every call slower and nothing safer.
const MOST: usize = 31;

/// A set of independent servers.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) nodes: Vec<Arc<Location>>,
    /// How much clocks may drift apart while a lease runs, in percent of the lease.
    pub(super) drift: Option<u32>,
    /// The caller declares that no client has used these nodes yet.
    pub(super) new: bool,
}

impl Set {
    /// Reads a URL, and the environment for a password that it does not have.
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        let split = SplitUrl::of(url).and_then(SplitUrl::without_fragment).map_err(wrong)?;
        let scheme = match &*split.scheme {
            "redlock" => "redis",
            "redlocks" => "rediss",
            _ => return Err(wrong("the scheme is not redlock or redlocks")),
        };
        let login = split.login.map(|login| format!("{login}@")).unwrap_or_default();
        let (hosts, path) = (split.hosts, split.path);
        let (options, rest) = Options::read(&split.options().map_err(wrong)?)?;
        let one = |host: &str| Location::parse(&format!("{scheme}://{login}{host}{path}{rest}"));
        let nodes: Vec<_> =
            hosts.split(',').map(|host| one(host).map(Arc::new)).collect::<Result<_, _>>()?;
        check(&nodes)?;
        Ok(Self { nodes, drift: options.drift, new: options.new })
    }
}

fn check(nodes: &[Arc<Location>]) -> Result<(), Error> {
    let count = nodes.len();
    if count < LEAST {
        let what = format!("a quorum takes at least {LEAST} nodes, this URL names {count}");
        return Err(Error::new(ErrorKind::InvalidOption, what)
            .with_help("name independent servers, or use redis:// for one server"));
    }
    if count > MOST {
        let what = format!("a quorum has at most {MOST} nodes, this URL names {count}");
        return Err(Error::new(ErrorKind::Limit, what).with_help("5 nodes survive the loss of 2"));
    }
    for (at, node) in nodes.iter().enumerate() {
        if nodes[..at].iter().any(|other| other.address() == node.address()) {
            let what = format!("the URL names one address twice ({node})");
            return Err(Error::new(ErrorKind::InvalidOption, what)
                .with_help("name each server once: two votes of one server are one failure"));
        }
    }
    Ok(())
}

#[derive(Default)]
struct Options {
    drift: Option<u32>,
    new: bool,
}

impl Options {
    /// Takes the options of the quorum out, and leaves the rest for each server.
    fn read(pairs: &[(&str, &str)]) -> Result<(Self, String), Error> {
        let mut options = Self::default();
        let mut rest = String::new();
        for (name, value) in pairs.iter().copied() {
            match name {
                "drift" => options.drift = Some(percent(value)?),
                "new" => options.new = yes_or_no("new", value).map_err(wrong)?,
                "grace" => {
                    return Err(wrong("the option grace is for redis://; a quorum always waits"));
                }
                _ => {
                    let sign = if rest.is_empty() { '?' } else { '&' };
                    rest = format!("{rest}{sign}{name}={value}");
                }
            }
        }
        Ok((options, rest))
    }
}

/// `1%`, with the sign as it is or escaped.
fn percent(value: &str) -> Result<u32, Error> {
    let digits = value.strip_suffix("%25").or_else(|| value.strip_suffix('%')).unwrap_or(value);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|percent| plain && (1..=50).contains(percent)).ok_or_else(|| {
        wrong("the option drift is a whole number of percent from 1 to 50, such as 1%25")
    })
}

fn wrong(what: impl Into<Problem>) -> Error {
    Error::new(ErrorKind::InvalidOption, what).with_help(
        "use redlock://[user:password@]host:port,host:port,host:port[/db][?option=value]",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        Set::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn every_host_gets_the_same_user_database_and_options() {
        let set = Set::parse("redlocks://u:p@a:1,b,[::1]:3/2?new=yes&drift=1%25&eviction=allow");
        let set = set.unwrap();
        let shown: Vec<_> = set.nodes.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["rediss://***@a:1/2", "rediss://***@b:6379/2", "rediss://***@[::1]:3/2"]
        );
        assert_eq!((set.new, set.drift), (true, Some(1)));
        assert!(set.nodes.iter().all(|node| node.eviction_allowed()));
    }

    #[test]
    fn sets_that_are_none_are_refused_with_the_way_out() {
        assert!(refusal("redlock://a,b").contains("at least 3 nodes, this URL names 2"));
        assert!(refusal("redlock://a,b,a:6379").contains("one address twice"));
        assert!(refusal("redlock://a,b,c?drift=0").contains("drift"));
        assert!(refusal("redlock://a,b,c?drift=%2B1").contains("drift"));
        assert!(refusal("redlock://a,b,c?new=maybe").contains("`yes` or `no`"));
        assert!(refusal("redlock://a,b,c?grace=yes").contains("always waits"));
        assert!(refusal("redlock://a,b,c?speed=9").contains("an option is none of"));
        assert!(refusal("redlock://a,,c").contains("no host"));
    }

    #[test]
    fn no_part_of_a_password_is_repeated() {
        for url in ["redlock://u:c4n4ry@far,b,c", "redlock://u:c4n4ry@a,b", "redlock://c4n4ry"] {
            let error = Set::parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("c4n4ry"), "{error}");
        }
    }
}

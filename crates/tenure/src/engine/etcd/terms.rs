//! What all clients of a namespace agree on, and which cluster it is. Knows one key.
//!
//! The key names the cluster. A backup that is restored is another cluster with the same keys and
//! an older revision, so fences would fall: this is noticed here, by whoever connects next, and
//! accepted only if the URL says so. From then on fences have a larger epoch.

use std::time::Duration;

use super::keys::Keys;
use super::link::{Link, restored};
use super::picture::Epoch;
use super::step::{Change, found_in};
use super::trouble::Trouble;
use crate::contract::{Error, ErrorKind, short};
use etcd_client::TxnOp;

/// The layout of keys and values that we write.
const LAYOUT: u64 = 1;

/// How often terms are read that others change at the same time.
const TRIES: usize = 16;

/// How long to wait before another member is asked: an election may go on.
const PAUSE: Duration = Duration::from_millis(300);

/// What stands at the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    layout: u64,
    max_lease: Duration,
    cluster: u64,
    epoch: u64,
}

/// Agrees with all other clients of the namespace, and says which epoch it is.
pub(super) async fn agree(
    link: &Link,
    keys: &Keys,
    max_lease: Duration,
    accepts_restored: bool,
) -> Result<Epoch, Error> {
    // Members that are away are passed over, each once; nothing here does harm when it is repeated.
    let mut others = link.endpoints().count().saturating_sub(1);
    for _ in 0..TRIES {
        let read = match link.read(vec![TxnOp::get(keys.terms(), None)]).await {
            Err(trouble) if trouble.is_about_the_member() && others > 0 => {
                others -= 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            answer => answer.map_err(Trouble::into_error)?,
        };
        let cluster = link.cluster().unwrap_or(0);
        let found = read.replies.into_iter().next().map(found_in).unwrap_or_default();
        let written = found.first().map_or(0, |key| u64::try_from(key.mod_revision()).unwrap_or(0));
        let terms = match found.first() {
            None => Terms { layout: LAYOUT, max_lease, cluster, epoch: 0 },
            Some(key) => {
                let terms = Terms::read(key.value()).ok_or_else(damaged)?;
                terms.check(max_lease)?;
                if terms.cluster == cluster {
                    return Ok(Epoch(terms.epoch));
                }
                if !accepts_restored {
                    return Err(restored());
                }
                Terms { cluster, epoch: terms.epoch + 1, ..terms }
            }
        };
        if terms.epoch > Epoch::MAX {
            let what = format!("backups were restored more than {} times", Epoch::MAX);
            return Err(Error::new(ErrorKind::Limit, what).next("use another prefix or namespace"));
        }
        let mut change = Change::default();
        change.unwritten(keys.terms(), written);
        change.put(keys.terms(), terms.text().into_bytes(), 0);
        match link.when(change.compares, change.writes, Vec::new()).await {
            Ok(done) if done.held => return Ok(Epoch(terms.epoch)),
            // Whether it was written is seen by looking once more.
            Err(trouble) if trouble.is_about_the_member() && others > 0 => others -= 1,
            done => drop(done.map_err(Trouble::into_error)?),
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "others keep changing the terms of this namespace")
        .next("connect again"))
}

impl Terms {
    fn text(self) -> String {
        let max_lease = self.max_lease.as_micros();
        format!("{} {max_lease} {:x} {}", self.layout, self.cluster, self.epoch)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut fields = text.split(' ');
        let mut number = || fields.next()?.parse().ok();
        let (layout, max_lease) = (number()?, number().map(Duration::from_micros)?);
        let cluster = u64::from_str_radix(fields.next()?, 16).ok()?;
        let epoch = fields.next()?.parse().ok()?;
        Some(Self { layout, max_lease, cluster, epoch })
    }

    fn check(self, max_lease: Duration) -> Result<(), Error> {
        if self.layout != LAYOUT {
            let layout = self.layout;
            let what = format!("this namespace has layout {layout}, and we know {LAYOUT} alone");
            return Err(Error::new(ErrorKind::Unsupported, what)
                .next("use the same version of Tenure everywhere, or another namespace"));
        }
        if self.max_lease != max_lease {
            let (theirs, ours) = (short(self.max_lease), short(max_lease));
            let what = format!("the longest lease of this namespace is {theirs}, not {ours}");
            return Err(Error::new(ErrorKind::InvalidOption, what)
                .next("state the same max_lease everywhere, or use another namespace"));
        }
        Ok(())
    }
}

fn damaged() -> Error {
    Error::new(ErrorKind::Corrupt, "the terms of this namespace are not ours or are damaged")
        .next("look at the key `terms` below the prefix with etcdctl, or use another prefix")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_survive_their_text_and_nothing_else_is_taken_for_them() {
        let terms =
            Terms { layout: 1, max_lease: Duration::from_secs(60), cluster: u64::MAX, epoch: 3 };
        assert_eq!(Terms::read(terms.text().as_bytes()), Some(terms));
        for bad in ["", "1", "x 1 1 1", "1 1 zz 1", "1 1 1"] {
            assert_eq!(Terms::read(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn other_terms_are_refused_by_name() {
        let minute = Duration::from_secs(60);
        let terms = Terms { layout: 1, max_lease: minute, cluster: 1, epoch: 0 };
        assert!(terms.check(minute).is_ok());
        let said = terms.check(minute / 2).unwrap_err().to_string();
        assert!(said.contains("1m") && said.contains("30s"), "{said}");
        let newer = Terms { layout: 2, ..terms };
        assert_eq!(newer.check(minute).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

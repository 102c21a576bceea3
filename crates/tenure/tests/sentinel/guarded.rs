//! Sentinels and servers that ask who is there, and that speak TLS.

use std::path::{Path, PathBuf};

use servers::{Certificates, Redis, Reply, Sentinels, SentinelsBuilder};
use tenure::contract::Health;
use tenure::{ErrorKind, Tenure};

/// What a user of sentinels needs, as docs/redis.md says it.
const PAGE: &str = include_str!("../../../../docs/redis.md");

/// The user line that the page gives for sentinels, with this password.
fn user_line(password: &str) -> String {
    let mut lines = PAGE.lines().filter(|line| line.starts_with("user tenure on "));
    let line = lines.next().expect("docs/redis.md has a user line for sentinels");
    assert_eq!(lines.next(), None, "it is written once");
    line.replace("PASSWORD", password)
}

/// Servers and sentinels with passwords of their own; no client connects without.
fn guarded() -> SentinelsBuilder {
    let node = Redis::builder().password("of-servers");
    let sentinels = Sentinels::builder().replicas(1).node(node);
    sentinels
        .sentinel_acl_line("user default off nopass -@all")
        .sentinel_acl_line(&user_line("of-sentinels"))
}

fn with_files(set: &Sentinels, url: &str, sentinel_password: &str) -> String {
    let write = |name: &str, text: &str| {
        let path = set.nodes()[0].dir().join(name);
        std::fs::write(&path, format!("{text}\n")).unwrap();
        path.display().to_string()
    };
    let (ours, theirs) = (write("ours", "of-servers"), write("theirs", sentinel_password));
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}password_file={ours}&sentinel_user=tenure&sentinel_password_file={theirs}")
}

async fn works_through_a_fail_over(set: &Sentinels, url: &str) {
    let tenure = Tenure::connect(url).await.unwrap();
    let mutex = tenure.mutex("a").unwrap();
    let first = mutex.lock().await.unwrap();
    let fence = first.fence().unwrap();
    first.release().await.unwrap();
    tokio::task::block_in_place(|| set.failover());
    // A primary that is being demoted may still grant, and its replica may never hear of it: such a
    // lock is lost, and the release says so.
    let served = async {
        loop {
            let outcome = async {
                let guard = mutex.lock().await?;
                let next = guard.fence()?;
                guard.release().await.map(|()| next)
            };
            match outcome.await {
                Ok(next) => break next,
                Err(error) => {
                    let expected = [ErrorKind::Unavailable, ErrorKind::Lost];
                    assert!(expected.contains(&error.kind()), "{error}");
                }
            }
        }
    };
    let limit = std::time::Duration::from_secs(60);
    let next = tokio::time::timeout(limit, served).await.expect("the new primary serves");
    assert!(next > fence);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_and_sentinels_may_each_want_a_password_of_their_own() {
    let set = guarded().start();
    let url = with_files(&set, &set.url(), "of-sentinels");
    works_through_a_fail_over(&set, &url).await;
    for sentinel in set.sentinels() {
        let log = sentinel.read(&["ACL", "LOG"]);
        assert_eq!(log, Reply::List(Vec::new()), "the user of the docs may do all we ask");
    }
}

/// The user of the page hears everything; one that may ask only for the address is told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_sentinels_says_what_it_may_not_see() {
    let set = guarded().start();
    let tenure = Tenure::connect(&with_files(&set, &set.url(), "of-sentinels")).await.unwrap();
    let seen = || async {
        let all = tenure.doctor().await.unwrap();
        let all = all.into_iter().filter(|finding| finding.check == "sentinel");
        all.map(|finding| (finding.state, finding.what)).collect::<Vec<_>>()
    };
    let whole = seen().await;
    assert_eq!(whole.len(), 3);
    for (state, what) in whole {
        assert_eq!(state, Health::Fine, "{what}");
        assert!(!what.contains("of-sentinels"), "{what}");
    }
    for sentinel in set.sentinels() {
        let answer = sentinel.cmd(&["ACL", "SETUSER", "tenure", "-sentinel|master"]);
        assert_eq!(answer, Ok(Reply::Text("OK".to_owned())));
    }
    for (state, what) in seen().await {
        assert_eq!(state, Health::Note, "{what}");
        assert!(what.contains("SENTINEL MASTER is refused"), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_sentinels_refuse_is_said_and_not_shown() {
    let set = guarded().start();
    let error = Tenure::connect(&with_files(&set, &set.url(), "c4n4ry")).await.unwrap_err();
    let said = format!("{error} {error:?} {}", error.help());
    assert!(said.contains("no sentinel says where mymaster is"), "{said}");
    assert!(said.contains("refused the user or the password"), "{said}");
    assert!(!said.contains("c4n4ry") && !said.contains("of-servers"), "{said}");
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    // Without any: what sentinels want is not what servers are told.
    let url = set.url().replace("://", "://:of-servers@");
    let error = Tenure::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_may_go_over_tls() {
    let set = guarded().tls().start();
    let url = with_files(&set, &set.tls_url(), "of-sentinels");
    works_through_a_fail_over(&set, &url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_is_believed_only_if_the_authority_vouches_for_it() {
    let set = Sentinels::builder().tls().start();
    let good = set.certificates().ca().display().to_string();
    assert!(Tenure::connect(&set.tls_url()).await.is_ok());
    let other = another_authority(set.nodes()[0].dir());
    let url = set.tls_url().replace(&good, &other.display().to_string());
    let error = Tenure::connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

fn another_authority(dir: &Path) -> PathBuf {
    let dir = dir.join("other");
    std::fs::create_dir(&dir).unwrap();
    Certificates::make(&dir).unwrap().ca()
}

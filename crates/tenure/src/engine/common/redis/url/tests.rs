//! URLs, good and bad. Knows what a password must never appear in.

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
    redis+sentinel://h redis+sentinel://h/ redis+sentinel://h//1 redis+sentinel://h/m/x
    redis+sentinel:///m redis+sentinel://h,/m redis+sentinel://h:0/m redis+sentinel://h/m%20n
    redis+sentinel://h/m?db=1 redis+sentinel://h/m/1/2 redis-sentinel://h/1?sentinelMasterId=
    redis-sentinel://h?sentinelMasterId=m#m redis+sentinel://:p@far/m redis://h?sentinel_user=u
    redis+sentinel://127.0.0.1,far/m?sentinel_password_file=/x
    redis+cluster:// redis+cluster://h, redis+cluster://h/1 redis+cluster://h/x redis+cluster://h#f
    redis+cluster://h?grace=yes redis+cluster://h?new=yes redis+cluster://:p@127.0.0.1,far
    redis://far?password_file=/x redis://:p@localhost.far rediss://:p@h?password_file=/x
";

/// Wrong as well, with a password (PIN) where it may be taken for something else.
const LEAKY: &str = "
    redis://u:PIN@far redis://:a/PIN@h redis://:a?PIN@h redis://:a?PIN=1@h redis://:a#PIN@h
    redis-sentinel://:a#PIN@h redis+sentinel://u:PIN@far/m
    redis+cluster://u:PIN@far redis+sentinel://:a/PIN@h/m
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
        assert!(!error.help().is_empty(), "{url}");
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
    for (text, password) in [("one\n", "one"), ("two\r\n", "two"), (" three \n\n", " three \n")] {
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

#[test]
fn sentinels_are_named_with_what_they_call_the_primary() {
    for (url, shown) in [
        ("redis+sentinel://h/m", "redis+sentinel://h:26379/m/0"),
        (
            "redis+sentinel://h1,h2:7,[::1]/m-1/3",
            "redis+sentinel://h1:26379,h2:7,[::1]:26379/m-1/3",
        ),
        ("rediss+sentinel://u:p@h/m", "rediss+sentinel://***@h:26379/m/0"),
        ("redis-sentinel://h/m/2", "redis+sentinel://h:26379/m/2"),
        ("redis-sentinel://h1:1,h2/2?sentinelMasterId=m", "redis+sentinel://h1:1,h2:26379/m/2"),
        ("redis-sentinel://h1:1,h2:2/2#m", "redis+sentinel://h1:1,h2:2/m/2"),
    ] {
        assert_eq!(at(url).to_string(), shown, "{url}");
    }
    assert_eq!(at("redis+sentinel://h/m").primary(), Some("m"));
    assert_eq!(at("redis://h").primary(), None);
}

#[test]
fn sentinels_and_servers_have_users_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    std::fs::write(&path, "theirs\n").unwrap();
    let options = format!("sentinel_user=s&sentinel_password_file={}", path.display());
    let location = at(&format!("rediss+sentinel://u:ours@h1,h2:7/m/3?{options}"));
    let sentinels = location.sentinels();
    let shown: Vec<String> = sentinels.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["rediss://***@h1:26379/0", "rediss://***@h2:7/0"]);
    let theirs = sentinels[1].credentials().unwrap();
    assert_eq!(theirs, Some(("s".to_owned(), "theirs".to_owned())));
    let server = location.moved_to("10.0.0.1", 6380).unwrap();
    assert_eq!(server.to_string(), "rediss://***@10.0.0.1:6380/3");
    assert_eq!(server.credentials().unwrap(), Some(("u".to_owned(), "ours".to_owned())));
    assert!(at("redis+sentinel://h/m").sentinels()[0].credentials().unwrap().is_none());
}

#[test]
fn a_password_does_not_follow_sentinels_to_another_host_in_plain_text() {
    let location = at("redis+sentinel://:p@127.0.0.1/m");
    assert!(location.moved_to("127.0.0.1", 1).is_ok());
    let error = location.moved_to("10.0.0.1", 1).map(|ok| panic!("{ok}")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    assert!(at("redis+sentinel://:p@h/m?allow_plaintext=yes").moved_to("10.0.0.1", 1).is_ok());
}

#[test]
fn a_cluster_is_named_by_some_of_its_nodes() {
    for (url, shown) in [
        ("redis+cluster://a,b:7,[::1]", "redis+cluster://a:6379,b:7,[::1]:6379"),
        ("valkeys+cluster://u:p@a/0", "rediss+cluster://***@a:6379"),
        ("rediss+cluster://a/", "rediss+cluster://a:6379"),
    ] {
        assert_eq!(at(url).to_string(), shown, "{url}");
    }
    let cluster = at("redis+cluster://:p@127.0.0.1,localhost:7");
    assert_eq!(cluster.seeds(), [("127.0.0.1".to_owned(), 6379), ("localhost".to_owned(), 7)]);
    assert!(cluster.sentinels().is_empty() && cluster.primary().is_none());
    // A node that another one names is greeted only where the password may go.
    assert!(cluster.moved_to("127.0.0.1", 8).is_ok());
    assert!(cluster.moved_to("10.0.0.1", 8).is_err());
}

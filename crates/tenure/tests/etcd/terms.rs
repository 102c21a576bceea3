//! The longest lease of a namespace, as callers meet it: who is in the way is named, and a client
//! that was connected before a change is refused.

use std::time::Duration;

use servers::Etcd;
use tenure::block_on;
use tenure::{Error, ErrorKind, Tenure};

const MINUTE: Duration = Duration::from_secs(60);

fn connect(max_lease: Duration) -> Result<Tenure, Error> {
    let builder = Tenure::builder().namespace("terms").label("night shift").max_lease(max_lease);
    block_on(builder.connect(&Etcd::shared().url()))
}

#[test]
fn another_max_lease_is_refused_with_who_is_there_and_changes_when_the_namespace_is_empty() {
    let first = connect(MINUTE).unwrap();
    let guard = block_on(first.mutex("a").unwrap().lock()).unwrap();
    let error = connect(MINUTE * 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    let (said, pid) = (error.to_string(), std::process::id().to_string());
    for word in ["60s", "120s", "night shift", &pid, "\"a\"", "max_lease"] {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    block_on(guard.release()).unwrap();
    let second = connect(MINUTE * 2).unwrap();
    let error = block_on(first.mutex("a").unwrap().lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    let guard = block_on(second.mutex("a").unwrap().lock()).unwrap();
    let again = connect(MINUTE).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::InvalidOption, "{again}");
    block_on(guard.release()).unwrap();
}

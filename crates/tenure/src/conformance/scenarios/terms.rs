//! The longest lease of a namespace: all its clients go by the same one, and it changes when none
//! of them is there.

use std::sync::Arc;
use std::time::Duration;

use super::{Ask, Raw, World, list};
use crate::contract::{Claim, Engine, Error, ErrorKind, Namespace, SessionId, Verdict};

list! { Expiry:
    another_longest_lease_is_refused_while_a_client_is_there cites [4] needs [];
    a_claim_keeps_the_longest_lease_though_its_client_is_gone cites [4] needs [];
    clients_that_come_at_once_never_go_by_different_longest_leases cites [4] needs [];
}

const OLD: Duration = Duration::from_secs(60);
const NEW: Duration = Duration::from_secs(30);
const OTHER: Duration = Duration::from_secs(20);

/// A namespace that no other scenario uses.
fn space() -> Namespace {
    Namespace::try_from(&*format!("terms-{}", SessionId::new().to_hex())).expect("a good name")
}

/// A client of the namespace; none where the stage has no more than one.
fn connect(
    world: &World,
    space: &Namespace,
    max_lease: Duration,
) -> Option<Result<Arc<dyn Engine>, Error>> {
    world.stage().connect(space, max_lease)
}

/// Claims a name of its own for a client.
fn claim(world: &World, raw: &Raw) -> Result<Verdict, Error> {
    let name = format!("n{}", SessionId::new().to_hex());
    let (engine, claim) = (raw.engine().clone(), raw.make(Ask::mutex(world, &name)));
    world.now(async move { engine.claim(&claim).await })
}

fn is_refused(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("max_lease") && !error.help().is_empty(), "{error}");
}

fn another_longest_lease_is_refused_while_a_client_is_there(world: &World) {
    let space = space();
    let Some(first) = connect(world, &space, OLD) else { return };
    let first = Raw::new(first.unwrap());
    match connect(world, &space, NEW).unwrap() {
        Err(error) => {
            is_refused(&error);
            let said = error.to_string();
            assert!(said.contains("60s") && said.contains("30s"), "it names both: {said}");
            assert!(matches!(claim(world, &first), Ok(Verdict::Granted(_))));
            // And the same value is welcome.
            let second = Raw::new(connect(world, &space, OLD).unwrap().unwrap());
            assert!(matches!(claim(world, &second), Ok(Verdict::Granted(_))));
        }
        // Where the store cannot know of a client that has no claim, that client is refused
        // instead.
        Ok(second) => {
            is_refused(&claim(world, &first).unwrap_err());
            assert!(matches!(claim(world, &Raw::new(second)), Ok(Verdict::Granted(_))));
        }
    }
}

fn a_claim_keeps_the_longest_lease_though_its_client_is_gone(world: &World) {
    let space = space();
    let Some(first) = connect(world, &space, OLD) else { return };
    let first = Raw::new(first.unwrap());
    let mut detached = Claim::clone(&first.make(Ask::mutex(world, "a")));
    detached.session = None;
    let (engine, detached) = (first.engine().clone(), Arc::new(detached));
    let granted = world.now(async move { engine.claim(&detached).await });
    assert!(matches!(granted, Ok(Verdict::Granted(_))), "{granted:?}");
    drop(first);
    let refused = connect(world, &space, NEW).unwrap();
    is_refused(&refused.map(drop).unwrap_err());
    world.pass(world.lease() * 2);
    let mut second = None;
    world.until("nobody is there, so it changes", || {
        second = connect(world, &space, NEW).unwrap().ok();
        second.is_some()
    });
    let second = Raw::new(second.unwrap());
    assert!(matches!(claim(world, &second), Ok(Verdict::Granted(_))));
    let refused = connect(world, &space, OLD).unwrap();
    is_refused(&refused.map(drop).unwrap_err());
}

fn clients_that_come_at_once_never_go_by_different_longest_leases(world: &World) {
    let space = space();
    let Some(first) = connect(world, &space, OLD) else { return };
    drop(first.unwrap());
    for _ in 0..4 {
        let came = std::thread::scope(|scope| {
            let space = &space;
            let come = |lease| scope.spawn(move || connect(world, space, lease).unwrap());
            [NEW, OTHER].map(come).map(|one| one.join().unwrap())
        });
        let came: Vec<Raw> = came.into_iter().filter_map(Result::ok).map(Raw::new).collect();
        let working = came.iter().filter(|raw| claim(world, raw).is_ok()).count();
        assert!(working <= 1, "both hold, with different longest leases");
        drop(came);
        world.pass(world.lease() * 2);
    }
}

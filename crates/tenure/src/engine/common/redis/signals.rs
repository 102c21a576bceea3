//! Signals as scripts publish them on the channel of a session: `g CLAIM ARRIVAL FENCE..`
//! (granted), `e CLAIM REASON` (ended), `r ` (renew at once).

use crate::contract::{Arrival, ClaimId, Fence, Fences, Grant, Loss, Name, SessionId, Signal};
use crate::engine::common::listeners::Listeners;

/// Passes a published message to the session that it is for.
pub(in crate::engine) fn dispatch(
    listeners: &Listeners,
    session: Option<SessionId>,
    payload: &[u8],
) {
    let listener = session.and_then(|session| listeners.get(session));
    let (Some(listener), Some(signal)) = (listener, parse_signal(payload)) else { return };
    listener.on_signal(signal);
}

/// Parses a published message.
fn parse_signal(payload: &[u8]) -> Option<Signal> {
    let text = std::str::from_utf8(payload).ok()?;
    let (kind, rest) = text.split_once(' ')?;
    match kind {
        "g" => {
            let mut words = rest.split(' ');
            let claim: ClaimId = words.next()?.parse().ok()?;
            let arrival = Arrival(words.next()?.parse().ok()?);
            let fences = words.map(|word| word.parse().ok().map(Fence::new));
            let fences = fences.collect::<Option<Fences>>()?;
            Some(Signal::Granted { claim, grant: Grant { fences, arrival } })
        }
        "e" => {
            let (claim, why) = rest.split_once(' ')?;
            let loss = Loss::of_reason(why);
            Some(Signal::Ended { claim: claim.parse().ok()?, loss })
        }
        "j" => Some(Signal::Jobs { queue: Name::from_store(rest).ok()? }),
        // A long queue is granted a part at a time: its head requests the rest by renewing.
        "r" => Some(Signal::Resync),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed_and_nothing_else_is() {
        let id = ClaimId::new();
        let text = id.to_hex();
        let fences = [Fence::new(5), Fence::new(6)].into_iter().collect();
        let grant = Grant { fences, arrival: Arrival(4) };
        assert_eq!(
            parse_signal(format!("g {text} 4 5 6").as_bytes()),
            Some(Signal::Granted { claim: id, grant })
        );
        let loss = Loss::Evicted { reason: "by hand, 2nd".into() };
        assert_eq!(
            parse_signal(format!("e {text} by hand, 2nd").as_bytes()),
            Some(Signal::Ended { claim: id, loss })
        );
        assert_eq!(parse_signal(b"r "), Some(Signal::Resync));
        for odd in ["", "g", "g x 1 2", "e x", &format!("g {text} x"), &format!("z {text} 1")] {
            assert_eq!(parse_signal(odd.as_bytes()), None, "{odd}");
        }
        assert_eq!(parse_signal(b"g \xff"), None);
    }
}

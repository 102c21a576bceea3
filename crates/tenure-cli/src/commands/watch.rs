//! `tenure watch`: what changed between two looks, as events. Knows how to compare.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Instant, SystemTime};

use tenure::contract::short;
use tenure::{Pattern, Sample, Tenure};

use crate::args::{OutputArg, WatchArgs};
use crate::failure::Failure;
use crate::output::{self, About, LockEvent, LockRow, STRONG};
use crate::settings::Settings;

/// A claim on a name, as far as a look shows it.
#[derive(Clone, Debug)]
struct Seen {
    kind: &'static str,
    /// Holders have one.
    fence: Option<u64>,
    about: About,
}

/// Claims by name and id.
type Look = BTreeMap<(String, String), Seen>;

/// Looks again and again, and prints what changed.
pub(super) fn run(
    settings: &Settings,
    args: &WatchArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    settings.session(|tenure| events(tenure, args, form, out))
}

fn events(
    tenure: &Tenure,
    args: &WatchArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let people = form != OutputArg::Json && form != OutputArg::Ndjson && io::stdout().is_terminal();
    let end = args.long.map(|long| Instant::now() + long);
    let pattern = args.pattern.as_deref().map_or_else(Pattern::all, Pattern::new);
    let sampler = tenure.sampler(pattern, args.interval);
    let (mut before, mut number, mut slow): (Option<Look>, u64, bool) = (None, 0, false);
    loop {
        let sample = sampler.blocking_next(number)?;
        number = sample.number;
        slow = tell_pace(&sample, args, slow);
        let now = look(sample.slots.iter().map(LockRow::new));
        let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        for event in changes(before.as_ref(), &now, &at) {
            if people || form == OutputArg::Plain {
                line(&event, out)?;
            } else {
                output::json(&event, out)?;
            }
        }
        out.flush()?;
        before = Some(now);
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(0);
        }
        if let Some(left) = left.filter(|left| *left < sample.next_in) {
            std::thread::sleep(left);
            return Ok(0);
        }
    }
}

/// Says once that the looks are further apart than was asked for, and once that they are not.
fn tell_pace(sample: &Sample, args: &WatchArgs, slow: bool) -> bool {
    let now = sample.next_in > args.interval || sample.age > args.interval;
    let pace = short(sample.next_in.max(sample.age));
    match (slow, now) {
        (false, true) => eprintln!("tenure: looking every {pace} only: the store is slow"),
        (true, false) => eprintln!("tenure: looking every {} again", short(args.interval)),
        _ => {}
    }
    now
}

fn look(locks: impl Iterator<Item = LockRow>) -> Look {
    let mut look = Look::new();
    for LockRow { name, kind, holders, queue, .. } in locks {
        for waiter in queue {
            let key = (name.clone(), waiter.about.claim.clone());
            look.insert(key, Seen { kind, fence: None, about: waiter.about });
        }
        for holder in holders {
            let key = (name.clone(), holder.about.claim.clone());
            look.insert(key, Seen { kind, fence: Some(holder.fence), about: holder.about });
        }
    }
    look
}

/// What happened between two looks: ends first, since they make room for what follows.
fn changes(before: Option<&Look>, now: &Look, at: &str) -> Vec<LockEvent> {
    let event = |event: &'static str, name: &str, seen: &Seen| LockEvent {
        at: at.to_owned(),
        event,
        name: name.to_owned(),
        kind: seen.kind,
        fence: seen.fence,
        about: seen.about.clone(),
    };
    let Some(before) = before else {
        let word = |seen: &Seen| if seen.fence.is_some() { "holds" } else { "waits" };
        return now.iter().map(|((name, _), seen)| event(word(seen), name, seen)).collect();
    };
    let mut events = Vec::new();
    for (key, seen) in before.iter().filter(|(key, _)| !now.contains_key(*key)) {
        events.push(event(if seen.fence.is_some() { "ended" } else { "left" }, &key.0, seen));
    }
    for (key, seen) in now {
        let old = before.get(key);
        match (old.is_some_and(|old| old.fence.is_some()), seen.fence.is_some()) {
            (false, true) => events.push(event("granted", &key.0, seen)),
            (false, false) if old.is_none() => events.push(event("queued", &key.0, seen)),
            _ => {}
        }
    }
    events
}

fn line(event: &LockEvent, out: &mut impl Write) -> io::Result<()> {
    let time = event.at.get(11..23).unwrap_or_default();
    let fence = event.fence.map(|fence| format!("  fence {fence}")).unwrap_or_default();
    let LockEvent { event, name, about, .. } = event;
    writeln!(out, "{time}  {event:<8}{STRONG}{name}{STRONG:#}  {}{fence}", about.short())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(fence: Option<u64>) -> Seen {
        let about = About {
            host: "h".to_owned(),
            pid: 1,
            label: None,
            code: None,
            claim: "c".to_owned(),
            owner: "o".to_owned(),
            session: None,
        };
        Seen { kind: "mutex", fence, about }
    }

    fn of(claims: &[(&str, Option<u64>)]) -> Look {
        claims
            .iter()
            .map(|(id, fence)| (("x".to_owned(), (*id).to_owned()), seen(*fence)))
            .collect()
    }

    fn words(before: Option<&Look>, now: &Look) -> Vec<&'static str> {
        changes(before, now, "").iter().map(|event| event.event).collect()
    }

    #[test]
    fn the_first_look_tells_what_stands() {
        assert_eq!(words(None, &of(&[("a", Some(1)), ("b", None)])), ["holds", "waits"]);
    }

    #[test]
    fn a_hand_off_is_an_end_and_a_grant() {
        let before = of(&[("a", Some(1)), ("b", None)]);
        assert_eq!(words(Some(&before), &of(&[("b", Some(2))])), ["ended", "granted"]);
        assert_eq!(words(Some(&before), &before), [""; 0]);
    }

    #[test]
    fn who_comes_and_goes_without_a_grant_is_told_too() {
        let before = of(&[("a", Some(1)), ("b", None)]);
        assert_eq!(words(Some(&before), &of(&[("a", Some(1)), ("c", None)])), ["left", "queued"]);
    }
}

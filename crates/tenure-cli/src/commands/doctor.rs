//! `tenure doctor`: tries everything that a lock needs, and says what it found. Knows what to try.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime};

use anstyle::Style;
use serde::Serialize;
use tenure::contract::{ClaimId, Fencing, Wake};
use tenure::{Owner, Page, Query, Tenure};

use crate::args::{OutputArg, Shared};
use crate::config::usual_place;
use crate::failure::{self, Failure};
use crate::output::{self, BAD, CAREFUL, GOOD};
use crate::settings::Settings;

/// What one look found.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Note,
    Bad,
}

/// Looks at everything and reports. Exit code 0 if nothing is bad, 69 if the store is away, else 1.
pub(super) fn run(shared: &Shared, out: &mut impl Write) -> Result<u8, Failure> {
    let mut findings = Vec::new();
    let mut code = 0;
    findings.push(this_process());
    findings.push(clock());
    match Settings::new(shared) {
        Err(why) => findings.push(finding("config", State::Bad, why.to_string())),
        Ok((settings, config)) => {
            let (profiles, presets) = config.counts();
            let place = shared.config.clone().or_else(usual_place).unwrap_or_default();
            let found = if place.exists() { "read" } else { "not there, which is fine" };
            let what =
                format!("{}: {found}; {profiles} profiles, {presets} presets", place.display());
            findings.push(finding("config", State::Ok, what));
            if let Err(why) = store(&settings, &mut findings) {
                code = why.code;
                findings.push(finding("store", State::Bad, why.to_string()));
            }
        }
    }
    report(shared.form(), &findings, out)?;
    let bad = findings.iter().any(|finding| finding.state == State::Bad);
    Ok(if code == failure::UNREACHABLE { code } else { u8::from(bad) })
}

/// The store, from the door to a lock and back.
fn store(settings: &Settings, findings: &mut Vec<Finding>) -> Result<(), Failure> {
    let began = Instant::now();
    settings.session(std::process::id(), |tenure| inside(tenure, began.elapsed(), findings))
}

fn inside(tenure: &Tenure, took: Duration, findings: &mut Vec<Finding>) -> Result<(), Failure> {
    let promises = tenure.promises().clone();
    let what = format!("{} answers, opened in {took:.1?}", promises.engine);
    findings.push(finding("store", State::Ok, what));
    findings.push(round_trip(tenure)?);
    findings.push(a_lock(tenure)?);
    findings.push(match promises.fencing {
        Fencing::Strict => finding("fences", State::Ok, "always grow".to_owned()),
        Fencing::ClockBounded => {
            let what = format!("grow; they rest on {}", promises.fencing_rests_on);
            finding("fences", State::Note, what)
        }
    });
    findings.push(match promises.wake {
        Wake::Push => finding("wake-ups", State::Ok, "waiters are told at once".to_owned()),
        Wake::Poll => finding("wake-ups", State::Note, "waiters ask again and again".to_owned()),
    });
    let noticed = match tenure.liveness_file() {
        Some(_) => "a holder that dies is noticed at once",
        None => "a holder that dies is noticed when its lease ends",
    };
    findings.push(finding("crashes", State::Ok, noticed.to_owned()));
    Ok(())
}

/// How long one call takes, in the middle.
fn round_trip(tenure: &Tenure) -> Result<Finding, Failure> {
    let mut times = Vec::new();
    for _ in 0..11 {
        let began = Instant::now();
        let page = Page { limit: 1, ..Page::default() };
        tenure::blocking::wait(tenure.inspect(&Query::Page(page)))?;
        times.push(began.elapsed());
    }
    times.sort();
    let middle = times[times.len() / 2];
    let slow = middle > Duration::from_millis(100);
    let state = if slow { State::Note } else { State::Ok };
    Ok(finding("round trip", state, format!("{middle:.1?}")))
}

/// Takes a lock of our own and gives it back.
fn a_lock(tenure: &Tenure) -> Result<Finding, Failure> {
    let name = format!("tenure-doctor-{}", ClaimId::new());
    let began = Instant::now();
    let guard = tenure::blocking::wait(tenure.mutex(name)?.wait(Duration::from_secs(5)).lock())?;
    let fence = guard.fence()?;
    tenure::blocking::wait(guard.release())?;
    let what = format!("taken and given back in {:.1?}, fence {fence}", began.elapsed());
    Ok(finding("lock", State::Ok, what))
}

/// What `tenure run` needs of this machine, and what surrounds us.
fn this_process() -> Finding {
    if let Err(error) = std::fs::read_link("/proc/self/exe") {
        let what = format!("/proc is not there ({error}); `tenure run` needs it");
        return finding("process", State::Bad, what);
    }
    match Owner::from_env() {
        Err(error) => finding("process", State::Bad, error.to_string()),
        Ok(Some(_)) => {
            finding("process", State::Note, "runs under another `tenure run`".to_owned())
        }
        Ok(None) => finding("process", State::Ok, "/proc is there".to_owned()),
    }
}

/// Fences of some stores rest on the wall clock.
fn clock() -> Finding {
    let now = SystemTime::now();
    let shown = humantime::format_rfc3339_seconds(now).to_string();
    // The year in which this was written: a clock before it was never set.
    let sane = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    if now < sane {
        return finding("clock", State::Bad, format!("{shown} cannot be right; set it"));
    }
    finding("clock", State::Ok, shown)
}

fn finding(check: &'static str, state: State, what: String) -> Finding {
    Finding { check, state, what }
}

fn report(form: OutputArg, findings: &[Finding], out: &mut impl Write) -> std::io::Result<()> {
    if matches!(form, OutputArg::Json | OutputArg::Ndjson) {
        return output::json(&std::collections::BTreeMap::from([("findings", findings)]), out);
    }
    for Finding { check, state, what } in findings {
        let (style, word): (Style, &str) = match state {
            State::Ok => (GOOD, "ok"),
            State::Note => (CAREFUL, "note"),
            State::Bad => (BAD, "bad"),
        };
        writeln!(out, "{style}{word:<6}{style:#}{check:<12}{what}")?;
    }
    Ok(())
}

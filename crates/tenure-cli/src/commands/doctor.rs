//! `tenure doctor`: tries everything that a lock needs, and says what it found. Knows what to try.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime};

use anstyle::Style;
use serde::Serialize;
use tenure::contract::{ClaimId, Fencing, Finding, Health, Wake};
use tenure::{Name, Owner, Query, Tenure};

use crate::args::{OutputArg, Shared};
use crate::config::usual_place;
use crate::failure::{self, Failure};
use crate::output::{self, BAD, CAREFUL, GOOD};
use crate::settings::Settings;

/// Looks at everything and reports. Exit code 0 if nothing is bad, 69 if the store is away, else 1.
pub(super) fn run(shared: &Shared, out: &mut impl Write) -> Result<u8, Failure> {
    let mut findings = Vec::new();
    let mut code = 0;
    findings.push(this_process());
    findings.push(clock());
    match Settings::new(shared) {
        Err(why) => findings.push(Finding::new("config", Health::Bad, why.to_string())),
        Ok((settings, config)) => {
            let (profiles, presets) = config.counts();
            let place = shared.config.clone().or_else(usual_place).unwrap_or_default();
            let found = if place.exists() { "read" } else { "not found (optional)" };
            let what =
                format!("{}: {found}; {profiles} profiles, {presets} presets", place.display());
            findings.push(Finding::new("config", Health::Fine, what));
            if let Err(why) = store(&settings, &mut findings) {
                code = why.code;
                findings.push(Finding::new("store", Health::Bad, why.to_string()));
            }
        }
    }
    report(shared.form(), &findings, out)?;
    let bad = findings.iter().any(|finding| finding.state == Health::Bad);
    Ok(if code == failure::UNREACHABLE { code } else { u8::from(bad) })
}

/// The store, from the door to a lock and back.
fn store(settings: &Settings, findings: &mut Vec<Finding>) -> Result<(), Failure> {
    let began = Instant::now();
    settings.session(|tenure| inside(tenure, began.elapsed(), findings))
}

fn inside(tenure: &Tenure, took: Duration, findings: &mut Vec<Finding>) -> Result<(), Failure> {
    let promises = tenure.promises().clone();
    let what = format!("{} answers, opened in {took:.1?}", promises.engine);
    findings.push(Finding::new("store", Health::Fine, what));
    // Before a lock is tried: if that fails, this says why.
    findings.extend(tenure::block_on(tenure.doctor())?);
    findings.push(round_trip(tenure)?);
    findings.push(a_lock(tenure)?);
    findings.push(fences(tenure)?);
    findings.push(match promises.wake {
        Wake::Push => Finding::new("wake-ups", Health::Fine, "waiters are notified at once"),
        Wake::Poll => Finding::new("wake-ups", Health::Note, "waiters poll the store"),
    });
    let noticed = match tenure.liveness_file() {
        Some(_) => "a holder that dies is noticed at once",
        None => "a holder that dies is noticed when its lease ends",
    };
    findings.push(Finding::new("crashes", Health::Fine, noticed));
    Ok(())
}

/// How far fences can be trusted to grow, and how far they have got.
fn fences(tenure: &Tenure) -> Result<Finding, Failure> {
    let promises = tenure.promises();
    let (state, mut what) = match promises.fencing {
        Fencing::Strict => (Health::Fine, "always grow".to_owned()),
        Fencing::ClockBounded => {
            (Health::Note, format!("grow; they rest on {}", promises.fencing_rests_on))
        }
    };
    if promises.fence_floor {
        let highest = tenure::block_on(tenure.highest_fence())?;
        what = format!("{what}; none is above {highest} so far");
    }
    Ok(Finding::new("fences", state, what))
}

/// Measures the round trip of a call: the median of several.
fn round_trip(tenure: &Tenure) -> Result<Finding, Failure> {
    let mut times = Vec::new();
    // One name: to list all would be many calls on some stores.
    let query = Query::Slot(Name::try_from("tenure-doctor")?);
    for _ in 0..11 {
        let began = Instant::now();
        tenure::block_on(tenure.inspect(&query))?;
        times.push(began.elapsed());
    }
    times.sort();
    let middle = times[times.len() / 2];
    let slow = middle > Duration::from_millis(100);
    let state = if slow { Health::Note } else { Health::Fine };
    let advice =
        if slow { ": every lock waits for at least one; use a store that is nearer" } else { "" };
    Ok(Finding::new("round trip", state, format!("{middle:.1?}{advice}")))
}

/// Takes a lock of our own and gives it back.
fn a_lock(tenure: &Tenure) -> Result<Finding, Failure> {
    let name = format!("tenure-doctor-{}", ClaimId::new());
    let began = Instant::now();
    let guard = tenure::block_on(tenure.mutex(name)?.timeout(Duration::from_secs(5)).lock())?;
    let fence = guard.fence()?;
    tenure::block_on(guard.release())?;
    let what = format!("acquired and released in {:.1?}, fence {fence}", began.elapsed());
    Ok(Finding::new("lock", Health::Fine, what))
}

/// What `tenure run` needs of this machine, and what surrounds us.
fn this_process() -> Finding {
    if let Err(error) = std::fs::read_link("/proc/self/exe") {
        let what = format!("/proc is not there ({error}); `tenure run` needs it");
        return Finding::new("process", Health::Bad, what);
    }
    match Owner::from_env() {
        Err(error) => Finding::new("process", Health::Bad, error.to_string()),
        Ok(Some(_)) => Finding::new("process", Health::Note, "runs under another `tenure run`"),
        Ok(None) => Finding::new("process", Health::Fine, "/proc is there"),
    }
}

/// Fences of some stores rest on the wall clock.
fn clock() -> Finding {
    let now = SystemTime::now();
    let shown = humantime::format_rfc3339_seconds(now).to_string();
    // The year in which this was written: a clock before it was never set.
    let sane = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    if now < sane {
        return Finding::new("clock", Health::Bad, format!("{shown} cannot be right; set it"));
    }
    Finding::new("clock", Health::Fine, shown)
}

fn report(form: OutputArg, findings: &[Finding], out: &mut impl Write) -> std::io::Result<()> {
    #[derive(Serialize)]
    struct List<'a> {
        findings: Vec<Row<'a>>,
    }
    #[derive(Serialize)]
    struct Row<'a> {
        check: &'static str,
        state: &'static str,
        what: &'a str,
    }
    let shown = |state: Health| -> (Style, &'static str) {
        match state {
            Health::Fine => (GOOD, "ok"),
            Health::Note => (CAREFUL, "note"),
            Health::Bad => (BAD, "bad"),
        }
    };
    if matches!(form, OutputArg::Json | OutputArg::Ndjson) {
        let rows = findings.iter().map(|Finding { check, state, what }| {
            let state = shown(*state).1;
            Row { check, state, what }
        });
        return output::json(&List { findings: rows.collect() }, out);
    }
    for Finding { check, state, what } in findings {
        let (style, word) = shown(*state);
        writeln!(out, "{style}{word:<6}{style:#}{check:<12}{what}")?;
    }
    Ok(())
}

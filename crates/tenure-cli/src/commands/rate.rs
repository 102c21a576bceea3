//! `tenure rate`: takes permits of a rate, waits for them if it may, and then becomes the command.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use tenure::contract::short;
use tenure::{Rate, RateStatus, TakeOutcome};

use crate::args::{OutputArg, RateArgs};
use crate::failure::{self, Failure};
use crate::output::{self, millis};
use crate::settings::Settings;

/// The reply to a take, as one JSON object (`--json`).
#[derive(Serialize)]
struct RateAnswer {
    name: String,
    allowed: bool,
    cost: u64,
    /// How long it waited.
    waited_ms: u64,
    /// In how long this cost fits; 0 if it was taken.
    retry_after_ms: u64,
    remaining: u64,
    reset_after_ms: u64,
    limits: Vec<LimitAnswer>,
}

#[derive(Serialize)]
struct LimitAnswer {
    permits: u64,
    window_ms: u64,
    used: u64,
    reset_after_ms: u64,
}

/// `tenure rate`.
pub(super) fn run(
    settings: &Settings,
    args: &RateArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let is_json = matches!(form, OutputArg::Json | OutputArg::Ndjson);
    let rate = |tenure: &tenure::Tenure| -> Result<Rate, Failure> {
        let limits = args.limit.iter();
        Ok(limits.fold(tenure.rate(&args.name)?, |rate, (permits, window)| {
            rate.limit(*permits, *window)
        }))
    };
    if args.reset {
        settings.session(|tenure| Ok(rate(tenure)?.blocking_reset()?))?;
        return Ok(0);
    }
    if args.peek {
        let status = settings.session(|tenure| Ok(rate(tenure)?.blocking_peek()?))?;
        let zero = Duration::ZERO;
        if is_json {
            output::json(&answer(args, true, (zero, zero), &status), out)?;
        } else {
            let reset = short(status.reset_after());
            writeln!(out, "{} left; all of them in {reset}", status.remaining())?;
        }
        return Ok(0);
    }
    let within = args.wait.unwrap_or_default();
    let outcome =
        settings.session(|tenure| Ok(rate(tenure)?.blocking_take_within(args.cost, within)?))?;
    let allowed = outcome.is_allowed();
    let (waited, retry_after) = match &outcome {
        TakeOutcome::Allowed(permit) => (permit.wait(), Duration::ZERO),
        TakeOutcome::Refused(refusal) => (Duration::ZERO, refusal.retry_after()),
    };
    if is_json && args.command.is_empty() {
        let answer = answer(args, allowed, (waited, retry_after), outcome.status());
        output::json(&answer, out)?;
    }
    if let TakeOutcome::Refused(refusal) = &outcome {
        let limit = refusal.limit();
        let why = format!(
            "{}: {} of {} per {} would be too many now; try again in {}",
            args.name,
            args.cost,
            limit.permits,
            short(limit.window),
            short(retry_after)
        );
        let why = if settings.quiet || (is_json && args.command.is_empty()) {
            String::new()
        } else {
            why
        };
        return Err(Failure::new(failure::NOT_OBTAINED, why));
    }
    match args.command.split_first() {
        Some((program, rest)) => {
            out.flush()?;
            Err(failed(&Command::new(program).args(rest).exec(), program))
        }
        None => Ok(0),
    }
}

/// The failure to become the command.
fn failed(error: &std::io::Error, program: &std::ffi::OsStr) -> Failure {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => failure::NOT_FOUND,
        _ => failure::NOT_EXECUTABLE,
    };
    Failure::new(code, format!("{}: {error}", program.display()))
}

fn answer(
    args: &RateArgs,
    allowed: bool,
    (waited, retry_after): (Duration, Duration),
    status: &RateStatus,
) -> RateAnswer {
    let limits = status.limits().map(|(limit, level)| LimitAnswer {
        permits: limit.permits,
        window_ms: millis(limit.window),
        used: level.used,
        reset_after_ms: millis(level.clear_after),
    });
    RateAnswer {
        name: args.name.clone(),
        allowed,
        cost: args.cost,
        waited_ms: millis(waited),
        retry_after_ms: whole_millis(retry_after),
        remaining: status.remaining(),
        reset_after_ms: millis(status.reset_after()),
        limits: limits.collect(),
    }
}

/// Rounded up: a caller that comes back then is not too early.
fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

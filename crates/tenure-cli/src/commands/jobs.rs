//! `tenure push` and `tenure jobs`: adds jobs, shows them, and changes them for an operator.

use std::io::{self, Read, Write};
use std::time::SystemTime;

use serde::Serialize;
use tenure::{
    CronSchedule, JobChanged, JobFilter, JobId, JobQueue, JobState, KeyMode, Name, NewJob, Pushed,
    Tenure, limits,
};

use crate::args::{
    CronCommand, JobArgs, JobListArgs, JobsArgs, JobsCommand, KeyArg, OutputArg, PushArgs,
    QueueSetArgs, StateArg,
};
use crate::failure::{self, Failure};
use crate::output::{self, JobRow, QueueRow, RecurringRow};
use crate::settings::Settings;

/// `tenure push`.
pub(super) fn push(
    settings: &Settings,
    args: &PushArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let jobs = jobs_of(args)?;
    let pushed = settings.session(|tenure| {
        let queue = tenure.queue(&args.queue)?;
        let mut pushed = Vec::new();
        for jobs in jobs.chunks(limits::PUSHED_JOBS) {
            pushed.extend(queue.blocking_push_many(jobs.to_vec())?);
        }
        Ok(pushed)
    })?;
    for one in &pushed {
        print_pushed(*one, form, out)?;
    }
    let refused = pushed.iter().any(|one| matches!(one, Pushed::Exists(_)));
    Ok(if refused { failure::NO } else { 0 })
}

fn print_pushed(pushed: Pushed, form: OutputArg, out: &mut impl Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Answer {
        job: u64,
        pushed: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        instead_of: Option<u64>,
    }
    let (word, instead_of) = match pushed {
        Pushed::New(_) => ("new", None),
        Pushed::Exists(_) => ("exists", None),
        Pushed::Replaced { instead_of, .. } => ("replaced", Some(instead_of.0)),
    };
    match form {
        OutputArg::Json | OutputArg::Ndjson => {
            output::json(&Answer { job: pushed.id().0, pushed: word, instead_of }, out)
        }
        _ => writeln!(out, "{}", pushed.id()),
    }
}

fn jobs_of(args: &PushArgs) -> Result<Vec<NewJob>, Failure> {
    let mut model = NewJob::new("").priority(args.priority).max_attempts(args.max_attempts);
    model = model.back_off(args.back_off, args.max_back_off.max(args.back_off));
    if let Some(delay) = args.delay {
        model = model.after(delay);
    }
    if let Some(at) = args.at {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        model = model.at_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
    }
    if let Some(key) = &args.key {
        let mode = match args.unique {
            KeyArg::Started => KeyMode::UntilStarted,
            KeyArg::Done => KeyMode::UntilDone,
            KeyArg::Replace => KeyMode::Replace,
        };
        model = model.key(Name::try_from(key.as_str())?, mode);
    }
    if let Some(lane) = &args.lane {
        model = model.lane(Name::try_from(lane.as_str())?, args.lane_limit);
    }
    model.check_limits()?;
    let with = |payload: &[u8]| NewJob { payload: payload.to_vec(), ..model.clone() };
    let payload = payload(args)?;
    if !args.lines {
        return Ok(vec![with(&payload)]);
    }
    let lines = payload.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let jobs: Vec<NewJob> = lines.map(with).collect();
    if jobs.is_empty() {
        return Err(Failure::usage("standard input has no lines: nothing to push"));
    }
    Ok(jobs)
}

/// The payload: an argument, a file, or standard input. Reads no more than is allowed.
fn payload(args: &PushArgs) -> Result<Vec<u8>, Failure> {
    if let Some(payload) = &args.payload {
        return Ok(payload.clone().into_bytes());
    }
    let unreadable = |from: &str, error: io::Error| Failure::usage(format!("{from}: {error}"));
    let most = if args.lines { u64::MAX } else { limits::JOB_BYTES as u64 + 1 };
    let mut payload = Vec::new();
    if let Some(path) = &args.file {
        let from = path.display().to_string();
        let file = std::fs::File::open(path).map_err(|error| unreadable(&from, error))?;
        file.take(most).read_to_end(&mut payload).map_err(|error| unreadable(&from, error))?;
    } else {
        let read = io::stdin().lock().take(most).read_to_end(&mut payload);
        read.map_err(|error| unreadable("standard input", error))?;
    }
    Ok(payload)
}

/// `tenure jobs`.
pub(super) fn run(
    settings: &Settings,
    args: &JobsArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    type Change = fn(&JobQueue, JobId) -> Result<JobChanged, tenure::Error>;
    let one = |args: &JobArgs, change: Change| change_one(settings, args, change);
    match &args.command {
        JobsCommand::Queues => queues(settings, form, out),
        JobsCommand::List(args) => list(settings, args, form, out),
        JobsCommand::Show(args) => show(settings, args, form, out),
        JobsCommand::Dead(args) => {
            let queue = args.queue.clone();
            let args = JobListArgs { queue, state: Some(StateArg::Dead), limit: limits::PAGE };
            list(settings, &args, form, out)
        }
        JobsCommand::Retry(args) => one(args, JobQueue::blocking_retry),
        JobsCommand::Cancel(args) => one(args, JobQueue::blocking_cancel),
        JobsCommand::Delete(args) => one(args, JobQueue::blocking_delete),
        JobsCommand::Pause(args) => {
            settings.session(|tenure| Ok(tenure.queue(&args.queue)?.blocking_pause()?))?;
            Ok(0)
        }
        JobsCommand::Resume(args) => {
            settings.session(|tenure| Ok(tenure.queue(&args.queue)?.blocking_resume()?))?;
            Ok(0)
        }
        JobsCommand::Set(args) => set(settings, args),
        JobsCommand::Cron(args) => cron(settings, &args.command, form, out),
    }
}

/// `tenure jobs cron`.
fn cron(
    settings: &Settings,
    command: &CronCommand,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    match command {
        CronCommand::Add(args) => {
            let schedule = args.expression.parse::<CronSchedule>()?.in_zone(&args.zone)?;
            let mut job = NewJob::new(args.payload.as_bytes()).priority(args.priority);
            job = job.max_attempts(args.max_attempts);
            if let Some(lane) = &args.lane {
                job = job.lane(Name::try_from(lane.as_str())?, args.lane_limit);
            }
            settings.session(|tenure| {
                let queue = tenure.queue(&args.of.queue)?;
                Ok(queue.blocking_add_recurring(&args.of.name, &schedule, job.clone())?)
            })?;
            Ok(0)
        }
        CronCommand::List(args) => {
            let seen = settings
                .session(|tenure| Ok(tenure.queue(&args.queue)?.blocking_recurring()?))?;
            let rows: Vec<RecurringRow> = seen.iter().map(RecurringRow::new).collect();
            shown(settings, form, "recurring", &rows, out)
        }
        CronCommand::Remove(args) => {
            let removed = settings.session(|tenure| {
                Ok(tenure.queue(&args.queue)?.blocking_remove_recurring(&args.name)?)
            })?;
            if removed {
                return Ok(0);
            }
            let message = format!("{}: no recurring job {:?}", args.queue, args.name);
            Err(Failure::new(failure::NO, message))
        }
    }
}

fn queues(settings: &Settings, form: OutputArg, out: &mut impl Write) -> Result<u8, Failure> {
    let counted = |tenure: &Tenure| -> Result<Vec<QueueRow>, Failure> {
        let mut rows = Vec::new();
        for name in tenure.blocking_queues()? {
            let counts = tenure.queue(name.as_str())?.blocking_counts()?;
            rows.push(QueueRow::new(&name, &counts));
        }
        Ok(rows)
    };
    let rows = settings.session(counted)?;
    shown(settings, form, "queues", &rows, out)
}

fn list(
    settings: &Settings,
    args: &JobListArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let state = args.state.map(|state| match state {
        StateArg::Scheduled => JobState::Scheduled,
        StateArg::Blocked => JobState::Blocked,
        StateArg::Ready => JobState::Ready,
        StateArg::Running => JobState::Running,
        StateArg::Dead => JobState::Dead,
        StateArg::Done => JobState::Done,
    });
    let all = |tenure: &Tenure| -> Result<Vec<JobRow>, Failure> {
        let queue = tenure.queue(&args.queue)?;
        let (mut rows, mut after) = (Vec::new(), None);
        while rows.len() < args.limit {
            let limit = (args.limit - rows.len()).min(limits::PAGE);
            let page = queue.blocking_list(&JobFilter { state, after, limit })?;
            rows.extend(page.iter().map(JobRow::new));
            after = page.last().map(|job| job.id);
            if page.len() < limit {
                break;
            }
        }
        Ok(rows)
    };
    let rows = settings.session(all)?;
    shown(settings, form, "jobs", &rows, out)
}

fn shown<R: output::Row>(
    settings: &Settings,
    form: OutputArg,
    key: &'static str,
    rows: &[R],
    out: &mut impl Write,
) -> Result<u8, Failure> {
    if rows.is_empty() && matches!(form, OutputArg::Table | OutputArg::Wide) {
        if !settings.quiet {
            eprintln!("no {key}");
        }
        return Ok(0);
    }
    output::list(form, key, rows, out)?;
    Ok(0)
}

fn show(
    settings: &Settings,
    args: &JobArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let id = JobId(args.id);
    let seen = settings.session(|tenure| Ok(tenure.queue(&args.queue)?.blocking_job(id)?))?;
    let Some(view) = seen else { return Err(unknown(args)) };
    let row = JobRow::in_full(&view);
    match form {
        OutputArg::Json | OutputArg::Ndjson => output::json(&row, out)?,
        _ => {
            for (name, value) in row.lines() {
                writeln!(out, "{name:<10}{value}")?;
            }
        }
    }
    Ok(0)
}

fn unknown(args: &JobArgs) -> Failure {
    let message =
        format!("{}: no job {}: it is done, cancelled, or never was", args.queue, args.id);
    Failure::new(failure::NO, message)
}

fn change_one(
    settings: &Settings,
    args: &JobArgs,
    change: fn(&JobQueue, JobId) -> Result<JobChanged, tenure::Error>,
) -> Result<u8, Failure> {
    let id = JobId(args.id);
    let changed = settings.session(|tenure| Ok(change(&tenure.queue(&args.queue)?, id)?))?;
    match changed {
        JobChanged::Done => Ok(0),
        JobChanged::Told => {
            if !settings.quiet {
                eprintln!("{}: job {id} runs; its worker is told", args.queue);
            }
            Ok(0)
        }
        JobChanged::Unknown => Err(unknown(args)),
        JobChanged::Is(state) => {
            let message = format!("{}: job {id} is {state}; nothing was changed", args.queue);
            Err(Failure::new(failure::NO, message))
        }
    }
}

fn set(settings: &Settings, args: &QueueSetArgs) -> Result<u8, Failure> {
    if args.keep_dead.is_none() && args.keep_done.is_none() && args.aging.is_none() {
        return Err(Failure::usage("nothing to set: give --keep-dead, --keep-done or --aging"));
    }
    settings.session(|tenure| {
        let queue = tenure.queue(&args.queue)?;
        let mut kept = queue.blocking_counts()?.settings;
        kept.keep_dead = args.keep_dead.unwrap_or(kept.keep_dead);
        kept.keep_done = args.keep_done.unwrap_or(kept.keep_done);
        kept.aging = args.aging.unwrap_or(kept.aging);
        Ok(queue.blocking_configure(kept)?)
    })?;
    Ok(0)
}

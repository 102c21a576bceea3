//! Queues of jobs: each verb is one call of a script, over the rules and the layout of
//! `lua/jobs.lua`. This file writes the arguments of the scripts and parses their replies.
//!
//! The keys of a queue have the slot of its workers as their prefix. So in a cluster they are in
//! one hash slot, and a turn sees in one step which workers live. The time is that of the server.
//!
//! A push is not repeated after its connection broke, because it has no id by which the server
//! could recognize it: the error says that the jobs may have been added. A turn is safe to repeat
//! (`primitives/jobs/worker.rs`). Jobs are as durable as the server is configured to be. A server
//! that may evict keys is refused: it would drop parts of a queue.

use std::time::Duration;

use redis::Value;

use super::client::{bytes, list, number, strange, text};
use super::inspect::StoreAccess;
use super::names::NameSet;
use crate::contract::{
    AttemptError, AttemptReport, ClaimedJob, Error, ErrorKind, Fence, JobAttempt, JobChange,
    JobChanged, JobDue, JobFilter, JobId, JobOutcome, JobState, JobView, Jobs, KeyMode, Name,
    NewJob, Pending, Pushed, QueueCounts, QueueSettings, Reported, Turn, TurnReply, UniqueKey,
    Verb, worker_slot,
};
use crate::engine::common::job_limits;
use crate::ledger::jobs::row::micros;
use crate::ledger::jobs::settle::shortened;
use crate::limits;

/// The arguments of a script.
#[derive(Default)]
struct Items(Vec<Vec<u8>>);

impl Items {
    fn push(&mut self, item: impl Into<Vec<u8>>) -> &mut Self {
        self.0.push(item.into());
        self
    }

    fn number(&mut self, number: impl ToString + Copy) -> &mut Self {
        self.push(number.to_string())
    }
}

impl<T: StoreAccess> Jobs for T {
    fn push<'a>(&'a self, queue: &'a Name, jobs: &'a [NewJob]) -> Pending<'a, Vec<Pushed>> {
        Box::pin(async move {
            job_limits::check_push(jobs)?;
            let mut items = Items::default();
            items.push(queue.as_str());
            for job in jobs {
                push_job(&mut items, job);
            }
            let value = call(self, &self.scripts().push, queue, &items).await?;
            let pushed = list(&value).and_then(|all| all.iter().map(read_pushed).collect());
            let fits = pushed.filter(|pushed: &Vec<Pushed>| pushed.len() == jobs.len());
            fits.ok_or_else(|| strange(&value).effect_unknown())
        })
    }

    fn turn<'a>(&'a self, queue: &'a Name, turn: &'a Turn) -> Pending<'a, TurnReply> {
        Box::pin(async move {
            job_limits::check_turn(turn)?;
            let mut items = Items::default();
            items.push(queue.as_str()).push(turn.worker.to_hex()).push(turn.session.to_hex());
            items.number(turn.want).push(if turn.look { "1" } else { "0" });
            match &turn.held {
                None => {
                    items.push("-");
                }
                Some(held) => {
                    items.number(held.len());
                    for attempt in held {
                        items.number(attempt.job).number(attempt.fence.get());
                    }
                }
            }
            for report in &turn.reports {
                push_report(&mut items, report);
            }
            let value = call(self, &self.scripts().turn, queue, &items).await?;
            let reply = read_turn(&value);
            let fits = reply.filter(|reply| reply.reported.len() == turn.reports.len());
            fits.ok_or_else(|| strange(&value).effect_unknown())
        })
    }

    fn change_job<'a>(&'a self, queue: &'a Name, change: &'a JobChange) -> Pending<'a, JobChanged> {
        Box::pin(async move {
            job_limits::check_change(change)?;
            let mut items = Items::default();
            items.push(queue.as_str());
            match change {
                JobChange::Cancel(id) => items.push("cancel").number(id),
                JobChange::Delete(id) => items.push("delete").number(id),
                JobChange::Retry(id) => items.push("retry").number(id),
                JobChange::Pause => items.push("pause"),
                JobChange::Resume => items.push("resume"),
                JobChange::Configure(QueueSettings { keep_dead, keep_done, aging }) => {
                    items.push("configure");
                    items.number(micros(*keep_dead)).number(micros(*keep_done));
                    items.number(micros(*aging))
                }
            };
            let value = call(self, &self.scripts().change_job, queue, &items).await?;
            match text(&value) {
                Some("d") => Ok(JobChanged::Done),
                Some("t") => Ok(JobChanged::Told),
                Some("u") => Ok(JobChanged::Unknown),
                state => {
                    let state =
                        state.and_then(|state| state.parse().ok()).and_then(JobState::from_code);
                    state.map(JobChanged::Is).ok_or_else(|| strange(&value))
                }
            }
        })
    }

    fn job<'a>(&'a self, queue: &'a Name, id: JobId) -> Pending<'a, Option<JobView>> {
        Box::pin(async move {
            let mut items = Items::default();
            items.push("job").number(id);
            let value = call(self, &self.scripts().look, queue, &items).await?;
            let read = || match list(&value)? {
                [] => Some(None),
                [view, payload] => {
                    let payload = bytes(payload)?.to_vec();
                    Some(Some(JobView { payload, ..read_view(view)? }))
                }
                _ => None,
            };
            read().ok_or_else(|| strange(&value))
        })
    }

    fn list<'a>(&'a self, queue: &'a Name, filter: &'a JobFilter) -> Pending<'a, Vec<JobView>> {
        Box::pin(async move {
            let most = filter.limit.clamp(1, limits::PAGE);
            let mut after = filter.after.map_or(0, |after| after.0);
            let mut found: Vec<JobView> = Vec::new();
            loop {
                let mut items = Items::default();
                items.push("list").number(after).number(most - found.len());
                match filter.state {
                    Some(state) => items.number(u64::from(state.code())),
                    None => items.push("-"),
                };
                let value = call(self, &self.scripts().look, queue, &items).await?;
                let read = || {
                    let [last, views] = list(&value)? else { return None };
                    let views = list(views)?.iter().map(read_view).collect::<Option<Vec<_>>>()?;
                    Some((signed(last)?, views))
                };
                let (last, views) = read().ok_or_else(|| strange(&value))?;
                found.extend(views);
                match u64::try_from(last) {
                    Ok(last) if found.len() < most => after = last,
                    _ => return Ok(found),
                }
            }
        })
    }

    fn counts<'a>(&'a self, queue: &'a Name) -> Pending<'a, QueueCounts> {
        Box::pin(async move {
            let mut items = Items::default();
            items.push("counts");
            let value = call(self, &self.scripts().look, queue, &items).await?;
            read_counts(&value).ok_or_else(|| strange(&value))
        })
    }

    fn queues(&self) -> Pending<'_, Vec<Name>> {
        Box::pin(async move {
            let (mut queues, mut after) = (Vec::new(), None);
            loop {
                let names = self.names(NameSet::Queues, "", after.as_ref()).await?;
                let found = names.after(after.as_ref()).iter();
                // In a cluster the keys name the slot of the workers.
                let found = found.map(|name| Name::try_from(name.user_part()));
                queues.extend(found.filter_map(Result::ok));
                if names.is_last {
                    queues.sort_unstable();
                    return Ok(queues);
                }
                after = names.last().cloned();
            }
        })
    }
}

/// Calls a script of a queue.
async fn call<T: StoreAccess>(
    store: &T,
    script: &'static super::scripts::LuaScript,
    queue: &Name,
    items: &Items,
) -> Result<Value, Error> {
    let policy = store.server().and_then(|server| {
        let policy = server.field("maxmemory_policy")?;
        (policy != "noeviction").then(|| policy.to_owned())
    });
    if let Some(policy) = policy {
        let what = format!("the server may evict keys ({policy}), and with them parts of a queue");
        let help = "set maxmemory-policy to noeviction, or use another server for jobs";
        return Err(Error::new(ErrorKind::Unsupported, what).with_help(help).during(Verb::Job));
    }
    let slot = worker_slot(queue)?;
    let items: Vec<&[u8]> = items.0.iter().map(Vec::as_slice).collect();
    store.run_at_slot(Verb::Job, script, &slot, &items).await
}

fn push_job(items: &mut Items, job: &NewJob) {
    items.push(&*job.payload).number(job.priority);
    items.push(match job.due {
        JobDue::In(delay) => format!("+{}", micros(delay)),
        // What a script can count exactly; it is cut to the longest delay there.
        JobDue::At(at) => format!("@{}", at.min(limits::FENCE / 2)),
    });
    let key = job.key.as_ref();
    items.push(key.map_or("", |key| key.key.as_str()));
    items.number(key.map_or(0, |key| key.mode.code().into()));
    let lane = job.lane.as_ref();
    items
        .push(lane.map_or("", |lane| lane.name.as_str()))
        .number(lane.map_or(0, |lane| lane.limit));
    items.number(job.max_attempts);
    items.number(micros(job.back_off.first)).number(micros(job.back_off.most));
}

fn push_report(items: &mut Items, report: &AttemptReport) {
    items.number(report.attempt.job).number(report.attempt.fence.get());
    let (kind, text, for_good, pause, jitter): (&str, &[u8], bool, Option<Duration>, u16) =
        match &report.outcome {
            JobOutcome::Complete => ("c", b"", false, None, 0),
            JobOutcome::Fail { error, for_good, retry_after, jitter } => {
                ("f", shortened(error).as_bytes(), *for_good, *retry_after, *jitter)
            }
            JobOutcome::Later(delay) => ("l", b"", false, Some(*delay), 0),
            JobOutcome::GiveBack => ("g", b"", false, None, 0),
            JobOutcome::Progress(progress) => ("p", progress, false, None, 0),
        };
    items.push(kind).push(text).push(if for_good { "1" } else { "0" });
    let pause = pause.map(|pause| micros(pause.min(limits::JOB_DELAY)).to_string());
    items.push(pause.unwrap_or_else(|| "-".to_owned())).number(jitter);
}

fn read_pushed(value: &Value) -> Option<Pushed> {
    let [kind, id, other] = list(value)? else { return None };
    let (id, other) = (JobId(number(id)?), JobId(number(other)?));
    match text(kind)? {
        "n" => Some(Pushed::New(id)),
        "x" => Some(Pushed::Exists(id)),
        "r" => Some(Pushed::Replaced { id, instead_of: other }),
        _ => None,
    }
}

fn read_turn(value: &Value) -> Option<TurnReply> {
    let [jobs, reported, next_due, cancelled, paused] = list(value)? else { return None };
    let cancelled: Vec<u64> = list(cancelled)?.iter().map(number).collect::<Option<_>>()?;
    let attempt = |pair: &[u64]| JobAttempt { job: JobId(pair[0]), fence: Fence::new(pair[1]) };
    Some(TurnReply {
        jobs: list(jobs)?.iter().map(read_claimed).collect::<Option<_>>()?,
        reported: list(reported)?.iter().map(read_reported).collect::<Option<_>>()?,
        next_due: u64::try_from(signed(next_due)?).ok().map(Duration::from_micros),
        cancelled: cancelled.chunks_exact(2).map(attempt).collect(),
        paused: number(paused)? == 1,
    })
}

fn read_claimed(value: &Value) -> Option<ClaimedJob> {
    let [job, fence, payload, attempt, most, crashes, progress, key] = list(value)? else {
        return None;
    };
    Some(ClaimedJob {
        attempt: JobAttempt { job: JobId(number(job)?), fence: Fence::new(number(fence)?) },
        payload: bytes(payload)?.to_vec(),
        number: small(attempt)?,
        max_attempts: small(most)?,
        crashes: small(crashes)?,
        progress: bytes(progress)?.to_vec(),
        key: optional_name(key).ok()?,
    })
}

fn read_reported(value: &Value) -> Option<Reported> {
    let [kind, pause] = list(value)? else { return None };
    match text(kind)? {
        "d" => Some(Reported::Done),
        "a" => Some(Reported::Again(Duration::from_micros(number(pause)?))),
        "x" => Some(Reported::Dead),
        "c" => Some(Reported::Cancelled),
        "s" => Some(Reported::Stale),
        _ => None,
    }
}

fn read_view(value: &Value) -> Option<JobView> {
    let [
        id,
        state,
        priority,
        due,
        pushed,
        ended,
        attempts,
        most,
        crashes,
        key,
        mode,
        lane,
        worker,
        fence,
        cancelled,
        progress,
        errors,
    ] = list(value)?
    else {
        return None;
    };
    let key = match optional_name(key).ok()? {
        Some(key) => {
            Some(UniqueKey { key, mode: KeyMode::from_code(u8::try_from(number(mode)?).ok()?)? })
        }
        None => None,
    };
    let running = match text(worker)? {
        "" => None,
        worker => Some((worker.parse().ok()?, Fence::new(number(fence)?))),
    };
    let error = |error: &[Value]| {
        Some(AttemptError {
            attempt: small(&error[0])?,
            at_micros: number(&error[1])?,
            error: text(&error[2])?.to_owned(),
        })
    };
    Some(JobView {
        id: JobId(number(id)?),
        state: JobState::from_code(u8::try_from(number(state)?).ok()?)?,
        priority: u8::try_from(number(priority)?).ok()?,
        due_micros: number(due)?,
        pushed_micros: number(pushed)?,
        ended_micros: number(ended)?,
        attempts: small(attempts)?,
        max_attempts: small(most)?,
        crashes: small(crashes)?,
        key,
        lane: optional_name(lane).ok()?,
        running,
        cancelled: number(cancelled)? == 1,
        progress: bytes(progress)?.to_vec(),
        errors: list(errors)?.chunks_exact(3).map(error).collect::<Option<_>>()?,
        payload: Vec::new(),
    })
}

fn read_counts(value: &Value) -> Option<QueueCounts> {
    let numbers: Vec<u64> = list(value)?.iter().map(number).collect::<Option<_>>()?;
    let (states, settings) = numbers.split_at_checked(JobState::ALL.len())?;
    let &[paused, keep_dead, keep_done, aging] = settings else { return None };
    let [keep_dead, keep_done, aging] = [keep_dead, keep_done, aging].map(Duration::from_micros);
    let mut counts = QueueCounts {
        paused: paused == 1,
        settings: QueueSettings { keep_dead, keep_done, aging },
        ..QueueCounts::default()
    };
    for state in JobState::ALL {
        *counts.of_mut(state) = *states.get(usize::from(state.code()))?;
    }
    Some(counts)
}

fn small(value: &Value) -> Option<u32> {
    number(value).and_then(|number| u32::try_from(number).ok())
}

fn signed(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// A name that may be missing.
fn optional_name(value: &Value) -> Result<Option<Name>, Error> {
    match text(value) {
        Some("") => Ok(None),
        Some(name) => Name::from_store(name).map(Some),
        None => Err(strange(value)),
    }
}

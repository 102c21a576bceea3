//! Checks of what callers hand to a queue of jobs, the same for every engine with jobs.

use crate::contract::{
    Error, ErrorKind, JobChange, JobOutcome, NewJob, QueueSettings, Turn, short,
};
use crate::limits;

/// Checks the jobs of one push.
pub(in crate::engine) fn check_push(jobs: &[NewJob]) -> Result<(), Error> {
    if jobs.is_empty() || jobs.len() > limits::PUSHED_JOBS {
        let what = format!("{} jobs in one push, not 1 to {}", jobs.len(), limits::PUSHED_JOBS);
        return Err(Error::invalid(ErrorKind::InvalidOption, what));
    }
    for job in jobs {
        job.check_limits()?;
    }
    let bytes: usize = jobs.iter().map(|job| job.payload.len()).sum();
    if bytes > limits::PUSH_BYTES {
        let most = limits::PUSH_BYTES;
        let what = format!("the payloads of one push have {bytes} bytes, at most {most} together");
        return Err(Error::invalid(ErrorKind::InvalidOption, what).with_help("push them in parts"));
    }
    Ok(())
}

/// Checks what a worker asks for.
pub(in crate::engine) fn check_turn(turn: &Turn) -> Result<(), Error> {
    if turn.want > limits::WORKER_SLOTS || turn.reports.len() > limits::WORKER_SLOTS {
        let most = limits::WORKER_SLOTS;
        let what = format!("a turn claims {most} jobs and reports {most} attempts at most");
        return Err(Error::invalid(ErrorKind::InvalidOption, what));
    }
    for report in &turn.reports {
        if let JobOutcome::Progress(progress) = &report.outcome
            && progress.len() > limits::PROGRESS_BYTES
        {
            let (is, most) = (progress.len(), limits::PROGRESS_BYTES);
            let what = format!("a progress report has {is} bytes, at most {most} are allowed");
            return Err(Error::invalid(ErrorKind::InvalidOption, what));
        }
    }
    Ok(())
}

/// Checks a change by an operator.
pub(in crate::engine) fn check_change(change: &JobChange) -> Result<(), Error> {
    let JobChange::Configure(QueueSettings { keep_dead, keep_done, aging }) = change else {
        return Ok(());
    };
    if *keep_dead > limits::KEEP_JOBS || *keep_done > limits::KEEP_JOBS {
        let what = format!("jobs are kept for {} at most", short(limits::KEEP_JOBS));
        return Err(Error::invalid(ErrorKind::InvalidOption, what));
    }
    if *aging > limits::AGING {
        let what = format!("a step of priority is worth {} at most", short(limits::AGING));
        return Err(Error::invalid(ErrorKind::InvalidOption, what));
    }
    Ok(())
}

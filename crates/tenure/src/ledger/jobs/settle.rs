//! How attempts end. Each report names job and fence, and changes nothing unless that is the
//! attempt that runs (J2).

use super::row::{JobRow, micros};
use super::{JobRows, JobRules};
use crate::contract::{AttemptError, AttemptReport, BackOff, JobOutcome, JobState, Reported};
use crate::limits;
use std::time::Duration;

impl<R: JobRows> JobRules<'_, R> {
    /// Carries out one report of a worker.
    pub(super) fn settle(&mut self, report: &AttemptReport) -> Reported {
        let job = self.job(report.attempt.job);
        let current = |job: &JobRow| {
            job.state == JobState::Running && job.fence == report.attempt.fence.get()
        };
        let Some(job) = job.filter(current) else { return Reported::Stale };
        match &report.outcome {
            JobOutcome::Complete => self.complete(&job),
            JobOutcome::Fail { error, for_good, retry_after, jitter } => {
                let pause = retry_after
                    .map_or_else(|| pause_of(job.back_off, job.attempts, *jitter), at_most_allowed);
                self.fail(&job, error, *for_good, pause)
            }
            JobOutcome::Later(delay) => self.again_after(&job, at_most_allowed(*delay)),
            JobOutcome::GiveBack if job.cancelled => self.end_cancelled(&job),
            JobOutcome::GiveBack => {
                let back = JobRow { attempts: job.attempts.saturating_sub(1), ..job.clone() };
                self.resume_rank(&job, back);
                Reported::Done
            }
            JobOutcome::Progress(progress) => {
                let most = progress.len().min(limits::PROGRESS_BYTES);
                let mut reported = JobRow { progress: progress[..most].to_vec(), ..job.clone() };
                reported.generation += 1;
                self.note_changed(job.id);
                self.change(Some(&job), Some(&reported));
                Reported::Done
            }
        }
    }

    fn complete(&mut self, job: &JobRow) -> Reported {
        if !self.keeps_done() {
            self.drop_job(job);
            return Reported::Done;
        }
        self.release_key(job);
        let mut done = JobRow { state: JobState::Done, ended: self.now(), ..job.clone() };
        done.worker = None;
        done.generation += 1;
        self.note_changed(job.id);
        self.change(Some(job), Some(&done));
        Reported::Done
    }

    fn fail(&mut self, job: &JobRow, text: &str, for_good: bool, pause: Duration) -> Reported {
        if job.cancelled {
            return self.end_cancelled(job);
        }
        let attempt = job.attempts + job.crashes;
        let error =
            AttemptError { attempt, at_micros: self.now(), error: shortened(text).to_owned() };
        if for_good || job.attempts >= job.max_attempts {
            self.bury(job, job.clone(), error);
            return Reported::Dead;
        }
        let mut again = job.clone();
        again.errors.push(error);
        if again.errors.len() > limits::ATTEMPT_ERRORS {
            again.errors.remove(0);
        }
        again.due = self.now().saturating_add(micros(pause));
        self.come_back(job, again);
        Reported::Again(pause)
    }

    fn again_after(&mut self, job: &JobRow, delay: Duration) -> Reported {
        if job.cancelled {
            return self.end_cancelled(job);
        }
        let mut again = JobRow { attempts: job.attempts.saturating_sub(1), ..job.clone() };
        again.due = self.now().saturating_add(micros(delay));
        self.come_back(job, again);
        Reported::Again(delay)
    }

    fn end_cancelled(&mut self, job: &JobRow) -> Reported {
        self.drop_job(job);
        Reported::Cancelled
    }
}

/// The pause after this many attempts: `first` doubled with each of them, `most` at most, of which
/// a random part is taken (full jitter).
fn pause_of(back_off: BackOff, attempts: u32, jitter: u16) -> Duration {
    let doublings = attempts.saturating_sub(1).min(62);
    let longest = micros(back_off.first).saturating_mul(1 << doublings).min(micros(back_off.most));
    let part = u128::from(longest) * u128::from(jitter) / u128::from(u16::MAX);
    Duration::from_micros(u64::try_from(part).unwrap_or(u64::MAX))
}

fn at_most_allowed(delay: Duration) -> Duration {
    delay.min(limits::JOB_DELAY)
}

/// Cuts a text to what is kept, at a boundary of characters.
pub(crate) fn shortened(text: &str) -> &str {
    let mut most = text.len().min(limits::ATTEMPT_ERROR_BYTES);
    while !text.is_char_boundary(most) {
        most -= 1;
    }
    &text[..most]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_the_most_and_jitter_takes_a_part_of_it() {
        let back_off = BackOff { first: Duration::from_secs(1), most: Duration::from_secs(10) };
        let longest = |attempts| pause_of(back_off, attempts, u16::MAX).as_secs();
        assert_eq!([1, 2, 3, 4, 5, 1_000].map(longest), [1, 2, 4, 8, 10, 10]);
        assert_eq!(pause_of(back_off, 3, 0), Duration::ZERO);
        let half = pause_of(back_off, 1, u16::MAX / 2).as_micros();
        assert!((499_000..=500_000).contains(&half), "{half}");
    }

    #[test]
    fn a_long_error_is_cut_between_two_characters() {
        let text = "ä".repeat(limits::ATTEMPT_ERROR_BYTES);
        assert_eq!(shortened(&text).len(), limits::ATTEMPT_ERROR_BYTES);
        assert_eq!(shortened(&format!("x{text}")).len(), limits::ATTEMPT_ERROR_BYTES - 1);
    }
}

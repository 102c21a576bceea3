//! Random programs of a job queue, step by step on the engine and on the rules in memory, with one
//! clock: every reply and every view has to be the same. Numbers of jobs and fences may differ;
//! what one engine calls a job or an attempt is translated to what the other one does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Ask, Raw, World, list, name};
use crate::contract::{
    AttemptReport, ClaimId, Engine, Error, JobAttempt, JobChange, JobFilter, JobId, JobOutcome,
    JobView, Jobs, KeyMode, Name, NewJob, Part, Pending, Pushed, QueueSettings, SessionId, Turn,
    TurnReply, samples, worker_slot,
};
use crate::engine::memory::MemoryEngine;

list! { Jobs:
    random_programs_get_the_replies_of_the_rules cites [1, 2, 3, 9] needs [Jobs];
}

fn random_programs_get_the_replies_of_the_rules(world: &World) {
    let nightly = std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly");
    for seed in 0..if nightly { 300 } else { 40 } {
        JobTwins::new(world, seed).play(60);
    }
}

/// The engine, and the rules in memory.
struct JobTwins<'a> {
    world: &'a World,
    raw: Raw,
    rules: Arc<MemoryEngine>,
    queue: Name,
    seed: u64,
    dice: u64,
    /// Two workers that live, and one without a claim.
    workers: Vec<(ClaimId, SessionId)>,
    /// Jobs and attempts of the engine, and those of the rules.
    ids: HashMap<JobId, JobId>,
    attempts: HashMap<JobAttempt, JobAttempt>,
    /// All attempts that the engine has handed out, with their worker.
    claimed: Vec<(usize, JobAttempt)>,
}

impl<'a> JobTwins<'a> {
    fn new(world: &'a World, seed: u64) -> Self {
        let (queue, raw) = (name(&format!("q{seed}")), world.raw());
        let rules = Arc::new(MemoryEngine::with_clock(world.stage().clock()));
        let slot = worker_slot(&queue).expect("a short name");
        let mut workers = Vec::new();
        for _ in 0..2 {
            let ask = Ask::part(world, Part::read(slot.clone())).lease(world.long_lease());
            let (claim, _) = raw.granted(world, ask);
            let (twin, same) = (Arc::clone(&rules), Arc::clone(&claim));
            world.now(async move { twin.claim(&same).await }).expect("the rules answer");
            workers.push((claim.id, raw.session()));
        }
        workers.push((ClaimId::new(), SessionId::new()));
        let (ids, attempts, claimed) = (HashMap::new(), HashMap::new(), Vec::new());
        let dice = seed;
        Self { world, raw, rules, queue, seed, dice, workers, ids, attempts, claimed }
    }

    fn play(mut self, steps: u32) {
        for step in 0..steps {
            let at = format!("seed {}, step {step}", self.seed);
            match self.roll(12) {
                0..=3 => self.push(&at),
                4..=7 => self.turn(&at),
                8..=9 => self.change(&at),
                10 => {
                    // The same in a whole program: where jobs are kept for a shorter time from
                    // now on, an engine may remove what is kept no longer behind the step.
                    let keep_done = Duration::from_secs(self.seed % 2 * 60);
                    let aging = Duration::from_secs(self.roll(2) * 5);
                    let settings = QueueSettings { keep_done, aging, ..QueueSettings::default() };
                    self.change_both(JobChange::Configure(settings), &at);
                }
                _ => self.world.pass(Duration::from_millis(1 + self.roll(1_500))),
            }
            self.compare(&at);
        }
    }

    fn roll(&mut self, sides: u64) -> u64 {
        samples::random(&mut self.dice) % sides
    }

    fn small(&mut self, sides: u32) -> u32 {
        u32::try_from(self.roll(sides.into())).expect("small")
    }

    /// Makes the same call of both. Returns the reply of the engine and that of the rules.
    fn both<T: Send + 'static>(
        &self,
        on_engine: impl for<'e> FnOnce(&'e dyn Jobs, &'e Name) -> Pending<'e, T> + Send + 'static,
        on_rules: impl for<'e> FnOnce(&'e dyn Jobs, &'e Name) -> Pending<'e, T> + Send + 'static,
    ) -> (T, T) {
        let (engine, rules) = (Arc::clone(self.raw.engine()), Arc::clone(&self.rules));
        let (queue, same) = (self.queue.clone(), self.queue.clone());
        let one: Result<T, Error> = self
            .world
            .now(async move { on_engine(engine.jobs().expect("it promises jobs"), &queue).await });
        let other = self.world.now(async move { on_rules(&*rules, &same).await });
        (one.expect("the engine answers"), other.expect("the rules answer"))
    }

    fn job(&mut self) -> NewJob {
        let mut job =
            NewJob::new([7, 0, 255]).priority(u8::try_from(self.roll(10)).expect("small"));
        job = job.max_attempts(1 + self.small(3));
        job = job.back_off(Duration::from_millis(10), Duration::from_millis(900));
        if self.roll(3) == 0 {
            job = job.after(Duration::from_millis(self.roll(2_000)));
        }
        if self.roll(3) == 0 {
            let modes = [KeyMode::UntilStarted, KeyMode::UntilDone, KeyMode::Replace];
            let mode = modes[self.small(3) as usize];
            job = job.key(name(&format!("k{}", self.roll(2))), mode);
        }
        if self.roll(2) == 0 {
            job = job.lane(name(&format!("lané {}", self.roll(2))), 1 + self.small(2));
        }
        job
    }

    fn push(&mut self, at: &str) {
        let jobs: Vec<NewJob> = (0..=self.roll(3)).map(|_| self.job()).collect();
        let (same, jobs) = (jobs.clone(), jobs);
        let (pushed, expected) = self.both(
            move |engine, queue| Box::pin(async move { engine.push(queue, &jobs).await }),
            move |rules, queue| Box::pin(async move { rules.push(queue, &same).await }),
        );
        let mut translated = Vec::new();
        for (one, other) in pushed.iter().zip(&expected) {
            self.ids.entry(one.id()).or_insert(other.id());
            translated.push(match *one {
                Pushed::New(id) => Pushed::New(self.id(id)),
                Pushed::Exists(id) => Pushed::Exists(self.id(id)),
                Pushed::Replaced { id, instead_of } => {
                    Pushed::Replaced { id: self.id(id), instead_of: self.id(instead_of) }
                }
            });
        }
        assert_eq!(translated, expected, "{at}: push");
    }

    fn id(&self, id: JobId) -> JobId {
        self.ids.get(&id).copied().unwrap_or(JobId(u64::MAX))
    }

    fn attempt(&self, attempt: JobAttempt) -> JobAttempt {
        self.attempts.get(&attempt).copied().unwrap_or(attempt)
    }

    fn turn(&mut self, at: &str) {
        let by = self.small(3) as usize;
        let (worker, session) = self.workers[by];
        let mut reports = Vec::new();
        for _ in 0..self.roll(3) {
            if let Some((_, attempt)) = self.some_attempt() {
                let outcome = self.outcome();
                reports.push(AttemptReport { attempt, outcome });
            }
        }
        let held = (self.roll(6) == 0).then(|| {
            let of_worker = self.claimed.iter().filter(|(other, _)| *other == by);
            of_worker.map(|(_, attempt)| *attempt).step_by(2).collect::<Vec<_>>()
        });
        let want = self.small(4) as usize;
        let turn = Turn { worker, session, reports, held, want, look: true, durable: false };
        let mut same = turn.clone();
        for report in &mut same.reports {
            report.attempt = self.attempt(report.attempt);
        }
        for attempt in same.held.iter_mut().flatten() {
            *attempt = self.attempt(*attempt);
        }
        let given = turn.clone();
        let (mut reply, expected): (TurnReply, TurnReply) = self.both(
            move |engine, queue| Box::pin(async move { engine.turn(queue, &turn).await }),
            move |rules, queue| Box::pin(async move { rules.turn(queue, &same).await }),
        );
        for (one, other) in reply.jobs.iter_mut().zip(&expected.jobs) {
            self.attempts.insert(one.attempt, other.attempt);
            self.claimed.push((by, one.attempt));
            one.attempt = other_if_same(self.id(one.attempt.job), one.attempt, other.attempt);
        }
        for attempt in &mut reply.cancelled {
            *attempt = self.attempt(*attempt);
        }
        reply.cancelled.sort_by_key(|attempt| attempt.job);
        assert_eq!(reply, expected, "{at}: {given:?}");
    }

    fn some_attempt(&mut self) -> Option<(usize, JobAttempt)> {
        let count = u32::try_from(self.claimed.len()).expect("few");
        let nth = (count > 0).then(|| self.small(count))?;
        Some(self.claimed[nth as usize])
    }

    fn outcome(&mut self) -> JobOutcome {
        let jitter = u16::try_from(self.roll(65_536)).expect("in range");
        let error = "no".repeat(1 + self.small(2_000) as usize);
        let for_good = self.roll(8) == 0;
        let retry_after = (self.roll(4) == 0).then(|| Duration::from_millis(self.roll(300)));
        match self.roll(7) {
            0 | 1 => JobOutcome::Complete,
            2 | 3 => JobOutcome::Fail { error, for_good, retry_after, jitter },
            4 => JobOutcome::Later(Duration::from_millis(self.roll(500))),
            5 => JobOutcome::GiveBack,
            _ => JobOutcome::Progress(vec![0, jitter.to_le_bytes()[0]]),
        }
    }

    fn change(&mut self, at: &str) {
        let known: Vec<JobId> = self.ids.keys().copied().collect();
        let largest = known.iter().max().copied().unwrap_or(JobId(1));
        // A job that is there, was there, or never was.
        let id = JobId(1 + self.roll(largest.0 + 1));
        let change = match self.roll(6) {
            0 | 1 => JobChange::Cancel(id),
            2 => JobChange::Delete(id),
            3 => JobChange::Retry(id),
            4 => JobChange::Pause,
            _ => JobChange::Resume,
        };
        self.change_both(change, at);
    }

    fn change_both(&self, change: JobChange, at: &str) {
        let same = match change {
            JobChange::Cancel(id) => JobChange::Cancel(self.id(id)),
            JobChange::Delete(id) => JobChange::Delete(self.id(id)),
            JobChange::Retry(id) => JobChange::Retry(self.id(id)),
            other => other,
        };
        let (changed, expected) = self.both(
            move |engine, queue| Box::pin(async move { engine.change_job(queue, &change).await }),
            move |rules, queue| Box::pin(async move { rules.change_job(queue, &same).await }),
        );
        assert_eq!(changed, expected, "{at}: {change:?}");
    }

    /// Compares all jobs, one in full, and the counts.
    fn compare(&self, at: &str) {
        let filter = JobFilter { limit: 1_000, ..JobFilter::default() };
        let (seen, expected) = self.both(
            move |engine, queue| Box::pin(async move { engine.list(queue, &filter).await }),
            move |rules, queue| Box::pin(async move { rules.list(queue, &filter).await }),
        );
        let last = seen.last().map(|job| job.id);
        let translated = |view: JobView| {
            let attempt = |(worker, fence)| {
                let attempt = self.attempt(JobAttempt { job: view.id, fence });
                (worker, attempt.fence)
            };
            JobView { id: self.id(view.id), running: view.running.map(attempt), ..view }
        };
        let seen: Vec<JobView> = seen.into_iter().map(translated).collect();
        assert_eq!(seen, expected, "{at}: the jobs");
        if let Some(id) = last {
            let other = self.id(id);
            let (one, expected) = self.both(
                move |engine, queue| Box::pin(async move { engine.job(queue, id).await }),
                move |rules, queue| Box::pin(async move { rules.job(queue, other).await }),
            );
            assert_eq!(one.map(translated), expected, "{at}: job {id}");
        }
        let (counts, expected) = self.both(
            move |engine, queue| Box::pin(async move { engine.counts(queue).await }),
            move |rules, queue| Box::pin(async move { rules.counts(queue).await }),
        );
        assert_eq!(counts, expected, "{at}: the counts");
    }
}

/// The attempt of the rules, if both are attempts at the same job.
fn other_if_same(job: JobId, one: JobAttempt, other: JobAttempt) -> JobAttempt {
    if job == other.job { other } else { one }
}

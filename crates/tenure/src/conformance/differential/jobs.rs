//! Random programs of jobs: pushes with keys and lanes, turns of three workers, losses of workers,
//! changes by operators and the passing of time, run step by step against an engine and against the
//! rules of `ledger::jobs` in the memory engine.
//!
//! Numbers of jobs and fences are those of each store: a job is known by the order of its push, an
//! attempt by the order of its claim. Times are compared as distances from the present. After every
//! step all jobs, the counts and the settings are read on both sides. Ended jobs that are kept no
//! longer are left out, because an engine may remove them later than the rules do. A worker is lost
//! in the step before a turn that looks for lost workers: without such a look, an engine may find
//! out later.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::play::Difference;
use super::play_seeds;
use super::program::Dice;
use crate::conformance::harness::Harness;
use crate::conformance::memory::MemoryHarness;
use crate::conformance::world::{Ask, Raw, World, name};
use crate::contract::{
    AttemptReport, Claim, Engine, Error, JobAttempt, JobChange, JobChanged, JobFilter, JobId,
    JobOutcome, JobState, JobView, Jobs, KeyMode, NewJob, Part, Pushed, QueueCounts, QueueSettings,
    Turn, TurnReply, worker_slot,
};

/// The queue of a program.
const QUEUE: &str = "q";
/// How many workers it has.
const WORKERS: usize = 3;

/// Runs the programs of these seeds, each of this many steps. Returns the number of steps.
///
/// # Errors
/// The first difference, with the seed and the steps before it.
pub fn run_jobs(
    harness: &dyn Harness,
    seeds: impl IntoIterator<Item = u64>,
    steps: usize,
) -> Result<usize, String> {
    play_seeds(seeds, |seed| {
        let mut dice = Dice(seed);
        let program: Vec<JobStep> = (0..steps).map(|_| JobStep::from_dice(&mut dice)).collect();
        let shown = |step: usize| program[..=step].iter().map(|one| format!("{one:?}")).collect();
        play(&program, harness).map_err(|found| (shown(found.step), found))?;
        Ok(program.len())
    })
}

fn play(program: &[JobStep], harness: &dyn Harness) -> Result<(), Difference> {
    let absent = |why: &dyn fmt::Display| Difference { step: 0, what: why.to_string() };
    let theirs = harness.open().map_err(|why| absent(&why))?;
    let ours = MemoryHarness.open().map_err(|why| absent(&why))?;
    let mut sides = [JobSide::new(World::new(theirs)), JobSide::new(World::new(ours))];
    for (at, step) in program.iter().enumerate() {
        let [theirs, ours] = &mut sides;
        let compared = theirs.step(step).and_then(|theirs| {
            let ours = ours.step(step)?;
            if theirs == ours { Ok(()) } else { Err(differ(&theirs, &ours)) }
        });
        let compared = compared.and_then(|()| {
            let [theirs, ours] = sides.each_ref().map(JobSide::seen);
            let (theirs, ours) = (theirs?, ours?);
            if theirs == ours { Ok(()) } else { Err(differ(&theirs, &ours)) }
        });
        compared.map_err(|what| Difference { step: at, what: format!("{step:?}: {what}") })?;
    }
    Ok(())
}

/// One step. Jobs and attempts are named by dice, which choose among those that are known.
#[derive(Clone, Debug)]
enum JobStep {
    Push(Vec<NewJob>),
    /// A turn of a worker, with what it reports, and whether it says what it holds.
    Turn {
        worker: usize,
        want: usize,
        reports: Vec<(u64, JobOutcome)>,
        held: bool,
    },
    /// A worker loses its claim, and another one looks for its jobs.
    Lose(usize),
    Change(u64, OperatorVerb),
    Configure(QueueSettings),
    /// Lets so many milliseconds pass.
    Pass(u64),
}

#[derive(Clone, Copy, Debug)]
enum OperatorVerb {
    Cancel,
    Delete,
    Retry,
    Pause,
    Resume,
}

impl JobStep {
    fn from_dice(dice: &mut Dice) -> Self {
        match dice.roll(20) {
            0..=5 => {
                let many = if dice.roll(4) == 0 { 1 + dice.below(4) } else { 1 };
                Self::Push((0..many).map(|_| new_job(dice)).collect())
            }
            6..=11 => {
                let reports = (0..dice.below(3)).map(|_| (dice.roll(1_000), outcome(dice)));
                let reports = reports.collect();
                let (worker, want) = (dice.below(WORKERS), dice.below(4));
                Self::Turn { worker, want, reports, held: dice.roll(4) == 0 }
            }
            12 => Self::Lose(dice.below(WORKERS)),
            13..=15 => {
                let verb = match dice.roll(10) {
                    0..=3 => OperatorVerb::Cancel,
                    4 => OperatorVerb::Delete,
                    5..=7 => OperatorVerb::Retry,
                    8 => OperatorVerb::Pause,
                    _ => OperatorVerb::Resume,
                };
                Self::Change(dice.roll(1_000), verb)
            }
            16 => {
                let kept = Duration::from_secs(dice.roll(3) * 10);
                let aging = Duration::from_secs(dice.roll(2) * 5);
                Self::Configure(QueueSettings { keep_dead: kept * 2, keep_done: kept, aging })
            }
            _ => Self::Pass(1 + dice.roll(6_000)),
        }
    }
}

fn new_job(dice: &mut Dice) -> NewJob {
    let payload = vec![7; if dice.roll(3) == 0 { 200 } else { dice.below(97) }];
    let mut job = NewJob::new(payload).priority(u8::try_from(dice.roll(10)).unwrap_or(0));
    job.max_attempts = u32::try_from(1 + dice.roll(3)).unwrap_or(1);
    if dice.roll(3) == 0 {
        job = job.after(Duration::from_secs(dice.roll(20)));
    }
    if dice.roll(3) == 0 {
        let modes = [KeyMode::UntilStarted, KeyMode::UntilDone, KeyMode::Replace];
        job = job.key(name(["k0", "k1"][dice.below(2)]), modes[dice.below(3)]);
    }
    if dice.roll(2) == 0 {
        let limit = u32::try_from(1 + dice.roll(2)).unwrap_or(1);
        job = job.lane(name(["l0", "l1"][dice.below(2)]), limit);
    }
    if dice.roll(4) == 0 {
        job = job.back_off(Duration::from_secs(3), Duration::from_secs(10));
    }
    job
}

fn outcome(dice: &mut Dice) -> JobOutcome {
    match dice.roll(8) {
        0..=2 => JobOutcome::Complete,
        3 | 4 => JobOutcome::Fail {
            error: format!("error {}", dice.roll(99)),
            for_good: dice.roll(6) == 0,
            retry_after: (dice.roll(4) == 0).then(|| Duration::from_secs(dice.roll(4))),
            jitter: u16::try_from(dice.roll(65_536)).unwrap_or(u16::MAX),
        },
        5 => JobOutcome::Later(Duration::from_secs(dice.roll(5))),
        6 => JobOutcome::GiveBack,
        _ => JobOutcome::Progress(vec![u8::try_from(dice.roll(9)).unwrap_or(0)]),
    }
}

/// One side of a program: a store, its workers, and what it has handed out.
struct JobSide {
    world: World,
    workers: Vec<JobWorker>,
    /// Numbers of jobs in the order of their pushes.
    jobs: Vec<JobId>,
    /// Attempts in the order of their claims.
    attempts: Vec<JobAttempt>,
}

struct JobWorker {
    raw: Raw,
    claim: Arc<Claim>,
    /// The attempts that it was given and has not ended, by their places.
    holds: Vec<usize>,
}

/// What both sides must agree on after a step, with jobs and attempts by their places.
type Answer = String;

impl JobSide {
    fn new(world: World) -> Self {
        let workers = (0..WORKERS).map(|_| JobWorker::new(&world)).collect();
        Self { world, workers, jobs: Vec::new(), attempts: Vec::new() }
    }

    fn step(&mut self, step: &JobStep) -> Result<Answer, String> {
        let said = |error: Error| error.to_string();
        match step {
            JobStep::Push(jobs) => {
                let given = jobs.clone();
                let pushed: Vec<Pushed> = self
                    .call(|engine| async move { of(&*engine).push(&name(QUEUE), &given).await })
                    .map_err(said)?;
                for one in &pushed {
                    if !matches!(one, Pushed::Exists(_)) {
                        self.jobs.push(one.id());
                    }
                }
                let shown = pushed.into_iter().map(|one| match one {
                    Pushed::New(id) => format!("new {:?}", self.place(id)),
                    Pushed::Exists(id) => format!("exists {:?}", self.place(id)),
                    Pushed::Replaced { id, instead_of } => {
                        format!("replaced {:?} {:?}", self.place(id), self.place(instead_of))
                    }
                });
                Ok(shown.collect::<Vec<_>>().join(", "))
            }
            JobStep::Turn { worker, want, reports, held } => {
                self.turn(*worker, *want, reports, *held, false).map_err(said)
            }
            JobStep::Lose(worker) => {
                let new = JobWorker::new(&self.world);
                let lost = std::mem::replace(&mut self.workers[*worker], new);
                lost.raw.release(&self.world, &lost.claim);
                self.turn((worker + 1) % WORKERS, 1, &[], false, true).map_err(said)
            }
            JobStep::Change(which, verb) => {
                let id = self.known(*which).map_err(said)?;
                let change = match verb {
                    OperatorVerb::Cancel => JobChange::Cancel(id),
                    OperatorVerb::Delete => JobChange::Delete(id),
                    OperatorVerb::Retry => JobChange::Retry(id),
                    OperatorVerb::Pause => JobChange::Pause,
                    OperatorVerb::Resume => JobChange::Resume,
                };
                let changed = self.change(change).map_err(said)?;
                Ok(format!("{changed:?}"))
            }
            JobStep::Configure(settings) => {
                let changed = self.change(JobChange::Configure(*settings)).map_err(said)?;
                Ok(format!("{changed:?}"))
            }
            JobStep::Pass(time) => {
                self.world.pass(Duration::from_millis(*time));
                for worker in &self.workers {
                    worker.raw.renew(&self.world, &worker.claim);
                }
                Ok(String::new())
            }
        }
    }

    fn turn(
        &mut self,
        worker: usize,
        want: usize,
        reports: &[(u64, JobOutcome)],
        held: bool,
        look: bool,
    ) -> Result<Answer, Error> {
        let attempts = self.attempts.clone();
        let mut reported: Vec<(usize, JobOutcome)> = Vec::new();
        for (which, outcome) in reports {
            // An attempt of any worker, so that stale ones are among them.
            let count = u64::try_from(attempts.len()).unwrap_or(0);
            let Some(place) = which.checked_rem(count) else { continue };
            let place = usize::try_from(place).unwrap_or(0);
            if reported.iter().all(|(other, _)| *other != place) {
                reported.push((place, outcome.clone()));
            }
        }
        let is_end = |outcome: &JobOutcome| !matches!(outcome, JobOutcome::Progress(_));
        let report = |(place, outcome): &(usize, JobOutcome)| AttemptReport {
            attempt: attempts[*place],
            outcome: outcome.clone(),
        };
        let one = &self.workers[worker];
        // Each time it says so, the worker has forgotten the first of its attempts.
        let all: Vec<JobAttempt> = one.holds.iter().skip(1).map(|place| attempts[*place]).collect();
        let turn = Turn {
            worker: one.claim.id,
            session: one.raw.session(),
            reports: reported.iter().map(report).collect(),
            held: held.then_some(all),
            want,
            look,
            durable: false,
        };
        let engine = Arc::clone(one.raw.engine());
        let reply: TurnReply =
            self.world.now(async move { of(&*engine).turn(&name(QUEUE), &turn).await })?;
        let ended = |place: &usize| {
            reported.iter().any(|(other, outcome)| other == place && is_end(outcome))
        };
        for worker in &mut self.workers {
            worker.holds.retain(|place| !ended(place));
        }
        if held && !self.workers[worker].holds.is_empty() {
            self.workers[worker].holds.remove(0);
        }
        let mut shown = vec![format!("{:?} {:?}", reply.reported, reply.next_due)];
        for job in reply.jobs {
            if self.attempts.iter().any(|before| before.fence >= job.attempt.fence) {
                shown.push("its fence is not above all before".to_owned());
            }
            self.workers[worker].holds.push(self.attempts.len());
            self.attempts.push(job.attempt);
            let (tries, bytes) = ((job.number, job.max_attempts, job.crashes), job.payload.len());
            let place = self.place(job.attempt.job);
            shown.push(format!("job {place:?} {tries:?} {bytes} {:?}", job.progress));
        }
        let mut cancelled: Vec<_> =
            reply.cancelled.iter().map(|attempt| self.attempt_place(*attempt)).collect();
        cancelled.sort_unstable();
        shown.push(format!("cancelled {cancelled:?}, paused {}", reply.paused));
        Ok(shown.join("; "))
    }

    fn change(&self, change: JobChange) -> Result<JobChanged, Error> {
        self.call(|engine| async move { of(&*engine).change_job(&name(QUEUE), &change).await })
    }

    /// What a reader sees: all jobs, the counts of those that do not end by time, the settings.
    fn seen(&self) -> Result<Answer, String> {
        let counts: QueueCounts = self
            .call(|engine| async move { of(&*engine).counts(&name(QUEUE)).await })
            .map_err(|error| error.to_string())?;
        let now = self.world.stage().clock().wall_micros();
        let since = |micros: u64| i128::from(micros) - i128::from(now);
        let views = self.views(&counts).map_err(|error| error.to_string())?;
        let shown = views.iter().map(|job| {
            let errors: Vec<_> = job
                .errors
                .iter()
                .map(|error| (error.attempt, since(error.at_micros), &error.error))
                .collect();
            let running = job.running.map(|(worker, fence)| {
                let place = self.attempt_place(JobAttempt { job: job.id, fence });
                (self.workers.iter().position(|one| one.claim.id == worker), place)
            });
            let ended = if job.ended_micros == 0 { 0 } else { since(job.ended_micros) };
            format!(
                "{:?} {} priority {} due {} pushed {} ended {ended} tries {:?} key {:?} lane {:?} \
                 running {running:?} cancelled {} progress {:?} errors {errors:?}",
                self.place(job.id),
                job.state,
                job.priority,
                since(job.due_micros),
                since(job.pushed_micros),
                (job.attempts, job.max_attempts, job.crashes),
                job.key,
                job.lane,
                job.cancelled,
                job.progress,
            )
        });
        let QueueCounts { scheduled, blocked, ready, running, paused, settings, .. } = counts;
        let counted = format!("{scheduled} {blocked} {ready} {running} {paused} {settings:?}");
        Ok(std::iter::once(counted).chain(shown).collect::<Vec<_>>().join("\n"))
    }

    /// All jobs but those that have ended and are kept no longer.
    fn views(&self, counts: &QueueCounts) -> Result<Vec<JobView>, Error> {
        let filter = JobFilter { limit: 1_000, ..JobFilter::default() };
        let views: Vec<JobView> =
            self.call(|engine| async move { of(&*engine).list(&name(QUEUE), &filter).await })?;
        let now = u128::from(self.world.stage().clock().wall_micros());
        let kept = |job: &JobView| {
            let keep = match job.state {
                JobState::Dead => counts.settings.keep_dead,
                JobState::Done => counts.settings.keep_done,
                _ => return true,
            };
            u128::from(job.ended_micros) + keep.as_micros() > now
        };
        Ok(views.into_iter().filter(kept).collect())
    }

    /// One of the jobs that can be seen, or a number that no job has.
    fn known(&self, which: u64) -> Result<JobId, Error> {
        let counts: QueueCounts =
            self.call(|engine| async move { of(&*engine).counts(&name(QUEUE)).await })?;
        let views = self.views(&counts)?;
        let place = which.checked_rem(u64::try_from(views.len()).unwrap_or(0));
        let place = place.and_then(|place| usize::try_from(place).ok());
        Ok(place.and_then(|place| views.get(place)).map_or(JobId(u64::MAX >> 12), |job| job.id))
    }

    fn place(&self, id: JobId) -> Option<usize> {
        self.jobs.iter().position(|known| *known == id)
    }

    fn attempt_place(&self, attempt: JobAttempt) -> Option<usize> {
        self.attempts.iter().position(|known| *known == attempt)
    }

    fn call<T, F>(&self, call: impl FnOnce(Arc<dyn Engine>) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.world.now(call(Arc::clone(self.workers[0].raw.engine())))
    }
}

impl JobWorker {
    /// A worker with a claim on the slot of the queue.
    fn new(world: &World) -> Self {
        let raw = world.raw();
        let slot = worker_slot(&name(QUEUE)).expect("a short name");
        let (claim, _) =
            raw.granted(world, Ask::part(world, Part::read(slot)).lease(world.long_lease()));
        Self { raw, claim, holds: Vec::new() }
    }
}

fn of(engine: &dyn Engine) -> &dyn Jobs {
    engine.jobs().expect("the engine promises jobs")
}

fn differ(theirs: &Answer, ours: &Answer) -> String {
    format!("engine:\n{theirs}\nrules:\n{ours}")
}

//! The rules of job queues, compared with a naive oracle by random programs, and story by story.

mod naive;
mod stories;

use std::collections::HashMap;
use std::time::Duration;

use self::naive::NaiveQueue;
use super::row::{JobRow, job_key};
use super::{JobHeap, JobRows, JobRules, LivingWorkers};
use crate::contract::{
    AttemptReport, ClaimId, Fence, JobAttempt, JobChange, JobChanged, JobFilter, JobId, JobOutcome,
    JobState, JobView, KeyMode, NewJob, Pushed, QueueSettings, SessionId, Turn, TurnReply, samples,
};

/// A queue in memory and the time of its tests, in microseconds.
struct Play {
    rows: JobHeap,
    now: u64,
    fences: u64,
}

impl Play {
    fn new() -> Self {
        Self { rows: JobHeap::default(), now: 1_000_000_000, fences: 0 }
    }

    fn step<T>(&mut self, verb: impl FnOnce(&mut JobRules<'_, JobHeap>) -> T) -> T {
        self.noted(verb).0
    }

    fn noted<T>(
        &mut self,
        verb: impl FnOnce(&mut JobRules<'_, JobHeap>) -> T,
    ) -> (T, super::StepNotes) {
        let mut rules = JobRules::new(&mut self.rows, self.now);
        let reply = verb(&mut rules);
        let notes = rules.finish();
        self.check();
        (reply, notes)
    }

    fn push(&mut self, job: &NewJob) -> Pushed {
        let now = self.now;
        self.step(|rules| {
            let id = JobId(rules.last_number() + 1);
            rules.take_in(JobRow::of_new(id, job, now), false)
        })
    }

    fn turn(&mut self, turn: &Turn, living: Option<&LivingWorkers>) -> TurnReply {
        let mut fences = self.fences;
        let mint = &mut |last: &mut u64| {
            fences += 1;
            *last = fences;
            Fence::new(fences)
        };
        let reply = self.step(|rules| rules.turn(turn, living, mint));
        self.fences = fences;
        reply
    }

    fn change(&mut self, change: JobChange) -> JobChanged {
        self.step(|rules| rules.change_by_operator(&change))
    }

    fn all(&mut self) -> Vec<JobView> {
        let filter = JobFilter { limit: 1_000, ..JobFilter::default() };
        self.step(|rules| rules.list(&filter))
    }

    /// Checks that indexes and counts are those of the jobs.
    fn check(&mut self) {
        let jobs: Vec<JobRow> = self
            .rows
            .rows()
            .filter(|(key, _)| key[0] == b'J')
            .map(|(key, value)| {
                let job = JobRow::decode(value).unwrap();
                assert_eq!(key[..], job_key(job.id)[..]);
                job
            })
            .collect();
        let mut expected: Vec<Vec<u8>> =
            jobs.iter().flat_map(JobRow::index_keys).map(|key| key.to_vec()).collect();
        expected.sort();
        let is_index = |key: &&Vec<u8>| b"RSBLWCE".contains(&key[0]);
        let found: Vec<Vec<u8>> =
            self.rows.rows().map(|(key, _)| key).filter(is_index).cloned().collect();
        assert_eq!(found, expected, "an index disagrees with the jobs");
        let counts = JobRules::new(&mut self.rows, self.now).counts();
        for state in JobState::ALL {
            let count = jobs.iter().filter(|job| job.state == state).count() as u64;
            assert_eq!(counts.of(state), count, "count of {state}");
        }
        for (key, value) in self.rows.rows().filter(|(key, _)| key[0] == b'K') {
            let id = JobId(u64::from_be_bytes(value[..].try_into().unwrap()));
            let holder = jobs.iter().find(|job| job.id == id).expect("a key belongs to a job");
            let name = holder.key.as_ref().expect("the job has the key").key.as_str();
            assert_eq!(name.as_bytes(), &key[1..]);
        }
    }
}

fn worker(number: u128) -> (ClaimId, SessionId) {
    (ClaimId::from_u128(number), SessionId::from_u128(number))
}

fn ask(number: u128, want: usize) -> Turn {
    let (worker, session) = worker(number);
    Turn { worker, session, reports: Vec::new(), held: None, want, look: false, durable: false }
}

fn report(number: u128, attempt: JobAttempt, outcome: JobOutcome) -> Turn {
    Turn { reports: vec![AttemptReport { attempt, outcome }], ..ask(number, 0) }
}

fn living(numbers: &[u128]) -> LivingWorkers {
    numbers.iter().map(|number| worker(*number)).map(|(id, session)| (id, Some(session))).collect()
}

fn fail(jitter: u16) -> JobOutcome {
    JobOutcome::Fail { error: "no".to_owned(), for_good: false, retry_after: None, jitter }
}

/// A small generator, so that a failure can be repeated from its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        samples::random(&mut self.0) % sides
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        let sides = of.len() as u64;
        (sides > 0).then(|| of[usize::try_from(self.roll(sides)).unwrap()].clone())
    }

    fn job(&mut self) -> NewJob {
        let mut job = NewJob::new("").priority(u8::try_from(self.roll(10)).unwrap());
        job.max_attempts = u32::try_from(1 + self.roll(3)).unwrap();
        if self.roll(3) == 0 {
            job = job.after(Duration::from_secs(self.roll(20)));
        }
        if self.roll(3) == 0 {
            let modes = [KeyMode::UntilStarted, KeyMode::UntilDone, KeyMode::Replace];
            let key = format!("k{}", self.roll(2)).parse().unwrap();
            job = job.key(key, self.pick(&modes).unwrap());
        }
        if self.roll(2) == 0 {
            let lane = format!("l{}", self.roll(2)).parse().unwrap();
            job = job.lane(lane, u32::try_from(1 + self.roll(2)).unwrap());
        }
        job
    }
}

/// What both sides of a random program remember of the attempts that were handed out.
type Attempts = HashMap<u128, Vec<JobAttempt>>;

#[test]
fn random_programs_agree_with_a_naive_oracle() {
    let nightly = std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly");
    let scale = if nightly { 20_000 } else { 600 };
    for seed in 0..scale {
        run_program(seed);
    }
}

fn run_program(seed: u64) {
    let mut dice = Dice(seed);
    let (mut play, mut naive) = (Play::new(), NaiveQueue::default());
    let mut attempts = Attempts::new();
    for step in 0..60 {
        let at = format!("seed {seed}, step {step}");
        let known: Vec<JobId> = naive.views().iter().map(|job| job.id).collect();
        match dice.roll(12) {
            0..=3 => {
                let job = dice.job();
                assert_eq!(play.push(&job), naive.push(&job, play.now), "{at}: {job:?}");
            }
            4..=6 => {
                let number = u128::from(1 + dice.roll(3));
                let mut turn = ask(number, usize::try_from(dice.roll(4)).unwrap());
                if let Some(attempt) = dice.pick(attempts.entry(number).or_default()) {
                    let outcome = outcome(&mut dice);
                    turn.reports.push(AttemptReport { attempt, outcome });
                }
                let expected = naive.turn(&turn, None, play.now, &mut play.fences.clone());
                let reply = play.turn(&turn, None);
                assert_eq!(reply, expected, "{at}: {turn:?}");
                let new = reply.jobs.iter().map(|job| job.attempt);
                attempts.entry(number).or_default().extend(new);
            }
            7 => {
                let number = u128::from(1 + dice.roll(3));
                let lives = living(&[number]);
                let turn = Turn { look: true, ..ask(number, 1) };
                let expected = naive.turn(&turn, Some(&lives), play.now, &mut play.fences.clone());
                let reply = play.turn(&turn, Some(&lives));
                assert_eq!(reply, expected, "{at}: rescue");
                let new = reply.jobs.iter().map(|job| job.attempt);
                attempts.entry(number).or_default().extend(new);
            }
            8..=9 => {
                let id = dice.pick(&known).unwrap_or(JobId(99));
                let change = match dice.roll(6) {
                    0 | 1 => JobChange::Cancel(id),
                    2 => JobChange::Delete(id),
                    3 => JobChange::Retry(id),
                    4 => JobChange::Pause,
                    _ => JobChange::Resume,
                };
                assert_eq!(play.change(change), naive.change(change, play.now), "{at}: {change:?}");
            }
            10 => {
                let kept = Duration::from_secs(dice.roll(3) * 10);
                let aging = Duration::from_secs(dice.roll(2) * 5);
                let settings = QueueSettings { keep_dead: kept * 2, keep_done: kept, aging };
                let change = JobChange::Configure(settings);
                assert_eq!(play.change(change), naive.change(change, play.now), "{at}");
            }
            _ => play.now += dice.roll(8_000_000),
        }
        // A step of the rules removes what is kept no longer.
        play.all();
        naive.sweep(play.now);
        assert_eq!(play.all(), naive.views(), "{at}: the jobs differ");
        naive.sweep(play.now);
    }
}

fn outcome(dice: &mut Dice) -> JobOutcome {
    match dice.roll(6) {
        0 | 1 => JobOutcome::Complete,
        2 => fail(u16::try_from(dice.roll(65_536)).unwrap()),
        3 => JobOutcome::Later(Duration::from_secs(dice.roll(5))),
        4 => JobOutcome::GiveBack,
        _ => JobOutcome::Progress(vec![u8::try_from(dice.roll(9)).unwrap()]),
    }
}

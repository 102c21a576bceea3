//! Queues of jobs: order, fenced attempts, rescue by the worker's claim, keys, lanes. Played on the
//! contract itself, without the worker of the library.

use std::sync::Arc;
use std::time::Duration;

use super::{Ask, Raw, World, list, name};
use crate::contract::{
    AttemptReport, Claim, ClaimId, ClaimedJob, Engine, Error, ErrorKind, JobAttempt, JobChange,
    JobChanged, JobFilter, JobId, JobOutcome, JobState, JobView, Jobs, KeyMode, NewJob, Part,
    Pushed, QueueCounts, QueueSettings, Reported, Signal, Turn, TurnReply, worker_slot,
};
use crate::limits;

list! { Jobs:
    jobs_are_claimed_by_priority_due_time_and_number cites [2] needs [Jobs];
    payloads_of_any_bytes_and_sizes_arrive cites [10] needs [Jobs];
    fences_of_attempts_grow cites [3] needs [Jobs];
    a_stale_attempt_changes_nothing cites [9] needs [Jobs];
    jobs_of_a_worker_whose_claim_expired_go_to_another cites [4] needs [Jobs];
    jobs_of_a_worker_that_released_its_claim_go_to_another cites [9] needs [Jobs];
    a_claim_whose_reply_was_lost_is_given_back cites [5] needs [Jobs];
    jobs_of_a_living_worker_stay_with_it cites [4] needs [Jobs];
    a_failed_job_comes_back_after_its_pause_and_is_dead_in_the_end cites [10] needs [Jobs];
    a_lane_runs_as_many_jobs_as_its_limit_says cites [1] needs [Jobs];
    of_many_pushes_with_one_key_at_once_one_is_new cites [1] needs [Jobs];
    a_cancelled_job_is_gone_or_told cites [9] needs [Jobs];
    a_paused_queue_hands_out_nothing cites [10] needs [Jobs];
    two_queues_do_not_meet cites [9] needs [Jobs];
    what_exceeds_a_limit_is_refused_and_changes_nothing cites [10] needs [Jobs];
    jobs_of_the_only_worker_are_free_when_its_claim_has_expired cites [4] needs [Jobs];
    pauses_double_up_to_the_longest_and_ten_errors_are_kept cites [10] needs [Jobs];
    what_is_done_is_kept_for_as_long_as_the_queue_says_and_no_longer cites [10] needs [Jobs];
    a_worker_that_sleeps_is_woken_once_for_a_job cites [8] needs [Jobs, Push];
}

/// A worker that speaks the contract itself.
struct JobClient<'a> {
    world: &'a World,
    raw: Raw,
    worker: Arc<Claim>,
}

impl<'a> JobClient<'a> {
    /// A worker of the queue `q` with a claim of this lease.
    fn with_lease(world: &'a World, lease: Duration) -> Self {
        let raw = world.raw();
        let slot = worker_slot(&name("q")).expect("a short name");
        let ask = Ask::part(world, Part::read(slot)).lease(lease);
        let (worker, _) = raw.granted(world, ask);
        Self { world, raw, worker }
    }

    fn new(world: &'a World) -> Self {
        Self::with_lease(world, world.long_lease())
    }

    fn call<T, F>(&self, call: impl FnOnce(Arc<dyn Engine>) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.world.now(call(Arc::clone(self.raw.engine())))
    }

    fn try_push(&self, queue: &str, jobs: Vec<NewJob>) -> Result<Vec<Pushed>, Error> {
        let queue = name(queue);
        self.call(|engine| async move { jobs_of(&*engine).push(&queue, &jobs).await })
    }

    #[track_caller]
    fn push(&self, job: NewJob) -> Pushed {
        self.try_push("q", vec![job]).expect("the store answers").remove(0)
    }

    fn ask(&self, want: usize) -> Turn {
        let (worker, session) = (self.worker.id, self.raw.session());
        Turn { worker, session, reports: Vec::new(), held: None, want, look: true, durable: false }
    }

    #[track_caller]
    fn turn(&self, turn: Turn) -> TurnReply {
        let queue = name("q");
        self.call(|engine| async move { jobs_of(&*engine).turn(&queue, &turn).await })
            .expect("the store answers")
    }

    #[track_caller]
    fn claim(&self, want: usize) -> Vec<ClaimedJob> {
        self.turn(self.ask(want)).jobs
    }

    #[track_caller]
    fn ids(&self, want: usize) -> Vec<JobId> {
        self.claim(want).iter().map(|job| job.attempt.job).collect()
    }

    #[track_caller]
    fn report(&self, attempt: JobAttempt, outcome: JobOutcome) -> Reported {
        let reports = vec![AttemptReport { attempt, outcome }];
        self.turn(Turn { reports, ..self.ask(0) }).reported[0]
    }

    #[track_caller]
    fn change(&self, change: JobChange) -> JobChanged {
        let queue = name("q");
        self.call(|engine| async move { jobs_of(&*engine).change_job(&queue, &change).await })
            .expect("the store answers")
    }

    #[track_caller]
    fn job(&self, id: JobId) -> Option<JobView> {
        let queue = name("q");
        self.call(|engine| async move { jobs_of(&*engine).job(&queue, id).await })
            .expect("the store answers")
    }

    #[track_caller]
    fn all(&self) -> Vec<JobView> {
        let (queue, filter) = (name("q"), JobFilter { limit: 1_000, ..JobFilter::default() });
        self.call(|engine| async move { jobs_of(&*engine).list(&queue, &filter).await })
            .expect("the store answers")
    }

    #[track_caller]
    fn counts(&self, queue: &str) -> QueueCounts {
        let queue = name(queue);
        self.call(|engine| async move { jobs_of(&*engine).counts(&queue).await })
            .expect("the store answers")
    }
}

fn jobs_of(engine: &dyn Engine) -> &dyn Jobs {
    engine.jobs().expect("the engine promises jobs")
}

fn failed(for_good: bool, jitter: u16) -> JobOutcome {
    JobOutcome::Fail { error: "no".to_owned(), for_good, retry_after: None, jitter }
}

fn jobs_are_claimed_by_priority_due_time_and_number(world: &World) {
    let client = JobClient::new(world);
    let ids: Vec<JobId> = [1, 9, 5, 5, 0]
        .map(|priority| client.push(NewJob::new("").priority(priority)).id())
        .to_vec();
    assert!(ids.is_sorted(), "numbers grow: {ids:?}");
    let later = client.push(NewJob::new("").priority(9).after(world.long_lease() * 100)).id();
    assert_eq!(client.ids(2), [ids[1], ids[2]]);
    assert_eq!(client.ids(9), [ids[3], ids[0], ids[4]]);
    assert_eq!(client.job(later).map(|job| job.state), Some(JobState::Scheduled));
    assert!(client.turn(client.ask(1)).next_due.is_some());
}

fn payloads_of_any_bytes_and_sizes_arrive(world: &World) {
    let client = JobClient::new(world);
    let payloads = [Vec::new(), vec![0, 0xff, b'\n', 0], vec![7; limits::JOB_BYTES]];
    for payload in payloads {
        let id = client.push(NewJob::new(payload.clone())).id();
        assert!(client.job(id).is_some_and(|job| job.payload == payload));
        let claimed = client.claim(1).remove(0);
        assert_eq!(claimed.payload, payload);
        assert_eq!(client.report(claimed.attempt, JobOutcome::Complete), Reported::Done);
    }
}

fn fences_of_attempts_grow(world: &World) {
    let client = JobClient::new(world);
    client.push(NewJob::new(""));
    client.push(NewJob::new(""));
    let mut last = None;
    for _ in 0..3 {
        for claimed in client.claim(2) {
            assert!(Some(claimed.attempt.fence) > last, "{claimed:?} after {last:?}");
            last = Some(claimed.attempt.fence);
            assert_eq!(client.report(claimed.attempt, JobOutcome::GiveBack), Reported::Done);
        }
    }
}

fn a_stale_attempt_changes_nothing(world: &World) {
    let client = JobClient::new(world);
    let id = client.push(NewJob::new("")).id();
    let stale = client.claim(1).remove(0).attempt;
    assert_eq!(client.report(stale, JobOutcome::GiveBack), Reported::Done);
    let current = client.claim(1).remove(0).attempt;
    let before = client.job(id);
    let progress = JobOutcome::Progress(b"half".to_vec());
    let later = JobOutcome::Later(Duration::ZERO);
    let outcomes = [JobOutcome::Complete, failed(true, 0), later, progress];
    for outcome in outcomes.into_iter().chain([JobOutcome::GiveBack]) {
        assert_eq!(client.report(stale, outcome.clone()), Reported::Stale, "{outcome:?}");
    }
    assert_eq!(client.job(id), before);
    assert_eq!(client.report(current, JobOutcome::Complete), Reported::Done);
    assert_eq!(client.report(current, JobOutcome::Complete), Reported::Stale, "it is gone");
    assert_eq!(client.job(id), None);
}

fn jobs_of_a_worker_whose_claim_expired_go_to_another(world: &World) {
    let lost = JobClient::with_lease(world, world.lease());
    let other = JobClient::new(world);
    let id = lost.push(NewJob::new("")).id();
    let stale = lost.claim(1).remove(0).attempt;
    assert!(other.claim(1).is_empty(), "its worker lives");
    world.pass(world.lease() + world.lease() / 4);
    let rescued = other.claim(1).remove(0);
    assert_eq!((rescued.attempt.job, rescued.crashes, rescued.number), (id, 1, 2));
    assert!(rescued.attempt.fence > stale.fence);
    assert_eq!(lost.report(stale, JobOutcome::Complete), Reported::Stale);
}

fn jobs_of_a_worker_that_released_its_claim_go_to_another(world: &World) {
    let gone = JobClient::new(world);
    let other = JobClient::new(world);
    gone.push(NewJob::new(""));
    gone.claim(1);
    gone.raw.release(world, &gone.worker);
    assert_eq!(other.claim(1).len(), 1);
    // A worker that has never had a claim counts as dead as well.
    let turn = Turn { worker: ClaimId::new(), look: false, ..other.ask(1) };
    other.push(NewJob::new(""));
    assert_eq!(other.turn(turn).jobs.len(), 1);
    assert_eq!(other.claim(1).len(), 1);
}

fn a_claim_whose_reply_was_lost_is_given_back(world: &World) {
    let client = JobClient::new(world);
    client.push(NewJob::new(""));
    client.push(NewJob::new(""));
    let known = client.claim(1).remove(0).attempt;
    // The worker has never seen the reply to this one.
    let lost = client.claim(1).remove(0).attempt;
    let again = client.turn(Turn { held: Some(vec![known]), ..client.ask(9) }).jobs;
    let again: Vec<JobAttempt> = again.iter().map(|job| job.attempt).collect();
    assert!(again.len() == 1 && again[0].job == lost.job && again[0].fence > lost.fence);
    assert_eq!(client.report(lost, JobOutcome::Complete), Reported::Stale);
    // It names as many attempts as it has, but one of them is not the current one.
    let held = Some(vec![known, lost]);
    let once_more = client.turn(Turn { held, ..client.ask(9) }).jobs;
    assert_eq!(once_more.len(), 1);
    assert!(once_more[0].attempt.job == lost.job && once_more[0].attempt.fence > again[0].fence);
    assert_eq!(client.report(known, JobOutcome::Complete), Reported::Done);
}

fn jobs_of_a_living_worker_stay_with_it(world: &World) {
    let (one, two) = (JobClient::new(world), JobClient::new(world));
    one.push(NewJob::new(""));
    let attempt = one.claim(1).remove(0).attempt;
    for _ in 0..3 {
        world.pass(world.lease());
        one.raw.renew(world, &one.worker);
        assert!(two.claim(1).is_empty());
    }
    assert_eq!(one.report(attempt, JobOutcome::Complete), Reported::Done);
}

fn a_failed_job_comes_back_after_its_pause_and_is_dead_in_the_end(world: &World) {
    let client = JobClient::new(world);
    let pause = world.lease();
    let job = NewJob::new("").max_attempts(2).back_off(pause, pause);
    let id = client.push(job).id();
    let first = client.claim(1).remove(0).attempt;
    assert_eq!(client.report(first, failed(false, u16::MAX)), Reported::Again(pause));
    assert!(client.claim(1).is_empty(), "not before its pause is over");
    world.pass(pause + pause / 4);
    let second = client.claim(1).remove(0);
    assert_eq!(second.number, 2);
    assert_eq!(client.report(second.attempt, failed(false, 0)), Reported::Dead);
    let dead = client.job(id).expect("dead jobs are kept");
    let errors: Vec<u32> = dead.errors.iter().map(|error| error.attempt).collect();
    assert_eq!((dead.state, errors), (JobState::Dead, vec![1, 2]));
    assert_eq!(client.change(JobChange::Retry(id)), JobChanged::Done);
    assert_eq!(client.ids(1), [id]);
}

fn a_lane_runs_as_many_jobs_as_its_limit_says(world: &World) {
    let client = JobClient::new(world);
    let job = || NewJob::new("").lane(name("l"), 2);
    let ids: Vec<JobId> = (0..4).map(|_| client.push(job()).id()).collect();
    let running = client.claim(9);
    assert_eq!(running.len(), 2);
    assert_eq!(client.counts("q").blocked, 2);
    let reports =
        vec![AttemptReport { attempt: running[0].attempt, outcome: JobOutcome::Complete }];
    let next = client.turn(Turn { reports, ..client.ask(9) }).jobs;
    assert_eq!(next.iter().map(|job| job.attempt.job).collect::<Vec<_>>(), [ids[2]]);
}

fn of_many_pushes_with_one_key_at_once_one_is_new(world: &World) {
    let client = JobClient::new(world);
    let job = || NewJob::new("").key(name("k"), KeyMode::UntilDone);
    let pushed = client.try_push("q", vec![job(), job(), job()]).expect("the store answers");
    let first = pushed[0].id();
    assert_eq!(pushed, [Pushed::New(first), Pushed::Exists(first), Pushed::Exists(first)]);
    client.claim(1);
    assert_eq!(client.push(job()), Pushed::Exists(first), "until it is done");
    let replaces = NewJob::new("").key(name("other"), KeyMode::Replace);
    let old = client.push(replaces.clone()).id();
    let replaced = client.push(replaces);
    assert!(matches!(replaced, Pushed::Replaced { instead_of, .. } if instead_of == old));
    assert_eq!(client.ids(9), [replaced.id()]);
}

fn a_cancelled_job_is_gone_or_told(world: &World) {
    let client = JobClient::new(world);
    let (waits, runs) =
        (client.push(NewJob::new("").priority(0)).id(), client.push(NewJob::new("")));
    let attempt = client.claim(1).remove(0).attempt;
    assert_eq!(attempt.job, runs.id());
    assert_eq!(client.change(JobChange::Cancel(waits)), JobChanged::Done);
    assert_eq!(client.change(JobChange::Cancel(waits)), JobChanged::Unknown);
    assert_eq!(client.change(JobChange::Cancel(runs.id())), JobChanged::Told);
    assert_eq!(client.turn(client.ask(0)).cancelled, [attempt]);
    assert_eq!(client.report(attempt, failed(false, 0)), Reported::Cancelled);
    assert!(client.all().is_empty());
}

fn a_paused_queue_hands_out_nothing(world: &World) {
    let client = JobClient::new(world);
    client.push(NewJob::new(""));
    assert_eq!(client.change(JobChange::Pause), JobChanged::Done);
    let reply = client.turn(client.ask(1));
    assert!(reply.paused && reply.jobs.is_empty());
    assert_eq!(client.change(JobChange::Resume), JobChanged::Done);
    assert_eq!(client.claim(1).len(), 1);
}

fn two_queues_do_not_meet(world: &World) {
    let client = JobClient::new(world);
    client.try_push("q2", vec![NewJob::new("")]).expect("the store answers");
    assert!(client.claim(1).is_empty());
    let counts = (client.counts("q").ready, client.counts("q2").ready);
    assert_eq!(counts, (0, 1));
}

fn jobs_of_the_only_worker_are_free_when_its_claim_has_expired(world: &World) {
    let client = JobClient::with_lease(world, world.lease());
    let ids = [client.push(NewJob::new("")).id(), client.push(NewJob::new("")).id()];
    assert_eq!(client.ids(2), ids);
    assert_eq!(client.change(JobChange::Cancel(ids[0])), JobChanged::Told);
    world.pass(world.lease() + world.lease() / 4);
    let jobs = client.turn(Turn { worker: ClaimId::new(), ..client.ask(2) }).jobs;
    assert_eq!(jobs.iter().map(|job| job.attempt.job).collect::<Vec<_>>(), [ids[1]]);
    assert_eq!(client.job(ids[0]), None, "it was cancelled");
}

fn pauses_double_up_to_the_longest_and_ten_errors_are_kept(world: &World) {
    let client = JobClient::new(world);
    let (first, most) = (Duration::from_millis(10), Duration::from_millis(50));
    let id = client.push(NewJob::new("").back_off(first, most).max_attempts(20)).id();
    for number in 1..=12 {
        let claimed = client.claim(1).remove(0);
        assert_eq!(claimed.number, number);
        let pause = most.min(first * (1 << (number - 1)));
        let reported = client.report(claimed.attempt, failed(false, u16::MAX));
        assert_eq!(reported, Reported::Again(pause), "attempt {number}");
        world.pass(pause + first);
    }
    let errors = client.job(id).expect("it is tried again").errors;
    let kept: Vec<u32> = errors.iter().map(|error| error.attempt).collect();
    assert_eq!(kept, (3..=12).collect::<Vec<u32>>(), "the oldest are forgotten");
}

fn what_is_done_is_kept_for_as_long_as_the_queue_says_and_no_longer(world: &World) {
    let client = JobClient::new(world);
    let settings = QueueSettings { keep_done: world.lease(), ..QueueSettings::default() };
    assert_eq!(client.change(JobChange::Configure(settings)), JobChanged::Done);
    let keyed = || NewJob::new("x").key(name("k"), KeyMode::UntilDone);
    let id = client.push(keyed()).id();
    let attempt = client.claim(1).remove(0).attempt;
    assert_eq!(client.report(attempt, JobOutcome::Complete), Reported::Done);
    let done = client.job(id).expect("it is kept");
    assert_eq!((done.state, done.payload), (JobState::Done, b"x".to_vec()));
    assert!(matches!(client.push(keyed()), Pushed::New(_)), "its key is free");
    world.pass(world.lease() + world.lease() / 4);
    client.claim(1);
    assert_eq!(client.job(id), None, "its time is over");
}

fn a_worker_that_sleeps_is_woken_once_for_a_job(world: &World) {
    let client = JobClient::new(world);
    let woken = || {
        let mut heard = Vec::new();
        world.until("the worker is woken", || {
            heard.extend(client.raw.heard(world));
            !heard.is_empty()
        });
        assert_eq!(heard, [Signal::Jobs { queue: name("q") }]);
    };
    assert!(client.claim(1).is_empty(), "it sleeps from here on");
    client.push(NewJob::new(""));
    woken();
    client.push(NewJob::new(""));
    assert!(client.raw.heard(world).is_empty(), "it was woken, and has not looked since");
    assert_eq!(client.claim(2).len(), 2);
    assert!(client.claim(1).is_empty(), "it sleeps again");
    assert_eq!(client.change(JobChange::Pause), JobChanged::Done);
    client.push(NewJob::new(""));
    assert!(client.raw.heard(world).is_empty(), "the queue is paused");
    assert_eq!(client.change(JobChange::Resume), JobChanged::Done);
    woken();
}

fn what_exceeds_a_limit_is_refused_and_changes_nothing(world: &World) {
    let client = JobClient::new(world);
    let wrong = [
        vec![NewJob::new(vec![0; limits::JOB_BYTES + 1])],
        vec![NewJob::new(""), NewJob::new("").priority(10)],
        vec![NewJob::new("").max_attempts(0)],
        Vec::new(),
    ];
    for jobs in wrong {
        let error = client.try_push("q", jobs).expect_err("a limit");
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
    }
    assert!(client.all().is_empty(), "all of a push, or nothing");
}

//! One rule each, told as a story.

use super::*;

fn claim_all(play: &mut Play, number: u128) -> Vec<u64> {
    play.turn(&ask(number, 100), None).jobs.iter().map(|job| job.attempt.job.0).collect()
}

#[test]
fn jobs_are_claimed_by_priority_then_due_time_then_number() {
    let mut play = Play::new();
    for (priority, delay) in [(1, 2), (9, 3), (9, 1), (1, 1), (1, 1)] {
        play.push(&NewJob::new("").priority(priority).after(Duration::from_secs(delay)));
    }
    play.now += 10_000_000;
    assert_eq!(claim_all(&mut play, 1), [3, 2, 4, 5, 1]);
}

#[test]
fn with_aging_a_job_that_waited_long_comes_before_one_of_a_higher_priority() {
    let mut play = Play::new();
    let settings = QueueSettings { aging: Duration::from_secs(10), ..QueueSettings::default() };
    play.change(JobChange::Configure(settings));
    play.push(&NewJob::new("").priority(0));
    play.now += 31_000_000;
    play.push(&NewJob::new("").priority(3));
    play.push(&NewJob::new("").priority(4));
    assert_eq!(claim_all(&mut play, 1), [3, 1, 2]);
}

#[test]
fn a_stale_attempt_changes_nothing_whatever_it_reports() {
    let mut play = Play::new();
    play.push(&NewJob::new(""));
    let stale = play.turn(&ask(1, 1), None).jobs[0].attempt;
    // Its worker is lost, and another one has the job.
    let fresh = play.turn(&ask(2, 1), Some(&living(&[2]))).jobs[0].attempt;
    assert!(fresh.job == stale.job && fresh.fence > stale.fence);
    let before = play.all();
    let progress = JobOutcome::Progress(b"half".to_vec());
    let later = JobOutcome::Later(Duration::ZERO);
    for outcome in [JobOutcome::Complete, fail(0), later, JobOutcome::GiveBack, progress] {
        let reply = play.turn(&report(1, stale, outcome), None);
        assert_eq!(reply.reported, [crate::contract::Reported::Stale]);
    }
    assert_eq!(play.all(), before);
    let done = play.turn(&report(2, fresh, JobOutcome::Complete), None);
    assert_eq!(done.reported, [crate::contract::Reported::Done]);
    assert!(play.all().is_empty());
}

#[test]
fn rescue_takes_jobs_of_workers_that_do_not_live_and_no_others() {
    let mut play = Play::new();
    for _ in 0..3 {
        play.push(&NewJob::new(""));
    }
    let lives = play.turn(&ask(1, 1), None).jobs[0].attempt.job;
    let lost = play.turn(&ask(2, 2), None).jobs;
    let rescued = play.turn(&ask(3, 9), Some(&living(&[1, 3])));
    let jobs: Vec<JobId> = rescued.jobs.iter().map(|job| job.attempt.job).collect();
    assert_eq!(jobs, [lost[0].attempt.job, lost[1].attempt.job]);
    assert!(rescued.jobs.iter().all(|job| job.crashes == 1 && job.number == 2));
    assert!(!jobs.contains(&lives));
}

#[test]
fn a_job_that_its_worker_does_not_know_of_is_given_back() {
    let mut play = Play::new();
    play.push(&NewJob::new(""));
    play.push(&NewJob::new(""));
    let known = play.turn(&ask(1, 1), None).jobs[0].attempt;
    let lost = play.turn(&ask(1, 1), None).jobs[0].attempt;
    play.turn(&Turn { held: Some(vec![known]), ..ask(1, 0) }, None);
    let states: Vec<JobState> = play.all().iter().map(|job| job.state).collect();
    assert_eq!(states, [JobState::Running, JobState::Ready]);
    let again = play.turn(&ask(1, 1), None).jobs[0].clone();
    assert_eq!((again.attempt.job, again.number), (lost.job, 1), "it does not count");
}

#[test]
fn a_job_whose_worker_dies_three_times_is_dead() {
    let mut play = Play::new();
    play.push(&NewJob::new("").max_attempts(1));
    for number in 1..=3 {
        assert_eq!(play.turn(&ask(number, 1), Some(&living(&[number]))).jobs.len(), 1);
    }
    assert!(play.turn(&ask(9, 1), Some(&living(&[9]))).jobs.is_empty());
    let job = &play.all()[0];
    assert_eq!((job.state, job.crashes, job.attempts), (JobState::Dead, 3, 0));
    assert_eq!(job.errors[0].error, "its worker died or was lost each time");
    assert_eq!(play.change(JobChange::Retry(job.id)), JobChanged::Done);
    assert_eq!(claim_all(&mut play, 9), [1]);
}

#[test]
fn a_failed_job_is_tried_again_until_its_attempts_are_used_up() {
    let mut play = Play::new();
    play.push(&NewJob::new("").max_attempts(2));
    let first = play.turn(&ask(1, 1), None).jobs[0].attempt;
    let reply = play.turn(&report(1, first, fail(u16::MAX)), None);
    assert_eq!(reply.reported, [crate::contract::Reported::Again(Duration::from_secs(1))]);
    assert_eq!(reply.next_due, Some(Duration::from_secs(1)));
    assert!(claim_all(&mut play, 1).is_empty(), "not before it is due");
    play.now += 1_000_000;
    let second = play.turn(&ask(1, 1), None).jobs[0].attempt;
    let reply = play.turn(&report(1, second, fail(0)), None);
    assert_eq!(reply.reported, [crate::contract::Reported::Dead]);
    assert_eq!(play.all()[0].errors.len(), 2);
}

#[test]
fn only_the_last_ten_errors_are_kept() {
    let mut play = Play::new();
    play.push(&NewJob::new("").max_attempts(30));
    for _ in 0..12 {
        let attempt = play.turn(&ask(1, 1), None).jobs[0].attempt;
        play.turn(&report(1, attempt, fail(0)), None);
    }
    let errors: Vec<u32> = play.all()[0].errors.iter().map(|error| error.attempt).collect();
    assert_eq!(errors, (3..=12).collect::<Vec<u32>>());
}

#[test]
fn a_lane_lets_the_next_job_in_when_one_leaves_in_the_same_step() {
    let mut play = Play::new();
    let lane = || "l".parse().unwrap();
    for priority in [4, 1, 8] {
        play.push(&NewJob::new("").lane(lane(), 1).priority(priority));
    }
    let first = play.turn(&ask(1, 9), None).jobs;
    assert_eq!(first.iter().map(|job| job.attempt.job.0).collect::<Vec<_>>(), [1]);
    let turn = Turn { want: 9, ..report(1, first[0].attempt, JobOutcome::Complete) };
    let next = play.turn(&turn, None).jobs;
    assert_eq!(next.iter().map(|job| job.attempt.job.0).collect::<Vec<_>>(), [3], "by priority");
    // A larger limit lets the one that is blocked in.
    play.push(&NewJob::new("").lane(lane(), 2));
    assert_eq!(claim_all(&mut play, 1), [2]);
}

#[test]
fn a_key_that_lasts_until_the_start_lets_the_next_job_in_beside_one_that_runs() {
    let mut play = Play::new();
    let job = |mode| NewJob::new("").key("k".parse().unwrap(), mode);
    assert_eq!(play.push(&job(KeyMode::UntilStarted)), Pushed::New(JobId(1)));
    assert_eq!(play.push(&job(KeyMode::UntilStarted)), Pushed::Exists(JobId(1)));
    let first = play.turn(&ask(1, 1), None).jobs[0].attempt;
    assert_eq!(play.push(&job(KeyMode::UntilDone)), Pushed::New(JobId(3)));
    // The first one comes back and goes on without its key.
    play.turn(&report(1, first, JobOutcome::GiveBack), None);
    assert_eq!(play.all()[0].key, None);
    assert_eq!(claim_all(&mut play, 1), [1, 3]);
    assert_eq!(play.push(&job(KeyMode::Replace)), Pushed::Exists(JobId(3)), "until it is done");
}

#[test]
fn a_job_with_the_same_key_can_take_the_place_of_one_that_waits() {
    let mut play = Play::new();
    let job = || NewJob::new("").key("k".parse().unwrap(), KeyMode::Replace);
    play.push(&job().after(Duration::from_secs(9)));
    let replaced = Pushed::Replaced { id: JobId(2), instead_of: JobId(1) };
    assert_eq!(play.push(&job()), replaced);
    assert_eq!(claim_all(&mut play, 1), [2]);
}

#[test]
fn a_running_job_that_is_cancelled_is_told_and_completion_wins_over_it() {
    let mut play = Play::new();
    play.push(&NewJob::new(""));
    play.push(&NewJob::new(""));
    let jobs = play.turn(&ask(1, 2), None).jobs;
    let (told, notes) = play.noted(|rules| rules.change_by_operator(&JobChange::Cancel(JobId(1))));
    assert_eq!((told, notes.wake), (JobChanged::Told, vec![worker(1).1]));
    play.change(JobChange::Cancel(JobId(2)));
    let reply = play.turn(&ask(1, 0), None);
    assert_eq!(reply.cancelled, [jobs[0].attempt, jobs[1].attempt]);
    let done = play.turn(&report(1, jobs[0].attempt, JobOutcome::Complete), None);
    assert_eq!(done.reported, [crate::contract::Reported::Done]);
    let gone = play.turn(&report(1, jobs[1].attempt, fail(0)), None);
    assert_eq!(gone.reported, [crate::contract::Reported::Cancelled]);
    assert!(play.all().is_empty());
}

#[test]
fn a_paused_queue_hands_out_nothing_until_it_is_resumed() {
    let mut play = Play::new();
    play.push(&NewJob::new(""));
    play.change(JobChange::Pause);
    let reply = play.turn(&ask(1, 1), None);
    assert!(reply.jobs.is_empty() && reply.paused);
    let (_, notes) = play.noted(|rules| rules.change_by_operator(&JobChange::Resume));
    assert_eq!(notes.wake, [worker(1).1], "the worker that sleeps is woken");
    assert_eq!(claim_all(&mut play, 1), [1]);
}

#[test]
fn one_sleeper_is_woken_for_each_job_that_becomes_ready() {
    let mut play = Play::new();
    for number in 1..=3 {
        play.turn(&ask(number, 1), None);
    }
    let now = play.now;
    let two = |rules: &mut JobRules<'_, JobHeap>| {
        for _ in 0..2 {
            let id = JobId(rules.last_number() + 1);
            rules.take_in(JobRow::of_new(id, &NewJob::new(""), now), false);
        }
    };
    assert_eq!(play.noted(two).1.wake.len(), 2);
    assert_eq!(play.noted(two).1.wake.len(), 1, "one is left that sleeps");
}

#[test]
fn dead_jobs_are_removed_when_they_are_kept_no_longer() {
    let mut play = Play::new();
    let keep_dead = Duration::from_secs(60);
    play.change(JobChange::Configure(QueueSettings { keep_dead, ..QueueSettings::default() }));
    play.push(&NewJob::new("").max_attempts(1));
    let attempt = play.turn(&ask(1, 1), None).jobs[0].attempt;
    play.turn(&report(1, attempt, fail(0)), None);
    play.now += 59_000_000;
    assert_eq!(play.all().len(), 1);
    play.now += 1_000_000;
    play.all();
    assert!(play.all().is_empty());
}

#[test]
fn restored_jobs_keep_what_lasts_and_nothing_runs() {
    let mut play = Play::new();
    let key = || NewJob::new("").key("k".parse().unwrap(), KeyMode::UntilStarted);
    play.push(&key());
    play.turn(&ask(1, 1), None);
    play.push(&key());
    let rows: Vec<JobRow> = (1..=2)
        .map(|id| JobRow::decode(&play.rows.get(&job_key(JobId(id))).unwrap()).unwrap())
        .collect();
    let mut after = Play::new();
    for row in rows {
        assert_eq!(after.step(|rules| rules.take_in(row.clone(), true)), Pushed::New(row.id));
    }
    let jobs = after.all();
    assert!(jobs.iter().all(|job| job.state == JobState::Ready && job.running.is_none()));
    assert!(jobs[0].key.is_some() && jobs[1].key.is_none(), "both were accepted: none is lost");
}

#[test]
fn a_row_of_another_version_is_damage() {
    let row = JobRow::of_new(JobId(1), &NewJob::new(""), 5);
    let mut bytes = row.encode().bytes().to_vec();
    assert_eq!(JobRow::decode(&bytes), Ok(row));
    bytes[0] = 2;
    assert!(JobRow::decode(&bytes).is_err());
    for cut in 1..bytes.len() {
        bytes[0] = 1;
        assert!(JobRow::decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
}

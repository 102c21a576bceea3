//! Every play under many schedules: random ones, and ones that are mean on purpose. A failure
//! prints the schedule that shows it, to be replayed with `shuttle::replay`.

/// How many schedules of each kind a play is run with.
fn schedules() -> usize {
    match std::env::var("TENURE_TEST_SCALE").as_deref() {
        Ok("nightly") => 20_000,
        _ => 400,
    }
}

fn explore(play: fn()) {
    shuttle::check_random(play, schedules());
    shuttle::check_pct(play, schedules(), 3);
}

#[test]
fn callers_take_turns() {
    explore(schedules::callers_that_take_turns);
}

#[test]
fn a_caller_may_give_up_at_any_moment() {
    explore(schedules::callers_that_give_up);
}

#[test]
fn a_close_ends_everything() {
    explore(schedules::a_close_among_callers);
}

#[test]
fn a_guard_may_outlive_its_session() {
    explore(schedules::a_guard_that_outlives_its_session);
}

#[test]
fn renewals_and_releases_do_not_hurt_each_other() {
    explore(schedules::renewals_among_releases);
}

//! The findings of `tenure doctor` for a PostgreSQL server: what an operator has to know about its
//! settings, the rights of the role, its clock and the latency, and what each means for locks.
//!
//! The queries read settings and catalogs only. Functions below `impl` judge what was read and are
//! pure.

use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresEngine;
use super::errors::{call_failed, unexpected_reply};
use super::url::Durability;
use crate::contract::{Diagnostics, Error, Finding, Health, Pending, Verb};
use crate::time::{Clock, SystemClock};

/// A larger difference between the clocks is reported.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);
/// A longer round trip is reported.
const MAX_ROUND_TRIP: Duration = Duration::from_millis(20);
/// The oldest version that the tests run with, as `server_version_num`.
const OLDEST_VERSION: i32 = 150_000;

/// Version, settings and state of the server.
const FACTS: &str = "SELECT current_setting('server_version'), \
    current_setting('server_version_num')::int, current_user::text, pg_is_in_recovery(), \
    current_setting('fsync'), current_setting('full_page_writes'), \
    current_setting('synchronous_standby_names'), current_setting('max_connections')::int, \
    (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend'), \
    current_setting('autovacuum')";
/// The tables, sequences and functions that the role may not use. @L stands for the schema, as a
/// literal.
const LACKS: &str = "SELECT coalesce(string_agg(x.what, ', ' ORDER BY x.what), '') FROM ( \
    SELECT c.relname::text AS what FROM pg_class c WHERE c.relnamespace = @L::regnamespace \
      AND c.relkind = 'r' AND NOT (has_table_privilege(c.oid, 'SELECT') \
      AND (c.relname = 'migrations' OR (has_table_privilege(c.oid, 'INSERT') \
        AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')))) \
    UNION ALL SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = @L::regnamespace \
      AND c.relkind = 'S' AND c.relname = 'numbers' \
      AND NOT (has_sequence_privilege(c.oid, 'USAGE') \
      AND has_sequence_privilege(c.oid, 'UPDATE')) \
    UNION ALL SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = @L::regnamespace \
      AND NOT has_function_privilege(p.oid, 'EXECUTE')) x";
const VERSION: &str = "SELECT max(version) FROM @S.migrations";
const TIME: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The result of one check, and its text.
type CheckResult = (Health, String);

impl Diagnostics for PostgresEngine {
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(self.run_checks())
    }
}

impl PostgresEngine {
    async fn run_checks(&self) -> Result<Vec<Finding>, Error> {
        let context = &self.inner.context;
        let location = &context.location;
        let schema = location.quoted_schema();
        let literal = format!("'{}'", schema.replace('\'', "''"));
        let facts = self.query_row(FACTS).await?;
        let version: i32 = get(&self.query_row(&VERSION.replace("@S", &schema)).await?, 0)?;
        let lacks: String = get(&self.query_row(&LACKS.replace("@L", &literal)).await?, 0)?;
        let (clock, trip) = self.compare_clocks().await?;
        let (text, number) = (get::<String>(&facts, 0)?, get::<i32>(&facts, 1)?);
        let user: String = get(&facts, 2)?;
        let pooler = if context.is_pooled() {
            let what = "transaction pooler: no notifications, waiters poll ten times a second; \
                        connect directly to be notified at once";
            (Health::Note, what.to_owned())
        } else {
            (Health::Fine, "direct: waiters are notified when they are granted".to_owned())
        };
        let found: [(&'static str, CheckResult); 9] = [
            ("server", server(&text, number)),
            ("role", role(get(&facts, 3)?)),
            ("schema", (Health::Fine, format!("{:?}, version {version}", location.schema))),
            ("access", access(&user, &lacks)),
            ("pooler", pooler),
            ("durability", durability(location.durability, &facts)?),
            ("store clock", clock),
            ("latency", latency(trip)),
            ("connections", connections(get(&facts, 8)?, get(&facts, 7)?)),
        ];
        let mut all: Vec<Finding> = found
            .into_iter()
            .map(|(check, (state, what))| Finding::new(check, state, what))
            .collect();
        if get::<String>(&facts, 9)? == "off" {
            let what = "autovacuum is off: dead rows pile up and locks become slow; turn it on";
            all.push(Finding::new("autovacuum", Health::Note, what));
        }
        Ok(all)
    }

    /// Runs a query that returns one row.
    async fn query_row(&self, text: &str) -> Result<Row, Error> {
        let pipeline =
            self.connection().get().await.map_err(|error| error.during(Verb::Inspect))?;
        let rows = pipeline.query(text.to_owned()).await;
        let rows = rows.map_err(|error| call_failed(error.as_ref()).during(Verb::Inspect))?;
        rows.into_iter().next().ok_or_else(|| unexpected_reply().during(Verb::Inspect))
    }

    /// Compares the server's clock with this host's. Of three measurements the one with the
    /// shortest round trip has the smallest error.
    async fn compare_clocks(&self) -> Result<(CheckResult, Duration), Error> {
        let mut best: Option<(Duration, i64)> = None;
        for _ in 0..3 {
            let before = SystemClock.wall_micros();
            let server: i64 = get(&self.query_row(TIME).await?, 0)?;
            let after = SystemClock.wall_micros();
            let ahead = i128::from(server) - i128::from(before.midpoint(after));
            let trip = Duration::from_micros(after.saturating_sub(before));
            let this = (trip, i64::try_from(ahead).unwrap_or(i64::MAX));
            best = best.into_iter().chain([this]).min_by_key(|(trip, _)| *trip);
        }
        let (trip, ahead) = best.unwrap_or_default();
        Ok((clock(ahead, trip / 2), trip))
    }
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, Error> {
    row.try_get(at).map_err(|error| unexpected_reply().caused_by(error).during(Verb::Inspect))
}

fn server(version: &str, number: i32) -> CheckResult {
    if number < OLDEST_VERSION {
        let what = format!("PostgreSQL {version}: older than what Tenure is tested with (15)");
        return (Health::Note, what);
    }
    (Health::Fine, format!("PostgreSQL {version}"))
}

fn role(in_recovery: bool) -> CheckResult {
    if in_recovery {
        let what = "a standby, or in recovery: it takes no writes, so no locks; name the primary";
        return (Health::Bad, what.to_owned());
    }
    (Health::Fine, "takes writes".to_owned())
}

fn access(user: &str, lacks: &str) -> CheckResult {
    if lacks.is_empty() {
        return (Health::Fine, format!("the role {user} may do all that locks need"));
    }
    let what = format!(
        "the role {user} may not use {lacks}; grant it what docs/postgres.md lists under Rights"
    );
    (Health::Bad, what)
}

fn durability(chosen: Durability, facts: &Row) -> Result<CheckResult, Error> {
    let off = |at| get::<String>(facts, at).map(|value| value == "off");
    let standbys = !get::<String>(facts, 6)?.is_empty();
    if off(4)? || off(5)? {
        let what = "fsync or full_page_writes is off: a crash of the machine may damage the \
                    database, and with it all locks; turn them on";
        return Ok((Health::Note, what.to_owned()));
    }
    Ok(match (chosen, standbys) {
        (Durability::Grace, _) => {
            let what = "grace: commits do not wait for the disk; after a crash no grants for \
                        max_lease";
            (Health::Fine, what.to_owned())
        }
        (Durability::Commit, true) => {
            let what = "commit: a grant is on disk here and on the synchronous standbys";
            (Health::Fine, what.to_owned())
        }
        (Durability::Commit, false) => {
            let what = "commit: a grant is on disk before it is returned; a standby that is \
                        promoted may not have it unless synchronous_standby_names is set";
            (Health::Fine, what.to_owned())
        }
    })
}

fn clock(ahead: i64, error: Duration) -> CheckResult {
    let apart = Duration::from_micros(ahead.unsigned_abs());
    if apart <= MAX_CLOCK_DIFFERENCE + error {
        return (Health::Fine, format!("within {:.1?} of this host's", apart + error));
    }
    let direction = if ahead > 0 { "ahead of" } else { "behind" };
    let what = format!(
        "{apart:.1?} {direction} this host's: leases are not affected, but fences depend on it \
         after a loss of commits; let NTP set both"
    );
    (Health::Note, what)
}

fn latency(trip: Duration) -> CheckResult {
    if trip <= MAX_ROUND_TRIP {
        return (Health::Fine, format!("a round trip takes {trip:.1?}"));
    }
    let what = format!("a round trip takes {trip:.1?}: a lock and its release take two of them");
    (Health::Note, what)
}

fn connections(used: i32, most: i32) -> CheckResult {
    let what = format!("{used} of {most} are in use; a process uses three");
    // A few are reserved for superusers.
    if used + 10 >= most {
        return (Health::Note, format!("{what}: raise max_connections, or put a pooler before it"));
    }
    (Health::Fine, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_amiss_is_said_with_what_to_do() {
        for ((state, what), wanted, words) in [
            (server("15.3", 150_003), Health::Fine, "15.3"),
            (server("9.6", 90_600), Health::Note, "older"),
            (role(true), Health::Bad, "name the primary"),
            (access("app", ""), Health::Fine, "app may do all"),
            (access("app", "cells, put"), Health::Bad, "may not use cells, put"),
            (clock(3_000_000, Duration::ZERO), Health::Note, "3.0s ahead of"),
            (clock(-3_000_000, Duration::ZERO), Health::Note, "3.0s behind"),
            (clock(3_000_000, Duration::from_secs(4)), Health::Fine, "within"),
            (latency(Duration::from_millis(50)), Health::Note, "two of them"),
            (connections(95, 100), Health::Note, "raise max_connections"),
        ] {
            assert_eq!(state, wanted, "{what}");
            assert!(what.contains(words), "{what}");
        }
    }
}

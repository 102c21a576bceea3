//! Looks at the server with the eyes of an operator. Knows what to ask, and what the answers mean
//! for locks.

use std::time::Duration;

use tokio_postgres::Row;

use super::url::Durability;
use super::{PostgresEngine, replies, unanswered};
use crate::contract::{Error, Finding, Health, Verb};
use crate::time::{Clock, SystemClock};

/// Clocks further apart than this are worth a word.
const APART: Duration = Duration::from_secs(1);
/// A round trip longer than this is worth a word.
const SLOW: Duration = Duration::from_millis(20);
/// The oldest version that the tests run with, as the server counts.
const OLDEST: i32 = 150_000;

/// What the server says of itself. @L stands for the schema, as a literal.
const FACTS: &str = "SELECT current_setting('server_version'), \
    current_setting('server_version_num')::int, current_user::text, pg_is_in_recovery(), \
    current_setting('fsync'), current_setting('full_page_writes'), \
    current_setting('synchronous_standby_names'), current_setting('max_connections')::int, \
    (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend'), \
    current_setting('autovacuum')";
/// What the role lacks in the schema.
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

type Judged = (Health, String);

impl PostgresEngine {
    /// Asks the server all there is to ask, and judges the answers.
    pub(super) async fn ask_the_server(&self) -> Result<Vec<Finding>, Error> {
        let setup = &self.inner.setup;
        let location = &setup.location;
        let schema = location.quoted_schema();
        let literal = format!("'{}'", schema.replace('\'', "''"));
        let facts = self.one(FACTS).await?;
        let version: i32 = get(&self.one(&VERSION.replace("@S", &schema)).await?, 0)?;
        let lacks: String = get(&self.one(&LACKS.replace("@L", &literal)).await?, 0)?;
        let (clock, trip) = self.compare_clocks().await?;
        let (text, number) = (get::<String>(&facts, 0)?, get::<i32>(&facts, 1)?);
        let user: String = get(&facts, 2)?;
        let pooler = if setup.is_pooled() {
            let what = "a transaction pooler stands between: nothing is pushed, waiters poll \
                        ten times a second; connect directly to be notified at once";
            (Health::Note, what.to_owned())
        } else {
            (Health::Fine, "direct: what is granted is pushed".to_owned())
        };
        let found: [(&'static str, Judged); 9] = [
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

    /// The only row of an answer.
    async fn one(&self, text: &str) -> Result<Row, Error> {
        let ready = self.line().ready().await.map_err(|error| error.during(Verb::Inspect))?;
        let rows = ready.look(text.to_owned()).await;
        let rows = rows.map_err(|error| unanswered(error.as_ref()).during(Verb::Inspect))?;
        rows.into_iter().next().ok_or_else(|| replies::strange().during(Verb::Inspect))
    }

    /// Of a few tries the quickest says most.
    async fn compare_clocks(&self) -> Result<(Judged, Duration), Error> {
        let mut best: Option<(Duration, i64)> = None;
        for _ in 0..3 {
            let before = SystemClock.wall_micros();
            let theirs: i64 = get(&self.one(TIME).await?, 0)?;
            let after = SystemClock.wall_micros();
            let ahead = i128::from(theirs) - i128::from(before.midpoint(after));
            let trip = Duration::from_micros(after.saturating_sub(before));
            let this = (trip, i64::try_from(ahead).unwrap_or(i64::MAX));
            best = best.into_iter().chain([this]).min_by_key(|(trip, _)| *trip);
        }
        let (trip, ahead) = best.unwrap_or_default();
        Ok((clock(ahead, trip / 2), trip))
    }
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, Error> {
    row.try_get(at).map_err(|error| replies::strange().caused_by(error).during(Verb::Inspect))
}

fn server(version: &str, number: i32) -> Judged {
    if number < OLDEST {
        let what = format!("PostgreSQL {version}: older than what Tenure is tested with (15)");
        return (Health::Note, what);
    }
    (Health::Fine, format!("PostgreSQL {version}"))
}

fn role(in_recovery: bool) -> Judged {
    if in_recovery {
        let what = "a standby, or in recovery: it takes no writes, so no locks; name the primary";
        return (Health::Bad, what.to_owned());
    }
    (Health::Fine, "takes writes".to_owned())
}

fn access(user: &str, lacks: &str) -> Judged {
    if lacks.is_empty() {
        return (Health::Fine, format!("the role {user} may do all that locks need"));
    }
    let what = format!(
        "the role {user} may not use {lacks}; grant it what docs/postgres.md lists under Rights"
    );
    (Health::Bad, what)
}

fn durability(chosen: Durability, facts: &Row) -> Result<Judged, Error> {
    let off = |at| get::<String>(facts, at).map(|value| value == "off");
    let standbys = !get::<String>(facts, 6)?.is_empty();
    if off(4)? || off(5)? {
        let what = "fsync or full_page_writes is off: a crash of the machine may damage the \
                    database, and with it all locks; turn them on";
        return Ok((Health::Note, what.to_owned()));
    }
    Ok(match (chosen, standbys) {
        (Durability::Grace, _) => {
            let what = "grace: commits are not waited for; after a crash no grants for \
                        max_lease";
            (Health::Fine, what.to_owned())
        }
        (Durability::Commit, true) => {
            let what = "commit: a grant is on disk here and with the synchronous standbys";
            (Health::Fine, what.to_owned())
        }
        (Durability::Commit, false) => {
            let what = "commit: a grant is on disk before it is given; a standby that is promoted \
                        may not have it unless synchronous_standby_names is set";
            (Health::Fine, what.to_owned())
        }
    })
}

fn clock(ahead: i64, give_or_take: Duration) -> Judged {
    let apart = Duration::from_micros(ahead.unsigned_abs());
    if apart <= APART + give_or_take {
        return (Health::Fine, format!("within {:.1?} of this host's", apart + give_or_take));
    }
    let direction = if ahead > 0 { "ahead of" } else { "behind" };
    let what = format!(
        "{apart:.1?} {direction} this host's: leases do not mind, but fences rest on it after a \
         loss of commits; let NTP set both"
    );
    (Health::Note, what)
}

fn latency(trip: Duration) -> Judged {
    if trip <= SLOW {
        return (Health::Fine, format!("a round trip takes {trip:.1?}"));
    }
    let what = format!("a round trip takes {trip:.1?}: a lock and its release take two of them");
    (Health::Note, what)
}

fn connections(used: i32, most: i32) -> Judged {
    let what = format!("{used} of {most} are taken; a process takes three");
    // The last few are for the superuser.
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

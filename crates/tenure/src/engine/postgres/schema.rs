//! The schema of tables and functions, and its migrations.
//!
//! `migrations` in the database says which version it has. A missing or older schema is migrated in
//! one transaction, under an advisory lock, so that clients that connect at once do it one after
//! the other: the second finds the work done. A newer one is refused, because its functions may be
//! other ones. Migrations only go forward.

use std::fmt::Write as _;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::connect::ConnectionContext;
use super::errors::{self, SendState};
use super::url::Location;
use crate::contract::{Error, ErrorKind, Namespace, Verb};
use crate::engine::common::runtime::EngineThread;
use crate::engine::common::texts::{Text, text};
use crate::limits;

/// One step from a version of the schema to the next. Steps only go forward.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The version that it leads to, counted from 1.
    pub version: i32,
    /// Its statements, with `@S` in place of the schema's name.
    texts: &'static [Text],
}

impl Migration {
    /// The statements for a schema. `schema` is quoted already.
    fn text(&self, schema: &str) -> String {
        let texts: Vec<&str> = self.texts.iter().map(|text| text.get()).collect();
        let mut text = texts.join("\n").replace("@S", schema);
        let version = self.version;
        let _ = write!(text, "\nINSERT INTO {schema}.migrations (version) VALUES ({version});\n");
        text
    }
}

/// All migrations, in order.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        texts: &[
            text!("postgres/sql/tables.sql"),
            text!("postgres/sql/slot.sql"),
            text!("postgres/sql/rules.sql"),
            text!("postgres/sql/claim.sql"),
            text!("postgres/sql/renew.sql"),
            text!("postgres/sql/release.sql"),
            text!("postgres/sql/evict.sql"),
            text!("postgres/sql/refuse_victim.sql"),
            text!("postgres/sql/raise_fences.sql"),
            text!("postgres/sql/inspect.sql"),
            text!("postgres/sql/cells.sql"),
            text!("postgres/sql/rates.sql"),
            text!("postgres/sql/connect.sql"),
        ],
    },
    Migration {
        version: 2,
        texts: &[
            text!("postgres/sql/jobs.sql"),
            text!("postgres/sql/push.sql"),
            text!("postgres/sql/turn.sql"),
            text!("postgres/sql/change_job.sql"),
            text!("postgres/sql/job_views.sql"),
            text!("postgres/sql/job_in.sql"),
        ],
    },
];

/// The version that this code uses.
pub(super) const VERSION: i32 = 2;

/// Serializes migrations.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7236847, 0)";

/// The statements that create the schema of a URL, to be run by a role that may. Does not connect.
///
/// # Errors
/// If the URL does not name a database.
pub fn statements(url: &str) -> Result<String, Error> {
    Ok(script(&Location::parse(url).map_err(|error| error.during(Verb::Connect))?, 0))
}

/// Creates the schema of a URL, or migrates it to the newest version. Does nothing if it has that
/// version.
///
/// # Errors
/// If the database cannot be reached, the role may not, or the schema is newer.
///
/// # Cancel safety
/// May be dropped at any time. The work is one transaction, which continues.
pub async fn migrate(url: &str) -> Result<(), Error> {
    let during = |error: Error| error.during(Verb::Connect);
    let context = Location::parse(url)
        .and_then(|location| {
            let namespace = Namespace::default();
            ConnectionContext::new(location, namespace, limits::DEFAULT_MAX_LEASE)
        })
        .map_err(during)?;
    let own = EngineThread::start("tenure-migrate").map_err(during)?;
    let work = own.handle().spawn(async move {
        let (client, connection) = context.open().await?;
        tokio::spawn(connection);
        apply(&client, &context.location).await
    });
    let gone = |_| Err(errors::unexpected_reply());
    work.await.unwrap_or_else(gone).map_err(during)
}

/// Returns the statements that lead from a version (0 for no schema) to the newest, as one
/// transaction.
pub(super) fn script(location: &Location, from: i32) -> String {
    let schema = location.quoted_schema();
    let mut text = format!("BEGIN ISOLATION LEVEL READ COMMITTED;\n{LOCK};\n");
    if from == 0 {
        let _ = writeln!(text, "CREATE SCHEMA IF NOT EXISTS {schema};");
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > from) {
        text.push_str(&migration.text(&schema));
    }
    text.push_str("COMMIT;\n");
    text
}

/// Returns the version of the schema in the database; 0 if there is none.
///
/// # Errors
/// If the query fails, or the role may not read the table.
pub(super) async fn version(client: &Client, location: &Location) -> Result<i32, Error> {
    let schema = location.quoted_schema();
    let text = format!("SELECT coalesce(max(version), 0) FROM {schema}.migrations");
    match client.query_typed(&text, &[]).await {
        Ok(rows) => rows.first().map_or(Ok(0), |row| {
            row.try_get(0).map_err(|error| errors::to_error(&error, SendState::Sent))
        }),
        Err(error) => match error.code() {
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => Ok(0),
            _ => Err(errors::to_error(&error, SendState::Sent)),
        },
    }
}

/// Creates or migrates the schema if it is not of this version.
///
/// # Errors
/// If it is newer, or the role may not create it.
pub(super) async fn ensure(client: &Client, location: &Location) -> Result<(), Error> {
    let current = version(client, location).await?;
    if current == VERSION {
        return Ok(());
    }
    refuse_newer(location, current)?;
    apply(client, location).await
}

/// Applies the missing migrations, in one transaction.
///
/// # Errors
/// If the role may not, or the schema is newer.
pub(super) async fn apply(client: &Client, location: &Location) -> Result<(), Error> {
    let failed = |error: tokio_postgres::Error| {
        let denied = matches!(
            error.code(),
            Some(&SqlState::INSUFFICIENT_PRIVILEGE | &SqlState::INVALID_SCHEMA_NAME)
        );
        let error = errors::to_error(&error, SendState::Sent);
        if !denied {
            return error;
        }
        let what =
            format!("schema {:?} is not ready, and this role may not create it", location.schema);
        Error::new(ErrorKind::Unsupported, what).with_help(
            "run `tenure migrate` once as a role that may create a schema, or have the output of \
             `tenure migrate --print` run by such a role",
        )
    };
    // The version is read under the lock: another client may have migrated meanwhile.
    let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {LOCK}");
    client.batch_execute(&begin).await.map_err(failed)?;
    let work = async {
        // A query of a missing table would abort the transaction, so this comes first.
        let schema = location.quoted_schema().replace('\'', "''");
        let text = format!("SELECT to_regclass('{schema}.migrations') IS NOT NULL");
        let rows = client.query_typed(&text, &[]).await.map_err(failed)?;
        let exists = rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false));
        let current = if exists { version(client, location).await? } else { 0 };
        refuse_newer(location, current)?;
        let text = script(location, current);
        let text = text.strip_prefix("BEGIN ISOLATION LEVEL READ COMMITTED;").unwrap_or(&text);
        client.batch_execute(text).await.map_err(failed)
    };
    let outcome = work.await;
    if outcome.is_err() {
        // The error of the work is returned, whatever the rollback comes to.
        let _ = client.batch_execute("ROLLBACK").await;
    }
    outcome
}

fn refuse_newer(location: &Location, current: i32) -> Result<(), Error> {
    if current <= VERSION {
        return Ok(());
    }
    let schema = &location.schema;
    let what = format!("schema {schema:?} has version {current}, this Tenure knows {VERSION}");
    Err(Error::new(ErrorKind::Unsupported, what)
        .with_help("use a newer Tenure everywhere, or another schema"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_counted_without_gaps() {
        let versions: Vec<i32> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert_eq!(versions, (1..=VERSION).collect::<Vec<_>>());
    }

    #[test]
    fn a_script_names_the_schema_and_nothing_is_left_to_be_filled_in() {
        let location = Location::parse("postgres://h/d?schema=a%22b").unwrap();
        let text = script(&location, 0);
        assert!(text.contains("CREATE TABLE \"a\"\"b\".slots"), "{text}");
        assert!(!text.contains("@S"), "{text}");
        assert!(!script(&location, VERSION).contains("CREATE"));
    }

    /// The functions have no way to read `limits`; so every number that they share is looked for
    /// where they use it.
    #[test]
    fn functions_and_limits_agree_on_numbers() {
        let location = Location::parse("postgres://h/d").unwrap();
        let text = script(&location, 0);
        let (holders, waiters) = (limits::HOLDERS, limits::WAITERS);
        let full = format!(
            "(p_free[i] AND s.holders >= {holders}) OR \
             (NOT p_free[i] AND p_waits AND s.waiting >= {waiters})"
        );
        for line in [
            full,
            format!("a.place := {holders};"),
            format!("WHILE s.waiting > 0 AND s.holders < {holders} LOOP"),
            format!("ORDER BY c.name, c.number LIMIT {} LOOP", limits::NAMED_HOLDERS),
            format!("least(\"tenure\".clock(), {})", limits::FENCE / 2),
            format!("WHEN p_shape < 0 THEN {} ELSE p_shape", limits::FULL_WEIGHT),
            format!("AND l.place = c.logged % {}", limits::WRITE_IDS),
            format!("SELECT p_ns, c.name, (c.logged - 1) % {}, p_id", limits::WRITE_IDS),
            format!("OR v_bytes >= {};", super::super::cells::MAX_REPLY),
        ] {
            assert!(text.contains(&line), "{line}");
        }
    }
}

//! The schema: its versions, and how it is brought in. Knows statements, not verbs.

use std::fmt::Write as _;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::errors::{self, Sent};
use super::url::Location;
use crate::contract::{Error, ErrorKind};
use crate::engine::texts::{Text, text};

/// One step from a version of the schema to the next. Steps only go forward.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The version it leads to, counted from 1.
    pub version: i32,
    /// Its statements, with `@S` for the schema.
    texts: &'static [Text],
}

impl Migration {
    /// The statements for a schema, whose name is quoted already.
    fn text(&self, schema: &str) -> String {
        let texts: Vec<&str> = self.texts.iter().map(|text| text.get()).collect();
        let mut text = texts.join("\n").replace("@S", schema);
        let version = self.version;
        let _ = write!(text, "\nINSERT INTO {schema}.migrations (version) VALUES ({version});\n");
        text
    }
}

/// All steps, in order.
pub const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    texts: &[
        text!("postgres/sql/tables.sql"),
        text!("postgres/sql/slot.sql"),
        text!("postgres/sql/rules.sql"),
        text!("postgres/sql/claim.sql"),
        text!("postgres/sql/renew.sql"),
        text!("postgres/sql/release.sql"),
        text!("postgres/sql/evict.sql"),
        text!("postgres/sql/raise_fences.sql"),
        text!("postgres/sql/inspect.sql"),
        text!("postgres/sql/cells.sql"),
        text!("postgres/sql/connect.sql"),
    ],
}];

/// The version that this code speaks to.
pub(super) const VERSION: i32 = 1;

/// Everybody who brings the schema in waits for whoever does so already.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7236847, 0)";

/// The statements that lead from a version (0 for none) to the newest, as one transaction.
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

/// The version that stands in the database; 0 for none.
///
/// # Errors
/// If the database cannot be asked, or the role may not look.
pub(super) async fn version(client: &Client, location: &Location) -> Result<i32, Error> {
    let schema = location.quoted_schema();
    let asked = format!("SELECT coalesce(max(version), 0) FROM {schema}.migrations");
    match client.query_typed(&asked, &[]).await {
        Ok(rows) => rows.first().map_or(Ok(0), |row| {
            row.try_get(0).map_err(|error| errors::to_error(&error, Sent::Yes))
        }),
        Err(error) => match error.code() {
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => Ok(0),
            _ => Err(errors::to_error(&error, Sent::Yes)),
        },
    }
}

/// Makes sure that the schema is there, in this version.
///
/// # Errors
/// If it is newer, or missing and may not be made.
pub(super) async fn ensure(client: &Client, location: &Location) -> Result<(), Error> {
    let stands = version(client, location).await?;
    if stands == VERSION {
        return Ok(());
    }
    refuse_newer(location, stands)?;
    bring_in(client, location).await
}

/// Brings in whatever is missing, in one transaction.
///
/// # Errors
/// If the role may not, or the schema is newer.
pub(super) async fn bring_in(client: &Client, location: &Location) -> Result<(), Error> {
    let failed = |error: tokio_postgres::Error| {
        let denied = matches!(
            error.code(),
            Some(&SqlState::INSUFFICIENT_PRIVILEGE | &SqlState::INVALID_SCHEMA_NAME)
        );
        let error = errors::to_error(&error, Sent::Yes);
        if !denied {
            return error;
        }
        let what =
            format!("schema {:?} is not ready, and this role may not make it", location.schema);
        Error::new(ErrorKind::Unsupported, what).with_help(
            "run `tenure migrate` once as a role that may create a schema, or hand what \
             `tenure migrate --print` prints to whoever may",
        )
    };
    // Under the lock, because somebody else may be at it.
    let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {LOCK}");
    client.batch_execute(&begin).await.map_err(failed)?;
    let work = async {
        // A failed look would end the transaction, so it is made with care.
        let schema = location.quoted_schema().replace('\'', "''");
        let asked = format!("SELECT to_regclass('{schema}.migrations') IS NOT NULL");
        let rows = client.query_typed(&asked, &[]).await.map_err(failed)?;
        let there = rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false));
        let stands = if there { version(client, location).await? } else { 0 };
        refuse_newer(location, stands)?;
        let text = script(location, stands);
        let text = text.strip_prefix("BEGIN ISOLATION LEVEL READ COMMITTED;").unwrap_or(&text);
        client.batch_execute(text).await.map_err(failed)
    };
    let outcome = work.await;
    if outcome.is_err() {
        // The first error is the one that tells.
        let _ = client.batch_execute("ROLLBACK").await;
    }
    outcome
}

fn refuse_newer(location: &Location, stands: i32) -> Result<(), Error> {
    if stands <= VERSION {
        return Ok(());
    }
    let schema = &location.schema;
    let what = format!("schema {schema:?} has version {stands}, this Tenure knows {VERSION}");
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
}

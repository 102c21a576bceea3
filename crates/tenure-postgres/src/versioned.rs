//! Tables whose rows have a version: a row is read, and written only if no other writer has changed
//! it. No lock is held in between.
//!
//! A trigger gives every inserted and every changed row a new version, from a sequence: also rows
//! that are written by programs which know nothing of versions, and no version is used twice, not
//! even by a row that was deleted and inserted again.

use std::error::Error as StdError;
use std::fmt;

use sha2::{Digest, Sha256};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::names::{Table, quoted};
use super::rows::RowKey;
use tenure::{Error, ErrorKind, Verb};
use tokio_postgres::Transaction;

/// A table whose rows have a version.
///
/// # Examples
/// ```no_run
/// # use std::error::Error;
/// # use tokio_postgres::Client;
/// # async fn example(client: &mut Client) -> Result<(), Box<dyn Error>> {
/// use tenure_postgres::VersionedTable;
///
/// let accounts = VersionedTable::new("account", "id");
/// client.batch_execute(&accounts.trigger_sql()).await?; // once
///
/// let tx = client.transaction().await?;
/// let Some(account) = accounts.read(&tx, &17_i64).await? else { return Ok(()) };
/// let balance: i64 = account.row.get("balance");
/// tx.commit().await?;
///
/// // Later, perhaps after a user has thought about it:
/// let tx = client.transaction().await?;
/// let new = balance - 10;
/// accounts.update(&tx, "balance = $1", &[&new], &17_i64, account.version).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct VersionedTable {
    table: Table,
    key: String,
    column: String,
}

/// A row and its version.
#[derive(Debug)]
pub struct VersionedRow {
    /// All columns.
    pub row: Row,
    /// To be given to [`VersionedTable::update`].
    pub version: i64,
}

/// The cause of a refused update: the row has another version than the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outdated {
    /// The version that was read.
    pub read: i64,
    /// The version that is there; `None` if the row is gone.
    pub present: Option<i64>,
}

impl fmt::Display for Outdated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.present {
            Some(present) => write!(f, "version {} was read, {present} is there", self.read),
            None => write!(f, "version {} was read, the row is gone", self.read),
        }
    }
}

impl StdError for Outdated {}

impl VersionedTable {
    /// A table, and the column of its key. Versions are in the column `version`.
    pub fn new(table: impl Into<Table>, key: &str) -> Self {
        Self { table: table.into(), key: quoted(key), column: quoted("version") }
    }

    /// Versions are in another column.
    #[must_use]
    pub fn column(mut self, column: &str) -> Self {
        self.column = quoted(column);
        self
    }

    /// The statements that add the column, a sequence, and the trigger that gives each row that is
    /// written a new version. To be run once, by the owner; running them again does no harm.
    #[must_use]
    pub fn trigger_sql(&self) -> String {
        let Self { table, column, .. } = self;
        let digest = Sha256::digest(format!("{table} {column}").as_bytes());
        let digest =
            digest[..8].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let sequence = table.sibling(&format!("tenure_versions_{digest}"));
        let function = table.sibling(&format!("tenure_version_{digest}"));
        let literal = sequence.to_string().replace('\'', "''");
        // A quote that does not occur in the names.
        let mut tag = "$tenure$".to_owned();
        while format!("{sequence}{column}").contains(&tag) {
            tag.insert(tag.len() - 1, '_');
        }
        format!(
            "CREATE SEQUENCE IF NOT EXISTS {sequence};
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} bigint NOT NULL DEFAULT 0;
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS {tag}
BEGIN
  NEW.{column} := nextval('{literal}');
  RETURN NEW;
END {tag};
DROP TRIGGER IF EXISTS tenure_version ON {table};
CREATE TRIGGER tenure_version BEFORE INSERT OR UPDATE ON {table}
  FOR EACH ROW EXECUTE FUNCTION {function}();
"
        )
    }

    /// Reads a row and its version; `None` if there is no such row.
    ///
    /// # Errors
    /// If the server refuses.
    ///
    /// # Cancel safety
    /// Reading changes nothing.
    pub async fn read<K: RowKey>(
        &self,
        transaction: &Transaction<'_>,
        key: &K,
    ) -> Result<Option<VersionedRow>, Error> {
        let Self { table, key: name, column } = self;
        let text = format!("SELECT *, {column} FROM {table} WHERE {name} = $1");
        let rows = transaction.query_typed(&text, &[(key, K::ONE)]).await;
        let rows = rows.map_err(|error| self.failed(error))?;
        let Some(row) = rows.into_iter().next() else { return Ok(None) };
        let version = row.try_get(row.len() - 1).map_err(|error| self.failed(error))?;
        Ok(Some(VersionedRow { row, version }))
    }

    /// Changes a row if it still has the version that was read. `set` is what stands between `SET`
    /// and `WHERE`, such as `"balance = $1, owner = $2"`; `params` are the values of its
    /// placeholders. Returns the new version.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the row has another version or is gone, with [`Outdated`] as the
    /// cause, and nothing is written; `InvalidOption` if the table has no trigger; otherwise if the
    /// server refuses.
    ///
    /// # Cancel safety
    /// May be dropped at any time: whether the row was changed is decided by the transaction.
    pub async fn update<K: RowKey>(
        &self,
        transaction: &Transaction<'_>,
        set: &str,
        params: &[&(dyn ToSql + Sync)],
        key: &K,
        version: i64,
    ) -> Result<i64, Error> {
        let Self { table, key: name, column } = self;
        let (nth_key, nth_version) = (params.len() + 1, params.len() + 2);
        let text = format!(
            "UPDATE {table} SET {set} WHERE {name} = ${nth_key} AND {column} = ${nth_version} \
             RETURNING {column}"
        );
        let mut all: Vec<&(dyn ToSql + Sync)> = params.to_vec();
        all.extend([key as &(dyn ToSql + Sync), &version]);
        let rows = transaction.query(&text, &all).await.map_err(|error| self.failed(error))?;
        let Some(row) = rows.first() else {
            let present = self.read(transaction, key).await?.map(|row| row.version);
            let cause = Outdated { read: version, present };
            let what = format!("a row of {table} was changed by another writer: {cause}");
            return Err(Error::new(ErrorKind::Conflict, what)
                .during(Verb::Cell)
                .with_help("read the row again, and decide again")
                .caused_by(cause));
        };
        let new: i64 = row.try_get(0).map_err(|error| self.failed(error))?;
        if new == version {
            let what = format!("{table} has no trigger that raises {column}");
            let help = "run the statements of VersionedTable::trigger_sql once";
            return Err(Error::new(ErrorKind::InvalidOption, what).with_help(help));
        }
        Ok(new)
    }

    fn failed(&self, error: tokio_postgres::Error) -> Error {
        let said = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
        let kind = match error.as_db_error() {
            Some(_) => ErrorKind::Conflict,
            None => ErrorKind::Unavailable,
        };
        let what = format!("the server refused a statement on {}: {said}", self.table);
        let error = Error::new(kind, what).caused_by(error);
        error.with_help("roll back; `retrying` repeats what may be repeated")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_quotes() {
        let table = VersionedTable::new(("a\"b", "c'd"), "id").column("v\"$tenure$");
        let sql = table.trigger_sql();
        assert!(sql.contains("ON \"a\"\"b\".\"c'd\";"), "{sql}");
        assert!(sql.contains("NEW.\"v\"\"$tenure$\" := nextval('\"a\"\"b\".\"tenure_versions_"));
        assert!(sql.contains("AS $tenure_$") && sql.contains("END $tenure_$;"), "{sql}");
    }
}

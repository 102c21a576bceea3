//! Tables that refuse a stale writer. Knows fences and rows, not who holds what.
//!
//! The rule: a row keeps the largest fence that wrote it and refuses a smaller one. Either your
//! statements say so (`FencedTable`), or a trigger does ([`fence_trigger_sql`]).

mod writing;

pub use self::writing::{FencedTable, Stale, state_fence};

use sha2::{Digest, Sha256};

use super::names::{Table, quoted};

/// The code by which the trigger refuses.
const REFUSED: &str = "TNF01";
/// Where a transaction states its fence.
const SETTING: &str = "tenure.fence";

/// The statements that make a table refuse stale writers by itself, for callers that cannot change
/// their queries. To be run once, by its owner; running them again does no harm.
///
/// The column must be there: `ALTER TABLE account ADD COLUMN fence bigint NOT NULL DEFAULT 0`.
/// From then on each transaction that inserts, changes or deletes rows states its fence first, by
/// `state_fence` or by `SELECT set_config('tenure.fence', '17', true)`; one that states none, or
/// a smaller one than a row has, is refused with the code `TNF01`.
///
/// # Examples
/// ```
/// let sql = tenure_postgres::fence_trigger_sql(("bank", "account"), "fence");
/// assert!(sql.contains(r#"ON "bank"."account""#));
/// ```
#[must_use]
pub fn fence_trigger_sql(table: impl Into<Table>, column: &str) -> String {
    let table = table.into();
    let column = quoted(column);
    let function = table.sibling(&format!("tenure_fence_{}", digest(&table, &column)));
    let body = body(&column);
    let tag = tag_for(&body);
    format!(
        "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS {tag}
{body}{tag};
DROP TRIGGER IF EXISTS tenure_fence ON {table};
CREATE TRIGGER tenure_fence BEFORE INSERT OR UPDATE OR DELETE ON {table}
  FOR EACH ROW EXECUTE FUNCTION {function}();
"
    )
}

fn body(column: &str) -> String {
    format!(
        "DECLARE
  said bigint := nullif(current_setting('{SETTING}', true), '')::bigint;
BEGIN
  IF said IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = '{REFUSED}',
      MESSAGE = format('%I takes no writes without a fence', TG_TABLE_NAME),
      HINT = 'state the fence of your lock first: SELECT set_config(''{SETTING}'', .., true)';
  END IF;
  IF TG_OP <> 'INSERT' AND OLD.{column} > said THEN
    RAISE EXCEPTION USING ERRCODE = '{REFUSED}',
      MESSAGE = format('a row of %I has fence %s, the writer has %s',
        TG_TABLE_NAME, OLD.{column}, said),
      DETAIL = format('%s %s', said, OLD.{column}),
      HINT = 'the lock was lost, and another holder has written: roll back and take it again';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  NEW.{column} := said;
  RETURN NEW;
END "
    )
}

/// A name for the function that no other table and column have: a longer one would be cut off.
fn digest(table: &Table, column: &str) -> String {
    let digest = Sha256::digest(format!("{table} {column}").as_bytes());
    digest[..8].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// A quote that does not occur in a text.
fn tag_for(text: &str) -> String {
    let mut tag = "$tenure$".to_owned();
    while text.contains(&tag) {
        tag.insert(tag.len() - 1, '_');
    }
    tag
}

#[cfg(test)]
mod tests {
    use super::fence_trigger_sql;

    #[test]
    fn names_stay_in_their_quotes() {
        let sql = fence_trigger_sql(("a\"b", "c'd"), "e\"f$tenure$");
        assert!(sql.contains("ON \"a\"\"b\".\"c'd\";"), "{sql}");
        assert!(sql.contains("OLD.\"e\"\"f$tenure$\" > said"), "{sql}");
        assert!(sql.contains("AS $tenure_$") && sql.contains("END $tenure_$;"), "{sql}");
    }
}

//! A step of a caller's transaction that waits, and that can be rolled back without the rest.
//! Knows savepoints and limits, not what is waited for.

use std::time::Duration;

use tokio_postgres::Transaction;

use super::advisory::millis;
use super::own::{Canceller, say};

/// Back to before the step: what it locked is free again, and its settings are gone.
const BACK: &str = "ROLLBACK TO SAVEPOINT tenure_step";
/// The step is no more.
const RELEASE: &str = "RELEASE SAVEPOINT tenure_step";
/// Takes what a cancellation brings too late. The server cancels by two signals; the wait takes
/// the first, and where it was granted in that moment, none. Whatever comes outside the inner
/// block is made good by going back once more.
const ABSORB: &str = "DO $$
    DECLARE till timestamptz := clock_timestamp() + interval '100 ms';
    BEGIN
      WHILE clock_timestamp() < till LOOP
        BEGIN PERFORM pg_sleep(0.02); EXCEPTION WHEN query_canceled THEN NULL; END;
      END LOOP;
    END $$";

/// A step under way. Dropped, it is cancelled and taken back.
pub(super) struct Step<'t> {
    transaction: &'t Transaction<'t>,
    canceller: &'t Canceller,
    limit: Option<Duration>,
    over: bool,
}

impl<'t> Step<'t> {
    /// Begins, and says how long the server may wait at each lock. Needs no round trip of its
    /// own.
    pub(super) fn begin(
        transaction: &'t Transaction<'t>,
        canceller: &'t Canceller,
        limit: Option<Duration>,
    ) -> Self {
        let limited = limit.map(millis).map_or_else(String::new, |limit| {
            format!(
                "; SELECT set_config('tenure.lock_timeout', current_setting('lock_timeout'), \
                 true), set_config('lock_timeout', '{limit}', true)"
            )
        });
        let text = format!("SAVEPOINT tenure_step{limited}");
        say(transaction.client(), &text);
        Self { transaction, canceller, limit, over: false }
    }

    /// It stays. Needs no round trip either.
    pub(super) fn keep(mut self) {
        self.over = true;
        let mut text = String::new();
        if self.limit.is_some() {
            text.push_str(
                "SELECT set_config('lock_timeout', current_setting('tenure.lock_timeout'), true); ",
            );
        }
        text.push_str(RELEASE);
        say(self.transaction.client(), &text);
    }

    /// It is taken back, because the server refused something in it: the transaction can go on.
    pub(super) fn undo(mut self) {
        self.over = true;
        for text in [BACK, RELEASE] {
            say(self.transaction.client(), text);
        }
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if !self.over {
            let client = self.transaction.client();
            let [behind, ..] = [BACK, ABSORB, BACK, RELEASE].map(|text| say(client, text));
            drop(self.canceller.cancel(client.cancel_token(), behind));
        }
    }
}

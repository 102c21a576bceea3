//! Transfers between accounts in opposite directions, many at once, without an order of locks.
//!
//! Each transfer locks the account it takes from, then the one it gives to. Two transfers in
//! opposite directions wait for each other; one of them is refused, releases, backs off and runs
//! again (`retry_on_deadlock`). No money is lost and none is made.
//!
//! ```sh
//! cargo run --release -p tenure --example transfers
//! ```

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tenure::{Error, Tenure};

/// The accounts of a bank. Nothing but the locks keeps two transfers apart.
#[derive(Debug)]
pub(crate) struct Bank {
    accounts: Vec<AtomicI64>,
}

impl Bank {
    /// So many accounts with so much money each.
    pub(crate) fn new(accounts: usize, money: i64) -> Self {
        Self { accounts: (0..accounts).map(|_| AtomicI64::new(money)).collect() }
    }

    /// All money of the bank.
    pub(crate) fn total(&self) -> i64 {
        self.accounts.iter().map(|account| account.load(Ordering::SeqCst)).sum()
    }

    /// Moves money from one account to another.
    ///
    /// # Errors
    /// If a lock cannot be had for another reason than a deadlock.
    pub(crate) async fn transfer(
        &self,
        tenure: &Tenure,
        from: usize,
        to: usize,
    ) -> Result<(), Error> {
        let work = || async {
            let source = tenure.mutex(format!("account:{from}"))?.lock().await?;
            let target = tenure.mutex(format!("account:{to}"))?.lock().await?;
            // Read and written apart: without the locks, transfers would overwrite each other.
            let (taken, given) = (&self.accounts[from], &self.accounts[to]);
            let (left, had) = (taken.load(Ordering::SeqCst), given.load(Ordering::SeqCst));
            tokio::task::yield_now().await;
            taken.store(left - 1, Ordering::SeqCst);
            given.store(had + 1, Ordering::SeqCst);
            target.release().await?;
            source.release().await
        };
        tenure.retry_on_deadlock(work).await
    }
}

/// Makes `transfers` transfers among the accounts, `at_once` at a time, in both directions.
///
/// # Errors
/// If one of them failed.
pub(crate) async fn run(url: &str, transfers: usize, at_once: usize) -> Result<i64, Error> {
    let builder = Tenure::builder().deadlock_delay(Duration::from_millis(20));
    let tenure = builder.connect(url).await?;
    let bank = std::sync::Arc::new(Bank::new(8, 1_000));
    let mut workers = Vec::new();
    for worker in 0..at_once {
        let (tenure, bank) = (tenure.clone(), std::sync::Arc::clone(&bank));
        workers.push(tokio::spawn(async move {
            for transfer in (worker..transfers).step_by(at_once) {
                let (a, b) = (transfer % 8, (transfer / 8 + transfer + 1) % 8);
                if a != b {
                    let (from, to) = if worker % 2 == 0 { (a, b) } else { (b, a) };
                    bank.transfer(&tenure, from, to).await?;
                }
            }
            Ok::<(), Error>(())
        }));
    }
    for worker in workers {
        worker.await.expect("a worker does not panic")?;
    }
    Ok(bank.total())
}

#[tokio::main]
#[allow(dead_code, reason = "a test runs the rest of this file")]
async fn main() -> Result<(), Error> {
    let total = run("memory:", 5_000, 32).await?;
    println!("5,000 transfers done; {total} in all accounts, as before");
    Ok(())
}

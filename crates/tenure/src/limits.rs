//! Every limit of Tenure in one place. Knows numbers and nothing else.
//!
//! A limit that is hit gives an error that names it; nothing is cut off in silence. The assertions
//! at the end keep the numbers consistent with each other.

use std::time::Duration;

/// Longest name of a lock or namespace, in bytes of UTF-8.
pub const NAME_BYTES: usize = 255;
/// Longest free label, in bytes of UTF-8.
pub const LABEL_BYTES: usize = 128;
/// Longest reason given with a forced release, in bytes of UTF-8.
pub const REASON_BYTES: usize = 512;
/// Shortest lease that still leaves room for three renewals and a margin.
pub const MIN_LEASE: Duration = Duration::from_millis(100);
/// Lease of a lock that does not say otherwise.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// Longest lease of a namespace that does not say otherwise.
pub const DEFAULT_MAX_LEASE: Duration = Duration::from_secs(60);
/// Longest lease a namespace may allow.
pub const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest time a caller may ask to wait.
pub const MAX_WAIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Longest `max_hold`.
pub const MAX_HOLD: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Longest lock delay.
pub const MAX_LOCK_DELAY: Duration = Duration::from_secs(60 * 60);
/// Most permits of a semaphore.
pub const PERMITS: u32 = i32::MAX.cast_unsigned();
/// Capacity of a read-write lock, and the weight of its writer.
pub const FULL_WEIGHT: u32 = PERMITS;
/// Most names in one set.
pub const SET_NAMES: usize = 64;
/// Most living holders of one slot, re-entries through the store included.
pub const HOLDERS: usize = 10_000;
/// Most living waiters of one slot.
pub const WAITERS: usize = 10_000;
/// Deepest nesting of owners (`tenure run` inside `tenure run` ...).
pub const ANCESTORS: usize = 32;
/// Most re-entries of one hold inside a process.
pub const REENTRIES: u32 = 65_535;
/// Most claims in one renew or release call.
pub const BATCH: usize = 256;
/// Most holders and waiters named in a refusal or in a timed-out wait.
pub const NAMED_HOLDERS: usize = 8;
/// Most slots in one page of an inspection.
pub const PAGE: usize = 1_000;
/// Most slots in a picture of what can be reached from an owner.
pub const REACH_SLOTS: usize = 4_096;
/// Most holds and waits that one verdict on a deadlock compares: an etcd transaction takes 128
/// comparisons, and a Redis serves no other client meanwhile. A larger deadlock is reported.
pub const DEADLOCK_FACTS: usize = 120;
/// Longest description of a deadlock that its victim receives, in bytes of UTF-8.
pub const DEADLOCK_WORDS: usize = 1_536;
/// How many members of a deadlock its description names.
pub const NAMED_MEMBERS: usize = 8;
/// How long a claim waits before it looks for a deadlock, unless the builder says otherwise.
pub const DEADLOCK_DELAY: Duration = Duration::from_secs(1);
/// Shortest and longest time that a claim waits before it looks for a deadlock.
pub const MIN_DEADLOCK_DELAY: Duration = Duration::from_millis(10);
/// See [`MIN_DEADLOCK_DELAY`].
pub const MAX_DEADLOCK_DELAY: Duration = Duration::from_secs(60 * 60);
/// How often work is run again that was refused as a deadlock's victim.
pub const DEADLOCK_RETRIES: u32 = 16;
/// Largest victim priority, and smallest if negative.
pub const VICTIM_PRIORITY: i8 = 100;
/// Largest value of a cell, in bytes.
pub const CELL_BYTES: usize = 256 * 1024;
/// Most cells in one batch.
pub const CELL_PARTS: usize = 32;
/// Most bytes of all values of one batch.
pub const BATCH_BYTES: usize = 1024 * 1024;
/// How many ids of writes a store remembers for each cell.
pub const WRITE_IDS: usize = 128;
/// How many ids of its own writes a session remembers, to tell a repeat from a first attempt.
pub const SENT_IDS: usize = 256;
/// How often an update of a cell applies its function, unless it says otherwise.
pub const UPDATE_TRIES: u32 = 64;
/// For how long an update of a cell is tried, unless it says otherwise.
pub const UPDATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest pause of an update after a conflict.
pub const UPDATE_PAUSE: Duration = Duration::from_millis(50);
/// Most permits of a limit of a rate, and most that can be settled.
pub const RATE_PERMITS: u64 = 1_000_000_000;
/// Most limits of one rate.
pub const RATE_LIMITS: usize = 8;
/// Shortest window of a limit of a rate.
pub const MIN_RATE_WINDOW: Duration = Duration::from_millis(1);
/// Longest window of a limit of a rate.
pub const RATE_WINDOW: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// From so many entries on, what is taken within a part of the window, one in so many, is one
/// entry.
pub const RATE_ENTRIES: u64 = 1_024;
/// Fences stay below this, so that stores which count in doubles keep them exact.
pub const FENCE: u64 = 1 << 53;
/// The highest number that fences can be raised above: room for 2^40 grants stays.
pub const FENCE_FLOOR: u64 = FENCE - (1 << 40);
/// Smallest margin between the end of a lease and the instant we stop trusting it.
pub const MIN_MARGIN: Duration = Duration::from_millis(2);
/// Time limit of one call to the store.
pub const CALL: Duration = Duration::from_secs(2);
/// How long `close` waits for the store to confirm all releases.
pub const CLOSE: Duration = Duration::from_secs(3);
/// How many times a try-claim is sent before its caller gets `Unavailable`. A claim that may
/// wait is sent until its wait is over.
pub const CLAIM_TRIES: u32 = 3;
/// Longest pause between two attempts to reach a store that is away, without the jitter.
pub const BACK_OFF: Duration = Duration::from_secs(1);
/// Most replicas that may be asked for.
pub const REPLICAS: u32 = 64;
/// Most levels of locks.
pub const LEVELS: usize = 64;
/// Most classes that an order checker learns; locks of further classes are not checked.
pub const ORDER_CLASSES: usize = 1_000_000;
/// Most reports that an order checker keeps; later ones are logged all the same.
pub const ORDER_REPORTS: usize = 256;
/// Most places in the code for which habits are reported.
pub const ORDER_PLACES: usize = 10_000;
/// Most locks that an owner brings along from another process.
pub const ORDER_INHERITED: usize = 128;
/// Most bytes of these locks in the text of an owner: servers limit a header to about 8,000.
pub const ORDER_INHERITED_BYTES: usize = 4_000;
/// How often a process that checks locks writes that its build was seen, at least.
pub const ORDER_SEEN_EVERY: Duration = Duration::from_secs(6 * 60 * 60);
/// How often a process reads the edges of all services after it has written some, at most.
pub const ORDER_REREAD_EVERY: Duration = Duration::from_secs(1);
/// A build of a service is gone when another one was seen this long after it.
pub const ORDER_BUILD_GONE: Duration = Duration::from_secs(2 * 24 * 60 * 60);
/// Most edges that one lock writes again, or removes, for the sake of others.
pub const ORDER_REFRESHED: usize = 64;
/// How long a store keeps a learned edge that no process learns again.
pub const ORDER_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Longest time that replicas may be given.
pub const REPLICAS_WITHIN: Duration = Duration::from_millis(1_500);
/// Largest payload of a job, in bytes.
pub const JOB_BYTES: usize = 256 * 1024;
/// Largest progress report of a job, in bytes.
pub const PROGRESS_BYTES: usize = 4 * 1024;
/// Longest text of an attempt's error that is kept, in bytes.
pub const ATTEMPT_ERROR_BYTES: usize = 2 * 1024;
/// How many errors of attempts are kept with a job.
pub const ATTEMPT_ERRORS: usize = 10;
/// Highest priority of a job; the lowest is 0.
pub const JOB_PRIORITIES: u8 = 9;
/// Priority of a job that does not say otherwise.
pub const JOB_PRIORITY: u8 = 4;
/// Attempts of a job that does not say otherwise.
pub const JOB_ATTEMPTS: u32 = 20;
/// Most attempts of a job.
pub const JOB_MAX_ATTEMPTS: u32 = 1_000;
/// After so many workers died while they ran a job, it is dead.
pub const JOB_CRASHES: u32 = 3;
/// Longest key and longest lane of a job, in bytes.
pub const JOB_KEY_BYTES: usize = 200;
/// Longest back-off of a job.
pub const JOB_BACK_OFF: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest time until a job is due.
pub const JOB_DELAY: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);
/// Most jobs in one push.
pub const PUSHED_JOBS: usize = 1_000;
/// Most bytes of all payloads of one push.
pub const PUSH_BYTES: usize = 4 * 1024 * 1024;
/// Most jobs that one worker runs at once, most jobs that a turn claims, and most attempts that it
/// reports.
pub const WORKER_SLOTS: usize = 256;
/// Most jobs of one lane that are ready or run at once.
pub const LANE_JOBS: u32 = 1_000;
/// Most recurring jobs of a queue.
pub const RECURRING_JOBS: usize = 100;
/// Largest payload of a recurring job, in bytes.
pub const RECURRING_BYTES: usize = 2 * 1024;
/// Longest cron expression, in bytes.
pub const CRON_BYTES: usize = 200;
/// How long dead jobs are kept, unless the queue says otherwise.
pub const KEEP_DEAD: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Longest time that dead jobs, and jobs that are done, are kept.
pub const KEEP_JOBS: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// Longest time that one step of priority may be worth.
pub const AGING: Duration = Duration::from_secs(24 * 60 * 60);
/// Most dead jobs of one queue. The oldest are removed first.
pub const DEAD_JOBS: u64 = 100_000;

// A release that is answered by a call's time limit is waited for.
const _: () = assert!(CALL.as_millis() < CLOSE.as_millis());
// A connection on which nothing comes for the time of a call is given up.
const _: () = assert!(REPLICAS_WITHIN.as_millis() < CALL.as_millis());
const _: () = assert!(MIN_LEASE.as_millis() >= 10 * MIN_MARGIN.as_millis());
const _: () = assert!(DEFAULT_LEASE.as_millis() <= DEFAULT_MAX_LEASE.as_millis());
const _: () = assert!(DEFAULT_MAX_LEASE.as_millis() <= MAX_LEASE.as_millis());
const _: () = assert!(MIN_LEASE.as_millis() < DEFAULT_LEASE.as_millis());
const _: () = assert!(SET_NAMES <= BATCH);
const _: () = assert!(4 * ORDER_SEEN_EVERY.as_secs() <= ORDER_BUILD_GONE.as_secs());
const _: () = assert!(2 * ORDER_BUILD_GONE.as_secs() <= ORDER_KEPT.as_secs());
// A session that filled the log of a cell alone still knows all of its ids.
const _: () = assert!(WRITE_IDS < SENT_IDS);
const _: () = assert!(NAMED_HOLDERS <= HOLDERS);
// A window after the present instant is a number that stores which count in doubles keep exact.
const _: () = assert!(RATE_WINDOW.as_micros() < (FENCE / 4) as u128);
// The weights of all holders plus one more never overflow a u64, and reads never fill the capacity.
const _: () = assert!((HOLDERS as u64) < FULL_WEIGHT as u64);

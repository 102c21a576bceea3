//! Rates: one request at a time, beside what people would use instead in the same run: a bare GCRA
//! script with a plain client, a bare upsert function, a pair of a lock, the crate `governor`. All
//! requests are allowed: the limits are wide.
//!
//! In a window of a minute entries are merged after the first thousand requests. So there is a
//! second figure where entries leave the window as fast as new ones come: `sliding`.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use servers::Redis;
use tenure::{Error, ErrorKind, Rate, Tenure};

use super::stores::{StoreKind, failed};
use crate::figure::{Aim, Figure};
use crate::run::{Bench, Run};
use crate::stats::{median, nanos_each};

/// Requests in a block: short enough that both sides meet the same moments of the machine.
const BLOCK: u32 = 30;
const PERMITS: u64 = 1_000_000_000;
const WINDOW: Duration = Duration::from_secs(60);
/// A window with some dozens of requests.
const SHORT: Duration = Duration::from_millis(5);

/// GCRA in a few lines, as it is written by hand.
const GCRA: &str = "
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local lasts, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
if tat + lasts - burst > now then return {0, tat + lasts - burst - now} end
redis.call('SET', KEYS[1], string.format('%.0f', tat + lasts), 'PX', 60000)
return {1, 0}";

/// A counter per window, as it is written by hand: not exact.
const UPSERT: &str = "
    CREATE TABLE counters (name text PRIMARY KEY, since timestamptz NOT NULL, n bigint NOT NULL);
    CREATE FUNCTION count_one(p_name text, p_most bigint) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO counters AS c VALUES (p_name, date_trunc('minute', clock_timestamp()), 1)
        ON CONFLICT (name) DO UPDATE SET since = EXCLUDED.since,
          n = CASE WHEN c.since = EXCLUDED.since THEN c.n + 1 ELSE 1 END
        WHERE c.since <> EXCLUDED.since OR c.n < p_most;
      RETURN FOUND;
    END $$;";

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        Bench::new(&["take"], memory),
        Bench::new(&["take_embedded"], embedded),
        Bench::new(
            &["take_redis", "take_redis_sliding", "take_redis_server", "bytes_per_permit_redis"],
            redis,
        ),
        Bench::new(&["take_postgres", "take_postgres_sliding"], postgres),
    ]
}

fn rate(tenure: &Tenure) -> Result<Rate, Error> {
    Ok(tenure.rate("bench")?.limit(PERMITS, WINDOW))
}

/// Microseconds a request.
async fn takes(rate: &Rate) -> Result<f64, Error> {
    let start = Instant::now();
    for _ in 0..BLOCK {
        if !rate.take(1).await?.is_allowed() {
            return Err(Error::new(ErrorKind::Limit, "the limit of the benchmark is too low"));
        }
    }
    Ok(nanos_each(start, BLOCK) / 1e3)
}

fn figure(name: &'static str, samples: &[f64], beside: &[f64], note: &'static str) -> Figure {
    Figure::new(name, median(samples), "us", note).relative_to(median(beside))
}

fn memory(run: &Run) -> Result<Vec<Figure>, Error> {
    let blocks = run.count(3, 400);
    run.in_task(async move {
        let tenure = Tenure::connect("memory:").await?;
        let rate = rate(&tenure)?;
        let quota = governor::Quota::per_minute(NonZeroU32::MAX);
        let limiter = governor::RateLimiter::direct(quota);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..blocks {
            ours.push(takes(&rate).await?);
            let start = Instant::now();
            for _ in 0..BLOCK {
                let _ = std::hint::black_box(limiter.check());
            }
            theirs.push(nanos_each(start, BLOCK) / 1e3);
        }
        let figure = figure("take", &ours, &theirs, "x governor, which keeps one number");
        Ok(vec![figure.judged_by(Aim::AtMost(3.0))])
    })
}

fn embedded(run: &Run) -> Result<Vec<Figure>, Error> {
    let (blocks, store) = (run.count(3, 400), StoreKind::Embedded.start()?);
    let url = store.url.clone();
    run.in_task(async move {
        let tenure = Tenure::connect(&url).await?;
        let (rate, mutex) = (rate(&tenure)?, tenure.mutex("bench")?);
        let (mut ours, mut pairs) = (Vec::new(), Vec::new());
        for _ in 0..blocks {
            ours.push(takes(&rate).await?);
            let start = Instant::now();
            for _ in 0..BLOCK {
                mutex.lock().await?.release().await?;
            }
            pairs.push(nanos_each(start, BLOCK) / 1e3);
        }
        let figure = figure("take_embedded", &ours, &pairs, "x a pair of a lock");
        Ok(vec![figure.judged_by(Aim::AtMost(2.0))])
    })
}

fn redis(run: &Run) -> Result<Vec<Figure>, Error> {
    let server = Redis::builder().try_start().map_err(|why| failed(&why))?;
    let (blocks, url, permits) = (run.count(3, 400), server.url(), run.count(50, 1_000));
    let (ours, sliding, theirs, costs, bytes) = run.in_task(async move {
        let tenure = Tenure::connect(&url).await?;
        let wrong = |error: redis::RedisError| failed(&error);
        let client = redis::Client::open(url).map_err(wrong)?;
        let mut bare = client.get_multiplexed_async_connection().await.map_err(wrong)?;
        let script = redis::Script::new(GCRA);
        let (rate, short) = (rate(&tenure)?, tenure.rate("short")?.limit(PERMITS, SHORT));
        let (mut ours, mut sliding, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        let mut costs = [Vec::new(), Vec::new()];
        let script_micros =
            || f64::from(u32::try_from(server.command_micros("evalsha")).unwrap_or(0));
        for _ in 0..blocks {
            let before = script_micros();
            ours.push(takes(&rate).await?);
            costs[0].push((script_micros() - before) / f64::from(BLOCK));
            sliding.push(takes(&short).await?);
            let before = script_micros();
            let start = Instant::now();
            for _ in 0..BLOCK {
                let mut call = script.key("gcra");
                let call = call.arg(1).arg(60_000_000);
                let (_, _): (u32, u64) = call.invoke_async(&mut bare).await.map_err(wrong)?;
            }
            theirs.push(nanos_each(start, BLOCK) / 1e3);
            costs[1].push((script_micros() - before) / f64::from(BLOCK));
        }
        let fresh = tenure.rate("fresh")?.limit(PERMITS, WINDOW);
        for _ in 0..permits {
            let _ = fresh.take(1).await?;
        }
        let mut usage = redis::cmd("MEMORY");
        usage.arg("USAGE").arg("tenure:{default}:rate:fresh:0").arg("SAMPLES").arg(0);
        let bytes: u32 = usage.query_async(&mut bare).await.map_err(wrong)?;
        Ok::<_, Error>((ours, sliding, theirs, costs, bytes))
    })?;
    let take = figure("take_redis", &ours, &theirs, "x a bare GCRA script with a plain client");
    let note = "the same while as many permits leave the window as come";
    let sliding = figure("take_redis_sliding", &sliding, &theirs, note);
    let note = "the server's own time for the script, x that of GCRA";
    let cost = figure("take_redis_server", &costs[0], &costs[1], note);
    let each = f64::from(bytes) / f64::from(permits);
    let bytes = Figure::new("bytes_per_permit_redis", each, "bytes", "its key and head included");
    let take = take.judged_by(Aim::AtMost(1.15));
    Ok(vec![take, sliding, cost, bytes.judged_by(Aim::AtMost(12.0))])
}

fn postgres(run: &Run) -> Result<Vec<Figure>, Error> {
    let (blocks, store) = (run.count(2, 100), StoreKind::Postgres.start()?);
    let url = store.url.clone();
    run.in_task(async move {
        let tenure = Tenure::connect(&url).await?;
        let (rate, short) = (rate(&tenure)?, tenure.rate("short")?.limit(PERMITS, SHORT));
        let wrong = |error: tokio_postgres::Error| failed(&error);
        let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
        let (client, connection) = connected.map_err(wrong)?;
        tokio::spawn(connection);
        client.batch_execute(UPSERT).await.map_err(wrong)?;
        let count = client.prepare("SELECT count_one($1, $2)").await.map_err(wrong)?;
        let (mut ours, mut sliding, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..blocks {
            ours.push(takes(&rate).await?);
            sliding.push(takes(&short).await?);
            let start = Instant::now();
            for _ in 0..BLOCK {
                client.query_one(&count, &[&"bench", &i64::MAX]).await.map_err(wrong)?;
            }
            theirs.push(nanos_each(start, BLOCK) / 1e3);
        }
        let take = figure("take_postgres", &ours, &theirs, "x a bare upsert function");
        let note = "the same while as many permits leave the window as come";
        let sliding = figure("take_postgres_sliding", &sliding, &theirs, note);
        Ok(vec![take.judged_by(Aim::AtMost(1.3)), sliding])
    })
}

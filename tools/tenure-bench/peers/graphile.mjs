// Drives graphile-worker. README.md has the verbs.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { makeWorkerUtils, run, runMigrations } from 'graphile-worker';
import pg from 'pg';

const [verb, url, ...rest] = process.argv.slice(2);
// Bytes of the payload, the braces and the name of its field included.
const payload = (bytes) => ({ p: 'x'.repeat(Math.max(bytes - 8, 0)) });
const lines = () => createInterface({ input: process.stdin })[Symbol.asyncIterator]();

// Their documentation's settings for throughput: a local queue, and batches of completions.
const worker = (best) =>
  best
    ? { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0, maxPoolSize: 28 }
    : {};

async function start(best, taskList, settings) {
  const pool = new pg.Pool({ connectionString: url, max: 28 });
  const report = (error) => console.error(error.message);
  pool.on('error', report);
  pool.on('connect', (client) => client.on('error', report));
  const clients = await Promise.all(Array.from({ length: best ? 8 : 2 }, () => pool.connect()));
  for (const client of clients) client.release();
  return () =>
    run({ pgPool: pool, taskList, noHandleSignals: true, preset: { worker: settings }, logger: quiet });
}

const { Logger } = await import('graphile-worker');
const quiet = new Logger(() => (level, message) => {
  if (level === 'error') console.error(message);
});

async function addMany(utils, jobs, bytes) {
  for (let done = 0; done < jobs; done += 1000) {
    const batch = Math.min(1000, jobs - done);
    await utils.addJobs(Array.from({ length: batch }, () => ({ identifier: 'bench', payload: payload(bytes) })));
  }
}

switch (verb) {
  case 'version': {
    const read = createRequire(import.meta.url);
    console.log(`graphile-worker ${read('graphile-worker/package.json').version}, node ${process.version}`);
    break;
  }
  case 'drained':
    console.log('SELECT NOT EXISTS (SELECT FROM graphile_worker._private_jobs)');
    break;
  case 'tables':
    console.log('graphile_worker._private_jobs');
    break;
  case 'setup':
    await runMigrations({ connectionString: url, logger: quiet });
    break;
  case 'fill': {
    const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
    await addMany(utils, Number(rest[0]), Number(rest[1]));
    await utils.release();
    break;
  }
  case 'work': {
    const best = rest[0] === 'best';
    const begin = await start(best, { bench: () => {} }, worker(best));
    console.log('ready');
    await lines().next();
    await begin();
    break;
  }
  case 'enqueue': {
    const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
    await utils.withPgClient((client) => client.query('SELECT 1'));
    console.log('ready');
    const input = lines();
    for (let line; !(line = await input.next()).done; ) {
      const [times, jobs] = line.value.split(' ').map(Number);
      const begin = process.hrtime.bigint();
      for (let i = 0; i < times; i++) {
        if (jobs === 1) await utils.addJob('bench', payload(100));
        else await addMany(utils, jobs, 100);
      }
      console.log(Number(process.hrtime.bigint() - begin) / 1e9);
    }
    process.exit(0);
  }
  case 'latency': {
    let started;
    const task = () => started(process.hrtime.bigint());
    const settings = rest[0] === 'best' ? { concurrentJobs: 10 } : {};
    const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
    await (await start(true, { bench: task }, settings))();
    console.log('ready');
    const input = lines();
    for (let line; !(line = await input.next()).done; ) {
      const start = new Promise((resolve) => (started = resolve));
      const begin = process.hrtime.bigint();
      await utils.addJob('bench', payload(100));
      console.log(Number((await start) - begin) / 1e3);
    }
    process.exit(0);
  }
  default:
    console.error(`no verb ${verb}`);
    process.exit(2);
}

// Drives BullMQ. README.md has the verbs.
import { createRequire } from 'node:module';
import { Queue, Worker } from 'bullmq';

const [verb, url, settings, count] = process.argv.slice(2);

if (verb === 'version') {
  const read = createRequire(import.meta.url);
  console.log(`bullmq ${read('bullmq/package.json').version}, node ${process.version}`);
} else if (verb === 'process') {
  const best = settings === 'best';
  const jobs = Number(count);
  const { hostname: host, port } = new URL(url);
  const connection = { host, port: Number(port), maxRetriesPerRequest: null };
  const queue = new Queue('bench', { connection });
  const opts = best ? { removeOnComplete: true } : {};
  const data = { p: 'x'.repeat(92) };
  for (let done = 0; done < jobs; done += 1000) {
    const batch = Math.min(1000, jobs - done);
    await queue.addBulk(Array.from({ length: batch }, () => ({ name: 'bench', data, opts })));
  }
  const worker = new Worker('bench', async () => {}, {
    connection,
    autorun: false,
    ...(best ? { concurrency: 256 } : {}),
  });
  await worker.waitUntilReady();
  let left = jobs;
  const all = new Promise((resolve) => worker.on('completed', () => --left === 0 && resolve()));
  const begin = process.hrtime.bigint();
  worker.run();
  await all;
  const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
  await worker.close();
  await queue.obliterate({ force: true });
  await queue.close();
  console.log(jobs / seconds);
} else {
  console.error(`no verb ${verb}`);
  process.exit(2);
}

-- turn: one turn of a worker. Ends attempts, gives back jobs of workers that do not live, claims jobs.
--
-- KEYS   the top, the slot of the workers
-- ARGV   see head.lua; then the queue, worker, session, how many jobs to claim, "1" to look for jobs of lost
--        workers in any case, how many attempts the worker knows of (or "-") and their jobs and fences, then
--        for each report seven items: job, fence, kind, text, "1" if for good, pause or "-", jitter
--        Kinds: "c" complete, "f" fail, "l" later (the pause), "g" give back, "p" progress (the text)
-- out    {jobs, reported, microseconds until the next job is due or -1, cancelled, 1 if paused}
--        A job: {job, fence, payload, number of the attempt, most attempts, crashes, progress, key}
--        A report: {kind, microseconds}: "d" done, "a" again after this time, "x" dead, "c" cancelled, "s" stale
--#include clock
--#include head
--#include jobs
local QUEUE, WORKER, SESSION, WANT = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

-- Returns the claims that hold the slot now, and their sessions. What has expired counts as gone.
function J.living_workers()
  local living, sessions, slot = {}, {}, KEYS[2]
  local function add(id, text)
    living[id] = true
    local session = text and string.match(text, '^%d+ %d+ %x+ %w (%S+)')
    if session then sessions[session] = true end
  end
  local value = call('TYPE', slot).ok == 'string' and call('GET', slot)
  if value == '+' then
    for _, id in ipairs(call('ZRANGEBYSCORE', slot .. ':x', '(' .. now_text, '+inf')) do
      local hold = call('HGET', slot .. ':s', 'h' .. id)
      add(id, hold and string.match(hold, '^%d+ %d+ %d+ %d+ %S+ %d (.+)$'))
    end
  elseif value then
    local from, text = string.match(value, '^(%d+) %d+ %d+ %d+ %S+ %d (.+)$')
    local lease, id = string.match(text or '', '^%d+ (%d+) (%x+)')
    if id and tonumber(from) + tonumber(lease) > now then add(id, text) end
  end
  return living, sessions
end

-- The pause after this many attempts: doubled with each of them, of which a random part is taken.
function J.pause_of(job, jitter)
  local longest = math.min(job.first * 2 ^ math.min(max(job.attempts - 1, 0), 62), job.most)
  local product = longest * jitter
  return (product - product % 65535) / 65535
end

function J.end_cancelled(job)
  J.drop_job(job)
  return { 'c', 0 }
end

function J.again_after(job, changes, pause)
  changes.due = now + pause
  J.come_back(job, J.with(job, changes))
  return { 'a', pause }
end

function J.complete(job)
  if J.meta.done == 0 then
    J.drop_job(job)
  else
    J.release_key(job)
    J.change(job, J.with(job, { state = J.DONE, ended = now, worker = false, session = false }))
  end
  return { 'd', 0 }
end

function J.fail(job, text, for_good, pause)
  if job.cancelled then return J.end_cancelled(job) end
  if for_good or job.attempts >= job.most_attempts then
    J.bury(job, J.with(job, {}), text)
    return { 'x', 0 }
  end
  local again = J.with(job, {})
  J.add_error(again, job.attempts + job.crashes, text)
  return J.again_after(job, { errors = again.errors }, pause)
end

-- Carries out a report, unless its attempt is not the one that runs.
function J.settle(at)
  local job, kind, text = J.job(tonumber(ARGV[at])), ARGV[at + 2], ARGV[at + 3]
  if not job or job.state ~= J.RUNNING or job.fence ~= tonumber(ARGV[at + 1]) then return { 's', 0 } end
  local pause, attempts = tonumber(ARGV[at + 5]), max(0, job.attempts - 1)
  if kind == 'c' then return J.complete(job) end
  if kind == 'f' then
    pause = pause and math.min(pause, J.DELAY) or J.pause_of(job, tonumber(ARGV[at + 6]))
    return J.fail(job, text, ARGV[at + 4] == '1', pause)
  end
  if kind == 'p' then
    J.change(job, J.with(job, { progress = text }))
    return { 'd', 0 }
  end
  if job.cancelled then return J.end_cancelled(job) end
  if kind == 'l' then return J.again_after(job, { attempts = attempts }, math.min(pause, J.DELAY)) end
  J.resume_rank(job, J.with(job, { attempts = attempts }))
  return { 'd', 0 }
end

-- Gives back jobs that the worker has claimed without knowing it: the reply was lost.
function J.give_back_unknown(held)
  local prefix = 'W' .. WORKER
  local row = J.next(prefix, true, prefix)
  while row do
    local job = J.job_of(row)
    if held[fmt('%.0f', job.id)] ~= job.fence then
      J.resume_rank(job, J.with(job, { attempts = max(0, job.attempts - 1) }))
    end
    row = J.next(row, false, prefix)
  end
end

function J.give_back_crashed(job)
  local back = J.with(job, { attempts = max(0, job.attempts - 1), crashes = job.crashes + 1 })
  if job.cancelled then
    J.drop_job(job)
  elseif back.crashes >= J.CRASHES then
    J.bury(job, back, 'its worker died or was lost each time')
  else
    J.resume_rank(job, back)
  end
end

-- Gives back the jobs of workers whose claims do not live, and forgets sleepers without a worker.
function J.rescue()
  local living, sessions = J.living_workers()
  J.set('looked', now)
  local row, moved = J.next('W', true, 'W'), 0
  while row do
    local worker = sub(row, 2, -17)
    if living[worker] or moved >= J.MOVED then
      row = J.next('W' .. worker .. '\254', true, 'W')
    else
      moved = moved + 1
      J.give_back_crashed(J.job_of(row))
      row = J.next(row, false, 'W')
    end
  end
  row = J.next('T', false, 'T')
  while row do
    if not sessions[sub(row, 2)] then call('ZREM', J.i, row) end
    row = J.next(row, false, 'T')
  end
end

-- Claims ready jobs in their order. Every attempt has a fence above all before it.
function J.claim(want)
  local claimed = {}
  while #claimed < want do
    local row = J.next('R', true, 'R')
    if not row then break end
    local job = J.job_of(row)
    top = max(top + 1, clock, J.meta.fence + 1)
    J.meta.fence = top
    local runs = J.with(job, { state = J.RUNNING, attempts = job.attempts + 1, worker = WORKER,
      session = SESSION, fence = top })
    -- A key that lasts until the start is free for the next job from here on.
    if job.key and job.mode ~= J.UNTIL_DONE then call('HDEL', J.h, 'k' .. job.key) end
    claimed[#claimed + 1] = { job.id, top, call('HGET', J.p, fmt('%.0f', job.id)) or '',
      runs.attempts + runs.crashes, runs.most_attempts, runs.crashes, runs.progress, job.key or '' }
    J.change(job, runs)
    J.ready = max(0, J.ready - 1)
  end
  if #claimed > 0 then J.set('fence', top) end
  return claimed
end

function J.cancelled_of()
  local prefix, found = 'C' .. WORKER, {}
  local row = J.next(prefix, true, prefix)
  while row and #found < 2 * J.SLOTS do
    local job = J.job_of(row)
    found[#found + 1] = job.id
    found[#found + 1] = job.fence
    row = J.next(row, false, prefix)
  end
  return found
end

local reply = J.run(function()
  J.begin()
  local short = J.count('R') < WANT
  local look = ARGV[6] == '1' or short
    or (J.count('W') > 0 and math.abs(now - J.meta.looked) >= J.LOOK_EVERY)
  call('ZREM', J.i, 'T' .. SESSION)
  local at, held = 8, nil
  if ARGV[7] ~= '-' then
    held = {}
    for _ = 1, tonumber(ARGV[7]) do
      held[ARGV[at]], at = tonumber(ARGV[at + 1]), at + 2
    end
  end
  local reported = {}
  for report = at, #ARGV - 6, 7 do reported[#reported + 1] = J.settle(report) end
  if held then J.give_back_unknown(held) end
  if look then J.rescue() end
  local promoted_all = J.promote()
  local claimed = J.claim(J.meta.paused == 0 and math.min(WANT, J.SLOTS) or 0)
  if #claimed < WANT then call('ZADD', J.i, 0, 'T' .. SESSION) end
  local next_due, row = -1, J.next('S', true, 'S')
  if row then next_due = max(0, tonumber(sub(row, 2, 17)) - now) end
  if not promoted_all then next_due = 0 end
  local cancelled = J.cancelled_of()
  J.finish()
  J.tell(QUEUE)
  return { claimed, reported, next_due, cancelled, J.meta.paused }
end)
--#include tail
return reply

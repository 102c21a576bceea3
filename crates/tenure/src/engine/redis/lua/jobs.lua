-- How a queue of jobs is kept, and its rules. They restate ledger/jobs/ in Lua: a function has the name of
-- its counterpart there. Included by every verb of a queue.
--
-- KEYS[2]  the slot on which the workers of the queue have their holds. The keys of the queue have its
--          name as their prefix, so that in a cluster all of them are in its hash slot:
-- K:h  hash. format, paused, dead (how long to keep dead jobs), done, aging, fence, number, looked;
--        l<lane>  the limit of a lane       k<key>  the job that has a key
-- K:j  hash: the number of a job -> its record (J.FIELDS, packed), without the payload
-- K:p  hash: the number of a job -> its payload
-- K:i  sorted set, all scores 0: the indexes, in the order of their bytes. Numbers have 16 digits.
--        J<id>  R<class><place><id>  S<due><id>  B<lane>\0<class><place><id>  L<lane>\0<id>
--        W<worker><id>  C<worker><id>  E<state><ended><id>  T<session>        as in ledger/jobs/row.rs
--
-- All keys are checked before the first write; a record that cannot be read ends the script before the
-- change of that job. The index rows of a job are a function of its record, so they agree with it.
local max, floor = math.max, math.floor
-- In a cluster, while a hash slot is being moved, keys may be at one node and at the other: slot.lua.
if linger > 0 and type(redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':')) == 'table' then
  return redis.error_reply('TRYAGAIN the cluster slot of this queue is being moved')
end
local J = {
  SCHEDULED = 0, BLOCKED = 1, READY = 2, RUNNING = 3, DEAD = 4, DONE = 5,
  STARTED = 0, UNTIL_DONE = 1, REPLACE = 2,
  FORMAT = 1, MOVED = 1000, LOOK_EVERY = 100000, SWEPT = 8,
  ERRORS = 10, CRASHES = 3, DEAD_JOBS = 100000, SLOTS = 256, PRIORITIES = 9, DELAY = 316224000000000,
  h = KEYS[2] .. ':j:h', j = KEYS[2] .. ':j:j', p = KEYS[2] .. ':j:p', i = KEYS[2] .. ':j:i',
  channels = sub(KEYS[1], 1, -4) .. 'to:', ready = 0, wake = {}, meta = {},
  FIELDS = { 'id', 'state', 'priority', 'class', 'place', 'due', 'pushed', 'ended', 'attempts', 'most_attempts',
    'crashes', 'first', 'most', 'key', 'mode', 'lane', 'limit', 'worker', 'session', 'fence', 'cancelled',
    'progress', 'errors' },
  META = { 'format', 'paused', 'dead', 'done', 'aging', 'fence', 'number', 'looked' },
}
J.WAITS = { [J.SCHEDULED] = true, [J.BLOCKED] = true, [J.READY] = true }

function J.corrupt(key) error({ err = 'TENURE corrupt ' .. key }, 0) end

-- Checks the keys of the queue and reads what it is.
function J.open()
  local kinds = { [J.h] = 'hash', [J.j] = 'hash', [J.p] = 'hash', [J.i] = 'zset' }
  for key, wanted in pairs(kinds) do
    local kind = call('TYPE', key).ok
    if kind ~= 'none' and kind ~= wanted then J.corrupt(key) end
  end
  local kept = call('HMGET', J.h, unpack(J.META))
  local defaults = { J.FORMAT, 0, 2592000000000, 0, 0, 0, 0, 0 }
  for at, field in ipairs(J.META) do
    J.meta[field] = kept[at] and tonumber(kept[at]) or defaults[at]
    if kept[at] and not tonumber(kept[at]) then J.corrupt(J.h) end
  end
  if J.meta.format ~= J.FORMAT then error({ err = 'TENURE queue_version ' .. J.h }, 0) end
  J.is_new = not kept[1]
end

-- The first write: refused by a replica and by a server that is full, before anything has changed.
function J.begin()
  J.open()
  call('HSET', J.h, 'format', J.FORMAT)
end

function J.set(field, value)
  J.meta[field] = value
  call('HSET', J.h, field, fmt('%.0f', value))
end

function J.number(n) return fmt('%016.0f', n) end

function J.id_of(member) return tonumber(sub(member, -16)) end

-- Returns the first index row after `from` (or at it) that begins with `prefix`.
function J.next(from, including, prefix)
  local low = (including and '[' or '(') .. from
  return call('ZRANGEBYLEX', J.i, low, '(' .. prefix .. '\255', 'LIMIT', 0, 1)[1]
end

function J.count(prefix) return call('ZLEXCOUNT', J.i, '[' .. prefix, '(' .. prefix .. '\255') end

function J.decode(text)
  local fine, values = pcall(function() return { cmsgpack.unpack(text) } end)
  local job = {}
  if not fine or values[1] ~= J.FORMAT then J.corrupt(J.j) end
  for at, field in ipairs(J.FIELDS) do
    local value = values[at + 1]
    if value ~= false then job[field] = value end
  end
  return job
end

function J.job(id)
  local text = call('HGET', J.j, fmt('%.0f', id))
  return text and J.decode(text)
end

-- As `job`, of an index row: there must be one.
function J.job_of(member) return J.job(J.id_of(member)) or J.corrupt(J.i) end

-- Returns a copy with some fields changed; `false` removes one.
function J.with(job, changes)
  local copy = {}
  for field, value in pairs(job) do copy[field] = value end
  for field, value in pairs(changes) do copy[field] = value or nil end
  return copy
end

function J.index_rows(job)
  local id = J.number(job.id)
  local rows, rank = { 'J' .. id }, fmt('%.0f', job.class) .. J.number(job.place) .. id
  local state = job.state
  if job.lane and (state == J.READY or state == J.RUNNING) then
    rows[#rows + 1] = 'L' .. job.lane .. '\0' .. id
  end
  if state == J.SCHEDULED then
    rows[#rows + 1] = 'S' .. J.number(job.due) .. id
  elseif state == J.BLOCKED then
    rows[#rows + 1] = 'B' .. job.lane .. '\0' .. rank
  elseif state == J.READY then
    rows[#rows + 1] = 'R' .. rank
  elseif state == J.RUNNING then
    rows[#rows + 1] = 'W' .. job.worker .. id
    if job.cancelled then rows[#rows + 1] = 'C' .. job.worker .. id end
  else
    rows[#rows + 1] = 'E' .. state .. J.number(job.ended) .. id
  end
  return rows
end

-- Writes a job, or removes it, with all rows that follow from it. The only place that does.
function J.change(before, after)
  local old, new = {}, {}
  for _, row in ipairs(before and J.index_rows(before) or {}) do old[row] = true end
  for _, row in ipairs(after and J.index_rows(after) or {}) do
    if old[row] then old[row] = nil else new[#new + 1] = row end
  end
  for row in pairs(old) do call('ZREM', J.i, row) end
  for _, row in ipairs(new) do call('ZADD', J.i, 0, row) end
  local id = fmt('%.0f', (after or before).id)
  if after then
    local values = { J.FORMAT }
    for at, field in ipairs(J.FIELDS) do
      -- A hole would end the list: `false` stands for what is missing.
      values[at + 1] = after[field] or false
    end
    call('HSET', J.j, id, cmsgpack.pack(unpack(values)))
  else
    call('HDEL', J.j, id)
    call('HDEL', J.p, id)
  end
  local function has_place(job) return job and (job.state == J.READY or job.state == J.RUNNING) end
  if has_place(before) and not has_place(after) and before.lane then J.fill_lane(before.lane, before.limit) end
end

function J.key_holder(key)
  local id = call('HGET', J.h, 'k' .. key)
  return id and J.job(tonumber(id))
end

function J.put_key(job) call('HSET', J.h, 'k' .. job.key, fmt('%.0f', job.id)) end

-- Gives a job that comes back its key, unless a newer one has it: then it goes on without.
function J.take_key(job)
  if not job.key then return end
  local holder = J.key_holder(job.key)
  if holder and holder.id ~= job.id then
    job.key, job.mode = nil, nil
  else
    J.put_key(job)
  end
end

function J.release_key(job)
  if not job.key then return end
  local holder = J.key_holder(job.key)
  if holder and holder.id == job.id then call('HDEL', J.h, 'k' .. job.key) end
end

function J.has_room(lane, stated)
  local limit = tonumber(call('HGET', J.h, 'l' .. lane) or stated)
  return J.count('L' .. lane .. '\0') < limit
end

-- Lets the next jobs of a lane in while there is room.
function J.fill_lane(lane, stated)
  local prefix = 'B' .. lane .. '\0'
  while J.has_room(lane, stated) do
    local row = J.next(prefix, true, prefix)
    if not row then break end
    local job = J.job_of(row)
    J.ready = J.ready + 1
    J.change(job, J.with(job, { state = J.READY }))
  end
  if J.count('L' .. lane .. '\0') == 0 then call('HDEL', J.h, 'l' .. lane) end
end

-- Notes the limit of a lane that was stated last. A larger one lets blocked jobs in.
function J.state_limit(lane, limit)
  local stated = call('HGET', J.h, 'l' .. lane)
  call('HSET', J.h, 'l' .. lane, fmt('%.0f', limit))
  if stated and tonumber(stated) ~= limit then
    J.fill_lane(lane, 0)
    call('HSET', J.h, 'l' .. lane, fmt('%.0f', limit))
  end
end

-- Decides whether a job is scheduled, blocked or ready, and writes it.
function J.enter(before, job)
  local below = max(0, J.PRIORITIES - job.priority)
  job.class, job.place = below, job.due
  if J.meta.aging > 0 then job.class, job.place = 0, job.due + J.meta.aging * below end
  if not before and job.key then J.put_key(job) end
  local due = job.due <= now
  if due and job.lane and not call('HGET', J.h, 'l' .. job.lane) then
    -- The lane was empty meanwhile, and has forgotten its limit.
    call('HSET', J.h, 'l' .. job.lane, fmt('%.0f', job.limit))
  end
  if not due then
    job.state = J.SCHEDULED
  elseif job.lane and not J.has_room(job.lane, job.limit) then
    job.state = J.BLOCKED
  else
    job.state, J.ready = J.READY, J.ready + 1
  end
  J.change(before, job)
end

function J.drop_job(job)
  J.release_key(job)
  J.change(job, nil)
end

-- Makes a running job ready at its old place; it keeps its place in the lane.
function J.resume_rank(job, back)
  back.state, back.worker, back.session = J.READY, nil, nil
  J.take_key(back)
  J.ready = J.ready + 1
  J.change(job, back)
end

-- Puts a job that had ended or run back into the queue, at a new due time.
function J.come_back(job, back)
  back.state, back.worker, back.session = J.SCHEDULED, nil, nil
  J.take_key(back)
  J.enter(job, back)
end

function J.add_error(job, attempt, text)
  local errors = {}
  for _, one in ipairs(job.errors or {}) do errors[#errors + 1] = one end
  errors[#errors + 1] = { attempt, now, text }
  if #errors > J.ERRORS then table.remove(errors, 1) end
  job.errors = errors
end

function J.bury(job, dead, text)
  J.add_error(dead, dead.attempts + dead.crashes, text)
  dead.state, dead.worker, dead.session, dead.ended = J.DEAD, nil, nil, now
  J.release_key(dead)
  J.change(job, dead)
end

-- Moves what is due out of the schedule. Returns whether that was all.
function J.promote()
  for _ = 1, J.MOVED do
    local row = J.next('S', true, 'S')
    if not row or tonumber(sub(row, 2, 17)) > now then return true end
    local job = J.job_of(row)
    J.enter(job, J.with(job, {}))
  end
  return false
end

-- Removes a few ended jobs that are kept no longer.
function J.sweep()
  for state, keep in pairs({ [J.DEAD] = J.meta.dead, [J.DONE] = J.meta.done }) do
    local prefix = 'E' .. state
    for _ = 1, J.SWEPT do
      local row = J.next(prefix, false, prefix)
      if not row then break end
      local ended = tonumber(sub(row, 3, 18))
      if ended + keep > now and J.count(prefix) <= J.DEAD_JOBS then break end
      J.drop_job(J.job_of(row))
    end
  end
end

-- The end of every verb that changes something: removes what is kept no longer, and wakes one sleeper for
-- each job that has become ready.
function J.finish()
  J.sweep()
  if J.meta.paused == 0 and J.ready > 0 then
    for _ = 1, math.min(J.ready, J.count('R')) do
      local row = J.next('T', false, 'T')
      if not row then break end
      call('ZREM', J.i, row)
      J.wake[#J.wake + 1] = sub(row, 2)
    end
  end
end

-- Publishes the signals, last of all. A worker that misses one looks by itself.
function J.tell(queue)
  for _, session in ipairs(J.wake) do
    if linger == 0 then
      redis.pcall('PUBLISH', J.channels .. session, 'j ' .. queue)
    else
      redis.pcall('SPUBLISH', J.channels .. session, 'j ' .. queue)
    end
  end
end

-- A job as replies show it; `payload` is added by the verb.
function J.view(job)
  local errors = {}
  for _, one in ipairs(job.errors or {}) do
    for _, value in ipairs(one) do errors[#errors + 1] = value end
  end
  local runs = job.state == J.RUNNING
  return { job.id, job.state, job.priority, job.due, job.pushed, job.ended, job.attempts, job.most_attempts,
    job.crashes, job.key or '', job.mode or 0, job.lane or '', runs and job.worker or '', job.fence,
    job.cancelled and 1 or 0, job.progress, errors }
end

-- Runs a verb. What fails before the first write has had no effect.
function J.run(verb)
  local fine, reply = pcall(verb)
  if fine then return reply end
  return redis.error_reply(type(reply) == 'table' and reply.err or tostring(reply))
end

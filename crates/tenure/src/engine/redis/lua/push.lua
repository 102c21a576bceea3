-- push: adds jobs to a queue, all of them.
--
-- KEYS   the top, the slot of the workers
-- ARGV   see head.lua; then the name of the queue, and for each job ten items: payload, priority, "+" and
--        microseconds from now or "@" and the instant at which it is due, key, mode, lane, its limit, most
--        attempts, first and longest pause
-- out    for each job {kind, job, other}: "n" new, "x" the job exists, "r" it is there instead of the other
--#include clock
--#include head
--#include jobs
local QUEUE, FROM, ITEMS = ARGV[2], 3, 10

function J.take_in(at)
  local due, key, lane = ARGV[at + 2], ARGV[at + 3], ARGV[at + 5]
  local when = tonumber(sub(due, 2))
  if sub(due, 1, 1) == '+' then when = now + when end
  local number = J.meta.number + 1
  J.set('number', number)
  local job = {
    id = number, state = J.SCHEDULED, priority = tonumber(ARGV[at + 1]), class = 0, place = 0,
    due = math.min(when, now + J.DELAY), pushed = now, ended = 0, attempts = 0,
    most_attempts = tonumber(ARGV[at + 7]), crashes = 0, first = tonumber(ARGV[at + 8]),
    most = tonumber(ARGV[at + 9]), fence = 0, progress = '',
  }
  if key ~= '' then job.key, job.mode = key, tonumber(ARGV[at + 4]) end
  if lane ~= '' then job.lane, job.limit = lane, tonumber(ARGV[at + 6]) end
  local instead_of
  local other = job.key and J.key_holder(job.key)
  if other then
    if job.mode ~= J.REPLACE or not J.WAITS[other.state] then return { 'x', other.id, 0 } end
    instead_of = other.id
    J.drop_job(other)
  end
  if job.lane then J.state_limit(job.lane, job.limit) end
  call('HSET', J.p, fmt('%.0f', number), ARGV[at])
  J.enter(nil, job)
  return instead_of and { 'r', number, instead_of } or { 'n', number, 0 }
end

return J.run(function()
  J.begin()
  -- The index of queues. Not in a cluster: it has no key that all queues share.
  if linger == 0 then call('ZADD', sub(KEYS[1], 1, -4) .. 'queues', 0, QUEUE) end
  local reply = {}
  for at = FROM, #ARGV - ITEMS + 1, ITEMS do reply[#reply + 1] = J.take_in(at) end
  J.finish()
  J.tell(QUEUE)
  return reply
end)

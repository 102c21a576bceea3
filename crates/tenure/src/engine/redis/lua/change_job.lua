-- change_job: a change by an operator.
--
-- KEYS   the top, the slot of the workers
-- ARGV   see head.lua; then the queue and the change: "cancel", "delete" or "retry" and the job; "pause";
--        "resume"; "configure" and for how long dead and done jobs are kept, and the aging
-- out    "d" done, "t" the worker is told, "u" no such job, or the number of the state that the job is in
--#include clock
--#include head
--#include jobs
local QUEUE, CHANGE = ARGV[2], ARGV[3]

function J.change_queue()
  if CHANGE == 'configure' then
    for at, field in ipairs({ 'dead', 'done', 'aging' }) do J.set(field, tonumber(ARGV[3 + at])) end
  else
    local paused = CHANGE == 'pause' and 1 or 0
    -- Everything that is ready may be claimed now.
    if J.meta.paused == 1 and paused == 0 then J.ready = J.ready + J.count('R') end
    J.set('paused', paused)
  end
  if linger == 0 then call('ZADD', sub(KEYS[1], 1, -4) .. 'queues', 0, QUEUE) end
  return 'd'
end

function J.change_one()
  local job = J.job(tonumber(ARGV[4]))
  if not job then return 'u' end
  if CHANGE == 'cancel' and job.state == J.RUNNING then
    J.wake[#J.wake + 1] = job.session
    J.change(job, J.with(job, { cancelled = true }))
    return 't'
  end
  local ended = job.state == J.DEAD or job.state == J.DONE
  if (CHANGE == 'cancel' and J.WAITS[job.state]) or (CHANGE == 'delete' and ended) then
    J.drop_job(job)
    return 'd'
  end
  if CHANGE == 'retry' and job.state == J.DEAD then
    J.come_back(job, J.with(job, { due = now, ended = 0, cancelled = false, attempts = 0, crashes = 0 }))
    return 'd'
  end
  return fmt('%.0f', job.state)
end

return J.run(function()
  J.begin()
  local one = CHANGE == 'cancel' or CHANGE == 'delete' or CHANGE == 'retry'
  local reply = one and J.change_one() or J.change_queue()
  J.finish()
  J.tell(QUEUE)
  return reply
end)

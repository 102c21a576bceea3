-- look: reads a queue. Changes nothing.
--
-- KEYS   the top, the slot of the workers
-- ARGV   see head.lua; then "counts"; or "job" and its number; or "list", the number after which to begin, how
--        many jobs at most, and the state or "-"
-- out    counts: how many jobs of each state, by its number; then paused, dead, done, aging
--        job: {view, payload}, or nothing          list: {the last number that was looked at or -1, views}
--        A view: see J.view of jobs.lua
--#include clock
--#include head
--#include jobs
local PREFIXES = { [J.SCHEDULED] = 'S', [J.BLOCKED] = 'B', [J.READY] = 'R', [J.RUNNING] = 'W',
  [J.DEAD] = 'E' .. J.DEAD, [J.DONE] = 'E' .. J.DONE }
-- How many jobs one call visits: other clients wait for the server meanwhile.
local VISITED = 2000

-- Lists jobs in the order of their numbers. By the index of the state if that is short, otherwise by the
-- index of all jobs, a part at a time.
function J.list(after, most, state)
  local views, prefix = {}, state and PREFIXES[state]
  if prefix and J.count(prefix) <= VISITED then
    local ids = {}
    for _, row in ipairs(call('ZRANGEBYLEX', J.i, '[' .. prefix, '(' .. prefix .. '\255')) do
      local id = J.id_of(row)
      if id > after then ids[#ids + 1] = id end
    end
    table.sort(ids)
    for at = 1, math.min(most, #ids) do views[at] = J.view(J.job(ids[at]) or J.corrupt(J.i)) end
    return { -1, views }
  end
  local rows = call('ZRANGEBYLEX', J.i, '(J' .. J.number(after), '(K', 'LIMIT', 0, VISITED)
  local last = #rows == VISITED and J.id_of(rows[#rows]) or -1
  for _, row in ipairs(rows) do
    local job = J.job_of(row)
    if not state or job.state == state then views[#views + 1] = J.view(job) end
    if #views == most then return { -1, views } end
  end
  return { last, views }
end

return J.run(function()
  J.open()
  if ARGV[2] == 'counts' then
    local reply = {}
    for state = 0, 5 do reply[state + 1] = J.count(PREFIXES[state]) end
    for _, field in ipairs({ 'paused', 'dead', 'done', 'aging' }) do reply[#reply + 1] = J.meta[field] end
    return reply
  end
  if ARGV[2] == 'list' then return J.list(tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])) end
  local job = J.job(tonumber(ARGV[3]))
  return job and { J.view(job), call('HGET', J.p, ARGV[3]) or '' } or {}
end)

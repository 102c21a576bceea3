-- extend: extends holds that have exactly the number of the request. Restates `NodeSlot::extend`.
--
-- KEYS   their locks
-- ARGV   the virtual clock; time to live of a counter (milliseconds); then for each its claim,
--        attempt, number, lease in microseconds
-- out    for each 1, 0, or the reason of an eviction
--#include clock
--#include head
local answers = {}
for at, key in ipairs(KEYS) do
  local claim, attempt, fence, lease = unpack(ARGV, at * 4 - 1, at * 4 + 2)
  local lock = call('HMGET', key, 'i', 'n', 'g', 'x')
  if lock[1] == claim and lock[2] == attempt and lock[3] == fence and now < tonumber(lock[4]) then
    call('HSET', key, 'x', text(now + lease))
    linger(key, tonumber(fence), ARGV[2])
    answers[at] = 1
  else
    local withdrawn, why = tomb_of(key, claim)
    answers[at] = why ~= '' and why or 0
  end
end
return answers

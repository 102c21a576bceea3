-- extend: keeps holds alive, those that carry exactly the number they are named by.
--
-- KEYS   their locks
-- ARGV   the clock of the suite; for how long a counter is kept (milliseconds); then for each claim,
--        attempt, number, lease in microseconds
-- out    for each 1, 0, or the reason why somebody ended it
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

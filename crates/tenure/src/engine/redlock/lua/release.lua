-- release: gives holds back, and refuses from now on whatever copies of them may still arrive.
--
-- KEYS   their locks
-- ARGV   the clock of the suite; then for each the claim, the latest attempt that is meant, its lease in
--        microseconds, and "1" if others who wait shall be told
-- out    for each 0 if it did not hold, otherwise 1 and, if others are told, one more for each client that is
--#include clock
--#include head
local answers = {}
for at, key in ipairs(KEYS) do
  local claim, attempt, lease, tell = unpack(ARGV, at * 4 - 2, at * 4 + 1)
  local lock = call('HMGET', key, 'i', 'n', 'x')
  local withdrawn, why = tomb_of(key, claim)
  if withdrawn < tonumber(attempt) then bury(key, claim, attempt, tonumber(lease), why) end
  answers[at] = 0
  if lock[1] == claim and tonumber(lock[2]) <= tonumber(attempt) then
    call('HDEL', key, 'i', 'n', 'g', 'x', 'd', 't', 's', 'o', 'a')
    local listeners = 0
    if tell == '1' then listeners = call('PUBLISH', key .. ':free', claim) end
    if now < tonumber(lock[3]) then answers[at] = 1 + listeners end
  end
end
return answers

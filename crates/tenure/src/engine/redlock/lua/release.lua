-- release: ends holds, and leaves tombstones that refuse late copies. Restates `NodeSlot::release`.
--
-- KEYS   their locks
-- ARGV   the virtual clock; then for each the claim, the latest attempt that is released, its lease in
--        microseconds, and "1" to publish that the name is free
-- out    for each 0 if it did not hold, otherwise 1 plus the number of clients that received the message
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

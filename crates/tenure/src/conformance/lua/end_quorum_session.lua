-- end_session: ends everything a session holds at a node, as if its leases had run out now.
--
-- KEYS   all locks
-- ARGV   the clock of the suite; the session
-- out    how many
--#include clock
--#include head
local ended = 0
for _, key in ipairs(KEYS) do
  local lock = call('HMGET', key, 's', 'x')
  if lock[1] == ARGV[2] and tonumber(lock[2]) > now then
    call('HSET', key, 'x', text(now))
    ended = ended + 1
  end
end
return ended

-- raise: raises the number of a hold to the one that its client chose. Restates `NodeSlot::raise`.
--
-- KEYS   the lock, the node
-- ARGV   the virtual clock; claim, attempt, number, lease in microseconds, time to live of a counter
--        (milliseconds)
-- out    1 if it was raised, otherwise 0
--#include clock
--#include head
local lock = call('HMGET', KEYS[1], 'c', 'i', 'n', 'g', 'x')
local fence = tonumber(ARGV[4])
if lock[2] ~= ARGV[2] or lock[3] ~= ARGV[3] or now >= tonumber(lock[5]) then return 0 end
-- Never lowered: all smaller numbers may have been granted to other claims.
if tonumber(lock[4]) > fence then return 0 end
call('HSET', KEYS[1], 'c', text(math.max(tonumber(lock[1]), fence)), 'g', text(fence), 'x', text(now + ARGV[5]))
keep(KEYS[1], KEYS[2], tonumber(call('HGET', KEYS[2], 'top') or '0'), fence, ARGV[6])
return 1

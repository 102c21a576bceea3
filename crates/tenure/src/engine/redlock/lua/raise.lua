-- raise: gives a hold the number that its client chose.
--
-- KEYS   the lock, the node
-- ARGV   the clock of the suite; claim, attempt, number, lease in microseconds, for how long a counter
--        is kept (milliseconds)
-- out    1 if it is so, otherwise 0
--#include clock
--#include head
local lock = call('HMGET', KEYS[1], 'c', 'i', 'n', 'g', 'x')
local fence = tonumber(ARGV[4])
if lock[2] ~= ARGV[2] or lock[3] ~= ARGV[3] or now >= tonumber(lock[5]) then return 0 end
-- Never down: the number it has was given because all below may belong to somebody else.
if tonumber(lock[4]) > fence then return 0 end
call('HSET', KEYS[1], 'c', text(math.max(tonumber(lock[1]), fence)), 'g', text(fence), 'x', text(now + ARGV[5]))
keep(KEYS[1], KEYS[2], tonumber(call('HGET', KEYS[2], 'top') or '0'), fence, ARGV[6])
return 1

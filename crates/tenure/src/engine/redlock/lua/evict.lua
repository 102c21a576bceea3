-- evict: ends the hold with exactly this number, by force, and publishes that to its session.
--
-- KEYS   the lock
-- ARGV   the virtual clock; the number, the reason, for how long it is kept (microseconds), the prefix
--        of the channels of sessions
-- out    {now, "d" (done) or "n" (no such hold), and the hold that was found: i, n, g, x, d, t, s, o, a}
--#include clock
--#include head
local lock = call('HMGET', KEYS[1], 'i', 'n', 'g', 'x', 'd', 't', 's', 'o', 'a')
if not lock[1] or now >= tonumber(lock[4]) then return { text(now), 'n', {} } end
if lock[3] ~= ARGV[2] then return { text(now), 'n', lock } end
bury(KEYS[1], lock[1], text(ALL), tonumber(ARGV[4]), ARGV[3])
call('HDEL', KEYS[1], 'i', 'n', 'g', 'x', 'd', 't', 's', 'o', 'a')
call('PUBLISH', KEYS[1] .. ':free', lock[1])
if lock[7] ~= '' then call('PUBLISH', ARGV[5] .. lock[7], 'e ' .. lock[1] .. ' ' .. ARGV[3]) end
return { text(now), 'd', lock }

-- raise_fences: lifts the floor of all numbers that the node gives out, and tells how far they may have
-- got so far: the node knows that only to the minute (see `keep` in head.lua).
--
-- KEYS   the node
-- ARGV   the clock of the suite; the number that all later ones shall be above, 0 to ask only
-- out    the largest number that may have been given out before
--#include clock
--#include head
local node = call('HMGET', KEYS[1], 'top', 'floor')
local floor, to = tonumber(node[2] or '0'), tonumber(ARGV[2])
if to > floor then call('HSET', KEYS[1], 'floor', text(to)) end
return text(math.max(floor, tonumber(node[1] or '0') + 60000000))

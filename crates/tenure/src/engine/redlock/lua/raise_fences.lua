-- raise_fences: raises the floor of all numbers that the node grants, and returns how far they may have
-- got so far: the node records that only to the minute (see `keep` in head.lua).
--
-- KEYS   the node
-- ARGV   the virtual clock; the number that all later ones have to exceed, 0 to change nothing
-- out    the largest number that may have been granted before
--#include clock
--#include head
local node = call('HMGET', KEYS[1], 'top', 'floor')
local floor, to = tonumber(node[2] or '0'), tonumber(ARGV[2])
if to > floor then call('HSET', KEYS[1], 'floor', text(to)) end
return text(math.max(floor, tonumber(node[1] or '0') + 60000000))

-- open: ends the quarantine of a node without data: the caller declares that the set was never used.
--
-- KEYS   the node
-- ARGV   the virtual clock
-- out    1 if the quarantine was ended, otherwise 0
--#include clock
--#include head
local node = call('HMGET', KEYS[1], 'ready', 'fresh')
if node[2] ~= '1' or not node[1] then return 0 end
call('HSET', KEYS[1], 'ready', text(math.min(tonumber(node[1]), now)), 'fresh', '0')
return 1

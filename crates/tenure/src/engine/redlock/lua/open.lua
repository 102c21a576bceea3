-- open: the caller declares that nobody has used this set of nodes, so none has to wait.
--
-- KEYS   the node
-- ARGV   the clock of the suite
-- out    1 if it was closed and is open now, otherwise 0
--#include clock
--#include head
local node = call('HMGET', KEYS[1], 'ready', 'fresh')
if node[2] ~= '1' or not node[1] then return 0 end
call('HSET', KEYS[1], 'ready', text(math.min(tonumber(node[1]), now)), 'fresh', '0')
return 1

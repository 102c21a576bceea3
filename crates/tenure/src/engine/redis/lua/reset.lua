-- reset: forgets everything that was taken of a rate.
--
-- KEYS   the top, then the list of the longest window, or of the flow
-- ARGV   see head.lua
-- out    1
--#include now
for i = 0, 7 do redis.call('DEL', string.sub(KEYS[2], 1, -2) .. i) end
return 1

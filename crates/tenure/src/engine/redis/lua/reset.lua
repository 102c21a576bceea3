-- reset: forgets everything that was taken of a rate.
--
-- KEYS   the top, then the rate
-- ARGV   see head.lua
-- out    1
--#include clock
for i = 0, 7 do redis.call('DEL', KEYS[2] .. ':' .. i) end
return 1

-- raise_fences: raises the number from which all fences and arrivals grow.
--
-- KEYS   the top
-- ARGV   see head.lua; then the number that later fences shall be above
-- out    {"d"} if they will be; {"n", the top} if the number is not above the top
--#include clock
--#include head
local to = tonumber(ARGV[2])
if to <= top then return { 'n', top } end
top = to
--#include tail
return { 'd' }

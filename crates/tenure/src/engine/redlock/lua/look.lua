-- look: returns the holds of names.
--
-- KEYS   the locks
-- ARGV   the virtual clock
-- out    {now, and for each {} or {i, n, g, x, d, t, s, o, a}}
--#include clock
--#include head
local seen = { text(now) }
for _, key in ipairs(KEYS) do
  local lock = call('HMGET', key, 'i', 'n', 'g', 'x', 'd', 't', 's', 'o', 'a')
  seen[#seen + 1] = lock[1] and lock or {}
end
return seen

-- get: reads cells. Changes nothing.
--
-- KEYS   the top, then the cells
-- ARGV   see head.lua
-- out    for each cell {} or {bytes, version, fence, time left} (-1 for none), or {"e"} for a key
--        that is not a cell
--#include clock
local call, now = redis.call, tonumber(now_text)
local answers = {}
for i = 2, #KEYS do
  local kind = call('TYPE', KEYS[i]).ok
  if kind == 'hash' then
    local cell = call('HMGET', KEYS[i], 'v', 'n', 'f', 'x')
    local expires = tonumber(cell[4] or 0)
    if cell[1] and (expires == 0 or now < expires) then
      answers[i - 1] = { cell[1], tonumber(cell[2]), tonumber(cell[3] or -1),
        expires > 0 and expires - now or -1 }
    else
      answers[i - 1] = {}
    end
  else
    answers[i - 1] = kind == 'none' and {} or { 'e' }
  end
end
return answers

-- get: reads cells. Changes nothing but the index of names: a name whose value has expired is removed.
--
-- KEYS   the top, then the cells
-- ARGV   see head.lua; then nothing, or the names of the cells that the index listed
-- out    for each cell {} or {bytes, version, fence, time left} (-1 for none), or {"e"} for a key
--        that is not a cell. Less than all if they are large: the caller asks for the rest
--#include clock
local call, now = redis.call, tonumber(now_text)
-- Other clients wait for the server meanwhile.
local MOST = 262144
local answers, size = {}, 0
for i = 2, #KEYS do
  if size > MOST then break end
  local kind = call('TYPE', KEYS[i]).ok
  local answer = kind ~= 'none' and kind ~= 'hash' and { 'e' } or {}
  if kind == 'hash' then
    local cell = call('HMGET', KEYS[i], 'v', 'n', 'f', 'x')
    local expires = tonumber(cell[4] or 0)
    if cell[1] and (expires == 0 or now < expires) then
      size = size + #cell[1]
      answer = { cell[1], tonumber(cell[2]), tonumber(cell[3] or -1), expires > 0 and expires - now or -1 }
    end
  end
  answers[i - 1] = answer
  if #answer == 0 and ARGV[i] then
    redis.pcall('ZREM', string.sub(KEYS[1], 1, -4) .. 'cells', ARGV[i])
  end
end
return answers

-- set: writes a value unless a larger fence has written it.
--
-- KEYS   the value, the key of its fence
-- ARGV   the fence, the value, its time to live in milliseconds or 0
-- out    nil if it was written, otherwise the larger fence
--
-- Fences stay below 2^53, so that a comparison of Lua's doubles is exact; what is stored and
-- returned is the text as it came, never a formatted number.
local seen = redis.call('GET', KEYS[2])
if seen then
  if #seen > 16 or not string.match(seen, '^%d+$') then
    return redis.error_reply('TENUREFENCE no fence')
  end
  if tonumber(seen) > tonumber(ARGV[1]) then return seen end
end
-- The value first: if the server refuses it, nothing was written.
if ARGV[3] == '0' then
  redis.call('SET', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
redis.call('SET', KEYS[2], ARGV[1])
return false

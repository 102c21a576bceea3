-- hset: sets fields of a hash unless a larger fence has written the hash.
--
-- KEYS   the hash
-- ARGV   the field of its fence, the fence, then each field and its value
-- out    nil if it was written, otherwise the larger fence
--
-- Fences stay below 2^53, so that a comparison of Lua's doubles is exact; what is stored and
-- returned is the text as it came, never a formatted number.
local seen = redis.call('HGET', KEYS[1], ARGV[1])
if seen then
  if #seen > 16 or not string.match(seen, '^%d+$') then
    return redis.error_reply('TENUREFENCE no fence')
  end
  if tonumber(seen) > tonumber(ARGV[2]) then return seen end
end
-- One call for each field: the number of arguments that Lua can unpack is limited.
for i = 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return false

-- The beginning of every long path: reads the top, the number from which all fences and arrivals grow.
--
-- KEYS[1]  the top: the largest number given out. Plain digits, or "TOP TOMBS GRACE" while tombstones
--          exist (until TOMBS) or nothing new is granted (until GRACE). Its name ends in "top"; the
--          channels of sessions and the sets of waits have the same prefix.
-- ARGV[1]  begins with a point, except where the caller allows the short path of a verb. "GRACE LINGER"
--          may follow: for how many microseconds nothing is granted after a loss of memory (0: granted
--          at once), and for how many milliseconds the top is kept after its last change (0: for ever).
--          Only in a cluster, where every name has a top of its own, does a top expire.
-- The slots of the verb follow from KEYS[2] on, its items from ARGV[2] on.
--
-- `tail.lua` writes the top back if it changed. In between, top, tombs and grace are locals.
local call, fmt, sub, tonumber = redis.call, string.format, string.sub, tonumber
local now = tonumber(now_text)
local lose, linger = string.match(ARGV[1], '^%.(%d+) (%d+)')
lose, linger = tonumber(lose or 0), tonumber(linger or 0)
local raw = redis.pcall('GET', KEYS[1])
if type(raw) == 'table' then
  if call('TYPE', KEYS[1]).ok ~= 'string' then return redis.error_reply('TENURE corrupt ' .. KEYS[1]) end
  -- It is a string, so GET failed for another reason: fail with that error.
  raw = call('GET', KEYS[1])
end
local top, tombs, grace = raw and tonumber(raw), 0, 0
if not (top and top >= 0 and top < 9007199254740992) then
  if raw then
    local number, stand, closed = string.match(raw, '^(%d+) (%d+) (%d+)$')
    if not number then return redis.error_reply('TENURE corrupt ' .. KEYS[1]) end
    top, tombs, grace = tonumber(number), tonumber(stand), tonumber(closed)
  else
    top = 0
    if lose > 0 then grace = now + lose end
  end
end
local was_top, was_tombs, was_grace = raw and top or -1, tombs, grace
-- A broken clock must not push the numbers out of their range.
local clock = now < 4503599627370496 and now or 4503599627370496

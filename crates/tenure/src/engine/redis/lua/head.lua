-- What the longer verbs begin with: the number that all fences and arrivals grow from.
--
-- KEYS[1]  the top: the largest number given out. Plain digits, or "TOP TOMBS GRACE" while
-- tombstones
--          may stand (until TOMBS) or nobody new may come in (until GRACE). Its name ends in "top";
--          channels and waits of the namespace are called alike.
-- ARGV[1]  begins with a point, except for the short way of a verb. "GRACE LINGER" may follow: for
-- how
--          many microseconds nobody comes in after a loss of memory, and for how many milliseconds the
--          top is kept after its last change; 0 for not at all and for ever. In a cluster every name
--          has a top of its own, and it lingers; nowhere else does it
-- Items of the verb follow from ARGV[2] on, their slots from KEYS[2] on.
local call, fmt, sub, tonumber = redis.call, string.format, string.sub, tonumber
local now = tonumber(now_text)
local lose, linger = string.match(ARGV[1], '^%.(%d+) (%d+)')
lose, linger = tonumber(lose or 0), tonumber(linger or 0)
local raw = redis.pcall('GET', KEYS[1])
if type(raw) == 'table' then
  if call('TYPE', KEYS[1]).ok ~= 'string' then return redis.error_reply('TENURE corrupt ' .. KEYS[1]) end
  -- Refused for another reason, which this tells.
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
-- A broken clock must not push the numbers out of their range for ever.
local clock = now < 4503599627370496 and now or 4503599627370496

-- Included by every script of a node. The rules are those of `rules.rs`: `tomb_of` is `is_withdrawn`,
-- `bury` is `withdraw`.
--
-- A lock is a hash: c, the largest number granted; and while it is held: i n, claim and attempt;
-- g, its number; x, when it expires; d, the lock delay; t, since when it is held; s, the session; o, the
-- owner and its ancestors; a, the description of the claim.
-- The tombstone of a claim is the key KEY:w:CLAIM: its latest withdrawn attempt, when the tombstone
-- expires, and the reason if the claim was evicted.
local call, tonumber = redis.call, tonumber
local ALL = 4294967295
local function text(number) return string.format('%.0f', number) end
local function tomb_of(key, claim)
  local tomb = call('GET', key .. ':w:' .. claim)
  if not tomb then return 0, '' end
  local attempt, stands, why = string.match(tomb, '^(%d+) (%d+) ?(.*)$')
  if not attempt or now >= tonumber(stands) then return 0, '' end
  return tonumber(attempt), why
end
-- Sets the time to live of a counter, which does not expire before the clock is past its number.
local function linger(key, fence, kept)
  call('PEXPIRE', key, text(kept + math.max(0, math.floor((fence - now) / 1000))))
end
-- Like `linger`, and records about how far the numbers of the node have got (`top`).
local function keep(key, node, top, fence, kept)
  linger(key, fence, kept)
  if fence > top + 60000000 then call('HSET', node, 'top', text(fence)) end
end
local function bury(key, claim, attempt, lease, why)
  local tomb = attempt .. ' ' .. text(now + lease) .. (why ~= '' and ' ' .. why or '')
  call('SET', key .. ':w:' .. claim, tomb, 'PX', text(math.ceil(lease / 1000)))
end

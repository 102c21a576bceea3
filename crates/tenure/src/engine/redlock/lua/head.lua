-- What every script of a node begins with. The rules are those of `rules.rs`.
--
-- A lock is a hash: c, the largest number given out; and while somebody holds: i n, claim and attempt;
-- g, its number; x, when it ends; d, for how long the name stays closed then; t, since when; s, the
-- session; o, the owner and its ancestors; a, who it is, for people.
-- Beside it stands for each claim that was withdrawn KEY:w:CLAIM: the latest attempt that was, until
-- when that is remembered, and the reason if somebody else ended it.
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
-- A counter is forgotten when nobody used it for long, and not before the clock is past it.
local function linger(key, fence, kept)
  call('PEXPIRE', key, text(kept + math.max(0, math.floor((fence - now) / 1000))))
end
-- The same, and the node remembers about how far its numbers have got.
local function keep(key, node, top, fence, kept)
  linger(key, fence, kept)
  if fence > top + 60000000 then call('HSET', node, 'top', text(fence)) end
end
local function bury(key, claim, attempt, lease, why)
  local tomb = attempt .. ' ' .. text(now + lease) .. (why ~= '' and ' ' .. why or '')
  call('SET', key .. ':w:' .. claim, tomb, 'PX', text(math.ceil(lease / 1000)))
end

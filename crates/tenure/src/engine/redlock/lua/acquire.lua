-- acquire: grants the name to an attempt if it is free. Restates `NodeSlot::acquire`.
--
-- KEYS   the lock, the node
-- ARGV   the virtual clock; claim, attempt, proposed number, lease, lock delay, quarantine of a node
--        (all in microseconds), time to live of a counter (milliseconds); session, owner and
--        ancestors, description of the claim
-- out    {"g", number}: granted; {"h", how much longer, i, g, x, d, t, s, o, a, now}: held by another;
--        {"w"}: withdrawn before; {"s", how much longer}: in quarantine
--#include clock
--#include head
local lock = call('HMGET', KEYS[1], 'c', 'i', 'n', 'g', 'x', 'd')
local node = call('HMGET', KEYS[2], 'ready', 'top', 'floor')
local withdrawn = tomb_of(KEYS[1], ARGV[2])
local claim, attempt, closed = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[7])
if not node[1] then
  -- All data are gone, though the server runs on: claims that held here may still hold.
  call('HSET', KEYS[2], 'run', '-', 'ready', text(now + closed), 'top', text(now), 'fresh', '0')
  return { 's', closed }
end
local ready, top = tonumber(node[1]), tonumber(node[2])
if ready > now then
  -- A clock that was set back must not make the quarantine longer than it ever is.
  if ready - now > closed then
    ready = now + closed
    call('HSET', KEYS[2], 'ready', text(ready))
  end
  return { 's', ready - now }
end
if withdrawn >= attempt then return { 'w' } end
local own = false
if lock[2] then
  local ends = tonumber(lock[5])
  if lock[2] == claim and tonumber(lock[3]) == attempt and now < ends then return { 'g', lock[4] } end
  own = lock[2] == claim and tonumber(lock[3]) < attempt
  local free = ends + tonumber(lock[6])
  if not own and now < free then
    local shown = call('HMGET', KEYS[1], 't', 's', 'o', 'a')
    return { 'h', text(free - now), lock[2], lock[4], lock[5], lock[6], shown[1], shown[2], shown[3], shown[4], text(now) }
  end
end
-- A broken clock must not push the numbers out of their range for ever.
local clock = math.min(now, 4503599627370496)
local hint = math.max(clock - 1000000, math.min(clock + 1000000, tonumber(ARGV[4])))
local counter = math.max(tonumber(lock[1] or '0'), tonumber(node[3] or '0'))
-- The counter has expired, and the clock was set back since: begin above all numbers of the node.
if not lock[1] and top - now > 3600000000 then counter = top + 60000000 end
local fence = math.max(counter + 1, hint)
if own then bury(KEYS[1], claim, lock[3], closed, '') end
call('HSET', KEYS[1], 'c', text(fence), 'i', claim, 'n', ARGV[3], 'g', text(fence),
  'x', text(now + ARGV[5]), 'd', ARGV[6], 't', text(now), 's', ARGV[9], 'o', ARGV[10], 'a', ARGV[11])
keep(KEYS[1], KEYS[2], top, fence, ARGV[8])
return { 'g', text(fence) }

-- put: writes or removes a cell if it is as expected (compare-and-set).
--
-- KEYS   the top, the cell: a hash of v (bytes), n (version), f (largest fence), x (expiry)
-- ARGV   see head.lua; then what is expected ("any", "absent", "version", "fence"), the version or
--        fence, "put" or "remove", the bytes, the time to live in microseconds or 0, and for how many
--        milliseconds the fence of a removed cell is kept
-- out    {"d", version}, {"r"} or {"r", bytes, version, fence, time left} (-1 for none), or {"s", fence}
--#include clock
--#include head
local kind = call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'hash' then return redis.error_reply('TENURE corrupt ' .. KEYS[2]) end
local cell = call('HMGET', KEYS[2], 'v', 'n', 'f', 'x')
local fence, expires = tonumber(cell[3] or -1), tonumber(cell[4] or 0)
local present = cell[1] and (expires == 0 or now < expires)
local expect, given = ARGV[2], tonumber(ARGV[3])
if expect == 'fence' then
  if fence > given then return { 's', fence } end
  fence = given
elseif (expect == 'absent' and present) or
  (expect == 'version' and not (present and tonumber(cell[2]) == given)) then
  if not present then return { 'r' } end
  return { 'r', cell[1], tonumber(cell[2]), fence, expires > 0 and expires - now or -1 }
end
top = math.max(top + 1, clock)
local version = top
local ttl, remember = tonumber(ARGV[6]), tonumber(ARGV[7])
if ARGV[4] == 'put' then
  call('HSET', KEYS[2], 'v', ARGV[5], 'n', fmt('%.0f', version), 'f', fmt('%.0f', fence), 'x',
    fmt('%.0f', ttl > 0 and now + ttl or 0))
  if ttl == 0 then
    call('PERSIST', KEYS[2])
  else
    local left = math.ceil(ttl / 1000) + spare
    if fence >= 0 then left = math.max(left, remember) end
    call('PEXPIRE', KEYS[2], fmt('%.0f', left))
  end
elseif fence >= 0 then
  call('HSET', KEYS[2], 'n', fmt('%.0f', version), 'f', fmt('%.0f', fence))
  call('HDEL', KEYS[2], 'v', 'x')
  call('PEXPIRE', KEYS[2], fmt('%.0f', remember))
else
  call('DEL', KEYS[2])
end
--#include tail
return { 'd', version }

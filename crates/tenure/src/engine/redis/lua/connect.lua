-- connect: what every client does first, and again after each reconnection: agrees on the terms of
-- the namespace, and notices a store that has lost its memory.
--
-- KEYS   the top, the terms
-- ARGV   see head.lua; then the version of this layout, the
--        longest lease in microseconds, and "1" if the caller declares the namespace to be new
-- out    {"ok", how much longer nobody comes in, what the server says of itself, now},
--        {"version", theirs}, or {"lease", theirs}
--#include clock
--#include head
local kind = call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'hash' then return redis.error_reply('TENURE corrupt ' .. KEYS[2]) end
local terms = call('HMGET', KEYS[2], 'version', 'max_lease', 'run')
if terms[1] and terms[1] ~= ARGV[2] then return { 'version', terms[1] } end
if terms[2] and terms[2] ~= ARGV[3] then return { 'lease', terms[2] } end
local info = call('INFO', 'server')
local run = string.match(info, 'run_id:(%x+)') or '-'
if not raw then
  top = clock
  -- Nobody has been here, as far as anybody knows who says so.
  if ARGV[4] == '1' and not terms[1] then grace = 0 end
elseif lose > 0 and terms[3] and terms[3] ~= run then
  -- Another run: it may have lost what it was told last.
  grace = now + lose
end
--#include tail
if terms[1] ~= ARGV[2] or terms[2] ~= ARGV[3] or terms[3] ~= run then
  call('HSET', KEYS[2], 'version', ARGV[2], 'max_lease', ARGV[3], 'run', run)
end
for _, section in ipairs({ 'memory', 'replication', 'cluster', 'persistence' }) do
  info = info .. call('INFO', section)
end
return { 'ok', math.max(0, grace - now), info, now }

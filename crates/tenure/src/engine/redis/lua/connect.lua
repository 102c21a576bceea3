-- connect: run by every client on each new connection. Compares the terms of the namespace with those
-- that the client states, and detects a store that may have lost its memory.
--
-- Such a store is another run of the server (run_id: a restart, or a replica that took over), or the
-- same run that was a replica meanwhile and took its data from another server. The latter shows in
-- the replication id: a promotion makes a new one and keeps the one before as master_replid2. The
-- id also changes when a primary begins or ends its replication backlog, that is with its first
-- replica or without any for repl-backlog-ttl; then master_replid2 is all zeros, and nothing was lost.
--
-- KEYS   the top, the terms
-- ARGV   see head.lua; then the version of this layout, the
--        longest lease in microseconds, or 0 for a client that makes no claims and accepts any; and
--        "1" if the caller declares the namespace to be new
-- out    {"ok", how much longer nothing is granted, INFO of the server, now},
--        {"version", theirs}, or {"lease", theirs}
--#include clock
--#include head
local kind = call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'hash' then return redis.error_reply('TENURE corrupt ' .. KEYS[2]) end
local terms = call('HMGET', KEYS[2], 'version', 'max_lease', 'run', 'replid')
if terms[1] and terms[1] ~= ARGV[2] then return { 'version', terms[1] } end
local lease = ARGV[3] == '0' and terms[2] or ARGV[3]
if terms[2] and terms[2] ~= lease then return { 'lease', terms[2] } end
local info = call('INFO', 'server')
local replication = call('INFO', 'replication')
local run = string.match(info, 'run_id:(%x+)') or '-'
local replid = string.match(replication, 'master_replid:(%x+)') or '-'
local promoted = string.find(replication, 'master_replid2:0*[1-9a-f]')
-- In a cluster claims have other tops. This one counts the clients that agreed: see change_terms.
if linger > 0 and ARGV[3] ~= '0' then top = math.max(top + 1, clock) end
if not raw then
  top = math.max(top, clock)
  -- No top and no terms: the namespace is new if the caller says so.
  if ARGV[4] == '1' and not terms[1] then grace = 0 end
elseif lose > 0 and terms[3] then
  local promoted_since = promoted and terms[4] and terms[4] ~= replid
  -- The latest writes may be lost.
  if terms[3] ~= run or promoted_since then grace = now + lose end
end
--#include tail
if lease ~= '0' and (terms[1] ~= ARGV[2] or terms[2] ~= lease or terms[3] ~= run
  or terms[4] ~= replid) then
  call('HSET', KEYS[2], 'version', ARGV[2], 'max_lease', lease, 'run', run, 'replid', replid)
end
for _, section in ipairs({ 'memory', 'cluster', 'persistence' }) do
  info = info .. call('INFO', section)
end
return { 'ok', math.max(0, grace - now), info .. replication, now }

-- connect: the handshake of every connection, first and after each reconnection: agrees on the terms of
-- the namespace, and detects a node that may have lost its data.
--
-- KEYS   the node, the terms
-- ARGV   the virtual clock; the version of this layout, the longest lease (0 for a client that makes
--        no claims and agrees to any), and the quarantine of a node (both in microseconds)
-- out    {"ok", how much longer the node is in quarantine, "1" if it has no data, its run id, now};
--        {"version", theirs}; {"lease", theirs}
--#include clock
--#include head
local terms = call('HMGET', KEYS[2], 'version', 'max_lease')
if terms[1] and terms[1] ~= ARGV[2] then return { 'version', terms[1] } end
local looks = ARGV[3] == '0'
if terms[2] and terms[2] ~= ARGV[3] and not looks then return { 'lease', terms[2] } end
local node = call('HMGET', KEYS[1], 'run', 'ready', 'top', 'fresh')
local run = string.match(call('INFO', 'server'), 'run_id:(%x+)') or '-'
local closed = tonumber(ARGV[4])
local ready, top, fresh = tonumber(node[2] or '0'), tonumber(node[3] or '0'), node[4] or '1'
-- By the run id, not by the uptime, which goes back when the clock does.
local changed = node[1] ~= run
if changed then ready = now + closed end
-- The node was used before: no caller may declare it new again.
if changed and node[1] then fresh = '0' end
-- A clock that was set back must not make the quarantine longer than it ever is.
if ready - now > closed then
  changed, ready = true, now + closed
end
if not terms[1] and not looks then call('HSET', KEYS[2], 'version', ARGV[2], 'max_lease', ARGV[3]) end
-- How often clients agreed: see change_terms.
if not looks then call('HINCRBY', KEYS[1], 'agreed', 1) end
if changed or now > top then
  call('HSET', KEYS[1], 'run', run, 'ready', text(ready), 'top', text(math.max(top, now)), 'fresh', fresh)
end
return { 'ok', text(math.max(0, ready - now)), fresh, run, text(now) }

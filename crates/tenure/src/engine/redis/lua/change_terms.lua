-- change_terms: sets another longest lease for the namespace, unless a client relies on the current
-- one. Every connection is subscribed to a channel that names the longest lease its client states,
-- before the client agrees on the terms: see connect.
--
-- KEYS   the top, the terms
-- ARGV   see head.lua; then the new lease in microseconds; what the channels of clients begin with; and
--        the top as it was before the caller found no claim, or "" to read it
-- out    {"there", channel..} if clients are connected that state another lease; {"top", top};
--        {"again"} if the top has changed, so that there may be a claim; {"denied", message}; {"ok"}
--#include clock
--#include head
local channels = redis.pcall('PUBSUB', 'CHANNELS', ARGV[3] .. '*')
if channels.err then return { 'denied', channels.err } end
local there, own = { 'there' }, ARGV[3] .. ARGV[2] .. ':'
for _, channel in ipairs(channels) do
  if sub(channel, 1, #own) ~= own then there[#there + 1] = channel end
end
if #there > 1 then return there end
if ARGV[4] == '' then return { 'top', fmt('%.0f', top) } end
if fmt('%.0f', top) ~= ARGV[4] then return { 'again' } end
call('HSET', KEYS[2], 'max_lease', ARGV[2])
return { 'ok' }

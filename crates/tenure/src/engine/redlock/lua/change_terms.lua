-- change_terms: changes the longest lease of the namespace at this node, unless a connected client
-- relies on the current one. Every connection of a client is subscribed to a channel that
-- names the longest lease which the client states, before it agrees on the terms: see connect.
--
-- KEYS   the node, the terms
-- ARGV   the virtual clock; the new lease in microseconds; the prefix of the channels of clients;
--        how often clients had agreed on the terms before the caller found no claim, or "" to read it
-- out    {"there", channel..} if clients are connected that state another lease; {"top", how often};
--        {"again"} if another client has agreed since; {"denied", message}; {"ok"}
--#include clock
--#include head
local channels = redis.pcall('PUBSUB', 'CHANNELS', ARGV[3] .. '*')
if channels.err then return { 'denied', channels.err } end
local there, own = { 'there' }, ARGV[3] .. ARGV[2] .. ':'
for _, channel in ipairs(channels) do
  if string.sub(channel, 1, #own) ~= own then there[#there + 1] = channel end
end
if #there > 1 then return there end
local agreed = call('HGET', KEYS[1], 'agreed') or '0'
if ARGV[4] == '' then return { 'top', agreed } end
if agreed ~= ARGV[4] then return { 'again' } end
call('HSET', KEYS[2], 'max_lease', ARGV[2])
return { 'ok' }

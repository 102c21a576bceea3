-- The store's clock, read once: `now` in microseconds and the same as 16 digits.
local now = redis.call('TIME')
local now_text = now[1] .. string.sub('00000' .. now[2], -6)
now = now[1] * 1000000 + now[2]
-- How much longer than anybody needs a key is kept, in milliseconds.
local spare = 1000

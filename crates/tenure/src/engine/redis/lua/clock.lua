-- The store's clock, read once, in microseconds as 16 digits.
local now_text = redis.call('TIME')
now_text = now_text[1] .. string.sub('00000' .. now_text[2], -6)
-- How much longer than needed a key is kept, in milliseconds.
local spare = 1000

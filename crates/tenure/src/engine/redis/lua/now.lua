-- The store's clock, read once, as a number of microseconds.
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
-- How much longer than needed a key is kept, in milliseconds.
local spare = 2000

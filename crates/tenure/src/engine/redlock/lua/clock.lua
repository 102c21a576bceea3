-- The node's own time, read once: it goes on while a script runs.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- No clock: keys without a lock delay live exactly as long as their holders do.
local now_text

-- Replaces redis/lua/keyclock.lua in the suite: the same question, but whether the claim still lives is
-- read from the suite's clock.
local function alone(value, item)
  return value and string.sub(value, 69, 119) == item
    and string.sub(value, 1, 16) + string.sub(value, 76, 86) > tonumber(string.sub(ARGV[1], -16))
end

-- Whether a slot's value is that of a claim which holds it alone, without lock delay, by the clock of
-- the suite.
local function alone(value, item)
  return value and string.sub(value, 69, 119) == item
    and string.sub(value, 1, 16) + string.sub(value, 76, 86) > tonumber(string.sub(ARGV[1], -16))
end

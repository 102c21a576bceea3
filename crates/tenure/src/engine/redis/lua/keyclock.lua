-- Returns true if a slot's value is that of a claim that holds it alone, without lock delay. No clock is
-- needed: such a key lives exactly as long as its holder does.
local function alone(value, item) return value and string.sub(value, 69, 119) == item end

-- How a rate is kept, for take and settle. The rule is that of ledger/rates.rs.
--
-- K:0 .. K:n-1  a list for each of n limits, that of the longest window first, so that K:0 lives as long as
--         the rate does. Element 0 is the head: WINDOWS USED COUNT SEEN BORN FIRST AT COST, as in `LogHead`.
--         WINDOWS are those of all limits, shortest first, with commas; "-" in all heads but that of K:0.
--         Then the entries before the newest one, newest first: the instant in microseconds, and behind it
--         -(permits + 1) unless it is one permit. Integers take ten bytes of a list
-- K:0     of an even flow: a list of one element, p BUSY_UNTIL SEEN
--
-- Every list expires when nothing in it counts any more, and a second later.
local call, fmt, now = redis.call, string.format, tonumber(now_text)
local MANY, near = 1024, KEYS[2] .. ':'
-- In a cluster whose slot is being moved some lists may be on one node and some on the other.
local linger = string.match(ARGV[1], '^%.%d+ (%d+)')
if linger and linger ~= '0' and type(redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':')) == 'table' then
  return redis.error_reply('TRYAGAIN the cluster slot of this name is being moved')
end

-- Returns the head of a list, nil if there is none, and its text.
local function head_of(key)
  local text = redis.pcall('LINDEX', key, 0)
  if not text then return nil end
  if type(text) == 'table' then return nil, text end
  local w, used, count, seen, born, first, at, cost =
    string.match(text, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not w then return nil, text end
  return { windows = w, used = tonumber(used), count = tonumber(count), seen = tonumber(seen),
    born = tonumber(born), first = tonumber(first), at = tonumber(at), cost = tonumber(cost) }, text
end

local function head_text(log)
  return fmt('%s %.0f %.0f %.0f %.0f %.0f %.0f %.0f', log.windows, log.used, log.count, log.seen, log.born,
    log.first, log.at, log.cost)
end

-- Returns the error reply for a key that is not part of a rate.
local function corrupt(key, text)
  if type(text) == 'table' and not string.find(text.err, 'WRONGTYPE', 1, true) then return text end
  return redis.error_reply('TENURE corrupt ' .. key)
end

-- Calls each(instant, permits, elements, paired) for the entries, oldest first, while it returns true. The
-- last `elements` elements of the list begin with the entry, except the newest, which is in the head; a
-- paired one has its permits in an element of their own.
local function visit(log, each)
  local chunk, taken, size, elements = {}, 0, 4, 0
  local function next_element()
    if taken == #chunk then
      if taken > 0 and taken < size then return nil end
      if elements > 0 then size = math.min(size * 4, 512) end
      chunk = call('LRANGE', log.key, -elements - size, -elements - 1)
      taken = 0
      if #chunk == 0 then return nil end
    end
    local element = chunk[#chunk - taken]
    if string.find(element, ' ', 1, true) then return nil end
    taken, elements = taken + 1, elements + 1
    return element
  end
  while log.count > 1 do
    local element = next_element()
    if not element then break end
    local permits, paired = 1, string.byte(element) == 45
    if paired then
      permits = -tonumber(element) - 1
      element = next_element()
    end
    if not each(tonumber(element), permits, elements, paired) then return end
  end
  if log.count > 0 then each(log.at, log.cost, elements) end
end

-- Keeps a list until an instant. By the clock itself: where it went back, `now` is ahead of it.
local function keep(key, ends)
  call('PEXPIRE', key, fmt('%.0f', math.ceil((ends - tonumber(now_text)) / 1000) + spare))
end

-- How a rate is kept, for take and settle. The rule is that of ledger/rates.rs.
--
-- K:0 .. K:n-1  a list for each of n limits, that of the longest window first, so that K:0 lives as long as
--         the rate does. Element 0 is the head: nine doubles, eight bytes each, in the order of `head_of`. All
--         are as in `LogHead`, but WINDOW, and OLDEST, the instant of the oldest entry. Of several limits
--         the windows follow in the head of K:0, shortest first, with commas. Then the entries before the newest
--         one, newest first: the instant in microseconds, and behind it -(permits + 1) unless it is one
--         permit. Integers take ten bytes of a list
-- K:0     of an even flow: a list of one element, p BUSY_UNTIL SEEN
--
-- Every list expires when nothing in it counts any more, and a second or two later: it is kept for longer
-- once in each second in which something is taken.
--
-- A head is binary because numbers cost more than commands: a call of `struct` reads or writes all of them in
-- the time that Lua needs to format one.
local call, fmt, clock = redis.call, string.format, now
local MANY, HEAD, near = 1024, '<ddddddddd', string.sub(KEYS[2], 1, -2)
-- In a cluster whose slot is being moved some lists may be on one node and some on the other.
local linger = string.match(ARGV[1], '^%.%d+ (%d+)')
if linger and linger ~= '0' and type(redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':')) == 'table' then
  return redis.error_reply('TRYAGAIN the cluster slot of this name is being moved')
end

-- Returns the head of a list, nil if there is none, and its text.
local function head_of(key)
  local text = redis.pcall('LINDEX', key, 0)
  if not text then return nil end
  if type(text) == 'table' or #text < 72 then return nil, text end
  local window, used, count, seen, born, first, at, cost, oldest = struct.unpack(HEAD, text)
  return { window = window, windows = string.sub(text, 73), used = used, count = count, seen = seen,
    born = born, first = first, at = at, cost = cost, oldest = oldest }, text
end

local function head_text(log)
  return struct.pack(HEAD, log.window, log.used, log.count, log.seen, log.born, log.first, log.at, log.cost,
    log.oldest) .. log.windows
end

-- Returns the windows of a rate as the caller states them, from the head of K:0.
local function windows_of(main)
  return main.windows ~= '' and main.windows or fmt('%.0f', main.window)
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
    if #element > 20 then return nil end
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
  call('PEXPIRE', key, fmt('%.0f', math.ceil((ends - clock) / 1000) + spare))
end

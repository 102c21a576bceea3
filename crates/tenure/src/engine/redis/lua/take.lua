-- take: takes permits of a rate at the earliest instant at which all limits allow it, if that is near enough.
--
-- KEYS   the top, then the list of the longest window, or of the flow
-- ARGV   see head.lua; then the permits; how many microseconds ahead the instant may be, or -1 if nothing is
--        to be taken; then "p" and for how long the permits and the burst keep the flow busy, or the windows
--        with commas, shortest first, and the permits of each limit
-- out    {stamp, what is used}: taken now, of one limit. Else {1 if taken, microseconds until then, the last
--        limit to allow it (from 0), stamp, then for each limit what is used and in how many microseconds
--        nothing is}; {"o", windows} if it is in use with others
--
-- As `RateState::take` of ledger/rates.rs. What is refused writes nothing.
--
-- Two paths. Short: of one limit, a request that is granted now, or refused until the oldest entry leaves the
-- window, and that finds at most a few entries past. It makes no function and formats no number. Long:
-- everything else, by the rule. The short path decides before it writes, so that the long one may follow.
--#include now
if #ARGV == 5 then
  local call, key, cost, permits, wait = redis.call, KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[5]), tonumber(ARGV[3])
  local window, head = tonumber(ARGV[4]), redis.pcall('LINDEX', key, '0')
  local stated, used, count, seen, born, first, at, newest, oldest
  if head and not head.err and #head == 72 then
    stated, used, count, seen, born, first, at, newest, oldest = struct.unpack('<ddddddddd', head)
  end
  local past = stated == window and at + window <= now
  -- In a cluster a list that is missing may be on another node.
  if wait >= 0 and (past or not head and not string.find(ARGV[1], ' ', 1, true)) then
    --#path redis take: short, the first entry if not past
    --#path redis take: short, of a rate that is past if past
    if past then call('DEL', key) end
    call('RPUSH', key, struct.pack('<ddddddddd', window, cost, 1, now, now, now, now, cost, now))
    call('PEXPIRE', key, math.ceil(window / 1000) + spare)
    return { now, cost }
  end
  if stated == window and now > at and not past then
    -- How many elements are past; the permits of the oldest entry that is not.
    local gone, lasting, known = 0, 1, true
    if oldest + window <= now or used + cost > permits then
      local tail = call('LRANGE', key, '-4', '-1')
      local n = #tail
      while true do
        if count == 1 then oldest, lasting = at, newest break end
        local place, element = n, tail[n]
        lasting = 1
        if element and string.byte(element) == 45 then
          place, lasting = n - 1, -element - 1
          element = tail[place]
        end
        -- More of the list has to be read, or this is its head.
        if not element or #element > 20 then known = false break end
        oldest = tonumber(element)
        if oldest + window > now then break end
        used, count, gone, n = used - lasting, count - 1, gone + n - place + 1, place - 1
      end
    end
    if known and used + cost <= permits and wait >= 0 then
      --#path redis take: short, entries that are past if gone > 0
      if gone > 0 then call('LTRIM', key, '0', -gone - 1) end
      used = used + cost
      if count >= 1024 and now - first <= math.floor(window / 1024) then
        --#path redis take: short, merged into the newest entry
        call('LSET', key, '0',
          struct.pack('<ddddddddd', window, used, count, now, born, first, now, newest + cost, oldest))
      else
        -- The newest entry so far takes the place of the head, and the head comes before it.
        --#path redis take: short, behind an entry of one permit if newest == 1
        --#path redis take: short, behind an entry of several permits if newest ~= 1
        if newest == 1 then
          call('LSET', key, '0', at)
        else
          call('LSET', key, '0', -newest - 1)
          call('LPUSH', key, at)
        end
        call('LPUSH', key,
          struct.pack('<ddddddddd', window, used, count + 1, now, born, now, now, cost, oldest))
      end
      -- Kept for as long as an entry of this second needs it.
      if at < now - now % 1000000 then call('PEXPIRE', key, math.ceil(window / 1000) + spare) end
      return { now, used }
    end
    local ends = oldest + window
    if known and used + cost > permits and used - lasting + cost <= permits and ends - now > wait then
      --#path redis take: short, refused
      return { 0, ends - now, 0, ends, used, at + window - now }
    end
  end
end
--#include rate
local cost, wait, windows = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local main, text = head_of(near .. 0)
local busy, seen = nil, 0
if text and not main then
  busy, seen = string.match(type(text) == 'string' and text or '', '^p (%d+) (%d+)$')
  if not busy then return corrupt(near .. 0, text) end
  busy, seen = tonumber(busy), tonumber(seen)
end
-- What counts no more is as good as gone: then other windows may be stated.
local old = text ~= nil and (busy or main.at + main.window) <= now
if old then main, busy, seen = nil, nil, 0 end
local stands = busy and 'p' or main and windows_of(main) or windows
--#path redis take: other windows if stands ~= windows
if stands ~= windows then return { 'o', stands } end

if windows == 'p' then
  --#path redis take: an even flow
  local lasts, burst = tonumber(ARGV[5]), tonumber(ARGV[6])
  now, busy = math.max(now, seen), busy or 0
  local at = math.max(now, busy + lasts - burst)
  local taken = at - now <= wait
  if taken then
    busy = math.max(at, busy) + lasts
    local head = fmt('p %.0f %.0f', busy, now)
    if old then call('DEL', near .. 0) end
    if not old and text then call('LSET', near .. 0, 0, head) else call('RPUSH', near .. 0, head) end
    keep(near .. 0, busy)
  end
  return { taken and 1 or 0, at - now, 0, busy, 0, math.max(0, busy - now) }
end

local logs, count = {}, #ARGV - 4
for window in string.gmatch(windows, '%d+') do
  local i = #logs + 1
  local key = near .. (count - i)
  local log, other = main, text
  if i < count or old then
    log, other = nil, nil
    if not old then log, other = head_of(key) end
    if other and not log then return corrupt(key, other) end
  end
  local stored = log ~= nil
  log = log or { windows = i == count and count > 1 and windows or '', used = 0, count = 0, seen = 0, born = 0,
    first = 0, at = 0, cost = 0 }
  log.key, log.stored = key, stored
  log.permits, log.window = tonumber(ARGV[4 + i]), tonumber(window)
  logs[i] = log
end
for _, log in ipairs(logs) do now = math.max(now, log.seen) end
local from = now
for _, log in ipairs(logs) do from = math.max(from, log.at) end

-- Finds the earliest instant of a limit, and what counts at `from`.
local function look(log)
  local used, at = log.used, from
  log.used_now, log.past, log.gone = used, 0, 0
  visit(log, function(entry, permits, elements)
    local ends = entry + log.window
    if ends <= from then
      log.used_now, log.past, log.gone = log.used_now - permits, log.past + 1, elements
    else
      log.next = log.next or entry
      if used + cost <= log.permits then return false end
      at = ends
    end
    used = used - permits
    return true
  end)
  return at
end
local stamp, last = from, 0
for i, log in ipairs(logs) do
  local at = look(log)
  if at > stamp then stamp, last = at, i - 1 end
end
local taken = stamp - now <= wait

-- Removes what does not count at the instant of the new entry.
local function drop_past(log)
  if stamp > from then
    --#path redis take: a reserved instant
    log.past, log.gone, log.used_now, log.next = 0, 0, log.used, nil
    visit(log, function(entry, permits, elements)
      log.next = entry
      if entry + log.window > stamp then return false end
      log.past, log.gone, log.used_now = log.past + 1, elements, log.used_now - permits
      return true
    end)
  end
  log.count, log.used = log.count - log.past, log.used_now
  --#path redis take: entries that are past if log.gone > 0
  if log.gone > 0 then call('LTRIM', log.key, 0, -log.gone - 1) end
end

local function add(log)
  drop_past(log)
  local element
  log.oldest = log.count > 0 and log.next or stamp
  if log.count > 0 and (stamp == log.at
    or (log.count >= MANY and stamp - log.first <= math.floor(log.window / MANY))) then
    --#path redis take: at the instant of the newest entry if stamp == log.at
    --#path redis take: merged into the newest entry if stamp ~= log.at
    log.at, log.cost = stamp, log.cost + cost
  else
    if log.count > 0 then
      -- The newest entry so far takes the place of the head, and the head comes before it.
      element = fmt('%.0f', log.at)
      if log.cost ~= 1 then
        --#path redis take: behind an entry of several permits
        call('LSET', log.key, 0, fmt('%.0f', -log.cost - 1))
        call('LPUSH', log.key, element)
      else
        --#path redis take: behind an entry of one permit
        call('LSET', log.key, 0, element)
      end
    else
      --#path redis take: the first entry
      log.born = stamp
    end
    log.first, log.at, log.cost, log.count = stamp, stamp, cost, log.count + 1
  end
  log.used, log.seen = log.used + cost, now
  local head = head_text(log)
  if element or not log.stored then
    call('LPUSH', log.key, head)
  else
    call('LSET', log.key, 0, head)
  end
  keep(log.key, stamp + log.window)
end

if taken and old then
  --#path redis take: of a rate that is past
  for i = 0, 7 do call('DEL', near .. i) end
end
local reply = { taken and 1 or 0, stamp - now, last, stamp }
for _, log in ipairs(logs) do
  if taken then add(log) else log.used = log.used_now end
  reply[#reply + 1] = log.used
  reply[#reply + 1] = log.count > 0 and math.max(0, log.at + log.window - now) or 0
end
return reply

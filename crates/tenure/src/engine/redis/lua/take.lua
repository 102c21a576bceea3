-- take: takes permits of a rate at the earliest instant at which all limits allow it, if that is near enough.
--
-- KEYS   the top, then the rate
-- ARGV   see head.lua; then "1" if nothing is to be taken, the permits, how many microseconds ahead the
--        instant may be; then "p" and for how long the permits and the burst keep the flow busy, or the
--        windows with commas, shortest first, and for each limit its permits and its window
-- out    {1 if taken, microseconds until then, the last limit to allow it (from 0), stamp, then for each limit
--        what is used and in how many microseconds nothing is}; {"o", windows} if it is in use with others
--
-- As `RateState::take` of ledger/rates.rs. What is refused writes nothing.
--#include clock
--#include rate
local probe, cost, wait, windows = ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local main, text = head_of(near .. 0)
local busy, seen = nil, 0
if text and not main then
  busy, seen = string.match(type(text) == 'string' and text or '', '^p (%d+) (%d+)$')
  if not busy then return corrupt(near .. 0, text) end
  busy, seen = tonumber(busy), tonumber(seen)
end
-- What counts no more is as good as gone: then other windows may be stated.
local longest = main and tonumber(string.match(main.windows, '(%d+)$'))
if main and not longest then return corrupt(near .. 0, text) end
local old = text ~= nil and (busy or main.at + longest) <= now
if old then main, busy, seen = nil, nil, 0 end
local stands = busy and 'p' or main and main.windows or windows
--#path redis take: other windows if stands ~= windows
if stands ~= windows then return { 'o', stands } end

if windows == 'p' then
  --#path redis take: an even flow
  local lasts, burst = tonumber(ARGV[6]), tonumber(ARGV[7])
  now, busy = math.max(now, seen), busy or 0
  local at = math.max(now, busy + lasts - burst)
  local taken = not probe and at - now <= wait
  if taken then
    busy = math.max(at, busy) + lasts
    local head = fmt('p %.0f %.0f', busy, now)
    if old then call('DEL', near .. 0) end
    if not old and text then call('LSET', near .. 0, 0, head) else call('RPUSH', near .. 0, head) end
    keep(near .. 0, busy)
  end
  return { taken and 1 or 0, at - now, 0, busy, 0, math.max(0, busy - now) }
end

local logs, count = {}, (#ARGV - 5) / 2
for i = 1, count do
  local key = near .. (count - i)
  local log, other = main, text
  if i < count or old then
    log, other = nil, nil
    if not old then log, other = head_of(key) end
    if other and not log then return corrupt(key, other) end
  end
  local stored = log ~= nil
  log = log or { windows = i == count and windows or '-', used = 0, count = 0, seen = 0, born = 0, first = 0,
    at = 0, cost = 0 }
  log.key, log.stored = key, stored
  log.permits, log.window = tonumber(ARGV[4 + 2 * i]), tonumber(ARGV[5 + 2 * i])
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
    elseif used + cost <= log.permits then
      return false
    else
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
local taken = not probe and stamp - now <= wait

-- Removes what does not count at the instant of the new entry.
local function drop_past(log)
  if stamp > from then
    --#path redis take: a reserved instant
    log.past, log.gone, log.used_now = 0, 0, log.used
    visit(log, function(entry, permits, elements)
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

-- settle: corrects how many permits of a rate were taken.
--
-- KEYS   the top, then the list of the longest window, or of the flow
-- ARGV   see head.lua; then the stamp of the reply to take, how many were taken and how many it should have
--        been; then "p" and for how long each keeps the flow busy, or the windows with commas and each window
-- out    1 if it counts, 0 if what was taken counts no more
--
-- As `RateState::settle` of ledger/rates.rs.
--#include now
--#include rate
local stamp, taken, actual, windows = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local main, text = head_of(near .. 0)
if not text then return 0 end
if not main then
  local busy, seen = string.match(type(text) == 'string' and text or '', '^p (%d+) (%d+)$')
  if not busy then return corrupt(near .. 0, text) end
  busy, seen = tonumber(busy), tonumber(seen)
  now = math.max(now, seen)
  if windows ~= 'p' or stamp <= now or stamp > busy then return 0 end
  --#path redis settle: an even flow
  local long, short = tonumber(ARGV[6]), tonumber(ARGV[7])
  busy = busy - math.min(math.max(0, long - short), stamp - now) + math.max(0, short - long)
  call('LSET', near .. 0, 0, fmt('p %.0f %.0f', busy, seen))
  keep(near .. 0, math.max(busy, now))
  return 1
end
if windows_of(main) ~= windows then return 0 end

-- Changes the permits of the oldest entry that is not before the stamp.
local function settle(log, window)
  local present = math.max(now, log.seen)
  if log.count == 0 or stamp < log.born or stamp > log.at or stamp + window <= present then return 0 end
  local instant, permits, place, paired
  visit(log, function(entry, cost, elements, pair)
    if entry < stamp then return true end
    instant, permits, place, paired = entry, cost, elements, pair
    return false
  end)
  local changed = math.max(0, permits - math.max(0, taken - actual)) + math.max(0, actual - taken)
  log.used = log.used - permits + changed
  local element = fmt('%.0f', -changed - 1)
  if instant == log.at then
    --#path redis settle: the newest entry
    log.cost = changed
  elseif paired then
    --#path redis settle: an entry of several permits
    call('LSET', log.key, 1 - place, element)
  else
    --#path redis settle: an entry of one permit
    -- An entry of one permit is its instant alone.
    call('LINSERT', log.key, 'AFTER', fmt('%.0f', instant), element)
  end
  call('LSET', log.key, 0, head_text(log))
  return 1
end

local settled, count = 0, #ARGV - 5
local logs = {}
for i = 1, count do
  local key = near .. (count - i)
  local log, other = main, nil
  if i < count then log, other = head_of(key) end
  if other and not log then return corrupt(key, other) end
  if log then log.key = key end
  logs[i] = log or false
end
for i, log in ipairs(logs) do
  if log then settled = math.max(settled, settle(log, tonumber(ARGV[5 + i]))) end
end
return settled

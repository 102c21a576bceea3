-- renew: renews claims, holders and waiters alike.
--
-- KEYS   the top, then the slots of each claim in turn
-- ARGV   see head.lua; then for each claim "- 0 PARTS LEASE CLAIM"
-- out    now, then for each claim {"g", arrival, fence..}, {"q", place, first expiry, arrival},
--        {"x", reason of an eviction or ""} if it is gone, or {"e", message}
--
-- Short path: a lone holder (slot.lua) whose key is rewritten with a new time. Long path: the rules.
--#include clock
local now = tonumber(now_text)
local answers, later = { now }, nil
local k = 2
for n = 2, #ARGV do
  local item = ARGV[n]
  local parts, lease = tonumber(string.sub(item, 5, 6)), tonumber(string.sub(item, 8, 18))
  local lone, i = {}, 0
  while lone and i < parts do
    -- A key of another type is an error of this claim, not of the whole batch.
    local value = redis.pcall('GET', KEYS[k + i])
    -- A lone holder without lock delay: its key lives exactly as long as the claim.
    if type(value) == 'string' and string.sub(value, 69, 119) == item
      and string.sub(value, 1, 16) + lease > now then
      lone[i + 1] = value
    else
      --#path redis renew: a lone holder, expired if type(value) == 'string' and string.sub(value, 69, 119) == item
      lone = nil
    end
    i = i + 1
  end
  if lone then
    --#path redis renew: a lone holder
    --#path redis renew: a set of lone holders if parts > 1
    local answer, px = { 'g', tonumber(string.sub(lone[1], 35, 50)) }, math.ceil(lease / 1000)
    for i = 0, parts - 1 do
      local value = lone[i + 1]
      redis.call('SET', KEYS[k + i], now_text .. string.sub(value, 17), 'PX', px)
      answer[i + 3] = tonumber(string.sub(value, 18, 33))
    end
    answers[n] = answer
  else
    later = later or {}
    later[#later + 1] = { n, string.sub(item, 20, 51), k, parts, lease }
  end
  k = k + parts
end
if not later then return answers end
--#include head
--#include slot
--#include rules
--#path redis renew: by the rules

function F.renew(id, from, count, lease)
  local parts = {}
  for i = 1, count do parts[i] = { key = KEYS[from + i - 1] } end
  for _, part in ipairs(parts) do F.open(part.key, id) end
  for _, part in ipairs(parts) do F.touch(F.open(part.key)) end
  return F.renew_one(id, parts, lease)
end

for _, one in ipairs(later) do
  local fine, answer = pcall(F.renew, one[2], one[3], one[4], one[5])
  answers[one[1]] = fine and answer or F.failure(answer, one[3], one[4])
end
F.put_away()
--#include tail
F.tell()
return answers

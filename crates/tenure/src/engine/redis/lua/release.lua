-- release: releases or withdraws claims, and grants their slots to the next waiters.
--
-- KEYS   the top, then the slots of each claim in turn
-- ARGV   see head.lua; then for each claim "- 0 PARTS LEASE CLAIM", followed by " 1" if a copy of
--        the claim may still arrive
-- out    1 if all held alone. Else for each claim 1 if it held or waited, 0 if it was not known, or
--        {"e", message}
--#include keyclock
if string.sub(ARGV[1], 1, 1) ~= '.' and alone(redis.call('GET', KEYS[2]), ARGV[2]) then
  -- Short path: one lone holder. No waiter exists, so that nothing has to be granted.
  --#path redis release: a lone holder
  redis.call('DEL', KEYS[2])
  return 1
end
local answers, gone, later = {}, {}, nil
-- MGET returns nil for a key of another type: the long path reports it.
local k, values = 2, redis.call('MGET', unpack(KEYS))
for n = 2, #ARGV do
  local item = ARGV[n]
  local last = k + string.sub(item, 5, 6) - 1
  local lone = true
  for i = k, last do lone = lone and alone(values[i], item) end
  if lone then
    for i = k, last do gone[#gone + 1] = KEYS[i] end
    answers[n - 1] = 1
  else
    later = later or {}
    later[#later + 1] = { n - 1, k, last - k + 1 }
  end
  k = last + 1
end
--#path redis release: a set of lone holders if #gone > 1
if #gone > 0 then redis.call('DEL', unpack(gone)) end
if not later then return 1 end
--#path redis release: a lone holder, expired if values[2] and string.sub(values[2], 69, 119) == ARGV[2] and not alone(values[2], ARGV[2])
--#include clock
--#include head
--#include slot
--#include rules
--#path redis release: by the rules

function F.release(item, from, count)
  local lease, id, uncertain = match(item, '^%- 0 %d+ (%d+) (%x+)(.*)$')
  local parts = {}
  for i = 1, count do parts[i] = { key = KEYS[from + i - 1] } end
  for _, part in ipairs(parts) do F.open(part.key, id) end
  for _, part in ipairs(parts) do F.expire(F.open(part.key)) end
  if uncertain ~= '' then F.bury(id, parts, tonumber(lease), '') end
  return F.remove(id, parts) and 1 or 0
end

for _, one in ipairs(later) do
  local fine, answer = pcall(F.release, ARGV[one[1] + 1], one[2], one[3])
  answers[one[1]] = fine and answer or F.failure(answer, one[2], one[3])
end
F.put_away()
--#include tail
F.tell()
return answers

-- release: gives claims back or withdraws them.
--
-- KEYS   the top, then the slots of each claim in turn
-- ARGV   see head.lua; then for each claim "- 0 PARTS LEASE CLAIM", with " 1" behind it if a copy of
--        the claim may still arrive
-- out    the short way: 1. Else for each claim 1 if it held or waited, 0 if it was not known, or
--        {"e", message}
--#include keyclock
if string.sub(ARGV[1], 1, 1) ~= '.' then
  -- The short way for one claim: one holder, nobody in line, no lock delay. Its key lives exactly as
  -- long as it does.
  local value = redis.call('GET', KEYS[2])
  if value and string.sub(value, 69, 119) == ARGV[2]
    and (not now_text or string.sub(value, 1, 16) + string.sub(value, 76, 86) > tonumber(now_text)) then
    redis.call('DEL', KEYS[2])
    return 1
  end
end
local answers, later = {}, nil
local k = 2
for n = 2, #ARGV do
  local parts, lone, i = tonumber(string.sub(ARGV[n], 5, 6)), true, 0
  while lone and i < parts do
    -- What is no string is an error of this claim, not of all that go with it.
    local value = redis.pcall('GET', KEYS[k + i])
    lone = type(value) == 'string' and string.sub(value, 69, 119) == ARGV[n]
      and (not now_text or string.sub(value, 1, 16) + string.sub(value, 76, 86) > tonumber(now_text))
    i = i + 1
  end
  if lone then
    for i = 0, parts - 1 do redis.call('DEL', KEYS[k + i]) end
    answers[n - 1] = 1
  else
    later = later or {}
    later[#later + 1] = { n - 1, k, parts }
  end
  k = k + parts
end
if not later then return answers end
--#include clock
--#include head
--#include slot
--#include rules

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

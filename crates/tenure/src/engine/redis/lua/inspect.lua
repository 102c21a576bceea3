-- inspect: reads slots. Changes nothing but what has expired already.
--
-- KEYS   the top, then the slots to read
-- ARGV   see head.lua; then "", or "q" if the index of contended slots listed them, or an owner: then all
--        slots that can be reached from it are read, up to ARGV[3] of them
-- out    now, 1 if more could be reached, then for each slot {slot, value} if it has a lone holder
--        (slot.lua), {slot, shape, for how much longer it is closed, {hold..}, {waiter, expiry, "1" if
--        ahead ..}}, or {slot, "e", message}
--
-- Short path: the slot of a lone holder is returned as it is kept. Long path: the rules.
--#include clock
local answer, later = { tonumber(now_text), 0 }, {}
if ARGV[2] == '' then
  -- MGET returns nil for a key of another type: the long path reports it.
  local values = redis.call('MGET', unpack(KEYS))
  for i = 2, #KEYS do
    local value = values[i] or ''
    local from, lease = tonumber(string.sub(value, 1, 16)), tonumber(string.sub(value, 76, 86))
    if from and lease and string.sub(value, 69, 72) == '- 0 ' and from + lease > answer[1] then
      answer[#answer + 1] = { KEYS[i], value }
    else
      later[#later + 1] = KEYS[i]
    end
  end
  if #later == 0 then return answer end
elseif ARGV[2] == 'q' then
  for i = 2, #KEYS do later[#later + 1] = KEYS[i] end
end
--#include head
--#include slot
--#include rules

function F.view(S)
  local holds, line = {}, {}
  if S.lone then holds[1] = F.hold_view(S, S.lone) end
  if S.full and not F.vacant(S) then
    local all, fields = {}, call('HGETALL', S.s)
    for i = 1, #fields, 2 do all[fields[i]] = fields[i + 1] end
    local rows = call('ZRANGE', S.x, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      local hold = all['h' .. rows[i]]
      if hold then
        holds[#holds + 1] = F.number(rows[i + 1]) .. ' ' .. hold
      end
    end
    local expiries = {}
    rows = call('ZRANGE', S.y, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do expiries[rows[i]] = rows[i + 1] end
    rows = call('ZRANGE', S.l, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      local ticket = all['t' .. rows[i]]
      if ticket then
        line[#line + 1] = ticket
        line[#line + 1] = F.number(expiries[rows[i]] or 0)
        line[#line + 1] = tonumber(rows[i + 1]) < 0 and '1' or '0'
      end
    end
  end
  return { S.key, S.shape, max(0, S.closed - now), holds, line }
end

-- Returns the slots that can be reached from an owner: those it and its descendants wait for, those that
-- their holders and waiters wait for, and so on; and the marker slots of these owners that are held
-- (concurrency_marker in contract/deadlock.rs).
function F.reach(owner, most)
  local found, seen, owners, at = {}, {}, { owner }, 1
  local known = { [owner] = true }
  while owners[at] do
    for _, key in ipairs(call('SMEMBERS', F.waits .. owners[at])) do
      local S = F.peek(key)
      if S then F.touch(S) end
      -- F.touch may have granted or dropped its ticket.
      local stands = S and S.full and call('HGET', S.s, 'w' .. owners[at])
      if stands and not seen[key] then
        if #found == most then return found, 1 end
        seen[key], found[#found + 1] = true, S
        local ids = {}
        for _, id in ipairs(call('ZRANGE', S.x, 0, -1)) do ids[#ids + 1] = F.hold_of(S, id) end
        for _, id in ipairs(call('ZRANGE', S.l, 0, -1)) do ids[#ids + 1] = F.ticket_of(S, id) end
        for _, one in ipairs(ids) do
          if one and not known[one.claim.owner] then
            known[one.claim.owner], owners[#owners + 1] = true, one.claim.owner
          end
        end
      end
    end
    at = at + 1
  end
  for _, owner in ipairs(owners) do
    -- The name as keys encode it: "\1concurrent:OWNER".
    local key = F.locks .. '%01concurrent%3A' .. owner .. '}'
    if call('EXISTS', key) == 1 then
      local S = F.peek(key)
      if S then F.touch(S) end
      if S and S.holders > 0 then found[#found + 1] = S end
    end
  end
  return found, 0
end

local list = {}
if #ARGV[2] > 1 then
  list, answer[2] = F.reach(ARGV[2], tonumber(ARGV[3]))
else
  for _, key in ipairs(later) do
    -- A foreign key is an error of that slot alone.
    local fine, S = pcall(F.open, key)
    if fine then
      list[#list + 1] = S
    else
      local why = type(S) == 'table' and S.err or tostring(S)
      answer[#answer + 1] = { key, 'e', why }
    end
  end
  for _, S in ipairs(list) do
    -- It is in the index: F.put_away removes it from there if it has no queue.
    if ARGV[2] == 'q' then S.queued = true end
    pcall(F.touch, S)
  end
end
F.put_away()
for _, S in ipairs(list) do
  local shown = S.shape and (not F.vacant(S) or S.closed > now)
  if shown then answer[#answer + 1] = F.view(S) end
end
--#include tail
F.tell()
return answer

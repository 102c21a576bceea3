-- refuse_victim: ends the wait of a claim to break a deadlock, if all facts of the verdict stand.
--
-- KEYS   the top, the slots of all facts, then the markers of all owners
-- ARGV   see head.lua; then the number of slots; the victim as "KEY CLAIM", where KEY is the place of its
--        slot in KEYS; the reason; the holds and the waits as "KEY CLAIM;.."; the owners as "OWNER;.."
-- out    1 if the claim was refused, 0 if a fact does not stand
--#include clock
--#include head
--#include slot
--#include rules
local slots, answer = tonumber(ARGV[2]), 0

-- Returns true if every claim holds and waits where it did. Adds the ids of those that wait to `named`, and
-- their owners to `waiting`.
function F.facts_stand(named, waiting)
  for at, id in gmatch(ARGV[5], '(%d+) (%x+);') do
    --#path redis verdict: a hold is gone if not F.hold_of(F.open(KEYS[tonumber(at)]), id)
    if not F.hold_of(F.open(KEYS[tonumber(at)]), id) then return false end
  end
  for at, id in gmatch(ARGV[6], '(%d+) (%x+);') do
    --#path redis verdict: a wait is gone if not F.ticket_of(F.open(KEYS[tonumber(at)]), id)
    local ticket = F.ticket_of(F.open(KEYS[tonumber(at)]), id)
    if not ticket then return false end
    named[id], waiting[ticket.claim.owner] = true, true
  end
  return true
end

-- Returns true if no marker is held, no owner waits with a claim that is not named, and nested in none that
-- waits is another that does.
function F.owners_are_stuck(named, waiting)
  for i = slots + 2, #KEYS do
    --#path redis verdict: a marker is held if F.open(KEYS[i]).holders > 0
    if F.open(KEYS[i]).holders > 0 then return false end
  end
  for owner in gmatch(ARGV[7], '(%x+);') do
    for _, key in ipairs(call('SMEMBERS', F.waits .. owner)) do
      local S = F.peek(key)
      if S then F.touch(S) end
      for _, ticket in ipairs(S and F.kin_of(S, owner) or {}) do
        local counts = ticket.claim.owner == owner or waiting[owner]
        --#path redis verdict: another wait if counts and not named[ticket.claim.id]
        if counts and not named[ticket.claim.id] then return false end
      end
    end
  end
  return true
end

function F.refuse_victim()
  local named, waiting = {}, {}
  for i = 2, #KEYS do F.touch(F.open(KEYS[i])) end
  if not F.facts_stand(named, waiting) or not F.owners_are_stuck(named, waiting) then return end
  local at, id = match(ARGV[3], '^(%d+) (%x+)$')
  local ticket = F.ticket_of(F.open(KEYS[tonumber(at)]), id)
  if not ticket then return end
  --#path redis verdict: refused
  local claim = ticket.claim
  F.bury(id, claim.parts, claim.lease, ARGV[4])
  F.remove(id, claim.parts)
  if claim.session ~= '-' then
    F.signals[#F.signals + 1] = { claim.session, 'e ' .. id .. ' ' .. ARGV[4] }
  end
  answer = 1
end

local fine, why = pcall(F.refuse_victim)
F.put_away()
--#include tail
F.tell()
if not fine then return redis.error_reply(type(why) == 'table' and why.err or tostring(why)) end
return answer

-- evict: ends exactly the grants with this fence, and notifies their sessions with the reason.
--
-- KEYS   the top, the slot
-- ARGV   see head.lua; then the fence and the reason
-- out    now, then "d" and the holds that were ended, or "n" and the current holds
--#include clock
--#include head
--#include slot
--#include rules
local S, fence, reason = F.open(KEYS[2]), tonumber(ARGV[2]), ARGV[3]
local ended, stand = { now, 'd' }, { now, 'n' }
local claims = {}

function F.evict()
  F.touch(S)
  --#path redis evict: a lone holder if S.lone and S.lone.fence == fence
  local ids = S.full and call('ZRANGE', S.x, 0, -1) or { S.lone and S.lone.claim.id }
  for _, id in ipairs(ids) do
    local hold = F.hold_of(S, id)
    if hold and hold.fence == fence then
      claims[#claims + 1], ended[#ended + 1] = hold.claim, F.hold_view(S, hold)
    elseif hold then
      stand[#stand + 1] = F.hold_view(S, hold)
    end
  end
  -- All are removed before a waiter is granted: no grant may share the fence that ends.
  for _, claim in ipairs(claims) do F.take_out(claim.id, claim.parts) end
  for _, claim in ipairs(claims) do
    F.bury(claim.id, claim.parts, claim.lease, reason)
    F.touch_all(claim.parts)
    if claim.session ~= '-' then
      F.signals[#F.signals + 1] = { claim.session, 'e ' .. claim.id .. ' ' .. reason }
    end
  end
end

local fine, why = pcall(F.evict)
F.put_away()
--#include tail
F.tell()
if not fine then return redis.error_reply(type(why) == 'table' and why.err or tostring(why)) end
return #claims > 0 and ended or stand

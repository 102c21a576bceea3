-- end_session: ends everything a session holds or waits for, as if its leases had run out now.
--
-- KEYS   the top, then all slots
-- ARGV   see head.lua; then the session
--#include clock
--#include head
--#include slot
--#include rules
for i = 2, #KEYS do
  local S = F.open(KEYS[i])
  if S.shape then
    F.expire(S)
    local holds, tickets = {}, {}
    local ids = S.full and call('ZRANGE', S.x, 0, -1) or { S.lone and S.lone.claim.id }
    for _, id in ipairs(ids) do
      local hold = F.hold_of(S, id)
      if hold and hold.claim.session == ARGV[2] then holds[#holds + 1] = id end
    end
    for _, id in ipairs(call('ZRANGE', S.l, 0, -1)) do
      local ticket = F.ticket_of(S, id)
      if ticket and ticket.claim.session == ARGV[2] then tickets[#tickets + 1] = ticket end
    end
    for _, id in ipairs(holds) do F.end_hold(S, id, now) end
    for _, ticket in ipairs(tickets) do
      if F.ticket_of(S, ticket.claim.id) then F.remove_ticket(S, ticket) end
    end
    F.touch(S)
  end
end
F.put_away()
--#include tail
F.tell()
return 1

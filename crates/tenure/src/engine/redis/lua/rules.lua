-- The admission rules: what fits, which ticket is next, which fence. They restate ledger/ in Lua, over
-- the storage of slot.lua; the differential test compares both. A function has the name of its
-- counterpart in ledger/slot.rs (fits, blocks, passes, admits, reenters, owns, rival_upgrade, fence_for,
-- leave_group, end_hold, expire, unhindered, next_in_line, promote, first_expiry) or in ledger/mod.rs
-- (touch, settle, grant_of, queued, take_out, remove), except: base_of is Slot::base, kin_behind a part
-- of Slot::next_in_line; owner_holds and kin_of: line.rs, bury: release.rs, renew_one, epitaph: renew.rs.

-- Returns true if `owner` is the claim's owner or one of its ancestors.
function F.includes(claim, owner)
  for _, one in ipairs(claim.lineage) do if one == owner then return true end end
  return false
end

-- Returns true if the claim's own owner holds this weight already: re-entry adds nothing.
function F.reenters(S, claim, weight)
  return S.reentrant and F.owner_weight(S, claim.owner) >= weight
end

function F.owns(S, claim) return S.reentrant and #F.holds_of(S, claim.owner) > 0 end

-- Returns until when nothing new is granted.
function F.closed_until(S) return max(S.closed, grace) end

function F.fits(S, claim, weight)
  if F.reenters(S, claim, weight) then return true end
  if now < F.closed_until(S) and not F.owns(S, claim) then return false end
  local others = S.weight
  if S.reentrant and S.holders > 0 then
    for _, owner in ipairs(claim.lineage) do others = others - F.owner_weight(S, owner) end
  end
  return others + weight <= S.capacity
end

-- Returns true if the holds of `holder` and its ancestors exclude a claim of `waiter`.
function F.blocks(S, holder, waiter, weight)
  local held = 0
  for _, owner in ipairs(holder.lineage) do
    if not F.includes(waiter, owner) then held = held + F.owner_weight(S, owner) end
  end
  return held > 0 and held + weight > S.capacity
end

-- Returns true if a claim need not wait behind this ticket.
function F.passes(S, claim, ticket)
  return ticket.claim.owner == claim.owner or F.blocks(S, claim, ticket.claim, ticket.weight)
end

-- Returns true if a new claim is granted at once: it fits, and no living claim of another owner waits
-- before it.
function F.admits(S, claim, weight)
  if not F.fits(S, claim, weight) then return false end
  if S.waiting == 0 or F.reenters(S, claim, weight) then return true end
  if not S.reentrant then return false end
  local kin, place = F.kin(S, claim), 0
  while true do
    local ticket = F.ticket_at(S, place)
    if not ticket or (kin > 0 and not ticket.ahead) then return true end
    if kin > 0 then
      if not F.passes(S, claim, ticket) then return false end
    elseif ticket.claim.owner ~= claim.owner then
      return false
    end
    place = place + 1
  end
end

-- Returns the hold whose fence a nested or re-entering claim shares: the heaviest of its own owner, else
-- of the nearest ancestor that holds.
function F.base_of(S, claim)
  if not S.reentrant or S.holders == 0 then return nil end
  for _, owner in ipairs(claim.lineage) do
    local _, id = F.owner_weight(S, owner)
    if id then return F.hold_of(S, id) end
  end
end

-- Returns the ticket of another reader that waits to upgrade. This claim, which is an upgrade too, and
-- that one could only wait for each other.
function F.rival_upgrade(S, claim, weight)
  local base = F.base_of(S, claim)
  if not base or base.weight >= weight then return nil end
  local place = 0
  while true do
    local ticket = F.ticket_at(S, place)
    if not ticket or not ticket.ahead then return nil end
    local theirs = F.base_of(S, ticket.claim)
    if theirs and theirs.weight < ticket.weight and F.blocks(S, claim, ticket.claim, ticket.weight)
      and F.blocks(S, ticket.claim, claim, weight) then
      return ticket
    end
    place = place + 1
  end
end

function F.read_group(S, key)
  local fence, spent, members =
    match(call('HGET', S.s, 'g' .. F.number(key)) or '', '^(%d+) (%d) (%d+)$')
  if not fence then return nil end
  return { key = key, fence = tonumber(fence), spent = spent == '1', members = tonumber(members) }
end

function F.save_group(S, group)
  call('HSET', S.s, 'g' .. F.number(group.key), F.number(group.fence) .. ' ' ..
    (group.spent and '1' or '0') .. ' ' .. fmt('%.0f', group.members))
end

-- Returns the fence of a new grant, and the group that shares it. A claim of no more weight than its
-- base shares the base's fence; one of more weight is an upgrade and gets a new one.
function F.fence_for(S, claim, weight)
  local base = F.base_of(S, claim)
  if not base then return F.mint(), nil end
  F.unfold(S)
  local group = base.group and F.read_group(S, base.group)
  if not group then
    group = { key = base.fence, fence = base.fence, spent = false, members = 1 }
    base.group = group.key
    F.save_hold(S, base)
  end
  group.members = group.members + 1
  if group.spent or base.weight < weight then
    group.spent, group.fence = false, F.mint()
  end
  F.save_group(S, group)
  return group.fence, group.key
end

function F.leave_group(S, hold, expired)
  local group = hold.group and F.read_group(S, hold.group)
  if not group then return end
  group.members = group.members - 1
  if group.members == 0 then
    call('HDEL', S.s, 'g' .. F.number(group.key))
  else
    group.spent = group.spent or expired
    F.save_group(S, group)
  end
end

-- An owner has begun to hold the slot, or no longer does: its tickets and those of its descendants
-- move ahead of the queue, or back to where they arrived.
function F.owner_holds(S, owner, holds)
  for _, ticket in ipairs(F.kin_of(S, owner)) do
    local ahead = holds or F.kin(S, ticket.claim) > 0
    if ahead ~= F.is_ahead(S, ticket) then F.place_ticket(S, ticket, ahead) end
  end
end

function F.grant(S, claim, weight, arrival, expires)
  local fence, group = F.fence_for(S, claim, weight)
  local first = S.reentrant and #F.holds_of(S, claim.owner) == 0
  F.insert_hold(S, { claim = claim, weight = weight, fence = fence, group = group, arrival = arrival,
    since = now, expires = expires, reserved = false })
  if first then F.owner_holds(S, claim.owner, true) end
end

-- Ends a hold, and the tickets that would replace it. `expired` is when it expired, if it did.
function F.end_hold(S, id, expired)
  local hold = F.hold_of(S, id)
  if not hold then return false end
  local owner = hold.claim.owner
  F.remove_hold(S, hold)
  if S.reentrant and #F.holds_of(S, owner) == 0 then F.owner_holds(S, owner, false) end
  F.leave_group(S, hold, expired ~= nil)
  if expired and not hold.reserved then
    S.closed = max(S.closed, expired + hold.claim.delay)
  end
  if S.replacing > 0 then
    for _, ticket in ipairs(F.kin_of(S, owner)) do
      if ticket.claim.replaces == id then F.remove_ticket(S, ticket) end
    end
  end
  return true
end

-- Drops every hold and ticket that has expired. None expires before S.calm.
function F.expire(S)
  if S.lone then
    --#path redis expiry: a lone holder if S.lone.expires <= now
    if S.lone.expires <= now then F.end_hold(S, S.lone.claim.id, S.lone.expires) end
    return
  end
  if not S.full or now < S.calm then return end
  if call('ZCARD', S.x) ~= S.holders or call('ZCARD', S.l) ~= S.waiting
    or call('ZCARD', S.y) ~= S.waiting then
    -- An evicting store has taken a part of the slot: what it held is lost.
    return F.forget(S)
  end
  if S.holders > 0 then
    local dead = call('ZRANGEBYSCORE', S.x, '-inf', now_text, 'WITHSCORES')
    --#path redis expiry: holders if #dead > 0
    for i = 1, #dead, 2 do
      if not F.end_hold(S, dead[i], tonumber(dead[i + 1])) then call('ZREM', S.x, dead[i]) end
    end
  end
  if S.waiting > 0 then
    for _, id in ipairs(call('ZRANGEBYSCORE', S.y, '-inf', now_text)) do
      local ticket = F.ticket_of(S, id)
      --#path redis expiry: waiters
      if ticket then F.remove_ticket(S, ticket) else call('ZREM', S.y, id) end
    end
  end
  S.calm = now + 86400000000
  for _, key in ipairs({ S.x, S.y }) do
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if first then S.calm = math.min(S.calm, tonumber(first)) end
  end
end

-- Returns true if no claim is before this ticket that it has to wait for.
function F.unhindered(S, ticket)
  local place = 0
  while true do
    local other = F.ticket_at(S, place)
    if not other or other.claim.id == ticket.claim.id then return true end
    if not F.passes(S, ticket.claim, other) then return false end
    place = place + 1
  end
end

function F.comes_in(S, ticket)
  return F.fits(S, ticket.claim, ticket.weight) and F.unhindered(S, ticket)
end

function F.earlier(a, b)
  if not (a and b) then return a or b end
  return a.arrival <= b.arrival and a or b
end

-- Returns the first of these tickets that can be granted.
function F.first_in(S, tickets, lighter)
  for _, ticket in ipairs(tickets) do
    if (not lighter or ticket.weight < lighter) and F.comes_in(S, ticket) then return ticket end
  end
end

-- The head waits for holds of its own lineage. Returns the first ticket behind it whose lineage holds
-- what the tickets before it wait for; searched through the holders or through the tickets ahead,
-- whichever are fewer.
function F.kin_behind(S, head)
  local found
  if S.holders <= 32 then
    for _, id in ipairs(call('ZRANGE', S.x, 0, -1)) do
      local hold = F.hold_of(S, id)
      if hold and not F.includes(head.claim, hold.claim.owner) then
        found = F.earlier(found, F.first_in(S, F.kin_of(S, hold.claim.owner)))
      end
    end
    return found
  end
  local place = 1
  while true do
    local ticket = F.ticket_at(S, place)
    if not ticket or not ticket.ahead then return nil end
    for _, owner in ipairs(ticket.claim.lineage) do
      if #F.holds_of(S, owner) > 0 and not F.includes(head.claim, owner) and F.comes_in(S, ticket) then
        return ticket
      end
    end
    place = place + 1
  end
end

-- Returns the first ticket, in order, that fits and is not behind a claim of another owner.
function F.next_in_line(S)
  local head = F.ticket_at(S, 0)
  if not head then return nil end
  if F.fits(S, head.claim, head.weight) then return head end
  if not S.reentrant then return nil end
  local own = head.weight > 1 and F.first_in(S, F.kin_of(S, head.claim.owner), head.weight) or nil
  local kin = head.ahead and F.kin_behind(S, head) or nil
  return F.earlier(own, kin)
end

-- Grants, in the order of the queue, what fits now. Returns the claims that were granted.
function F.promote(S)
  -- `again`: other tickets of owners that were granted, which fit the weight their owner has now, by
  -- arrival; `at` is the next of them.
  local granted, again, known, at = {}, {}, {}, 1
  while S.holders < F.HOLDERS do
    if #granted == F.GRANTS then
      -- The limit of one call: the next waiter is notified to renew, which grants the rest.
      local head = F.ticket_at(S, 0)
      S.more = 1
      if head and head.claim.session ~= '-' then
        F.signals[#F.signals + 1] = { head.claim.session, 'r ' .. head.claim.id }
      end
      break
    end
    local ticket = F.earlier(again[at], F.next_in_line(S))
    if not ticket then break end
    if ticket == again[at] then at = at + 1 end
    if F.ticket_of(S, ticket.claim.id) then
      local expires = tonumber(call('ZSCORE', S.y, ticket.claim.id) or 0)
      F.remove_ticket(S, ticket)
      local grows = not F.reenters(S, ticket.claim, ticket.weight)
      -- A claim has one expiry, waiting or holding: a grant does not renew it.
      F.grant(S, ticket.claim, ticket.weight, ticket.arrival, expires)
      if grows then
        local rest = {}
        for i = at, #again do rest[#rest + 1] = again[i] end
        for _, other in ipairs(F.kin_of(S, ticket.claim.owner)) do
          local fit = other.claim.owner == ticket.claim.owner
            and F.reenters(S, other.claim, other.weight)
          if fit and not known[other.claim.id] then
            known[other.claim.id], rest[#rest + 1] = true, other
          end
        end
        table.sort(rest, function(a, b) return a.arrival < b.arrival end)
        again, at = rest, 1
      end
      granted[#granted + 1] = ticket.claim
    end
  end
  return granted
end

-- Drops what has expired in a slot, grants what fits, and notifies the granted sessions. Every verb
-- leaves a slot in this state, so that there is nothing to do where nothing has changed.
function F.touch(S)
  if not S.shape then return end
  F.expire(S)
  if S.closed > 0 and S.closed <= now then S.closed, S.dirty = 0, true end
  if S.waiting == 0 or not S.dirty then return end
  S.dirty = false
  -- Tickets that wait for the end of the grace are granted when the slot opens.
  if now < grace then S.closed = max(S.closed, grace) end
  S.more = 0
  local granted = F.promote(S)
  if S.more > 0 then S.dirty = true end
  for _, claim in ipairs(granted) do F.settle(claim, true) end
end

-- Removes a claim from every slot, as if released, without granting anything.
function F.take_out(id, parts)
  local found = false
  for _, part in ipairs(parts) do
    local S = F.peek(part.key)
    if S and F.end_hold(S, id) then
      found = true
    else
      local ticket = S and F.ticket_of(S, id)
      if ticket then
        F.remove_ticket(S, ticket)
        found = true
      end
    end
  end
  return found
end

function F.touch_all(parts)
  for _, part in ipairs(parts) do
    local S = F.peek(part.key)
    if S then F.touch(S) end
  end
end

function F.remove(id, parts)
  local found = F.take_out(id, parts)
  F.touch_all(parts)
  return found
end

-- Returns the arrival and the fences of a claim that holds all its parts.
function F.grant_of(id, parts)
  local answer = { 'g', 0 }
  for i, part in ipairs(parts) do
    local S = F.peek(part.key)
    local hold = S and F.hold_of(S, id)
    if not hold then return nil end
    if i == 1 then answer[2] = hold.arrival end
    answer[i + 2] = hold.fence
  end
  return answer
end

-- A part of the claim was just granted: if all parts are held, the claim is granted and its session
-- notified; otherwise its parts are reserved.
function F.settle(claim, tell)
  local complete, held = true, {}
  for _, part in ipairs(claim.parts) do
    local S = F.peek(part.key)
    local hold = S and F.hold_of(S, claim.id)
    if hold then held[#held + 1] = { S, hold } end
    -- No part is over here: all parts of a claim have one expiry, since they are made and renewed
    -- together, and a slot drops dead tickets before it serves its line. Compared as in the ledger.
    if not (hold and now < F.expiry(S, hold)) then complete = false end
  end
  for _, one in ipairs(held) do
    local S, hold = one[1], one[2]
    if hold.reserved == complete then
      hold.reserved = not complete
      F.save_hold(S, hold)
    end
  end
  if not complete then return end
  if claim.replaces then
    for _, one in ipairs(held) do
      local old = F.hold_of(one[1], claim.replaces)
      if old then
        F.remove(claim.replaces, old.claim.parts)
        break
      end
    end
  end
  if tell and claim.session ~= '-' then
    local granted = F.grant_of(claim.id, claim.parts)
    if granted then
      local text = { 'g', claim.id }
      for i = 2, #granted do text[i + 1] = fmt('%.0f', granted[i]) end
      F.signals[#F.signals + 1] = { claim.session, table.concat(text, ' ') }
    end
  end
end

-- Returns how long until the first holder has expired, lock delay included where it concerns the claim;
-- -1 if only the queue is in its way.
function F.first_expiry(S, claim)
  local first, delayed = nil, not F.owns(S, claim)
  if S.holders > 0 then
    -- Where holders have lock delays, another than the first to expire may be the first to go.
    local row = call('ZRANGE', S.x, 0, delayed and S.delay > 0 and 31 or 0, 'WITHSCORES')
    for i = 1, #row, 2 do
      local hold = delayed and S.delay > 0 and F.hold_of(S, row[i])
      local ends = tonumber(row[i + 1])
      if hold and not hold.reserved then ends = ends + hold.claim.delay end
      first = first and math.min(first, ends) or ends
    end
  end
  if delayed and F.closed_until(S) > now then
    first = first and math.min(first, F.closed_until(S)) or F.closed_until(S)
  end
  return first and max(0, first - now) or -1
end

-- Returns the reply for a claim that waits for at least one part.
function F.queued(id, parts)
  local answer
  for _, part in ipairs(parts) do
    local S = F.open(part.key)
    local ticket = F.ticket_of(S, id)
    if ticket then
      local place = (call('ZRANK', S.l, id) or S.waiting - 1) + 1
      local first = F.first_expiry(S, ticket.claim)
      answer = answer or { 'q', place, first, ticket.arrival }
      answer[2] = max(answer[2], place)
      if first >= 0 then answer[3] = answer[3] < 0 and first or math.min(answer[3], first) end
    end
  end
  return answer
end

-- Returns the key of a claim's tombstone: beside the first of its slots.
function F.tomb_key(id, parts) return parts[1].key .. ':d:' .. id end

-- Writes a tombstone: a late copy of the claim is refused.
function F.bury(id, parts, lease, reason)
  call('SET', F.tomb_key(id, parts), F.number(now + lease) .. ' ' .. reason, 'PX',
    fmt('%.0f', math.ceil(lease / 1000) + spare))
  tombs = max(tombs, now + lease)
end

-- Returns the text of a claim's tombstone: the reason of an eviction, or "".
function F.epitaph(id, parts)
  local tomb = tombs > now and call('GET', F.tomb_key(id, parts))
  if tomb and (tonumber(sub(tomb, 1, 16)) or 0) > now then return sub(tomb, 18) end
end

-- Renews a claim whose slots were touched already.
function F.renew_one(id, parts, lease)
  for _, part in ipairs(parts) do
    local S = F.open(part.key)
    if not F.hold_of(S, id) and not F.ticket_of(S, id) then
      -- Losing one part releases all.
      F.remove(id, parts)
      return { 'x', F.epitaph(id, parts) or '' }
    end
  end
  local expires = now + lease
  for _, part in ipairs(parts) do
    local S = F.open(part.key)
    local hold = F.hold_of(S, id)
    if hold then
      F.unfold(S)
      F.set_expiry(S, hold, expires)
      local group = hold.group and F.read_group(S, hold.group)
      if group and group.spent then
        group.spent, group.fence = false, F.mint()
        F.save_group(S, group)
      end
      if group and hold.fence ~= group.fence then
        hold.fence = group.fence
        F.save_hold(S, hold)
      end
    else
      F.renew_ticket(S, F.ticket_of(S, id), expires)
    end
  end
  return F.queued(id, parts) or F.grant_of(id, parts)
end

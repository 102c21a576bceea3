-- claim: claims weight on one slot or on a set of slots.
--
-- KEYS   the top, then the slots of each claim in turn
-- ARGV   see head.lua; then the lease of all claims in milliseconds, and for each claim its text (see
--        slot.lua). Or "", if leases differ, and before each text its lease; "" again if the claim has
--        a lock delay or replaces another one
-- out    on the short path: the fence, as text, which is arrival and now as well. Else now, then for each
--        claim one of (or, if all are granted, one number: the fence of each)
--        fence                                  granted; the arrival is the same
--        {"g", arrival, fence..}                granted
--        {"q", place, first expiry, arrival}    queued
--        {"h", waiting, slot, hold..}           refused: held; slot and hold for each
--        {"s", slot, shape} {"u", text} {"w"} {"n"} {"f", slot, limit}    refused for another reason
--        {"e", message}                         an error of this claim alone: a foreign key
--
-- Three paths. Short: one claim of a free slot, without reading the top. Middle: several claims, each
-- of which finds its slots free. Long: everything else, by the rules (rules.lua). The first two write
-- one key per slot, the form of a lone holder (slot.lua); they are taken only if no tombstone, no lock
-- delay and no grace can matter.
--#include clock
if string.sub(ARGV[1], 1, 1) ~= '.' and now_text < '4503599627370496' then
  -- Short path, one claim of a free slot: three commands. The top becomes the clock, which is the
  -- fence, unless the top was ahead of the clock or is more than a number.
  local was = redis.call('SET', KEYS[1], now_text, 'GET')
  if not was or (#was == 16 and was < now_text) then
    if redis.call('SET', KEYS[2], now_text .. ' ' .. now_text .. ' ' .. now_text .. ' ' .. now_text ..
      ' - 0 ' .. ARGV[3], 'NX', 'PX', ARGV[2]) then
      --#path redis claim: one free slot
      return now_text
    end
    --#path redis claim: one slot, taken
  else
    --#path redis claim: one slot, the top is ahead of the clock
    redis.call('SET', KEYS[1], was)
  end
end
--#include head
local later, granted = nil, false
local open = grace <= now
-- One number for all grants of this call: fences have to grow per name, and no name is granted twice.
local next = top < clock and clock or top + 1
local fence = fmt('%08d%08d', next / 100000000, next % 100000000)
local begin = now_text .. ' ' .. fence .. ' ' .. fence .. ' ' .. now_text .. ' - 0 '
local answers = { now }
local shared = ARGV[2]
local singles = #ARGV == (shared ~= '' and #KEYS + 1 or 2 * #KEYS)
if shared ~= '' and singles and open and tombs <= now then
  -- One slot per claim: NX grants each that is free.
  for k = 2, #KEYS do
    if call('SET', KEYS[k], begin .. ARGV[k + 1], 'NX', 'PX', shared) then
      granted = true
    else
      later = later or {}
      later[#later + 1] = { k, k, 1, ARGV[k + 1] }
    end
  end
  if granted then top = next end
  if not later then answers[2] = next end
else
  local k, n, count = 2, 3, 1
  while n <= #ARGV do
    local px = shared
    if px == '' then px, n = ARGV[n], n + 1 end
    local text = ARGV[n]
    local parts = singles and 1 or tonumber(sub(text, 1, 2))
    local free = open and px ~= ''
    if free and tombs > now then free = call('EXISTS', KEYS[k] .. ':d:' .. sub(text, 16, 47)) == 0 end
    if free and parts > 1 then
      for i = k, k + parts - 1 do free = free and call('EXISTS', KEYS[i]) == 0 end
    end
    if free then
      -- Every slot is free: write one key per slot.
      --#path redis claim: a free set if parts > 1
      free = call('SET', KEYS[k], begin .. text, 'NX', 'PX', px)
    end
    count = count + 1
    if free then
      top = next
      local answer = fence
      if parts > 1 then
        answer = { 'g', next, next }
        for i = k + 1, k + parts - 1 do
          call('SET', KEYS[i], begin .. text, 'PX', px)
          answer[#answer + 1] = next
        end
      end
      answers[count] = answer
    else
      later = later or {}
      later[#later + 1] = { count, k, parts, text }
    end
    k, n = k + parts, n + 1
  end
end
if not later then
  --#include tail
  return answers
end
if granted then
  for i = 2, #KEYS do answers[i] = fence end
end
--#include slot
--#include rules
--#path redis claim: by the rules

-- Returns true if a part of a claim can be granted at once. As `is_free` of ledger/claim.rs.
function F.is_free(claim, part)
  local S = F.open(part.key)
  if F.vacant(S) then return F.closed_until(S) <= now end
  return F.admits(S, claim, part.weight)
end

-- Returns the reply that refuses the claim, whether its parts are free or not. As `refusal` of
-- ledger/claim.rs.
function F.refusal(claim, free)
  local replaces = not claim.replaces
  for i, part in ipairs(claim.parts) do
    local S = F.open(part.key)
    if not F.vacant(S) then
      if S.shape ~= part.shape then return { 's', S.key, S.shape } end
      if free[i] and S.holders >= F.HOLDERS then return { 'f', S.key, F.HOLDERS } end
      if not free[i] and claim.waits and S.waiting >= F.WAITERS then return { 'f', S.key, F.WAITERS } end
      local old = claim.replaces and F.hold_of(S, claim.replaces)
      replaces = replaces or (old and old.claim.owner == claim.owner)
      local rival = claim.waits and F.rival_upgrade(S, claim, part.weight)
      if rival then return { 'u', rival.claim.text } end
    end
  end
  if not replaces then return { 'n' } end
end

-- Builds the reply for a refused try-claim: the current holders of each slot.
function F.held(claim)
  local answer = { 'h', 0 }
  for _, part in ipairs(claim.parts) do
    local S = F.open(part.key)
    answer[2] = answer[2] + S.waiting
    local ids = S.lone and { S.lone.claim.id } or S.full and S.holders > 0
      and call('ZRANGE', S.x, 0, F.NAMED - 1) or {}
    for _, id in ipairs(ids) do
      local hold = F.hold_of(S, id)
      if hold and #answer < 2 + 2 * F.NAMED then
        answer[#answer + 1], answer[#answer + 2] = S.key, F.hold_view(S, hold)
      end
    end
  end
  return answer
end

-- Grants the parts that are free, and queues or refuses the rest. As `admit` of ledger/claim.rs.
function F.admit(claim, free)
  local all, waiting = true, false
  for i = 1, #claim.parts do all = all and free[i] end
  if not all and not claim.waits then return F.held(claim) end
  local arrival = F.mint()
  for i, part in ipairs(claim.parts) do
    local S = F.open(part.key)
    if F.vacant(S) then F.take_shape(S, part.shape) end
    -- A ticket that waits for the end of the grace is granted when the slot opens.
    if not free[i] and now < grace then S.closed = max(S.closed, grace) end
    if free[i] then
      F.grant(S, claim, part.weight, arrival, now + claim.lease)
    else
      F.insert_ticket(S, claim, part.weight, arrival)
    end
    waiting = waiting or S.waiting > 0
  end
  if (not all and #claim.parts > 1) or claim.replaces then F.settle(claim, false) end
  if waiting then
    -- A new holder moves tickets of its owner and descendants ahead of the queue.
    F.touch_all(claim.parts)
  end
  return F.queued(claim.id, claim.parts) or F.grant_of(claim.id, claim.parts) or { 'w' }
end

function F.claim_one(text, key)
  local claim = F.claim_of(text, key)
  local id = claim.id
  for _, part in ipairs(claim.parts) do F.open(part.key, id, claim.owner) end
  for _, part in ipairs(claim.parts) do F.touch(F.open(part.key)) end
  if F.epitaph(id, claim.parts) then return { 'w' } end
  for _, part in ipairs(claim.parts) do
    local S = F.open(part.key)
    if F.hold_of(S, id) or F.ticket_of(S, id) then
      local answer = F.renew_one(id, claim.parts, claim.lease)
      if answer[1] ~= 'x' then return answer end
      break
    end
  end
  local free = {}
  for i, part in ipairs(claim.parts) do free[i] = F.is_free(claim, part) end
  return F.refusal(claim, free) or F.admit(claim, free)
end

for _, one in ipairs(later) do
  local fine, answer = pcall(F.claim_one, one[4], KEYS[one[2]])
  answers[one[1]] = fine and answer or F.failure(answer, one[2], one[3])
end
F.put_away()
--#include tail
F.tell()
return answers

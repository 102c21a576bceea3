-- The storage of one slot: its holders and its queue. Contains no admission rules (rules.lua has them).
--
-- A slot has one of two forms. A lone holder without lock delay and without waiters is the string T
-- alone, which expires with the holder. Everything else is the full form: T is "+", and the keys below
-- hold the slot. F.unfold turns the first into the second; F.put_away deletes a full slot that is idle.
--
-- T     string: "FROM FENCE ARRIVAL SINCE - 0 TEXT" of a lone holder, whose lease began at FROM; or "+"
-- T:s   hash. The sums of F.SUMS, and
--         h<claim>  "FROM FENCE ARRIVAL SINCE GROUP RESERVED TEXT"   a holder (its expiry is in T:x)
--         o<owner>  "WEIGHT:CLAIM;..."                               the holds of an owner
--         t<claim>  "ARRIVAL SINCE TEXT"                             a waiter
--         w<owner>  the number of tickets of the owner and its descendants
--         g<group>  "FENCE SPENT MEMBERS"                            holds that share a fence
-- T:x   holders by expiry   T:y  waiters by expiry   T:l  waiters by place, those ahead below zero
-- T:k   waiters by owner and ancestors, "OWNER ARRIVAL CLAIM", lexically
-- TEXT  "PARTS LEASE CLAIM MODE SESSION OWNER[,ANCESTOR..] DELAY REPLACES SHAPE:WEIGHT:T[;..] ...",
--       written by clients. PARTS: the number of slots (T is "." if it is one); times are microseconds;
--       MODE "t" tries, "w" waits, "y" and "x" do the same and replace another claim
--
-- A verb opens its slots (F.open, cached in F.slots), changes them, and writes all of them back at its
-- end (F.put_away). Signals are collected in F.signals and published last (F.tell).
local match, gmatch, max = string.match, string.gmatch, math.max
-- In a cluster, while a hash slot is being moved, some of its keys are at one node and some at the
-- other, and a script that misses one fails half done. So it is detected first: while the slot moves, a
-- command with two keys of which one is missing is refused, and the second key here never exists.
if linger > 0 and type(redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':')) == 'table' then
  return redis.error_reply('TRYAGAIN the cluster slot of this name is being moved')
end
-- The first write. A server that is full, or a replica, refuses it: then nothing has been changed yet.
-- If memory was lost, the grace is recorded here, whatever becomes of this call.
call('SET', KEYS[1], raw or fmt('%.0f %.0f %.0f', top, tombs, grace), 'KEEPTTL')
-- Fields of one table, not locals: to make a function in Lua costs by the locals it can see.
local F = {
  HOLDERS = 10000, WAITERS = 10000, NAMED = 8,
  -- The capacity of a lock, and the weight of its writer.
  ALL = 2147483647,
  -- Most grants of one call: other clients wait for the server meanwhile.
  GRANTS = 512,
  -- Places ahead of the queue are this much lower.
  AHEAD = 9000000000000000,
  -- How far ahead of need the keys' time to live is set, so that few calls have to: a minute.
  STEP = 60000000,
  slots = {}, opened = {}, signals = {},
  SUMS = { 'weight', 'closed', 'keep', 'holders', 'waiting', 'calm', 'delay', 'replacing', 'more' },
  -- The prefix of the sessions' channels, and of the sets of slots that an owner or its descendants wait
  -- for.
  channels = sub(KEYS[1], 1, -4) .. 'to:', waits = sub(KEYS[1], 1, -4) .. 'waits:',
  -- The index of contended slots: a sorted set of their names, all scores 0. Not in a cluster.
  contended = sub(KEYS[1], 1, -4) .. 'contended', locks = sub(KEYS[1], 1, -6) .. '/',
}

function F.corrupt(key) error('TENURE corrupt ' .. key, 0) end

-- Builds the error reply of one claim. If a command met a key of another type, the reply names that
-- key; something may have been written before.
function F.failure(what, from, count)
  local text = type(what) == 'table' and what.err or tostring(what)
  if not string.find(text, 'WRONGTYPE', 1, true) then return { 'e', text } end
  local kinds = { [''] = 'string', [':s'] = 'hash', [':x'] = 'zset', [':y'] = 'zset', [':l'] = 'zset',
    [':k'] = 'zset' }
  for i = from, from + count - 1 do
    for part, wanted in pairs(kinds) do
      local kind = call('TYPE', KEYS[i] .. part).ok
      if kind ~= 'none' and kind ~= wanted then return { 'e', 'TENURE met ' .. KEYS[i] .. part } end
    end
  end
  return { 'e', text }
end

function F.number(n) return fmt('%08d%08d', n / 100000000, n % 100000000) end

-- Returns the next number: above everything given out, and not below the clock.
function F.mint()
  top = max(top + 1, clock)
  return top
end

-- A weight as claims write it: 0 is all of a lock, so that the text of a mutex stays short.
function F.weight(text)
  local weight = tonumber(text)
  return weight == 0 and F.ALL or weight
end

-- Parses the TEXT of a claim; `key` is the slot where it was found.
function F.claim_of(text, key)
  local lease, id, mode, session, owners, delay, replaces, parts =
    match(text, '^%d+ (%d+) (%x+) (%w) (%S+) (%S+) (%d+) (%S+) (%S+)')
  if not mode then F.corrupt(key) end
  local claim = { id = id, text = text, session = session, lineage = {}, parts = {} }
  claim.waits = mode == 'w' or mode == 'x'
  for owner in gmatch(owners, '%x+') do claim.lineage[#claim.lineage + 1] = owner end
  claim.owner = claim.lineage[1]
  claim.lease, claim.delay = tonumber(lease), tonumber(delay)
  claim.replaces = replaces ~= '-' and replaces or nil
  for shape, weight, slot in gmatch(parts, '([^:;]+):(%d+):([^;]+)') do
    if slot == '.' then slot = key end
    claim.parts[#claim.parts + 1] = { shape = shape, weight = F.weight(weight), key = slot }
  end
  return claim
end

-- Returns the weight of a claim on a slot, and the shape it expects.
function F.part_at(claim, key)
  for _, part in ipairs(claim.parts) do
    if part.key == key then return part.weight, part.shape end
  end
  F.corrupt(key)
end

function F.read_hold(value, key)
  local from, fence, arrival, since, group, reserved, text =
    match(value, '^(%d+) (%d+) (%d+) (%d+) (%S+) (%d) (.+)$')
  if not from then F.corrupt(key) end
  local claim = F.claim_of(text, key)
  return {
    claim = claim, weight = F.part_at(claim, key), fence = tonumber(fence),
    expires = tonumber(from) + claim.lease, arrival = tonumber(arrival), since = tonumber(since),
    group = tonumber(group), reserved = reserved == '1',
  }
end

function F.hold_text(hold)
  local group = hold.group and F.number(hold.group) or '-'
  return F.number(hold.expires - hold.claim.lease) .. ' ' .. F.number(hold.fence) .. ' ' ..
    F.number(hold.arrival) .. ' ' .. F.number(hold.since) .. ' ' .. group .. ' ' ..
    (hold.reserved and '1' or '0') .. ' ' .. hold.claim.text
end

-- The reply for a hold: its expiry, then its text.
function F.hold_view(S, hold) return F.number(F.expiry(S, hold)) .. ' ' .. F.hold_text(hold) end

function F.take_shape(S, shape)
  S.shape, S.reentrant = shape, sub(shape, 1, 1) ~= 's'
  S.capacity = shape == 'l' and F.ALL or tonumber(sub(shape, 2))
  if not S.capacity then F.corrupt(S.key) end
end

-- Fails if the key has another type than ours, before anything is written. Returns whether it exists.
function F.check_kind(key, wanted)
  local kind = call('TYPE', key).ok
  if kind ~= 'none' and kind ~= wanted then F.corrupt(key) end
  return kind ~= 'none'
end

-- Returns the slot of this key. Reads, in the same command, the hold or ticket of a claim and its owner.
function F.open(key, id, owner)
  local S = F.slots[key]
  if S then return S end
  S = { key = key, s = key .. ':s', x = key .. ':x', y = key .. ':y', l = key .. ':l', k = key .. ':k' }
  S.h, S.o, S.t = {}, {}, {}
  S.weight, S.closed, S.keep, S.holders, S.waiting, S.calm, S.delay, S.need = 0, 0, 0, 0, 0, 0, 0, 0
  S.replacing, S.more, S.fresh = 0, 0, {}
  F.check_kind(key, 'string')
  local value = call('GET', key)
  if value == '+' then
    F.read_slot(S, id or '', owner or '')
  else
    S.remains = F.check_kind(S.s, 'hash')
    for _, part in ipairs({ S.x, S.y, S.l, S.k }) do
      S.remains = F.check_kind(part, 'zset') or S.remains
    end
    if value then
      local hold = F.read_hold(value, key)
      local _, shape = F.part_at(hold.claim, key)
      F.take_shape(S, shape)
      S.lone, S.weight, S.holders = hold, hold.weight, 1
      S.h[hold.claim.id] = hold
      if S.reentrant then S.o[hold.claim.owner] = { { hold.weight, hold.claim.id } } end
    end
  end
  S.queued = S.waiting > 0
  F.slots[key] = S
  F.opened[#F.opened + 1] = S
  return S
end

-- Returns the slot, or nil if its keys are not ours. For slots other than those of the call, which are
-- opened when something may have been written already.
function F.peek(key)
  local fine, S = pcall(F.open, key)
  return fine and S or nil
end

function F.read_slot(S, id, owner)
  local meta = call('HMGET', S.s, 'shape', 'weight', 'closed', 'keep', 'holders', 'waiting', 'calm',
    'delay', 'replacing', 'more', 'h' .. id, 't' .. id, 'o' .. owner)
  if not meta[1] then
    -- An evicting store has taken a part of the slot: what it held is lost.
    S.remains = true
    return
  end
  S.full = true
  F.take_shape(S, meta[1])
  for i, field in ipairs(F.SUMS) do
    S[field] = tonumber(meta[i + 1])
    if not S[field] then F.corrupt(S.s) end
  end
  if S.waiting == 0 then
    for _, key in ipairs({ S.y, S.l, S.k }) do F.check_kind(key, 'zset') end
  end
  if S.holders == 0 then F.check_kind(S.x, 'zset') end
  -- Waiters without a holder: an earlier call could not grant all of them.
  S.dirty = S.more > 0 or (S.holders == 0 and S.waiting > 0)
  S.h[id] = meta[11] and F.read_hold(meta[11], S.key)
  if S.h[id] then S.h[id].expires = nil end
  S.t[id] = meta[12] and F.read_ticket(S, meta[12])
  S.o[owner] = F.read_owner(meta[13])
end

-- Changes the slot to the full form.
function F.unfold(S)
  if S.full then return end
  S.full, S.calm = true, now + 86400000000
  if S.remains then call('DEL', S.s, S.x, S.y, S.l, S.k) end
  call('SET', S.key, '+')
  local hold = S.lone
  if not hold then return end
  --#path redis slot: a lone holder gets company
  S.lone = nil
  local id = hold.claim.id
  call('HSET', S.s, 'h' .. id, F.hold_text(hold))
  if S.reentrant then F.save_owner(S, hold.claim.owner) end
  S.fresh[S.x] = true
  F.set_expiry(S, hold, hold.expires)
end

function F.vacant(S) return S.holders == 0 and S.waiting == 0 end

-- Returns the hold of a claim, if it has one.
function F.hold_of(S, id)
  local hold = S.h[id]
  if hold == nil then
    local value = S.full and S.holders > 0 and call('HGET', S.s, 'h' .. id)
    hold = value and F.read_hold(value, S.key)
    if hold then hold.expires = nil end
    S.h[id] = hold
  end
  return hold
end

-- Returns when a hold expires.
function F.expiry(S, hold)
  if not hold.expires then hold.expires = tonumber(call('ZSCORE', S.x, hold.claim.id) or 0) end
  return hold.expires
end

function F.set_expiry(S, hold, expires)
  hold.expires = expires
  call('ZADD', S.x, F.number(expires), hold.claim.id)
  S.calm, S.delay = math.min(S.calm, expires), max(S.delay, hold.claim.delay)
  S.need = max(S.need, expires + hold.claim.delay)
end

function F.save_hold(S, hold)
  F.unfold(S)
  F.expiry(S, hold)
  call('HSET', S.s, 'h' .. hold.claim.id, F.hold_text(hold))
end

-- Returns the holds of an owner: {weight, claim} in the order of their grants.
function F.holds_of(S, owner)
  local list = S.o[owner]
  if not list then
    list = F.read_owner(S.full and S.holders > 0 and call('HGET', S.s, 'o' .. owner))
    S.o[owner] = list
  end
  return list
end

function F.read_owner(text)
  local list = {}
  for weight, id in gmatch(text or '', '(%d+):(%x+);') do list[#list + 1] = { tonumber(weight), id } end
  return list
end

function F.save_owner(S, owner)
  local list, text = S.o[owner], {}
  if #list == 0 then return call('HDEL', S.s, 'o' .. owner) end
  for i, one in ipairs(list) do text[i] = one[1] .. ':' .. one[2] .. ';' end
  call('HSET', S.s, 'o' .. owner, table.concat(text))
end

-- Returns the weight of an owner's heaviest hold, and that claim, the latest among equals.
function F.owner_weight(S, owner)
  local list = F.holds_of(S, owner)
  if not list.weight then
    list.weight, list.id = 0, nil
    for _, one in ipairs(list) do
      if one[1] >= list.weight then list.weight, list.id = one[1], one[2] end
    end
  end
  return list.weight, list.id
end

function F.insert_hold(S, hold)
  F.unfold(S)
  local id, owner = hold.claim.id, hold.claim.owner
  if S.reentrant then
    S.weight = S.weight + max(0, hold.weight - F.owner_weight(S, owner))
    local list = F.holds_of(S, owner)
    list[#list + 1], list.weight = { hold.weight, id }, nil
    F.save_owner(S, owner)
  else
    S.weight = S.weight + hold.weight
  end
  if S.holders == 0 then S.fresh[S.x] = true end
  S.h[id], S.holders, S.dirty = hold, S.holders + 1, true
  call('HSET', S.s, 'h' .. id, F.hold_text(hold))
  F.set_expiry(S, hold, hold.expires)
end

function F.remove_hold(S, hold)
  F.unfold(S)
  local id, owner = hold.claim.id, hold.claim.owner
  call('HDEL', S.s, 'h' .. id)
  call('ZREM', S.x, id)
  S.h[id], S.holders, S.dirty = false, S.holders - 1, true
  if S.reentrant then
    local list = F.holds_of(S, owner)
    for i, one in ipairs(list) do
      if one[2] == id then table.remove(list, i) break end
    end
    list.weight = nil
    F.save_owner(S, owner)
    S.weight = S.weight - max(0, hold.weight - F.owner_weight(S, owner))
  else
    S.weight = S.weight - hold.weight
  end
end

-- Returns the ticket of a claim, if it waits here.
function F.ticket_of(S, id)
  local ticket = S.t[id]
  if ticket == nil then
    local value = S.waiting > 0 and call('HGET', S.s, 't' .. id)
    ticket = value and F.read_ticket(S, value)
    S.t[id] = ticket
  end
  return ticket
end

function F.read_ticket(S, value)
  local arrival, since, text = match(value, '^(%d+) (%d+) (.+)$')
  if not arrival then F.corrupt(S.s) end
  local claim = F.claim_of(text, S.key)
  return { claim = claim, weight = F.part_at(claim, S.key), arrival = tonumber(arrival) }
end

-- Returns the ticket at this place, counted from 0.
function F.ticket_at(S, place)
  if place >= S.waiting then return nil end
  local row = call('ZRANGE', S.l, place, place, 'WITHSCORES')
  local ticket = row[1] and F.ticket_of(S, row[1])
  if ticket then ticket.ahead = tonumber(row[2]) < 0 end
  return ticket
end

-- Returns true if a ticket is ahead of the queue.
function F.is_ahead(S, ticket)
  if ticket.ahead == nil then
    ticket.ahead = tonumber(call('ZSCORE', S.l, ticket.claim.id) or 0) < 0
  end
  return ticket.ahead
end

-- Returns the tickets of an owner and its descendants, by arrival.
function F.kin_of(S, owner)
  local kin = {}
  if S.waiting == 0 then return kin end
  for _, member in ipairs(call('ZRANGEBYLEX', S.k, '[' .. owner .. ' ', '(' .. owner .. '!')) do
    local ticket = F.ticket_of(S, sub(member, -32))
    if ticket then kin[#kin + 1] = ticket end
  end
  return kin
end

function F.place_ticket(S, ticket, ahead)
  ticket.ahead, S.dirty = ahead, true
  call('ZADD', S.l, fmt('%.0f', ahead and ticket.arrival - F.AHEAD or ticket.arrival), ticket.claim.id)
end

-- Returns how many of a claim's owner and ancestors hold the slot.
function F.kin(S, claim)
  if not S.reentrant or S.holders == 0 then return 0 end
  local count = 0
  for _, owner in ipairs(claim.lineage) do
    if #F.holds_of(S, owner) > 0 then count = count + 1 end
  end
  return count
end

function F.insert_ticket(S, claim, weight, arrival)
  F.unfold(S)
  local id = claim.id
  local ticket = { claim = claim, arrival = arrival, weight = weight }
  call('HSET', S.s, 't' .. id, F.number(arrival) .. ' ' .. now_text .. ' ' .. claim.text)
  F.place_ticket(S, ticket, F.kin(S, claim) > 0)
  for _, owner in ipairs(claim.lineage) do
    call('ZADD', S.k, 0, owner .. ' ' .. F.number(arrival) .. ' ' .. id)
  end
  if S.waiting == 0 then S.fresh[S.l], S.fresh[S.y], S.fresh[S.k] = true, true, true end
  S.t[id], S.waiting = ticket, S.waiting + 1
  if claim.replaces then S.replacing = S.replacing + 1 end
  for _, owner in ipairs(claim.lineage) do call('HINCRBY', S.s, 'w' .. owner, 1) end
  F.renew_ticket(S, ticket, now + claim.lease)
end

function F.renew_ticket(S, ticket, expires)
  local claim = ticket.claim
  call('ZADD', S.y, F.number(expires), claim.id)
  S.calm, S.need = math.min(S.calm, expires), max(S.need, expires + claim.delay)
  -- Shared with other tickets of the owner and its descendants, which may live longer.
  local left = math.ceil((expires - now) / 500) + spare
  for _, owner in ipairs(claim.lineage) do
    local waits = F.waits .. owner
    call('SADD', waits, S.key)
    if call('PTTL', waits) < left then call('PEXPIRE', waits, left) end
  end
end

function F.remove_ticket(S, ticket)
  local claim = ticket.claim
  call('HDEL', S.s, 't' .. claim.id)
  call('ZREM', S.l, claim.id)
  call('ZREM', S.y, claim.id)
  for _, owner in ipairs(claim.lineage) do
    call('ZREM', S.k, owner .. ' ' .. F.number(ticket.arrival) .. ' ' .. claim.id)
  end
  S.t[claim.id], S.waiting, S.dirty = false, S.waiting - 1, true
  if claim.replaces then S.replacing = S.replacing - 1 end
  for _, owner in ipairs(claim.lineage) do
    if call('HINCRBY', S.s, 'w' .. owner, -1) <= 0 then
      call('HDEL', S.s, 'w' .. owner)
      call('SREM', F.waits .. owner, S.key)
    end
  end
end

-- Deletes a slot.
function F.forget(S)
  call('DEL', S.key, S.s, S.x, S.y, S.l, S.k)
  S.full, S.lone, S.h, S.o, S.t, S.fresh = nil, nil, {}, {}, {}, {}
  for _, field in ipairs(F.SUMS) do S[field] = 0 end
end

-- A queue has begun or ended: adds the slot to the index of contended slots, which lives at least `left`
-- milliseconds longer, or removes it. An index that cannot be written costs looks, not claims. A slot whose
-- keys have expired leaves its name there, until it is looked at or met here by chance.
function F.list_queue(S, left)
  if linger > 0 then return end
  local decode = function(hex) return string.char(tonumber(hex, 16)) end
  local name = string.gsub(sub(S.key, #F.locks + 1, -2), '%%(%x%x)', decode)
  if S.waiting == 0 then return redis.pcall('ZREM', F.contended, name) end
  if type(redis.pcall('ZADD', F.contended, 0, name)) == 'table' then return end
  if call('PTTL', F.contended) < left then call('PEXPIRE', F.contended, left) end
  local encode = function(c) return fmt('%%%02X', string.byte(c)) end
  for _, other in ipairs(call('ZRANDMEMBER', F.contended, 2)) do
    local key = F.locks .. string.gsub(other, '[^%w%-_.~]', encode) .. '}'
    if call('EXISTS', key) == 0 then call('ZREM', F.contended, other) end
  end
end

-- Writes the opened slots back, and deletes those that are idle.
function F.put_away()
  for _, S in ipairs(F.opened) do
    if S.queued and S.waiting == 0 then F.list_queue(S) end
    if S.full and F.vacant(S) and S.closed <= now then
      F.forget(S)
    elseif S.full then
      local need = max(S.need, S.closed)
      local all = need > S.keep
      if all then S.keep = need + F.STEP end
      S.more = S.more > 0 and S.dirty and 1 or 0
      local row = { 'shape', S.shape }
      for _, field in ipairs(F.SUMS) do
        row[#row + 1] = field
        row[#row + 1] = fmt('%.0f', S[field])
      end
      call('HSET', S.s, unpack(row))
      -- Keys that this call created have no TTL yet.
      local left = math.ceil((S.keep - now) / 1000) + spare
      for _, key in ipairs({ S.key, S.s, S.x, S.y, S.l, S.k }) do
        if all or S.fresh[key] then call('PEXPIRE', key, left) end
      end
      if S.waiting > 0 and (all or not S.queued) then F.list_queue(S, left) end
    end
  end
end

-- Publishes the signals, last of all. One that cannot be published is made up for by the next renewal.
function F.tell()
  for _, signal in ipairs(F.signals) do
    if linger == 0 then
      redis.pcall('PUBLISH', F.channels .. signal[1], signal[2])
    else
      redis.pcall('SPUBLISH', F.channels .. signal[1], signal[2])
    end
  end
end

-- write: writes and removes cells, all or none, if all of them are as expected (compare-and-set).
--
-- KEYS   the top, then the cells
-- ARGV   see head.lua; then the id of the write (16 bytes) or "", how long ago it was made and for how long
--        ids are kept, in microseconds; for how many milliseconds the fence of a cell without value is
--        kept; then for each cell six: its name, what is expected ("any", "absent", "version", "fence"), the
--        version or fence, what is done ("check", "put", "remove"), the bytes, and the time to live in
--        microseconds or 0
-- out    {"d", version}: done, or done before by the same id; {"f", n}: whether it was done before is not
--        known, for the cell n; {"r", conflict..}: refused, each {n, "s", fence}, {n, "c"} for a cell without
--        value, or {n, "c", bytes, version, fence, time left} (-1 for none)
--
-- C      hash: v (bytes), n (version), f (largest fence or -1), x (expiry or 0). A cell has a value if it has
--        x. Without value it is kept for its fence
-- C:w    string: the ids that wrote the cell, a ring. Its head is COUNT DROPPED LAST, 16 digits each: how
--        many were recorded, when the youngest was that had to make room, and when the last was recorded.
--        Then up to RING entries of an id, its version and its time: 16 bytes, 16 digits, 16 digits. It is
--        a key of its own so that it outlives the value, and so that a write changes 96 bytes of it
-- NS:cells  sorted set, all scores 0: the names of cells that have a value, in order. Not in a cluster
--
-- As `judge` of ledger/cells.rs. All checks come before the first write; the first write is that of the
-- top, which a server refuses that is full or a replica.
--#include clock
--#include head
local RING = 128
local NEVER = '0000000000000000'
local id, age, keep, remember = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local near = sub(KEYS[1], 1, -4)
local index, alone = near .. 'cells', linger == 0
if not alone and id ~= '' and type(redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':')) == 'table' then
  return redis.error_reply('TRYAGAIN the cluster slot of this name is being moved')
end

-- Returns the error reply for a value that could not be read.
local function failure(value, key)
  if string.find(value.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply('TENURE corrupt ' .. key)
  end
  return value
end

local cells, unmade = {}, false
for i = 1, #KEYS - 1 do
  local at, key = 6 * i, KEYS[i + 1]
  local row = redis.pcall('HMGET', key, 'n', 'f', 'x')
  if row.err then return failure(row, key) end
  local version, fence, expires = tonumber(row[1] or 0), tonumber(row[2] or -1), tonumber(row[3] or 0)
  if not (version and fence and expires) then return redis.error_reply('TENURE corrupt ' .. key) end
  local stays = row[3] and expires == 0
  local cell = { n = i, key = key, name = ARGV[at], expect = ARGV[at + 1], given = tonumber(ARGV[at + 2]),
    action = ARGV[at + 3], bytes = ARGV[at + 4], ttl = tonumber(ARGV[at + 5]),
    version = version, fence = fence, expires = expires, stays = stays,
    present = stays or now < expires, writes = ARGV[at + 3] ~= 'check', listed = false }
  if cell.writes and id ~= '' then
    cell.head = redis.pcall('GETRANGE', key .. ':w', '0', '47')
    if type(cell.head) == 'table' then return failure(cell.head, key .. ':w') end
    -- A version that is still the expected one proves that this write was not made before.
    unmade = unmade or cell.expect == 'version' and cell.present and cell.version == cell.given
  end
  if cell.writes and alone then
    cell.listed = redis.pcall('ZSCORE', index, cell.name)
    if type(cell.listed) == 'table' then return failure(cell.listed, index) end
  end
  cells[i] = cell
end

-- Returns a number of 16 digits in a log; 0 where nothing was written yet.
local function digits(log, at) return tonumber(sub(log, at, at + 15)) or 0 end

-- Returns the version that a write with this id made. An entry that is older than `keep` when another is
-- recorded counts as dropped.
local function recorded(log)
  local at = string.find(log, id, 49, true)
  while at do
    if (at - 49) % 48 == 0 and digits(log, at + 32) >= digits(log, 33) - keep then
      return digits(log, at + 16)
    end
    at = string.find(log, id, at + 1, true)
  end
end

if id ~= '' and not unmade then
  --#path redis write: looked up
  local first, told
  for _, cell in ipairs(cells) do
    local version = cell.writes and recorded(call('GET', cell.key .. ':w') or '')
    --#path redis write: a repeat if version
    if version then return { 'd', version } end
  end
  for _, cell in ipairs(cells) do
    if cell.writes then
      local dropped = digits(cell.head, 17)
      local complete = age < keep and (dropped == 0 or dropped < now - age)
      first, told = first or cell.n, told or complete
    end
  end
  if first and not told then return { 'f', first } end
end

local conflicts = { 'r' }
for _, cell in ipairs(cells) do
  local expect, present = cell.expect, cell.present
  if expect == 'fence' then
    if cell.fence > cell.given then
      conflicts[#conflicts + 1] = { cell.n, 's', cell.fence }
    else
      cell.fence = cell.given
    end
  elseif (expect == 'absent' and present)
    or (expect == 'version' and not (present and cell.version == cell.given)) then
    local conflict = { cell.n, 'c' }
    if present then
      local left = cell.expires > 0 and cell.expires - now or -1
      conflict = { cell.n, 'c', call('HGET', cell.key, 'v'), cell.version, cell.fence, left }
    end
    conflicts[#conflicts + 1] = conflict
  end
end
--#path redis write: refused if #conflicts > 1
if #conflicts > 1 then return conflicts end

top = math.max(top + 1, clock)
-- In a cluster a cell may have outlived the top of its name.
for _, cell in ipairs(cells) do top = math.max(top, cell.version + 1) end
local version = fmt('%.0f', top)
--#include tail

-- Records the id in the log of a cell.
local function record(cell)
  --#path redis write: recorded
  local head, key, number = cell.head, cell.key .. ':w', '%016.0f'
  local count, dropped, last = digits(head, 1), digits(head, 17), digits(head, 33)
  local at = 48 + count % RING * 48
  local oldest = count >= RING and tonumber(call('GETRANGE', key, at + 32, at + 47)) or 0
  -- What had been dropped for its age makes no room now.
  local made_room = oldest > 0 and oldest >= last - keep
  local room = made_room and fmt(number, math.max(dropped, oldest)) or #head == 48 and sub(head, 17, 32)
  call('SETRANGE', key, '0', fmt(number, count + 1) .. (room or NEVER) .. now_text)
  call('SETRANGE', key, at, id .. (#version == 16 and version or fmt(number, top)) .. now_text)
  -- Once in a second, for a second longer.
  if sub(head, 33, 42) ~= sub(now_text, 1, 10) then
    call('PEXPIRE', key, math.ceil(keep / 1000) + spare + 1000)
  end
end

-- Removes from the index what has no value any more, of a few names by chance: so it does not grow with
-- the names of values that have expired.
local function sweep()
  local encode = function(c) return fmt('%%%02X', string.byte(c)) end
  for _, name in ipairs(call('ZRANDMEMBER', index, 2)) do
    local key = near .. 'cell:' .. string.gsub(name, '[^%w%-_.~]', encode)
    local expires = redis.pcall('HGET', key, 'x')
    if type(expires) ~= 'table' then
      expires = expires and tonumber(expires)
      if not expires or (expires > 0 and expires <= now) then call('ZREM', index, name) end
    end
  end
end

-- Adds a cell to the index, which lives as long as the longest of its cells.
local function list(cell, left)
  local ends = call('PTTL', index)
  call('ZADD', index, 0, cell.name)
  if not left then
    if ends >= 0 then call('PERSIST', index) end
  elseif ends == -2 or (ends >= 0 and ends < left) then
    call('PEXPIRE', index, fmt('%.0f', left))
  end
  if not cell.listed then sweep() end
end

local function put(cell)
  local left = cell.ttl > 0 and math.ceil(cell.ttl / 1000) + spare or nil
  call('HSET', cell.key, 'v', cell.bytes, 'n', version, 'f', fmt('%.0f', cell.fence), 'x',
    fmt('%.0f', left and now + cell.ttl or 0))
  if left then
    --#path redis write: a value that expires
    local needed = cell.fence >= 0 and math.max(left, remember) or left
    call('PEXPIRE', cell.key, fmt('%.0f', needed))
  elseif not cell.stays then
    --#path redis write: a value that stays
    call('PERSIST', cell.key)
  end
  --#path redis write: over a value that stays if alone and cell.listed and cell.stays and not left
  -- The index has the name of a cell that stays already, and stays itself.
  if alone and not (cell.listed and cell.stays and not left) then list(cell, left) end
end

local function remove(cell)
  if cell.fence >= 0 then
    --#path redis remove: the fence stays
    call('HSET', cell.key, 'n', version, 'f', fmt('%.0f', cell.fence))
    call('HDEL', cell.key, 'v', 'x')
    call('PEXPIRE', cell.key, fmt('%.0f', remember))
  else
    --#path redis remove: nothing stays
    call('DEL', cell.key)
  end
  if cell.listed then call('ZREM', index, cell.name) end
end

local changed = {}
for _, cell in ipairs(cells) do
  if cell.writes then
    if cell.action == 'put' then put(cell) else remove(cell) end
    if id ~= '' then record(cell) end
    changed[#changed + 1] = cell.name
  end
end
--#path redis write: checks alone if #changed == 0
-- Tells watchers, last of all. The change stands, whether or not this is allowed.
if #changed > 0 then
  local names = table.concat(changed, '\n')
  if alone then
    redis.pcall('PUBLISH', near .. 'changed', names)
  else
    redis.pcall('SPUBLISH', near .. 'changed', names)
  end
end
return { 'd', top }

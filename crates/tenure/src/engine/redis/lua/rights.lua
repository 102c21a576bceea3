-- rights: returns the commands that the user of this connection may not run. Runs none of them.
--
-- KEYS   a key, for commands that touch keys
-- ARGV   a channel, for commands that touch channels; then the commands, NAME or NAME|PART
-- out    those that are forbidden, or nil where the server has no such check (before Redis 7)
if not redis.acl_check_cmd then return nil end
local forbidden = {}
for i = 2, #ARGV do
  local name, part = string.match(ARGV[i], '^(%w+)|?(%w*)$')
  local words = { name, KEYS[1] }
  if string.match(name, 'SUBSCRIBE$') or string.match(name, 'PUBLISH$') then words = { name, ARGV[1] } end
  if string.match(name, '^EVAL') then words = { name, KEYS[1], '0' } end
  if part ~= '' then words = { name, part, KEYS[1] } end
  local known, may = pcall(redis.acl_check_cmd, unpack(words))
  if known and not may then forbidden[#forbidden + 1] = ARGV[i] end
end
return forbidden

"""The Lua scripts of the shared store: each is one round trip. Names and layout: redis_store.py and encoding.py."""

from __future__ import annotations

from prr_plugins.common.store.encoding import HEAD_BYTES, ID_BYTES, MAGIC
from prr_plugins.common.store.interface import SIBLINGS

# ARGV: 1 prefix, 2 time to live in ms (0: none), 3 most bytes of a turn, 4 loose key, 5 keys (deepest first), 6 ids
# that the caller has with all they stand on. Returns the epoch, the fingerprints, what was passed over, and id, bytes,
# id, bytes... of turns, each behind its parent. The head of a turn: see encoding.py.
FIND = """
local base, ttl, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local have, sent, out, passed = {}, {}, {}, {}
for i = 1, #ARGV[6], 16 do have[string.sub(ARGV[6], i, i + 15)] = true end

local function head_of(id)
  local head = redis.call('GETRANGE', base .. 't:' .. id, 0, 39)
  if string.sub(head, 1, 4) == 'PRR\\1' and #head == 40 then return head end
  if #head > 0 then passed[#passed + 1] = string.sub(head, 1, 4) end
end

local function parent_of(head)
  local parent = string.sub(head, 21, 36)
  if parent ~= string.rep('\\0', 16) then return parent end
end

local function collect(id)
  local chain, seen = {}, {}
  while id and not have[id] and not sent[id] do
    local head = head_of(id)
    if not head or seen[id] then return false end
    if redis.call('STRLEN', base .. 't:' .. id) > most then
      passed[#passed + 1] = 'size'
      return false
    end
    seen[id] = true
    chain[#chain + 1] = id
    id = parent_of(head)
  end
  for i = #chain, 1, -1 do
    sent[chain[i]] = true
    out[#out + 1] = chain[i]
    out[#out + 1] = redis.call('GET', base .. 't:' .. chain[i])
  end
  return true
end

-- The first turn of a conversation never has more time left than the others: while that one has, all have.
local function refresh(id)
  local head = ttl > 0 and head_of(id)
  if not head or redis.call('PTTL', base .. 't:' .. string.sub(head, 5, 20)) > ttl * 0.9 then return false end
  local seen = {}
  while head and not seen[id] do
    seen[id] = true
    redis.call('PEXPIRE', base .. 't:' .. id, ttl)
    id = parent_of(head)
    head = id and head_of(id)
  end
  return true
end

for i = 1, #ARGV[5], 16 do
  local ids = redis.call('GET', base .. 'k:' .. string.sub(ARGV[5], i, i + 15))
  local found, fresh = false, true
  for j = 1, ids and #ids or 0, 16 do
    local id = string.sub(ids, j, j + 15)
    if collect(id) then
      found = true
      if refresh(id) then fresh = false end
    end
  end
  if found then
    if not fresh then
      for j = i, #ARGV[5], 16 do redis.call('PEXPIRE', base .. 'k:' .. string.sub(ARGV[5], j, j + 15), ttl) end
      redis.call('PEXPIRE', base .. 'l:' .. ARGV[4], ttl)
    end
    break
  end
end
return {redis.call('GET', KEYS[1]) or '', redis.call('GET', base .. 'l:' .. ARGV[4]) or '', passed, out}
"""
assert (MAGIC, HEAD_BYTES, ID_BYTES) == (b"PRR\x01", 40, 16)

# ARGV: 1 prefix, 2 time to live in ms, 3 whether the epoch is known, 4 the epoch, 5 id, 6 parent or '', 7 bytes,
# 8 keys, 9 loose key, 10 fingerprint. Returns the epoch and what came of it: ok | parent (gone) | purged.
PUT = """
local base, ttl = ARGV[1], tonumber(ARGV[2])
local epoch = redis.call('GET', KEYS[1]) or ''
if ARGV[3] == '1' and ARGV[4] ~= epoch then return {epoch, 'purged'} end
if ARGV[6] ~= '' and redis.call('EXISTS', base .. 't:' .. ARGV[6]) == 0 then return {epoch, 'parent'} end

local function set(name, value)
  if ttl > 0 then redis.call('SET', name, value, 'PX', ttl) else redis.call('SET', name, value) end
end

local function add(name, entry)
  local known, kept = redis.call('GET', name) or '', {}
  for i = 1, #known, 16 do
    local other = string.sub(known, i, i + 15)
    if other ~= entry then kept[#kept + 1] = other end
  end
  kept[#kept + 1] = entry
  set(name, table.concat(kept, '', math.max(1, #kept - 31)))
end

set(base .. 't:' .. ARGV[5], ARGV[7])
for i = 1, #ARGV[8], 16 do add(base .. 'k:' .. string.sub(ARGV[8], i, i + 15), ARGV[5]) end
add(base .. 'l:' .. ARGV[9], ARGV[10])
return {epoch, 'ok'}
"""
assert SIBLINGS == 32

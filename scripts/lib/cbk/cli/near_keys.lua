-- Suggests keys of a checkpoint for a mistyped key.

local cbk = require "cbk"
local key_part = require "cbk.cli.key_part"
local naming = require "cbk.naming"

local MOST = 10000 -- keys to compare
local MOST_SAME = 3 -- that are suggested

---The first `count` parts of a longer key: "layers.7" of "layers.7.attn.weight".
local function beginning(key, count)
  local dot = 0
  for _ = 1, count do
    dot = key:find(".", dot + 1, true)
    if not dot then return nil end
  end
  return key:sub(1, dot - 1)
end

---Whether a key has another one within it, as "model.lm_head.weight" has "lm_head".
local function has(path, part) return ("." .. path .. "."):find("." .. part .. ".", 1, true) ~= nil end

---The end of a key that is a key, or the beginning of one: "param_groups" of "optimizer.param_groups".
---@param rows LeafRows
---@param key string
---@return string|nil
local function existing_end(rows, key)
  while key do
    if rows:find(key) then return key end
    for i = 1, math.min(#rows, MOST) do
      if rows:path(i):sub(1, #key + 1) == key .. "." then return key end
    end
    key = key:match "%.(.*)$"
  end
end

---"; did you mean 'a' or 'b'?" if keys, or beginnings of keys, are similar to `key`; else an empty text.
---@param rows LeafRows
---@param key string
---@return string
return function(rows, key)
  for _, dotted in ipairs(key_part.dotted(key)) do
    local found = existing_end(rows, dotted)
    if found then return naming.suggestion(found) end
  end
  key = key_part.parse(key) or key
  if key:find "[*?%[{]" then return "" end
  local keys, is_known, parts = {}, {}, select(2, key:gsub("%.", "")) + 1
  local same = {}
  for i = 1, math.min(#rows, MOST) do
    local path = rows:path(i)
    keys[#keys + 1] = path
    if #same < MOST_SAME and (has(path, key) or has(key, path)) then same[#same + 1] = path end
    local container = beginning(path, parts)
    if container and not is_known[container] then keys[#keys + 1], is_known[container] = container, true end
  end
  local near = #same > 0 and same or { existing_end(rows, key) }
  return naming.suggestion(#near > 0 and near or cbk.nearest(key, keys, 3))
end

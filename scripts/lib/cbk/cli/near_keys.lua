-- Suggests keys of a checkpoint for a mistyped key.

local cbk = require "cbk"

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

---"; did you mean 'a' or 'b'?" if keys, or beginnings of keys, are similar to `key`; else an empty text.
---@param rows LeafRows
---@param key string
---@return string
return function(rows, key)
  local keys, is_known, parts = {}, {}, select(2, key:gsub("%.", "")) + 1
  local same = {}
  for i = 1, math.min(#rows, MOST) do
    local path = rows:path(i)
    keys[#keys + 1] = path
    if #same < MOST_SAME and (has(path, key) or has(key, path)) then same[#same + 1] = path end
    local container = beginning(path, parts)
    if container and not is_known[container] then keys[#keys + 1], is_known[container] = container, true end
  end
  local near = #same > 0 and same or cbk.nearest(key, keys, 3)
  for i, name in ipairs(near) do near[i] = cbk.quote(name) end
  return #near > 0 and ("; did you mean %s?"):format(table.concat(near, " or ")) or ""
end

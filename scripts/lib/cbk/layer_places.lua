-- The numbers in keys that may be those of layers, as `cbk.fold_keys` finds them: "a.5.b", "a.block_05.b", "a/h5/b".

local cbk = require "cbk"

local layer_places = {}

-- No model nests layers deeper, or has longer names.
local MOST_PLACES, LONGEST = 4, 1000

---@class LayerPlace
---@field before string    "core.block_" of "core.block_05.w"
---@field digits string    "05"
---@field behind string    ".w"

---The numbers of a key with what is around them, from left to right.
---@param key string
---@return LayerPlace[]   none of keys that no model has
function layer_places.of(key)
  local out = {}
  if #key > LONGEST or not key:find "%d" then return out end
  local at = cbk.key_numbers(key)
  for i = 1, math.min(#at, 2 * MOST_PLACES), 2 do
    out[#out + 1] = { before = key:sub(1, at[i] - 1), digits = key:sub(at[i], at[i + 1]), behind = key:sub(at[i + 1] + 1) }
  end
  return out
end

---A key with a text in place of each number: the same of keys that differ only in the numbers of layers.
---@param key string
---@param text string
---@param keeps_parts? boolean   one digit behind a '_' stays, as "ln_1" and "ln_2" are parts of a layer
---@return string
function layer_places.outline(key, text, keeps_parts)
  local out, from, at = {}, 1, cbk.key_numbers(key)
  for i = 1, #at, 2 do
    local is_kept = keeps_parts and at[i] == at[i + 1] and key:sub(at[i] - 1, at[i] - 1) == "_"
    if not is_kept then
      out[#out + 1], out[#out + 2], from = key:sub(from, at[i] - 1), text, at[i + 1] + 1
    end
  end
  return table.concat(out) .. key:sub(from)
end

---Whether a number is that of an expert, of which a layer has many.
---@param place LayerPlace
function layer_places.is_expert(place) return place.before:find "experts?[._/]$" ~= nil end

return layer_places

-- Folds long lists of keys: keys that differ only in the layer number become one line, "layers.{0..31}.weight".

local cbk = require "cbk"
local layer_places = require "cbk.layer_places"

local fold = {}

---The text for the empty key.
fold.EMPTY = '""'

---A key for printing. Control characters are escaped, because a terminal would execute them.
---@param path string
function fold.shown(path)
  if path == "" then return fold.EMPTY end
  if not path:find "[%c\127-\255]" then return path end
  return cbk.shown(path)
end

---Groups similar entries, in the order of their first members. Entries with the same key text (1 and "1", or objects) never share a
---group. Names are formatted by `fold.shown`.
---@generic T: { path: string, signature: string }
---@param entries T[]  only equal signatures are folded together
---@return { name: string, members: T[] }[]
function fold.groups(entries)
  local keys, signatures = {}, {}
  for i, entry in ipairs(entries) do
    keys[i], signatures[i] = entry.path, entry.signature or ""
  end
  local groups = cbk.fold_keys(keys, signatures)
  for _, group in ipairs(groups) do
    for i, index in ipairs(group.members) do group.members[i] = entries[index] end
  end
  return groups
end

local function without_numbers(key) return layer_places.outline(key, "#", true) end

---@class KeyPair   an empty text: there is no key
---@field from string
---@field to string
---@field signature? string   only pairs with equal ones are folded together

---Groups similar pairs of keys, in the order of their first members: "layers.{0..31}.w" with "h.{0..31}.w".
---@generic T: KeyPair
---@param list T[]
---@return { from: string, to: string, members: T[] }[]
function fold.pairs(list)
  local groups, order, out = {}, {}, {}
  for _, pair in ipairs(list) do
    local id = table.concat({ without_numbers(pair.from), without_numbers(pair.to), pair.signature or "" }, "\0")
    if not groups[id] then groups[id], order[#order + 1] = {}, id end
    table.insert(groups[id], pair)
  end
  local function folded(group, side)
    local entries, seen = {}, {}
    for _, pair in ipairs(group) do
      if not seen[pair[side]] then seen[pair[side]], entries[#entries + 1] = true, { path = pair[side] } end
    end
    local names = fold.groups(entries)
    return #names == 1 and names[1].name or nil
  end
  for _, id in ipairs(order) do
    local group = groups[id]
    local from, to = folded(group, "from"), folded(group, "to")
    if from and to then
      out[#out + 1] = { from = group[1].from == "" and "" or from, to = group[1].to == "" and "" or to, members = group }
    else
      for _, pair in ipairs(group) do out[#out + 1] = { from = pair.from, to = pair.to, members = { pair } } end
    end
  end
  return out
end

return fold

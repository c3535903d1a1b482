-- Folds long lists of keys: keys that differ only in the layer number become one line, "layers.{0..31}.weight".

local cbk = require "cbk"

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

return fold

-- The tensors that the user selects by keys and globs.

local cbk = require "cbk"
local is_tensor = require("cbk.tensor_kinds").is_tensor
local key_part = require "cbk.cli.key_part"
local near_keys = require "cbk.cli.near_keys"

--- Fails for a key that does not exist, with suggestions.
local function fail_missing(path, rows, key)
  local is_glob = (key_part.parse(key) or key):find "[*?%[{]"
  if is_glob then cbk.fail("key", ("no key of '%s' matches %s%s"):format(path, cbk.quote(key), near_keys(rows, key))) end
  cbk.fail("key", ("there is no %s in '%s'%s"):format(cbk.quote(key), path, near_keys(rows, key)))
end

---@class ChosenTensor
---@field key string       of a part, with its brackets
---@field path string      in the checkpoint
---@field tensor any        other values are skipped
---@field whole? Tensor    that a part is of

--- What a key or a glob selects. A plain name also selects everything below it.
---@return ChosenTensor[]
local function values_of(rows, key)
  local row, out = rows:find(key), {}
  for n, part in ipairs(row and {} or key_part.find(rows, key)) do
    out[n] = { key = part.key, path = rows:path(part.row), tensor = part.tensor, whole = rows:value(part.row) }
  end
  if #out > 0 then return out end
  local matches, below = cbk.glob(key), cbk.glob(key .. "[./]*")
  for i = row or 1, row or #rows do
    local path = rows:path(i)
    if row or matches(path) or below(path) then out[#out + 1] = { key = path, path = path, tensor = rows:value(i) } end
  end
  return out
end

---The tensors of a tree that keys or globs select, each once, in the order of the keys. A key of another value is an error; other values
---that a glob matches are skipped.
---@param path string     of the checkpoint, for messages
---@param tree any
---@param keys string[]
---@return ChosenTensor[]
return function(path, tree, keys)
  local rows, out, is_chosen = cbk.leaf_rows(tree), {}, {}
  for _, key in ipairs(keys) do
    local found, count = values_of(rows, key), 0
    for _, one in ipairs(found) do
      if is_tensor(one.tensor) then
        count = count + 1
        if not is_chosen[one.key] then out[#out + 1] = one end
        is_chosen[one.key] = true
      end
    end
    if #found == 0 then fail_missing(path, rows, key) end
    if count == 0 then
      local kind = #found == 1 and (" (%s)"):format(cbk.kind(found[1].tensor)) or ""
      cbk.fail("key", ("%s of '%s' is not a tensor%s"):format(cbk.quote(key), path, kind))
    end
  end
  return out
end

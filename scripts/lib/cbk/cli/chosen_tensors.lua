-- The tensors that the user selects by keys and globs.

local cbk = require "cbk"
local near_keys = require "cbk.cli.near_keys"

local TENSORS = require("cbk.tensor_kinds").ALL

--- Fails for a key that does not exist, with suggestions.
local function fail_missing(path, rows, key)
  if key:find "[*?%[{]" then cbk.fail("key", ("no key of '%s' matches %s"):format(path, cbk.quote(key))) end
  cbk.fail("key", ("there is no %s in '%s'%s"):format(cbk.quote(key), path, near_keys(rows, key)))
end

--- The rows that a key or a glob selects. A plain name also selects everything below it.
local function rows_of(rows, key)
  local row = rows:find(key)
  if row then return { row } end
  local matches, below, out = cbk.glob(key), cbk.glob(key .. "[./]*"), {}
  for i = 1, #rows do
    local path = rows:path(i)
    if matches(path) or below(path) then out[#out + 1] = i end
  end
  return out
end

---The tensors of a tree that keys or globs select, each once, in the order of the keys. A key of another value is an error; other values
---that a glob matches are skipped.
---@param path string     of the checkpoint, for messages
---@param tree any
---@param keys string[]
---@return { key: string, tensor: Tensor }[]
return function(path, tree, keys)
  local rows, out, is_chosen = cbk.leaf_rows(tree), {}, {}
  for _, key in ipairs(keys) do
    local found, count = rows_of(rows, key), 0
    for _, i in ipairs(found) do
      local value = rows:value(i)
      local is_tensor = type(value) == "userdata" and TENSORS[cbk.kind(value)] ~= nil
      if is_tensor then count = count + 1 end
      if is_tensor and not is_chosen[i] then
        is_chosen[i] = true
        out[#out + 1] = { key = rows:path(i), tensor = value }
      end
    end
    if #found == 0 then fail_missing(path, rows, key) end
    if count == 0 then cbk.fail("key", ("%s of '%s' is not a tensor"):format(cbk.quote(key), path)) end
  end
  return out
end

-- The tree that commands for looking at values read: in it, quantised weights are numbers.

local cbk = require "cbk"
local dequantised = require "cbk.dequantised"
local errors = require "cbk.errors"
local quantised = require "cbk.quantised"

---Whether a key or a glob selects anything in a tree.
local function selects(tree, key) return #cbk.leaf_rows(tree, key) > 0 end

---The tree of a checkpoint with numbers in place of the codes of quantised weights. It is the tree as stored if cbk does not read the
---method, or if one of `keys` is only there: the key of a scale, or that of packed codes.
---@param checkpoint Checkpoint
---@param path string        of the checkpoint
---@param keys? string[]     keys or globs that the user named
---@return any tree
---@return table<string, QuantisedWeight> by_name   those that are numbers in it
return function(checkpoint, path, keys)
  local stored = checkpoint:raw_root()
  local fine, tree, found = pcall(dequantised.tree, stored, quantised.config_beside(path), { checkpoint = checkpoint })
  if not fine then
    if type(tree) ~= "table" or tree.code == "interrupted" then error(tree, 0) end
    if tree.code ~= "unsupported" then cbk.warn(errors.text(tree) .. "; codes and scales are shown as stored") end
    return stored, {}
  end
  local by_name = {}
  for _, weight in ipairs(found.weights) do by_name[weight.name] = weight end
  for _, key in ipairs(#found.weights > 0 and keys or {}) do
    if not selects(tree, key) and selects(stored, key) then return stored, {} end
  end
  return tree, by_name
end

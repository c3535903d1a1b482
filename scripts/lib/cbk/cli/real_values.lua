-- The tree that commands for looking at values read: in it, quantised weights are numbers.

local cbk = require "cbk"
local dequantised = require "cbk.dequantised"
local errors = require "cbk.errors"
local quantised = require "cbk.quantised"

---The keys of a tree that the user named.
---@param tree any
---@param keys string[]   keys or globs
---@return table<string, boolean>
local function selected(tree, keys)
  local out = {}
  for _, key in ipairs(keys) do
    local rows = cbk.leaf_rows(tree, key)
    for i = 1, #rows do out[rows:path(i)] = true end
  end
  return out
end

---The tree of a checkpoint with numbers in place of the codes of quantised weights, without their scales except those that the user
---named. It is the tree as stored if cbk does not read the method, or if packed codes are named.
---@param checkpoint Checkpoint
---@param path string        of the checkpoint
---@param keys? string[]     keys or globs that the user named
---@return any tree
---@return table<string, QuantisedWeight> by_name   those that are numbers in it
return function(checkpoint, path, keys)
  local stored, named = checkpoint:raw_root(), {}
  local config, problem = quantised.config_beside(path)
  for _, key in ipairs(keys or {}) do
    if not key:find "[*?%[{]" then named[#named + 1] = key end
  end
  local is_named = selected(stored, named)
  local fine, tree, found = pcall(dequantised.tree, stored, config, {
    checkpoint = checkpoint, config_problem = problem, shown = function(key) return is_named[key] == true end,
  })
  if not fine then
    if type(tree) ~= "table" or tree.code == "interrupted" then error(tree, 0) end
    cbk.warn(errors.text(tree) .. "; codes and scales are shown as stored")
    return stored, {}
  end
  local by_name = {}
  for _, weight in ipairs(found.weights) do by_name[weight.name] = weight end
  for _, weight in ipairs(found.weights) do
    if is_named[weight.key] and weight.key ~= weight.name then return stored, {} end
  end
  return tree, by_name
end

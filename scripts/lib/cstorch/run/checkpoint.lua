-- `cstorch.save` and `cstorch.load`: nested maps of tensors, numbers and strings in an H5 checkpoint.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local loaded = require "cstorch.loaded"
local nested = require "cstorch.nested"
local ordered_map = require "cstorch.ordered_map"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

local checkpoint = {}

--- Weights have values on the host on checkpoint steps only, in closures.
local function check_step()
  if cbk.compute.may_read_device() then return end
  local executor = session.executor
  check(executor and not executor.has_weights, "runtime", "save: weights on the CSX are available in closures only; call save in a "
    .. "function made with cstorch.checkpoint_closure or step_closure")
  local following = executor:next_checkpoint_step()
  errors.raise("runtime",
    "save: weights are available on checkpoint steps only; this is step %d, and %s. Steps count from 1, as i of the loop",
    executor.user_iteration, following and "the next one is step " .. following or "no other step is one; set checkpoint_steps")
end

--- Whether a table has the keys 1 to n and no others. An ordered map is never a list: such keys may be the numbers of parameters.
local function is_list(value)
  if ordered_map.is(value) then return false end
  local count = 0
  for _ in pairs(value) do count = count + 1 end
  return count > 0 and count == #value
end

local function check_key(key, place)
  local is_key = type(key) == "string" or type(key) == "number"
  check(is_key, "type", "save: a key at '%s' is %s; keys are strings and numbers", place, show(key))
end

--- The tree as cbk's values. `lazy` has the tensors that were met, so that tied ones are stored once; `open` the tables around this one.
local function to_value(value, place, lazy, open, depth)
  if tensors.is_tensor(value) then
    if value.device == "csx" then check_step() end
    lazy[value] = lazy[value] or tensors.to_lazy(value)
    return lazy[value]
  end
  check(type(value) ~= "function", "type", "save: a function cannot be stored ('%s')", place)
  if type(value) ~= "table" then return value end
  local is_map = getmetatable(value) == nil or ordered_map.is(value)
  check(is_map, "type", "save: '%s' is %s, which cannot be stored; save its state_dict()", place, show(value))
  check(not open[value], "value", "save: the table at '%s' contains itself", place)
  nested.check_depth(depth)
  open[value] = true
  local out
  if is_list(value) then
    out = {}
    for i, item in ipairs(value) do out[i] = to_value(item, ("%s.%d"):format(place, i - 1), lazy, open, depth + 1) end
  else
    out = cbk.dict()
    for key in pairs(value) do check_key(key, place) end -- items() sorts them
    for key, item in ordered_map.items(value) do
      check_key(key, place)
      out[key] = to_value(item, place == "" and tostring(key) or place .. "." .. tostring(key), lazy, open, depth + 1)
    end
  end
  open[value] = nil
  return out
end

--- The files that this process has replaced, by their absolute path.
local replaced = {}

--- A file that this process replaced after tensors of `root` were loaded from it.
local function replaced_source(root)
  for _, leaf in cbk.leaves(root) do
    local storage = loaded.is_tensor(leaf) and leaf:storage()
    if storage and storage.file and replaced[cbk.fs.absolute(storage.file)] then return storage.file end
  end
end

local function write(path, root)
  local absolute, is_there = cbk.fs.absolute(path), cbk.fs.exists(path)
  local fine, problem = pcall(function() cbk.create(path, { root = root, overwrite = true, format = "h5" }):commit() end)
  if fine then
    replaced[absolute] = replaced[absolute] or is_there
    return
  end
  local source = type(problem) == "table" and problem.code == "changed" and replaced_source(root)
  check(not source, "runtime", "save: cannot write '%s': some of its tensors were loaded from '%s' before this script replaced that file; "
    .. 'load it with { map_location = "cpu" }, or do not save over it', path, source)
  error(problem, 0)
end

---Writes a checkpoint, whole or not at all. An earlier file of that name is replaced.
---@param tree table     nested maps and lists of tensors, numbers, strings
---@param path string
function checkpoint.save(tree, path)
  local is_tree = type(tree) == "table" and (getmetatable(tree) == nil or ordered_map.is(tree)) or keywords.is_map(tree)
  check(is_tree, "type", "save: expected a table such as { model = model:state_dict() }, found %s", show(tree))
  check(type(path) == "string", "type", "save: expected a path, found %s", show(path))
  errors.of_cbk(function() write(path, to_value(tree, "", {}, {}, 0)) end)
end

--- All tensors of a tree in memory, in ordered maps and lists.
local function in_memory(value)
  local kind = type(value) == "userdata" and cbk.kind(value) or nil
  if kind and keywords.is_map(value) then
    local map = ordered_map.new()
    for key, item in cbk.items(value) do map[key] = in_memory(item) end
    return map
  end
  if kind == "list" or kind == "tuple" then
    local list = {}
    for i = 1, #value do list[i] = in_memory(value[i]) end
    return list
  end
  if kind == "tensor" or kind == "parameter" or kind == "ndarray" then return tensors.tensor(value) end
  return value
end

---Opens a checkpoint of any format. Its tensors stay in the file until they are used.
---@param path string
---@param options? { map_location: string }   "cpu": all tensors are read now
---@return table
function checkpoint.load(path, options)
  check(type(path) == "string", "type", "load: expected the path of a checkpoint, found %s", show(path))
  options = keywords.complete("load", { map_location = keywords.OPTIONAL }, options)
  local location = options.map_location
  check(location == nil or location == "cpu", "value", 'load: map_location must be "cpu" or nil, not %s', show(location))
  local root = cbk.deep_copy(errors.of_cbk(cbk.open, path).root)
  return location and errors.of_cbk(in_memory, root) or root
end

return checkpoint

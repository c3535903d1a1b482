-- Applies the spec fix (`cbk.checkpoint_spec`) to the tree of an open H5 checkpoint. It changes only the tree and writes nothing.

local cbk = require "cbk"
local scalar = require "cbk.scalar"
local spec = require "cbk.checkpoint_spec"

local spec_tree = {}

---Every leaf of dicts, lists and tuples: its dotted key, and the place where it can be set.
local function leaves_of(tree)
  local names, places = {}, {}
  local function walk(container, prefix)
    local is_dict = cbk.kind(container):find "dict" ~= nil
    for key in cbk.items(container) do
      local path = prefix .. cbk.key_text(is_dict and key or key - 1)
      local kind = cbk.kind(container, key)
      if not kind then
        cbk.fail("checkpoint", ("a key %s is NaN, which cannot be looked up: its value would be lost"):format(
          prefix == "" and "at the top level" or "below " .. cbk.quote(prefix:sub(1, -2))))
      end
      if kind:find "dict" or kind == "list" or kind == "tuple" then
        walk(container[key], path .. ".")
      else
        names[#names + 1] = path
        places[path] = { container = container, key = key, kind = kind }
      end
    end
  end
  walk(tree, "")
  return names, places
end

local function value_of(place) return place.container[place.key] end

local function set(place, value) place.container[place.key] = value end

---The number in a leaf; nil for None.
local function number_of(name, place)
  if place.kind == "none" then return nil end
  return scalar.of(place.container, place.key) or cbk.fail("value", ("'%s' is not a number"):format(name))
end

---Sets a number, keeping the kind of the leaf.
local function set_number(name, place, number)
  if scalar.is_tensor(place.kind) then
    local old = value_of(place)
    local whole = cbk.dtype(old.dtype).floating and number or number - number % 1
    set(place, cbk.full(old:shape(), whole, { dtype = old.dtype }):as { role = old.role, requires_grad = old.requires_grad })
  elseif place.kind == "float" then
    set(place, cbk.float(tonumber(number)))
  elseif place.kind == "int" or place.kind == "none" then
    set(place, cbk.int(number))
    place.kind = "int"
  else
    cbk.fail("value", ("'%s' should be a number, found %s"):format(name, place.kind))
  end
end

---A key as the file encodes it.
local function encoded(key)
  return (key:gsub("[^%w_.~-]", function(c) return ("%%%02X"):format(c:byte()) end))
end

---@return { key: string, source: string }[] restored
---@return string[] missing   names of leaves without data: these leaves are None
local function restore(names, places, stored)
  local restored, lost = spec.match_missing(names, function(key) return stored[key] or false end)
  for _, tie in ipairs(restored) do
    local source = places[tie.source]
    if not source then
      cbk.fail("key", ("'%s' is stored as '%s', which the checkpoint's tree does not name; `cbk fix-checkpoint-spec` can link them")
        :format(tie.key, tie.source))
    end
    local place = places[tie.key]
    set(place, cbk.raw(source.container, source.key))
    place.kind = source.kind
  end
  local missing = {}
  for i, one in ipairs(lost) do missing[i] = one.key end
  return restored, missing
end

---The leaves of a tree that the file stores.
---@param names string[]
---@param stored string[]|nil   the names of its datasets; nil: all leaves of its tree
---@return table<string, true>
local function stored_leaves(names, stored)
  local out, is_there = {}, {}
  for _, name in ipairs(stored or names) do is_there[name] = true end
  for _, name in ipairs(names) do out[name] = is_there[name] or is_there[encoded(name)] end
  return out
end

local function update_epochs(names, places)
  local global_step = places.global_step and number_of("global_step", places.global_step)
  if not global_step then return next(spec.last_epochs(names, 0, {})) == nil and {} or nil end
  if not scalar.is_whole(global_step) then
    cbk.fail("value", ("global_step is %s: expected a whole number of steps, as schedules count them"):format(global_step))
  end
  local milestones = {}
  for i, name in ipairs(spec.milestone_names(names)) do
    milestones[i] = number_of(name, places[name]) or cbk.fail("value", ("milestone '%s' is None"):format(name))
  end
  local changed = {}
  for _, epoch in ipairs(spec.last_epochs(names, global_step, milestones)) do
    local place = places[epoch.name]
    local before = number_of(epoch.name, place)
    if not before or not scalar.equal(before, epoch.value) then
      set_number(epoch.name, place, epoch.value)
      changed[#changed + 1] = { name = epoch.name, value = epoch.value, before = before }
    end
  end
  return changed
end

---@class SpecFix
---@field root Dict
---@field has_scalar_dicts boolean   some nodes were TensorScalarDict, which reads as dict
---@field restored { key: string, source: string }[]
---@field lost string[]              leaves that are None because nothing is stored under them
---@field epochs { name: string, value: number, before: number }[]|nil   nil: there are schedules, but no global_step

---@class OldFile   A checkpoint that was opened.
---@field checkpoint Checkpoint
---@field stored string[]|nil        names of its datasets, for H5 versions whose tree may name more; nil: all are stored
---@field is_rewritten boolean       written by a tool, not by a release before 2.0
---@field has_scalar_dicts boolean   some nodes were TensorScalarDict, which reads as dict

local scalar_dict = ("TensorScalarDict"):gsub(".", function(c) return ("%02x"):format(c:byte()) end)

local MOST_VALUES = 65536 -- besides tensors; no H5 file of a release has more

---@param checkpoint Checkpoint
---@return OldFile
function spec_tree.old_file(checkpoint)
  local values = cbk.leaf_rows(checkpoint:raw_root()):totals().values
  if values > MOST_VALUES then
    cbk.fail("checkpoint", ("'%s' holds %d values that are not tensors; a checkpoint of the Model Zoo has at most %d"):format(
      checkpoint.path, values, MOST_VALUES))
  end
  if not (cbk.kind(checkpoint.root) or ""):find "dict" then
    cbk.fail("checkpoint", ("'%s' should be a dict of parts (model, optimizer, …)"):format(checkpoint.path))
  end
  local version = checkpoint.format == "cerebras-h5" and (tonumber(checkpoint.version) or 1)
  local old = { checkpoint = checkpoint, is_rewritten = not version or version > 0.35, has_scalar_dicts = false }
  if not version or version > 0.45 then return old end -- 0.5 lacks nothing
  local inspected = cbk.h5.inspect(checkpoint.path)
  old.stored = {}
  for i, dataset in cbk.items(inspected.datasets) do old.stored[i] = dataset.name end
  local text = inspected.attributes.__spec__
  old.has_scalar_dicts = not old.is_rewritten and type(text) == "string" and text:lower():find(scalar_dict, 1, true) ~= nil
  return old
end

---@param old OldFile   of a release before 2.0
---@return SpecFix
function spec_tree.fix(old)
  local root = cbk.deep_copy(old.checkpoint.root)
  local names, places = leaves_of(root)
  local is_stored = stored_leaves(names, old.stored)
  for _, name in ipairs(old.is_rewritten and names or {}) do
    -- a tool that copied the file found no dataset and wrote None
    local source = places[name].kind == "none" and places[spec.alias_of(name) or ""]
    if source and source.kind ~= "none" then is_stored[name] = nil end
  end
  local restored, missing = restore(names, places, is_stored)
  local epochs, lost = update_epochs(names, places), {}
  for _, name in ipairs(missing) do
    if places[name].kind == "none" then lost[#lost + 1] = name end -- step counts do not need the file
  end
  return { root = root, has_scalar_dicts = old.has_scalar_dicts, restored = restored, lost = lost, epochs = epochs }
end

---The leaves of a checkpoint that are None because nothing is stored under them.
---@param old OldFile
---@return string[]
function spec_tree.lost(old)
  if not old.stored then return {} end
  local names = leaves_of(old.checkpoint.root)
  local is_stored, out = stored_leaves(names, old.stored), {}
  for _, name in ipairs(names) do
    if not is_stored[name] then out[#out + 1] = name end
  end
  return out
end

return spec_tree

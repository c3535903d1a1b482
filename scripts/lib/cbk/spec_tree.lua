-- The spec fix (`cbk.checkpoint_spec`) on the tree of an H5 checkpoint that was opened: nothing is written, the tree is made right.

local cbk = require "cbk"
local spec = require "cbk.checkpoint_spec"

local spec_tree = {}

local function is_tensor(kind) return kind == "tensor" or kind == "parameter" or kind == "ndarray" or kind == "np_scalar" end

---Every leaf of dicts, lists and tuples: its dotted key, and where it is to be set.
local function leaves_of(tree)
  local names, places = {}, {}
  local function walk(container, prefix)
    local is_dict = cbk.kind(container):find "dict" ~= nil
    for key in cbk.items(container) do
      local path = prefix .. cbk.key_text(is_dict and key or key - 1)
      local kind = cbk.kind(container, key)
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

---The number that a leaf holds, as a number or as a tensor of one element; nil for None.
local function number_of(name, place)
  if place.kind == "none" then return nil end
  local value = value_of(place)
  if is_tensor(place.kind) and value:numel() == 1 then value = value:reshape {}:item() end
  local number = type(value) ~= "string" and tonumber(value)
  return number or cbk.fail("value", ("'%s' holds no number"):format(name))
end

---A number in the kind that the leaf has now.
local function set_number(name, place, number)
  if is_tensor(place.kind) then
    local old = value_of(place)
    local whole = cbk.dtype(old.dtype).floating and number or number - number % 1
    set(place, cbk.full(old:shape(), whole, { dtype = old.dtype }):as { role = old.role, requires_grad = old.requires_grad })
  elseif place.kind == "float" then
    set(place, cbk.float(number))
  elseif place.kind == "int" then
    set(place, cbk.int(number))
  else
    cbk.fail("value", ("'%s' is no number but %s"):format(name, place.kind))
  end
end

---How the file spells a key.
local function encoded(key)
  return (key:gsub("[^%w_.~-]", function(c) return ("%%%02X"):format(c:byte()) end))
end

local function restore(names, places, stored)
  local function has(key) return stored[key] or stored[encoded(key)] or false end
  local restored = spec.missing_aliases(names, has)
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
  return restored
end

local function update_epochs(names, places)
  local global_step = places.global_step and number_of("global_step", places.global_step)
  if not global_step then return nil end
  local milestones = {}
  for i, name in ipairs(spec.milestone_names(names)) do
    milestones[i] = number_of(name, places[name]) or cbk.fail("value", ("milestone '%s' is None"):format(name))
  end
  local changed = {}
  for _, epoch in ipairs(spec.last_epochs(names, global_step, milestones)) do
    local place = places[epoch.name]
    local before = number_of(epoch.name, place)
    if before ~= epoch.value then
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
---@field epochs { name: string, value: number, before: number }[]|nil   nil: there is no global_step

---@param checkpoint Checkpoint   of a release before 2.0
---@param stored string[]|nil     the names of its datasets; nil: all that its tree names are there
---@param has_scalar_dicts boolean
---@return SpecFix
function spec_tree.fix(checkpoint, stored, has_scalar_dicts)
  local root = cbk.deep_copy(checkpoint.root)
  local names, places = leaves_of(root)
  local is_stored = {}
  for _, name in ipairs(stored or names) do is_stored[name] = true end
  for _, name in ipairs(stored and {} or names) do
    -- what wrote the file anew found no dataset and wrote None
    local source = places[name].kind == "none" and places[spec.alias_of(name) or ""]
    if source and source.kind ~= "none" then is_stored[name] = nil end
  end
  local restored = restore(names, places, is_stored)
  return { root = root, has_scalar_dicts = has_scalar_dicts, restored = restored, epochs = update_epochs(names, places) }
end

return spec_tree

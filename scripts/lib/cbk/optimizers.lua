-- The optimizers in a checkpoint, as PyTorch and Cerebras write them: a dict of states by parameter, and groups of hyper-parameters. A
-- parameter is a number there; its name follows from the order and the shapes of the model's tensors.

local cbk = require "cbk"
local extents = require "cbk.extents"
local layer_places = require "cbk.layer_places"

local optimizers = {}

local TENSORS = require("cbk.tensor_kinds").ALL

local DEEPEST = 3       -- dicts around an optimizer
local MOST_STEPS = 2000 -- of the search for names
local LISTS = { list = true, tuple = true }
local DICTS = { dict = true, ordereddict = true, defaultdict = true } -- a state dict of PyTorch is an OrderedDict

---@param value any   as `cbk.raw` returns it
---@return boolean
function optimizers.is_dict(value) return DICTS[cbk.kind(value)] == true end

---@class Optimizer
---@field path string                         "optimizer"
---@field groups table[]                      the dicts of hyper-parameters, in their order
---@field state Dict
---@field names table<any, string>            the parameter's name, by key of `state`
---@field is_guess boolean                    other names would fit, too
---@field around Dict                         the dict that has it, or its list, and the model
---@field own any                             its key there

---@param value any   as `cbk.raw` returns it
local function is_optimizer(value)
  if not optimizers.is_dict(value) then return false end
  local groups = value.param_groups
  return optimizers.is_dict(value.state) and LISTS[cbk.kind(groups)] == true and (#groups == 0 or optimizers.is_dict(groups[1]))
end

-- --- names

---A name without its numbers: parameters of one kind are in one group.
---@param name string
function optimizers.kind_of(name) return layer_places.outline(name, "#") end

---Whether a value of a file can be a key in Lua: NaN cannot.
function optimizers.is_key(value) return value ~= nil and value == value end

---The keys in `state` of a group's parameters, as `cbk.items` gives them.
---@param group any
function optimizers.parameters(group)
  local params = optimizers.is_dict(group) and group.params
  return cbk.items(LISTS[cbk.kind(params)] and params or cbk.list())
end

---The model's tensors in their order: the child with most tensors of the dict that has the optimizer. Tied tensors count once.
---@return { name: string, kind: string, shape: string }[]
local function model_tensors(around, own)
  local best = {}
  for key, value in cbk.raw_items(around) do
    local list, seen = {}, {}
    local tree = key ~= own and optimizers.is_dict(value) and value
    for name, tensor in cbk.raw_leaves(tree or cbk.dict()) do
      if TENSORS[cbk.kind(tensor)] then
        local storage = tensor:storage()
        local place = storage and storage.file and ("%s:%s"):format(storage.file, tostring(storage.position))
        if not place or not seen[place] then
          list[#list + 1] = { name = name, kind = optimizers.kind_of(name), shape = extents.shape(tensor:shape()) }
        end
        if place then seen[place] = true end
      end
    end
    if #list > #best then best = list end
  end
  return best
end

---The shapes that the state of a parameter has, so that the parameter's can be found among them; nil if there is none.
local function shapes_of(state)
  local shapes
  for _, value in cbk.raw_items(optimizers.is_dict(state) and state or cbk.dict()) do
    if type(value) == "userdata" and value.shape and value:numel() > 1 then
      shapes = shapes or {}
      shapes[extents.shape(value:shape())] = true
    end
  end
  return shapes
end

---The numbers of each group with the shapes that fit, or nil if a group has anything else.
---@return { numbers: integer[], shapes: (table<string, boolean>|nil)[], decay: number }[]|nil
local function numbered_groups(optimizer)
  local out = {}
  for g, group in ipairs(optimizer.groups) do
    local params = optimizers.is_dict(group) and group.params
    if not LISTS[cbk.kind(params)] then return nil end
    local numbers, shapes = {}, {}
    for i, number in cbk.items(params) do
      if type(number) ~= "number" or not optimizers.is_key(number) then return nil end
      numbers[i], shapes[i] = number, shapes_of(optimizer.state[number])
    end
    out[g] = { numbers = numbers, shapes = shapes, decay = tonumber(group.weight_decay) or 0 }
  end
  return out
end

local LEFT_OUT = 0 -- of all groups: a buffer, or a frozen weight

---Gives the model's tensors, in their order, to the groups of their kinds.
---@param group_of table<string, integer>   by kind
---@param misfits integer                     shapes that need not fit
---@return table<integer, string>|nil names   by number; nil if shapes or counts do not fit
---@return string|nil kind                    the first that has no group yet
local function placed(tensors, groups, group_of, misfits)
  local taken, names = {}, {}
  for g = 1, #groups do taken[g] = 0 end
  for _, tensor in ipairs(tensors) do
    local g = group_of[tensor.kind]
    if not g then return names, tensor.kind end
    if g ~= LEFT_OUT then
      taken[g] = taken[g] + 1
      local number, shapes = groups[g].numbers[taken[g]], groups[g].shapes[taken[g]]
      if shapes and not shapes[tensor.shape] then misfits = misfits - 1 end
      if not number or misfits < 0 then return nil end
      names[number] = tensor.name
    end
  end
  return names -- as many as there are numbers: the search has counted
end

---How unusual it is that the kinds have these groups: biases, and mostly norms, do not decay.
---@param group_of table<string, integer>
local function oddity(group_of, groups)
  local least, most = math.huge, -math.huge
  for _, group in ipairs(groups) do least, most = math.min(least, group.decay), math.max(most, group.decay) end
  local odd = 0
  for kind, g in pairs(group_of) do
    local decay = g ~= LEFT_OUT and groups[g].decay or least
    local is_plain = kind:find "bias" or kind:find "norm" or kind:find "ln_"
    if decay ~= (is_plain and least or most) then odd = odd + (kind:find "bias" and 100 or 1) end
  end
  return odd
end

---The most usual way to give each kind of tensor a group so that all counts and shapes fit, and whether there are others.
---@param misfits integer   shapes that need not fit
---@return table<integer, string> names, boolean is_guess
local function best_names(tensors, groups, misfits)
  local best, least, group_of, steps, count = {}, math.huge, {}, 0, 0
  local sizes, room = {}, { [LEFT_OUT] = #tensors } -- of the kinds; what each group has left for others
  for _, tensor in ipairs(tensors) do sizes[tensor.kind] = (sizes[tensor.kind] or 0) + 1 end
  for g, group in ipairs(groups) do
    room[g], room[LEFT_OUT] = #group.numbers, room[LEFT_OUT] - #group.numbers
  end
  if room[LEFT_OUT] < 0 then return {}, false end
  local function search()
    steps = steps + 1
    if steps > MOST_STEPS then return end
    local names, kind = placed(tensors, groups, group_of, misfits)
    if names and not kind then
      count = count + 1
      local odd = oddity(group_of, groups)
      if odd < least then best, least = names, odd end
    elseif names then
      for g = LEFT_OUT, #groups do
        room[g] = room[g] - sizes[kind]
        group_of[kind] = g
        if room[g] >= 0 then search() end
        room[g] = room[g] + sizes[kind]
      end
      group_of[kind] = nil
    end
  end
  search()
  return best, count > 1 or steps > MOST_STEPS
end

---@param optimizer Optimizer
local function set_names(optimizer)
  for g = 1, #optimizer.groups do
    local group = optimizer.groups[g]
    local params, names = optimizers.is_dict(group) and group.params, optimizers.is_dict(group) and group.param_names
    for i, number in cbk.items(LISTS[cbk.kind(params)] and LISTS[cbk.kind(names)] and params or cbk.list()) do
      if type(names[i]) == "string" and optimizers.is_key(number) then optimizer.names[number] = names[i] end
    end
  end
  if next(optimizer.names) then return end
  local groups = numbered_groups(optimizer)
  if not groups then return end
  local tensors = model_tensors(optimizer.around, optimizer.own)
  if #tensors > 0 then optimizer.names, optimizer.is_guess = best_names(tensors, groups, 0) end
end

local FEWEST = 4 -- parameters with states, whose order says what they belong to

---The only parameter whose states have another shape than its weight, if those of all others fit in the model's order.
---@param optimizer Optimizer
---@return integer|nil number, string|nil name, string|nil shape   of the weight
function optimizers.misfit(optimizer)
  local groups = not next(optimizer.names) and numbered_groups(optimizer)
  if not groups then return nil end
  local tensors, shape_of, count, known = model_tensors(optimizer.around, optimizer.own), {}, 0, 0
  for _, group in ipairs(groups) do
    count = count + #group.numbers
    for _ in pairs(group.shapes) do known = known + 1 end
  end
  if count ~= #tensors or known < FEWEST then return nil end -- buffers or frozen weights would allow other orders
  local names, is_guess = best_names(tensors, groups, 1)
  for _, tensor in ipairs(is_guess and {} or tensors) do shape_of[tensor.name] = tensor.shape end
  for _, group in ipairs(groups) do
    for i, number in ipairs(group.numbers) do
      local shape = shape_of[names[number]]
      if shape and group.shapes[i] and not group.shapes[i][shape] then return number, names[number], shape end
    end
  end
end

-- --- finding

---@param value Dict
---@param around Dict   the dict that has it, or its list, under `own`
local function add(value, path, around, own, out)
  local groups = {}
  for g, group in cbk.items(value.param_groups) do groups[g] = group end
  local optimizer = { path = path, groups = groups, state = value.state, names = {}, is_guess = false, around = around, own = own }
  set_names(optimizer)
  out[#out + 1] = optimizer
end

local function find_below(tree, path, depth, out)
  local function path_to(key) return path == "" and cbk.key_text(key) or path .. "." .. cbk.key_text(key) end
  for key, value in cbk.raw_items(tree) do
    local kind = cbk.kind(value)
    if LISTS[kind] then -- "optimizer_states" of Lightning
      for i, item in cbk.items(value) do
        if is_optimizer(item) then add(item, ("%s.%d"):format(path_to(key), i - 1), tree, key, out) end
      end
    elseif DICTS[kind] and is_optimizer(value) then
      add(value, path_to(key), tree, key, out)
    elseif DICTS[kind] and depth < DEEPEST then
      find_below(value, path_to(key), depth + 1, out)
    end
  end
end

---The optimizers of a checkpoint.
---@param root any   as `Checkpoint:raw_root` returns it
---@return Optimizer[]
function optimizers.find(root)
  local out = {}
  if not optimizers.is_dict(root) then return out end
  find_below(cbk.dict { { "", root } }, "", 0, out)
  return out
end

return optimizers

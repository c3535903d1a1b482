-- The optimizers of a checkpoint as short tables: the states of each parameter under its name, with layers folded, and the
-- hyper-parameters of the groups.

local cbk = require "cbk"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local listing = require "cbk.listing"
local numbers = require "cbk.numbers"
local optimizers = require "cbk.optimizers"
local text_table = require "cbk.text_table"

local optimizer_table = {}

local LIST_OF_PARAMETERS = { params = true, param_names = true }

---@param optimizer Optimizer
---@return string   "optimizer.state"
function optimizer_table.state_path(optimizer) return optimizer.path == "" and "state" or optimizer.path .. ".state" end

---@param optimizer Optimizer
---@return string   "optimizer.param_groups"
function optimizer_table.groups_path(optimizer) return optimizer.path == "" and "param_groups" or optimizer.path .. ".param_groups" end

---The rows that are neither states nor groups of these optimizers.
---@param rows LeafRows
---@param list Optimizer[]
---@return LeafRows
function optimizer_table.others(rows, list)
  local prefixes, chosen = {}, {}
  for _, optimizer in ipairs(list) do
    for _, path in ipairs { optimizer_table.state_path(optimizer), optimizer_table.groups_path(optimizer) } do
      prefixes[#prefixes + 1] = path .. "."
    end
  end
  local function is_other(path)
    for _, prefix in ipairs(prefixes) do
      if path:sub(1, #prefix) == prefix then return false end
    end
    return true
  end
  for i = 1, #rows do
    if is_other(rows:path(i)) then chosen[#chosen + 1] = i end
  end
  return rows:choose(chosen)
end

-- --- states

---@class StateOfParameter
---@field key string         in `optimizer.state`
---@field name string|nil    of the parameter
---@field shape string       of its largest tensor
---@field slots string[]     "exp_avg float32", "step float32 []", in their order
---@field tensors integer
---@field bytes integer

local TENSORS = require("cbk.tensor_kinds").ALL
local function is_tensor(value) return TENSORS[cbk.kind(value)] == true end

---@return StateOfParameter
local function state_of(optimizer, key, state)
  local out = { key = cbk.key_text(key), name = optimizer.names[key] or type(key) == "string" and key or nil, shape = "", slots = {},
    tensors = 0, bytes = 0 }
  local largest = -1
  for _, value in cbk.raw_leaves(state) do
    if is_tensor(value) then
      out.tensors, out.bytes = out.tensors + 1, out.bytes + value:nbytes()
      if value:numel() > largest then largest, out.shape = value:numel(), extents.shape(value:shape()) end
    end
  end
  for slot, value in cbk.raw_leaves(state) do
    local kind = is_tensor(value) and value.dtype or cbk.kind(value)
    local shape = is_tensor(value) and extents.shape(value:shape())
    out.slots[#out.slots + 1] = shape and shape ~= out.shape and ("%s %s %s"):format(slot, kind, shape) or slot .. " " .. kind
  end
  return out
end

---"2, 18, … 178"
---@param texts string[]
local function few_of(texts)
  if #texts <= 3 then return table.concat(texts, ", ") end
  return ("%s, %s, … %s"):format(texts[1], texts[2], texts[#texts])
end

---The states as rows, those of like layers in one.
local function state_rows(states, is_uniform)
  local entries, rows = {}, {}
  for i, state in ipairs(states) do
    local like = table.concat(state.slots, ", ")
    local signature = (state.name and "" or "\0") .. state.shape .. like
    entries[i] = { path = state.name or state.key, signature = signature, state = state, like = like }
  end
  for i, group in ipairs(fold.groups(entries)) do
    local keys, first = {}, group.members[1]
    for k, member in ipairs(group.members) do keys[k] = member.state.key end
    rows[i] = { first.state.name and group.name or "", first.state.name ~= first.state.key and few_of(keys) or "", first.state.shape,
      is_uniform and "" or first.like }
  end
  return rows
end

local COLUMNS = { { title = "parameter" }, { title = "number", weight = 3 }, { title = "shape", weight = 2 },
  { title = "states", weight = 1 } }
local NAMELESS = { { title = "number" }, { title = "shape", weight = 2 }, { title = "states", weight = 1 } }

---@param optimizer Optimizer
---@param print_line fun(line: string)
---@param width? integer   of the terminal
local function print_states(optimizer, print_line, width)
  local states, tensors, bytes, is_uniform, has_names = {}, 0, 0, true, false
  for key, state in cbk.items(optimizer.state) do
    local own = state_of(optimizer, key, state)
    states[#states + 1], tensors, bytes = own, tensors + own.tensors, bytes + own.bytes
    is_uniform = is_uniform and #own.slots == #states[1].slots and table.concat(own.slots, ",") == table.concat(states[1].slots, ",")
    has_names = has_names or own.name ~= nil
  end
  print_line(("%s  %s, %s, %s"):format(fold.shown(optimizer_table.state_path(optimizer)), numbers.counted(#states, "parameter"),
    numbers.counted(tensors, "tensor"), cbk.format_size(bytes)))
  if #states == 0 then return end
  if is_uniform then print_line("  each has " .. table.concat(states[1].slots, ", ")) end
  if optimizer.is_guess then print_line "  (names by the order of the model; the shapes allow others, too)" end
  local rows = state_rows(states, is_uniform)
  if not has_names then
    for _, row in ipairs(rows) do table.remove(row, 1) end
  end
  for _, line in ipairs((text_table.lines(has_names and COLUMNS or NAMELESS, rows, width and width - 2))) do print_line("  " .. line) end
end

---The optimizer that has what is at a path, and in which part.
---@param list Optimizer[]
---@return Optimizer|nil, string|nil part   "state" or "param_groups"
function optimizer_table.part_of(list, path)
  for _, optimizer in ipairs(list) do
    for part, own in pairs { state = optimizer_table.state_path(optimizer), param_groups = optimizer_table.groups_path(optimizer) } do
      if path:sub(1, #own + 1) == own .. "." then return optimizer, part end
    end
  end
end

---The state that a path below `optimizer.state` is of, and the parameter's name, or its number.
---@param optimizer Optimizer
---@param path string   "optimizer.state.3.exp_avg"
---@return string slot, string parameter
function optimizer_table.slot_of(optimizer, path)
  local rest = path:sub(#optimizer_table.state_path(optimizer) + 2)
  local number, slot = rest:match "^(%d+)%.(.*)$"
  if number then return slot, optimizer.names[tonumber(number)] or number end
  local name
  name, slot = rest:match "^(.*)%.([^.]*)$"
  return slot or rest, name or ""
end

---The parameters that numbered states are of, by "optimizer.state.3".
---@param root any   as `Checkpoint:raw_root` returns it
---@return table<string, string>
function optimizer_table.names_in(root)
  local out = {}
  for _, optimizer in ipairs(optimizers.find(root)) do
    local path = optimizer_table.state_path(optimizer)
    for number, name in pairs(optimizer.names) do out[path .. "." .. cbk.key_text(number)] = name end
  end
  return out
end

-- --- hyper-parameters

---@class HyperParameter
---@field name string
---@field values string[]   of each group; empty where it has none

---The hyper-parameters of all groups, in their order, without the lists of parameters.
---@param optimizer Optimizer
---@return HyperParameter[]
function optimizer_table.hyper_parameters(optimizer)
  local out, by_name = {}, {}
  for g, group in ipairs(optimizer.groups) do
    for key, value in cbk.raw_items(optimizers.is_dict(group) and group or cbk.dict()) do
      local name = cbk.key_text(key)
      if not LIST_OF_PARAMETERS[name] then
        local one = by_name[name]
        if not one then
          one = { name = name, values = {} }
          for before = 1, g - 1 do one.values[before] = "" end
          by_name[name], out[#out + 1] = one, one
        end
        one.values[g] = listing.plain_text(value) or listing.value_text(value)
      end
    end
    for _, one in ipairs(out) do one.values[g] = one.values[g] or "" end
  end
  return out
end

---"0.1, 0", or "0.1" where all groups have it
---@param values string[]
---@return string
function optimizer_table.values_text(values)
  for _, value in ipairs(values) do
    if value ~= values[1] then return few_of(values) end
  end
  return values[1]
end

local function print_hyper_parameters(optimizer, print_line)
  local counts = {}
  for g, group in ipairs(optimizer.groups) do
    local params = optimizers.is_dict(group) and group.params
    counts[g] = type(params) == "userdata" and numbers.grouped(cbk.count(params)) or "0"
  end
  print_line(("%s  %s of %s parameters"):format(fold.shown(optimizer_table.groups_path(optimizer)), numbers.counted(#counts, "group"),
    optimizer_table.values_text(counts)))
  local rows = {}
  for i, one in ipairs(optimizer_table.hyper_parameters(optimizer)) do rows[i] = { one.name, optimizer_table.values_text(one.values) } end
  local widest = 0
  for _, row in ipairs(rows) do widest = math.max(widest, cbk.terminal.columns(row[1])) end
  for _, row in ipairs(rows) do
    print_line(("  %s%s  %s"):format(row[1], (" "):rep(widest - cbk.terminal.columns(row[1])), row[2]))
  end
end

---@class OptimizerPart
---@field optimizer Optimizer
---@field part? "state"|"param_groups"   that alone

---The optimizers at a key or below it, and those that have a part of their own there.
---@param list Optimizer[]
---@param key string   "optimizer", "optimizer.state"; empty for the whole checkpoint
---@return OptimizerPart[]
function optimizer_table.at_key(list, key)
  local out = {}
  for _, optimizer in ipairs(list) do
    if key == "" or (optimizer.path .. "."):sub(1, #key + 1) == key .. "." then
      out[#out + 1] = { optimizer = optimizer }
    elseif key == optimizer_table.state_path(optimizer) then
      out[#out + 1] = { optimizer = optimizer, part = "state" }
    elseif key == optimizer_table.groups_path(optimizer) then
      out[#out + 1] = { optimizer = optimizer, part = "param_groups" }
    end
  end
  return out
end

---The optimizers whose values are all among these, as a glob may choose them.
---@param list Optimizer[]
---@param rows LeafRows     that are chosen
---@param stored LeafRows   all
---@return OptimizerPart[]
function optimizer_table.whole_in(list, rows, stored)
  local out = {}
  for _, optimizer in ipairs(list) do
    local function count(of) return #of - #optimizer_table.others(of, { optimizer }) end
    local own = count(rows)
    if own > 0 and own == count(stored) then out[#out + 1] = { optimizer = optimizer } end
  end
  return out
end

---@param optimizer Optimizer
---@param print_line fun(line: string)
---@param width? integer   of the terminal
---@param part? "state"|"param_groups"   default: both
function optimizer_table.print(optimizer, print_line, width, part)
  if part ~= "param_groups" then print_states(optimizer, print_line, width) end
  if part ~= "state" and #optimizer.groups > 0 then print_hyper_parameters(optimizer, print_line) end
end

return optimizer_table

-- Makes numbers of quantised weights: the tree of a checkpoint in which codes are replaced by lazy tensors that multiply the scales in
-- while they are read. `cbk.codes` has the arithmetic of each method.

local cbk = require "cbk"
local codes = require "cbk.codes"
local errors = require "cbk.errors"
local numbers = require "cbk.numbers"
local quantised = require "cbk.quantised"
local ties = require "cbk.ties"

local dequantised = {}

---The weight's codes and parts as tensors.
---@param rows LeafRows
---@param weight QuantisedWeight
---@param settings Dict|nil
---@return PackedWeight
local function packed_weight(rows, weight, settings)
  local function value(key) return rows:value(rows:find(key)) end
  local parts = {}
  for tail, key in pairs(weight.part_of) do parts[tail] = value(key) end
  return { weight = weight, codes = value(weight.key), parts = parts, settings = settings or {} }
end

---Why a weight cannot be read, for people; nil if it can.
---@param rows LeafRows
---@param weight QuantisedWeight
---@param settings Dict|nil   quantization_config
---@return string|nil
local function why_not(rows, weight, settings)
  local reader = weight.reader and codes[weight.reader]
  if not reader then return "cbk does not read this method" end
  local dtype_of = {}
  for tail, key in pairs(weight.part_of) do dtype_of[tail] = rows[rows:find(key)].type end
  return reader.why_not(rows[rows:find(weight.key)].type, dtype_of, settings or {})
end

---@private
---The lazy tensor of a quantised weight, in float32. Errors name the key of its codes.
---@param rows LeafRows
---@param weight QuantisedWeight
---@param settings? Dict   quantization_config
---@return Tensor
function dequantised.weight(rows, weight, settings)
  return errors.within(("cannot read '%s' (%s)"):format(weight.key, weight.method), function()
    return codes[weight.reader].read(packed_weight(rows, weight, settings))
  end)
end

---@private
---Why the quantised weights of a checkpoint cannot be read, or that they lost their scales; nil if nothing is in the way.
---@param found Quantised
---@param rows LeafRows   of the checkpoint
---@return string|nil
function dequantised.problem(found, rows)
  local settings = found.stated and found.stated.settings
  for _, weight in ipairs(found.weights) do
    local why = why_not(rows, weight, settings)
    if why then return found:problem(weight, why) end
  end
  return #found.weights == 0 and found:problem() or nil
end

---@private
---The shape of a quantised weight; nil if it is not known, as of packed codes that cbk does not read.
---@param found Quantised
---@param rows LeafRows
---@param weight QuantisedWeight
---@return integer[]|nil
function dequantised.shape(found, rows, weight)
  local is_read = not why_not(rows, weight, found.stated and found.stated.settings)
  return is_read and codes[weight.reader].shape(rows[rows:find(weight.key)].shape, weight.method) or weight.shape
end

---Fails if two weights share their codes and not their scales: `cbk.rewrite` replaces a shared leaf once.
---@param rows LeafRows
---@param weights QuantisedWeight[]
local function check_shared(rows, weights)
  local seen = {}
  for _, weight in ipairs(weights) do
    local id, parts = ties.view_id(rows:value(rows:find(weight.key))), {}
    for _, key in ipairs(weight.parts) do parts[#parts + 1] = ties.view_id(rows:value(rows:find(key))) end
    local text, other = table.concat(parts, " "), id and seen[id]
    if other and other.text ~= text then
      cbk.fail("checkpoint", ("'%s' and '%s' share their codes, but not their scales"):format(other.key, weight.key))
    end
    if id then seen[id] = { key = weight.key, text = text } end
  end
end

---The tree with numbers in place of codes, under the names of the weights, and without scales, zero points and the like. Lazy: nothing
---but the group numbers of GPTQ is read. A tree without quantised weights is returned as it is.
---@param tree any
---@param config? Dict   of the checkpoint: its quantization_config says block sizes and versions of formats
---@param options? { dtype?: string, cannot?: string, checkpoint?: Checkpoint, config_problem?: any, shown?: fun(key: string): boolean }
---dtype: of the weights (default: float32); cannot: what fails if the codes cannot be read; checkpoint: where the tree is from;
---config_problem: why the config cannot be read, an error if the weights are quantised; shown: which scales stay, for looking at them
---@return any tree
---@return Quantised found   what was replaced
function dequantised.tree(tree, config, options)
  options = options or {}
  local rows = cbk.leaf_rows(tree)
  local found = quantised.find_in_rows(rows, config)
  local problem = dequantised.problem(found, rows)
  if problem then
    cbk.fail("unsupported", problem, { context = { options.cannot or "cannot make numbers of quantised weights" } })
  end
  if #found.weights == 0 then return tree, found end
  if options.config_problem then
    error(errors.with(options.config_problem, { context = { options.cannot or "cannot make numbers of quantised weights" } }), 0)
  end
  check_shared(rows, found.weights)
  local settings, weight_at, is_left_out = found.stated and found.stated.settings, {}, found:left_out(not options.shown)
  for _, weight in ipairs(found.weights) do weight_at[weight.key] = weight end
  return cbk.rewrite(tree, {
    checkpoint = options.checkpoint,
    path = function(path)
      local weight = weight_at[path]
      if weight then return weight.name end
      return (not is_left_out(path) or options.shown and options.shown(path)) and path or nil
    end,
    leaf = function(path, value)
      local weight = weight_at[path]
      if not weight then return value end
      return dequantised.weight(rows, weight, settings):to(options.dtype or "float32")
    end,
  }), found
end

-- --- for commands that convert weights

local DEEPEST = 3 -- sections in sections of a config

---The dtype that a config states for its weights; nil if it states none of 16 bits or more.
local function stated_dtype(config, depth)
  if type(config) ~= "userdata" or cbk.kind(config) ~= "dict" then return nil end
  for _, field in ipairs { "torch_dtype", "dtype" } do
    local fine, dtype = pcall(cbk.dtype, config[field])
    if fine and dtype.floating and not quantised.is_narrow(dtype.name) then return dtype.name end
  end
  for name, section in cbk.items(depth < DEEPEST and config or cbk.dict()) do
    local found = not quantised.is_field(name, section) and stated_dtype(section, depth + 1)
    if found then return found end
  end
end

---The dtype of weights whose codes are made numbers for a conversion.
local function dtype_for(config) return stated_dtype(config, 0) or "bfloat16" end

---@private
---Some quantised weights of a model as numbers, as `dequantised.model` makes them; none if they cannot be read.
---@param tree Dict
---@param config Dict|nil
---@param is_wanted fun(key: string): boolean   by the key of the codes
---@return table<string, Tensor> numbers   by the keys of the codes
---@return QuantisedWeight[] weights       whose numbers they are
function dequantised.some(tree, config, is_wanted)
  local rows = cbk.leaf_rows(tree)
  local found, out, weights = quantised.find_in_rows(rows, config), {}, {}
  if dequantised.problem(found, rows) then return {}, {} end
  for _, weight in ipairs(found.weights) do
    if is_wanted(weight.key) then
      local fine, tensor = pcall(dequantised.weight, rows, weight, found.stated and found.stated.settings)
      if not fine then return {}, {} end -- the error comes with all weights
      out[weight.key], weights[#weights + 1] = tensor:to(dtype_for(config)), weight
    end
  end
  return out, weights
end

---A model whose quantised weights, if it has any, are numbers of the config's dtype (default: bfloat16), and its config without the
---fields about quantisation.
---@param root Dict
---@param config Dict|nil
---@param cannot string   "cannot convert the checkpoint"
---@param before? QuantisedWeight[]   those that are numbers already, of `dequantised.some`
---@return Dict root
---@return Dict|nil config
---@return string|nil text    what was done, for people; nil: nothing
---@return Quantised found
function dequantised.model(root, config, cannot, before)
  local dtype = dtype_for(config)
  local tree, found = dequantised.tree(root, config, { dtype = dtype, cannot = cannot })
  found:add(before or {})
  if #found.weights == 0 then return root, config, nil, found end
  local text = ("Dequantised: %s (%s) to %s"):format(numbers.counted(#found.weights, "weight"), found:method(), dtype)
  return tree, config and (quantised.without_fields(config)), text, found
end

return dequantised

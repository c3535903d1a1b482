-- A LoRA adapter from the difference of two models: which weights become matrices, which are saved whole, and PEFT's config.
-- Rules: mergekit/scripts/extract_lora.py; names of tensors: peft/utils/save_and_load.py.

local cbk = require "cbk"
local conv1d = require "cbk.peft.conv1d"
local extents = require "cbk.extents"
local naming = require "cbk.naming"
local token_weights = require "cbk.token_weights"

local extract = {}

---@class AdapterOptions
---@field rank integer
---@field targets? string[]       names of modules that get matrices; nil: all linear layers that differ
---@field matrices_only boolean   other weights are left out
---@field dtype string            of the matrices

---@class AdapterPart   A linear layer.
---@field module string
---@field product LowRank

---@class AdapterPlan
---@field root Dict                 PEFT's names to tensors
---@field config Dict               adapter_config.json
---@field parts AdapterPart[]
---@field whole string[]            keys of tensors that are saved whole
---@field left_out string[]         keys of tensors that differ and are not in the adapter

---@class DifferingPair
---@field key string
---@field base? Tensor    nil: only the tuned model has it
---@field tuned Tensor
---@field is_certain boolean   known without reading

local function module_of(key) return key:match "^(.*)%.[^.]*$" or key end

---Whether a weight is a matrix with a row for each token or position, which no linear layer applies.
local function is_embedding(key)
  if token_weights.is_weight_of(token_weights.HEADS, key) then return true end
  local name = naming.last(module_of(key))
  return name:find "emb" ~= nil or name == "wte" or name == "wpe" or name == "shared"
end

local function is_linear(key, tensor)
  return key:find "%.weight$" ~= nil and tensor:dim() == 2 and cbk.dtype(tensor.dtype).floating and not is_embedding(key)
end

-- --- what differs

---The tensors of both models under one name. Fails if the tuned model lacks one.
---@param base MergeModel
---@param tuned MergeModel
---@return DifferingPair[]
function extract.pairs(base, tuned)
  local are_tied, out, seen = base:is_tied() and tuned:is_tied(), {}, {}
  local function add(key)
    local is_head = token_weights.is_weight_of(token_weights.HEADS, key)
    if seen[key] or is_head and are_tied then return end
    seen[key] = true
    local old, new = base:tensor(key), tuned:tensor(key)
    if new == nil then
      cbk.fail("key", ("'%s' is missing in '%s', but '%s' has it; is it the model that was tuned?"):format(key, tuned.path, base.path),
        { key = key })
    end
    local is_certain = old == nil or extents.shape(old:shape()) ~= extents.shape(new:shape())
    if is_certain and old ~= nil and not is_embedding(key) then
      cbk.fail("shape", ("'%s' is %s in '%s', but %s in '%s'"):format(key, extents.shape(old:shape()), base.path,
        extents.shape(new:shape()), tuned.path), { key = key })
    end
    out[#out + 1] = { key = key, base = old, tuned = new, is_certain = is_certain }
  end
  for _, key in ipairs(tuned.keys) do add(key) end
  for _, key in ipairs(base.keys) do add(key) end
  return out
end

---What comparing a pair costs, in bytes.
---@param pair DifferingPair
---@return number
function extract.cost(pair) return pair.is_certain and 0 or pair.base:nbytes() + pair.tuned:nbytes() end

---Whether the tensors of a pair have different elements.
---@param pair DifferingPair
---@return boolean
function extract.differs(pair)
  if pair.is_certain then return true end
  if pair.base:same(pair.tuned) then return false end
  local base, tuned = pair.base, pair.tuned
  if base.dtype ~= tuned.dtype then base, tuned = base:to "float32", tuned:to "float32" end
  return base:compare(tuned).different > 0
end

-- --- names in PEFT's config

---The shortest names that mean these modules and no others: the last part, if that is enough.
---@param chosen table<string, boolean>   modules
---@param all table<string, boolean>      of the model
---@param separator string                what must be before a name's end: "." or nothing
---@return string[]
local function short_names(chosen, all, separator)
  local count, out = {}, {}
  for module in pairs(chosen) do
    local name = naming.last(module)
    count[name] = (count[name] or 0) + 1
  end
  local function is_enough(name)
    local meant = 0
    for module in pairs(all) do
      local ending = separator .. name
      if module == name or module:sub(-#ending) == ending then meant = meant + 1 end
    end
    return meant == count[name]
  end
  local known = {}
  for module in pairs(chosen) do
    local name = naming.last(module)
    if known[name] == nil then known[name] = is_enough(name) end
    out[known[name] and name or module] = true
  end
  return naming.sorted(out)
end

---Whether a module is one of the targets: by its whole name, or by the end of it.
local function is_target(module, targets)
  for _, target in ipairs(targets) do
    if module == target or module:sub(-#target - 1) == "." .. target then return true end
  end
  return false
end

---Fails for a target that no linear layer has.
---@param targets string[]
---@param modules table<string, boolean>   all linear layers
local function check_targets(targets, modules)
  for _, target in ipairs(targets) do
    local names, exists = {}, false
    for module in pairs(modules) do
      names[naming.last(module)] = true
      exists = exists or is_target(module, { target })
    end
    if not exists then
      cbk.fail("key", ("--target-modules: no linear layer is named '%s'; known: %s"):format(target, naming.listed(naming.sorted(names))))
    end
  end
end

-- --- the adapter

local Builder = {}
Builder.__index = Builder

---Adds the matrices of a linear layer. Conv1D layers have a transposed weight.
---@param pair DifferingPair
function Builder:add_matrices(pair)
  local module = module_of(pair.key)
  local function prepared(tensor)
    local checked = tensor:require_finite(("'%s' is not finite: no matrices are made of it"):format(pair.key)):to "float32"
    return self.is_conv1d and conv1d.is_name(module) and checked:transpose(0, 1) or checked
  end
  local product = cbk.low_rank(prepared(pair.tuned), prepared(pair.base), self.options.rank)
  self.root[("base_model.model.%s.lora_A.weight"):format(module)] = product:right():to(self.options.dtype)
  self.root[("base_model.model.%s.lora_B.weight"):format(module)] = product:left():to(self.options.dtype)
  self.parts[#self.parts + 1], self.adapted[module] = { module = module, product = product }, true
end

---Adds a tensor of the tuned model as it is.
function Builder:add_whole(pair)
  local module, is_bias = module_of(pair.key), pair.key:find "%.bias$" ~= nil
  if is_bias and self.linears[module] then
    self.has_bias = true
    self.root[("base_model.model.%s%s.bias"):format(module, self.adapted[module] and ".base_layer" or "")] = pair.tuned
  else
    self.saved[module] = true
    self.root["base_model.model." .. pair.key] = pair.tuned
  end
  self.whole[#self.whole + 1] = pair.key
end

---Adds the other tensors of modules that are saved: PEFT loads whole modules.
---@param tuned MergeModel
function Builder:complete_modules(tuned)
  for _, key in ipairs(tuned.keys) do
    local name = "base_model.model." .. key
    if self.saved[module_of(key)] and self.root[name] == nil then self.root[name] = tuned.root[key] end
  end
end

---@return Dict
function Builder:adapter_config(base, modules)
  local rank, ranks = 0, cbk.dict()
  for _, part in ipairs(self.parts) do rank = math.max(rank, part.product:rank()) end
  for _, part in ipairs(self.parts) do
    if part.product:rank() ~= rank then ranks[part.module] = part.product:rank() end
  end
  local architectures = base.config and base.config.architectures
  local class = cbk.kind(architectures) == "list" and tostring(architectures[1]) or ""
  local saved = short_names(self.saved, modules, "")
  local has_conv1d = false
  for module in pairs(self.adapted) do has_conv1d = has_conv1d or self.is_conv1d and conv1d.is_name(module) end
  return cbk.dict {
    { "peft_type", "LORA" }, { "base_model_name_or_path", base.path },
    { "task_type", (class:find "ForCausalLM$" or class:find "LMHeadModel$") and "CAUSAL_LM" or cbk.null }, { "inference_mode", true },
    { "r", rank }, { "lora_alpha", rank }, { "lora_dropout", cbk.float(0) }, { "use_rslora", false }, { "fan_in_fan_out", has_conv1d },
    { "bias", self.has_bias and "all" or "none" }, { "target_modules", cbk.list(short_names(self.adapted, modules, ".")) },
    { "modules_to_save", #saved > 0 and cbk.list(saved) or cbk.null }, { "rank_pattern", ranks }, { "alpha_pattern", cbk.copy(ranks) },
    { "ensure_weight_tying", self.keeps_ties },
  }
end

---@param base MergeModel
---@param tuned MergeModel
---@param differing DifferingPair[]   those that differ
---@param options AdapterOptions
---@return AdapterPlan
function extract.plan(base, tuned, differing, options)
  local self = setmetatable({
    options = options, root = cbk.dict(), parts = {}, whole = {}, left_out = {}, adapted = {}, saved = {}, linears = {},
    is_conv1d = conv1d.is_in(base.root) or false, keeps_ties = false,
  }, Builder)
  local modules = {}
  for _, key in ipairs(tuned.keys) do
    modules[module_of(key)] = true
    if is_linear(key, tuned.root[key]) then self.linears[module_of(key)] = true end
  end
  if options.targets then check_targets(options.targets, self.linears) end
  local rest = {}
  for _, pair in ipairs(differing) do
    local is_matrix = pair.base ~= nil and not pair.is_certain and is_linear(pair.key, pair.tuned) and is_linear(pair.key, pair.base)
    if not is_matrix then
      rest[#rest + 1] = pair
    elseif options.targets and not is_target(module_of(pair.key), options.targets) then
      self.left_out[#self.left_out + 1] = pair.key
    else
      self:add_matrices(pair)
    end
  end
  for _, pair in ipairs(rest) do
    if options.matrices_only then self.left_out[#self.left_out + 1] = pair.key else self:add_whole(pair) end
    local is_shared = token_weights.is_weight_of(token_weights.EMBEDDINGS, pair.key) and base:is_tied() and tuned:is_tied()
    self.keeps_ties = self.keeps_ties or is_shared and not options.matrices_only
  end
  self:complete_modules(tuned)
  return { root = self.root, config = self:adapter_config(base, modules), parts = self.parts, whole = self.whole, left_out = self.left_out }
end

return extract

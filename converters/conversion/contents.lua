-- The model inside a checkpoint, without the wrappers that training frameworks put around its tensors, so that every command sees the
-- model's names. Wrappers: torch.compile, DataParallel, FSDP, activation checkpointing, Lightning, PEFT, DeepSpeed.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local patterns = require "converters.engine.patterns"
local stacked_experts = require "converters.conversion.stacked_experts"
local weights = require "converters.conversion.weights"

local contents = {}

-- Prefixes of all names. A model may have a module of such a name, so that only its class can tell them apart; except for the first.
local PREFIXES = { "module.", "model.", "base_model.model.", "net.", "network." }

local MOST_TAKEN = 8 -- more than one of each is a hostile file

---@class Contents   The model in a checkpoint.
---@field root Dict           the tensors in Hugging Face's files; else the tree with the model below "model"
---@field taken string[]      the wrappers that were removed: "state_dict.", "module."
---@field beside string[]     the keys beside the weights, which were not read
---@field stacked string[]    the model's keys of experts in one tensor, which were taken apart
---@field dequantised QuantisedWeight[]   those of them that were codes, and are numbers in `root`
---@field values? string[]    in a layout of the user's own: keys of values that are no tensors
---@field paths? table<string, string>   the checkpoint's key for each key of the model; nil: they are the same

---@alias ContentsFit fun(keys: string[], shape_of: fun(key: string): integer[]|nil): number|nil   the number of mismatches; nil:
---unknown

local function has_tensor(tree)
  for _, value in cbk.items(tree) do
    if kinds.is_tensor(value) then return true end
  end
  return false
end

-- Words in the names of a training script's or framework's own state. Its tensors are not weights of the model.
local STATES = { "optim", "sched", "ema", "scaler", "rng", "random", "state", "callback", "loop", "param", "amp", "loss", "average" }

---Whether a dict has tensors, also in dicts in it.
local function holds_tensors(value) return kinds.is_dict(value) and (has_tensor(value) or cbk.leaf_rows(value):totals().tensors > 0) end

---Whether what has a name beside a container may be a part of the model that was saved separately, such as its head: tensors in a dict, or
---one with the name of a module.
---@param name string
---@param value any
local function may_be_weights(name, value)
  for _, word in ipairs(STATES) do
    if name:lower():find(word, 1, true) then return false end
  end
  if kinds.is_tensor(value) then return name:find(".", 1, true) ~= nil end
  return holds_tensors(value)
end

---The one container with the weights; nil if other keys may have weights too. In a container, a dict of modules with the same name is a
---part of the model. Single tensors, such as a loss, are training state only beside a state dict.
---@param root Dict
---@param around? string   the container that `root` is
---@return string|nil name, string[] beside
local function container_of(root, around)
  local found, beside = nil, {}
  local has_single = has_tensor(root)
  for key, value in cbk.items(root) do
    local is_one = weights.is_container(key) and key ~= "ema" and key ~= around and holds_tensors(value)
    if is_one and found or not is_one and may_be_weights(tostring(key), value) then return nil, {} end
    if is_one then found = key else beside[#beside + 1] = tostring(key) end
  end
  if found and has_single and not weights.is_state_dict(root[found]) then return nil, {} end
  return found, beside
end

---The tree with its keys changed; nil if two keys become one.
---@param tree Dict
---@param change fun(key: string): string
---@return Dict|nil
local function renamed(tree, change)
  local out = cbk.dict()
  for key, value in cbk.items(tree) do
    local new = type(key) == "string" and change(key) or key
    if out[new] ~= nil then return nil end
    out[new] = value
  end
  return out
end

---A key without wrappers of single modules.
---@param key string
local function unwrapped(key)
  local out = "." .. key
  for _, name in ipairs(weights.WRAPPERS) do out = out:gsub("%." .. name .. "%f[.]", "") end
  return out:sub(2)
end

---The wrappers in a tree's keys.
---@param tree Dict
---@return string[]
local function wrappers_in(tree)
  local found = {}
  for key in cbk.items(tree) do
    local may_have = type(key) == "string" and (key:find("._", 1, true) or key:find("_", 1, true) == 1)
    for _, name in ipairs(may_have and weights.WRAPPERS or {}) do
      if ("." .. key .. "."):find("." .. name .. ".", 1, true) then found[name .. "."] = true end
    end
  end
  return naming.sorted(found)
end

---@param tree Dict
---@param prefix string
local function have_all(tree, prefix)
  local has_some = false
  for key, value in cbk.items(tree) do
    local is_there = type(key) == "string" and key:sub(1, #prefix) == prefix
    if not (is_there and has_some) and kinds.is_tensor(value) then
      if not is_there then return false end
      has_some = true
    end
  end
  return has_some
end

---@param tree Dict
---@param fit ContentsFit|nil
---@return number|nil
local function mistakes_of(tree, fit)
  if not fit then return nil end
  local keys = {}
  for key in cbk.items(tree) do keys[#keys + 1] = type(key) == "string" and key or nil end
  return fit(keys, function(key) return kinds.is_tensor(tree[key]) and tree[key]:shape() or nil end)
end

---The tree without wrappers before or inside all of its names, unless these names are the model's own.
---@param tree Dict
---@param fit ContentsFit|nil   decides if a name may be the model's own
---@param taken string[]        changed
---@return Dict
local function without_wrappers(tree, fit, taken)
  if #taken > MOST_TAKEN then return tree end
  local wrappers = wrappers_in(tree)
  local plain = #wrappers > 0 and renamed(tree, unwrapped) or tree
  for _, name in ipairs(plain ~= tree and wrappers or {}) do taken[#taken + 1] = name end
  for _, prefix in ipairs(PREFIXES) do
    local shorter = have_all(plain, prefix) and renamed(plain, function(key)
      return key:sub(1, #prefix) == prefix and key:sub(#prefix + 1) or key
    end)
    if shorter then
      local now, then_ = mistakes_of(plain, fit), mistakes_of(shorter, fit)
      local is_better = prefix == "module." and (not then_ or not now or then_ <= now) or then_ and (not now or then_ < now)
      if is_better then
        taken[#taken + 1] = prefix
        return without_wrappers(shorter, fit, taken)
      end
    end
  end
  return plain
end

---The tensors of a tree by their keys, also of dicts in it.
---@param tree Dict
---@return Dict tensors, string[] others   keys of other values
local function flat(tree)
  local out, others = cbk.dict(), {}
  for key, value in cbk.leaves(tree) do
    if kinds.is_tensor(value) then
      out[key] = value
    elseif not tostring(key):find "^__metadata__%f[.%z]" then
      others[#others + 1] = tostring(key)
    end
  end
  return out, others
end

---The tree without a trainer's states.
---@param tree Dict
---@param place string
---@param beside string[]   changed
---@return Dict
local function without_states(tree, place, beside)
  local out = tree
  for key, value in cbk.items(tree) do
    if weights.is_state(key) and not kinds.is_tensor(value) then
      if out == tree then out = cbk.copy(tree) end
      out[key], beside[#beside + 1] = nil, place .. key
    end
  end
  return out
end

---A tree of dicts of modules, as torch.distributed.checkpoint may keep them, as a state dict.
local function as_state_dict(tree)
  if has_tensor(tree) then return tree end
  for _, value in cbk.items(tree) do
    if holds_tensors(value) then return (flat(tree)) end
  end
  return tree
end

---@class NamedByClass   A tree as its class names it.
---@field plain Dict       without wrappers
---@field inner Dict       and with single experts
---@field origin table<string, string>|nil   the key in `plain` for each in `inner`; nil: they are the same
---@field stacked string[]   Contents.stacked
---@field dequantised QuantisedWeight[]   Contents.dequantised

---@param tree Dict      as it is in the checkpoint
---@param fit ContentsFit|nil
---@param taken string[]   changed
---@param config Dict|nil
---@return NamedByClass
local function named_by_class(tree, fit, taken, config)
  local plain = without_wrappers(tree, fit, taken)
  local inner, origin, stacked, codes = stacked_experts.single(plain, function(one) return mistakes_of(one, fit) end, config)
  return { plain = plain, inner = inner, origin = origin, stacked = stacked, dequantised = codes }
end

---The checkpoint's key for each key of the model. Without wrappers, a tree has the same tensors in the same order.
---@param tree Dict      as it is in the checkpoint
---@param named NamedByClass
---@param place string   before the keys of `tree`
local function paths_of(tree, named, place)
  local path_of, new, i = {}, {}, 0
  for key in cbk.items(named.plain) do new[#new + 1] = tostring(key) end
  for key in cbk.items(tree) do
    i = i + 1
    path_of[new[i]] = place .. tostring(key)
  end
  local out = named.origin and {} or path_of
  for key, old in pairs(named.origin or {}) do out[key] = path_of[old] end
  return out
end

---A checkpoint in which nothing is looked through.
---@param root Dict
---@return Contents
function contents.as_it_is(root) return { root = root, taken = {}, beside = {}, stacked = {}, dequantised = {} } end

---The model inside a checkpoint.
---@param root Dict
---@param is_zoo boolean   the model is below "model", as in the Model Zoo's files
---@param fit? ContentsFit
---@param config? Dict   of the checkpoint: which numbers quantised weights are
---@return Contents
function contents.of(root, is_zoo, fit, config)
  local taken = {}
  if is_zoo then
    local named = named_by_class(root.model, fit, taken, config)
    if named.inner == root.model then return contents.as_it_is(root) end
    local out = cbk.copy(root)
    out.model = named.inner
    return { root = out, taken = taken, beside = {}, stacked = named.stacked, dequantised = named.dequantised,
      paths = paths_of(root.model, named, "model.") }
  end
  local tree, place, beside = root, "", {}
  local name, others = container_of(root)
  while name and #taken < MOST_TAKEN do
    taken[#taken + 1] = name .. "."
    for _, other in ipairs(others) do beside[#beside + 1] = place .. other end
    place, tree = place .. name .. ".", tree[name]
    name, others = container_of(tree, name)
  end
  tree = as_state_dict(without_states(tree, place, beside))
  local named = named_by_class(tree, fit, taken, config)
  return { root = named.inner, taken = taken, beside = beside, stacked = named.stacked, dequantised = named.dequantised,
    paths = named.inner ~= root and paths_of(tree, named, place) or nil }
end

---How many of some keys no rule fits.
---@param set Rule[]
---@param side Side
---@return ContentsFit
function contents.strangers(set, side)
  local compiled = patterns.compile(set, side)
  return function(keys)
    local count = 0
    for _, key in ipairs(keys) do count = count + (patterns.match(compiled, key)[1] and 0 or 1) end
    return count
  end
end

---Says what is beside the model, and is not converted: it may be weights, too.
---@param root Dict
---@param name string   of the model in it
local function warn_of_rest(root, name)
  local beside = {}
  for key in cbk.items(root) do
    if key ~= name and key ~= "__metadata__" then beside[#beside + 1] = tostring(key) end
  end
  if #beside > 0 then cbk.warn(("the tensors are those of '%s'; beside it, and not read: %s"):format(name, naming.listed(beside, 5))) end
end

---The tensors of a checkpoint in a layout of the user's own, by their keys: those of the model, if it has more. Wrappers are looked
---through where rules fit more keys without them.
---@param root Dict
---@param strangers? ContentsFit   of `contents.strangers`; nil: there are no rules
---@param config? Dict   of the checkpoint
---@return Contents   without paths
function contents.of_layout(root, strangers, config)
  kinds.check_root(root)
  local model
  for _, name in ipairs { "model", "state_dict" } do model = model or kinds.is_dict(root, name) and name end
  local plain, others = flat(model and root[model] or root)
  local count = strangers and strangers(cbk.keys(plain)) or 0
  if count > 0 then
    local inner = contents.of(root, false, strangers, config)
    local tensors, rest = flat(inner.root)
    if strangers(cbk.keys(tensors)) < count then
      return { root = tensors, taken = inner.taken, beside = inner.beside, stacked = inner.stacked, dequantised = inner.dequantised,
        values = rest }
    end
  end
  if model then warn_of_rest(root, model) end
  return { root = plain, taken = {}, beside = {}, stacked = {}, dequantised = {}, values = others }
end

---A message about what was looked through; nil if that is nothing.
---@param found Contents
---@param is_read? boolean   also what is beside the model
---@return string|nil   "the names are those without 'state_dict.' and 'module.'"
function contents.text(found, is_read)
  local out = {}
  if #found.taken > 0 then out[1] = ("the names are those without '%s'"):format(table.concat(found.taken, "' and '")) end
  if #found.stacked > 0 then out[#out + 1] = stacked_experts.text(found.stacked) end
  if #found.beside > 0 then
    out[#out + 1] = ("beside %s%s: %s"):format(#out > 0 and "them" or "the weights", is_read and "" or ", and not read",
      naming.listed(found.beside, 5))
  end
  return #out > 0 and table.concat(out, "; ") or nil
end

return contents

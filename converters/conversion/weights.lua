-- Finds a model's weights in a checkpoint, whatever a trainer has put around them: the dict that holds them, prefixes that all names
-- have, and the names of wrappers between those of modules. Names and kinds of values are used; elements are not read.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local training_files = require "cbk.training_files"

local weights = {}

-- Dicts that hold the weights, in the order of preference: an average ("ema") is taken if there is nothing else.
local CONTAINERS = { "state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights", "ema" }
local AROUND = { "app", "state", "train_state" } -- dicts around those
local IS_AROUND = {}
for _, list in ipairs { CONTAINERS, AROUND } do
  for _, name in ipairs(list) do IS_AROUND[name] = true end
end
local NO_MODULES = { state_dict = true, model_state_dict = true } -- nobody calls a module like this
-- In the names of what trainers keep beside the weights: optimizer_state_dict, lr_schedulers, cuda_rng_state.
local BESIDE = { "optim", "sched", "scaler", "rng_state", "dataloader", "callbacks", "loops" }
-- The first part of such names where one dict has all: a model may have a module that is called "scaler".
local FLAT_BESIDE = { optimizer = true, optimizers = true, optim = true, lr_scheduler = true, lr_schedulers = true, train_state = true,
  dataloader = true }
---Names around a module, at any depth: torch.compile, FSDP, activation checkpointing. No model has such names of its own.
weights.WRAPPERS = { "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module" }
-- Around the whole model; taken off if all names have them.
local PREFIXES = { "module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_forward_module.", "app.", "state.",
  "state_dict." }
-- "model." may be a wrapper (Lightning, a trainer's state) or the name of a model without its head, as in LLaMA with a tied one. It is a
-- wrapper if a name of a whole model comes after it.
local AROUND_WHOLE = "model."
local WHOLE = { "model.", "lm_head.", "transformer.", "bert.", "roberta.", "gpt_neox.", "embed_out.", "score.", "classifier.", "encoder.",
  "module.", "_orig_mod.", "_fsdp_wrapped_module." }
local DEEPEST = 4 -- dicts around the weights

---Whether a name may be that of a dict around a model's weights, or around such a dict.
---@param name any
---@return boolean
function weights.is_container(name) return IS_AROUND[name] == true end

---Whether a name is that of what trainers keep beside the weights in one dict, and of no module.
---@param name any
---@return boolean
function weights.is_state(name) return FLAT_BESIDE[name] == true end

local function is_beside(name)
  for _, part in ipairs(BESIDE) do
    if name:find(part, 1, true) then return true end
  end
  return false
end

---Whether a name in a dict of tensors is one of the model.
local function is_own(name) return not FLAT_BESIDE[name:match "^[^.]*"] end

local function holds_tensors(dict)
  for key, value in cbk.raw_leaves(dict) do
    if kinds.is_tensor(value) and is_own(tostring(key)) then return true end
  end
  return false
end

---Whether a dict is a state dict: tensors under names with dots. Those of nested dicts have none.
---@param dict Dict
---@return boolean
function weights.is_state_dict(dict)
  for key, value in cbk.raw_items(dict) do
    if kinds.is_tensor(value) and tostring(key):find(".", 1, true) then return true end
  end
  return false
end

local function first_of(names, known)
  for _, name in ipairs(names) do
    if known[name] then return name end
  end
end

---What has tensors in a dict, but for what trainers keep beside the weights.
---@return table<string, Dict> inner, string[] others   dicts; beside any, names of dicts that are called like modules, and of tensors
local function parts_of(dict)
  local inner, others = {}, {}
  for key, value in cbk.raw_items(dict) do
    if kinds.is_dict(value) and not is_beside(tostring(key)) and holds_tensors(value) then inner[tostring(key)] = value end
  end
  if not next(inner) then return inner, others end
  for key, value in cbk.raw_items(dict) do
    local name = tostring(key)
    local is_other = inner[name] and not IS_AROUND[name] or kinds.is_tensor(value) and not is_beside(name)
    if is_other then others[#others + 1] = name end
  end
  return inner, others
end

---The dict with the weights. A dict of modules of which one is called like a container is the model itself.
---@return Dict holder, string[] passed_over   what has tensors beside it and on the way to it
---@return string place   its key: "model"; empty for the root
local function holder_of(dict, passed_over, depth, place)
  local inner, others = parts_of(dict)
  local name = first_of(CONTAINERS, inner) or first_of(AROUND, inner)
  if not name or depth == DEEPEST then return dict, passed_over, place end
  if #others > 0 and not NO_MODULES[name] and not weights.is_state_dict(inner[name]) then return dict, passed_over, place end
  for _, other in ipairs(others) do passed_over[#passed_over + 1] = other end
  for other in pairs(inner) do
    if IS_AROUND[other] and other ~= name and other ~= "ema" then passed_over[#passed_over + 1] = other end
  end
  return holder_of(inner[name], passed_over, depth + 1, place == "" and name or place .. "." .. name)
end

---The key of the dict with the weights: "model"; empty for the root, also where there are no weights.
---@param root any   of a checkpoint
---@return string
function weights.place(root)
  if not kinds.is_dict(root) or not holds_tensors(root) then return "" end
  local _, _, place = holder_of(root, {}, 0, "")
  return place
end

local function all_begin_with(names, prefix)
  for _, name in ipairs(names) do
    if name:sub(1, #prefix) ~= prefix then return false end
  end
  return #names > 0
end

local function is_around_whole(names)
  for _, name in ipairs(names) do
    for _, inner in ipairs(WHOLE) do
      if name:sub(#AROUND_WHOLE + 1, #AROUND_WHOLE + #inner) == inner then return true end
    end
  end
  return false
end

---The prefix that all names have and that belongs to no model; nil: none.
local function wrapper_of(names)
  for _, prefix in ipairs(PREFIXES) do
    if all_begin_with(names, prefix) then return prefix end
  end
  return all_begin_with(names, AROUND_WHOLE) and is_around_whole(names) and AROUND_WHOLE or nil
end

---The names without wrappers.
---@param names string[]
---@return string[]
function weights.unwrapped(names)
  local out = {}
  for i, name in ipairs(names) do out[i] = name end
  local prefix = wrapper_of(out)
  while prefix do
    for i, name in ipairs(out) do out[i] = name:sub(#prefix + 1) end
    prefix = wrapper_of(out)
  end
  for i, name in ipairs(out) do
    for _, wrapper in ipairs(weights.WRAPPERS) do
      name = name:gsub("^" .. wrapper .. "%.", ""):gsub("%f[%w_]" .. wrapper .. "%.", "")
    end
    out[i] = name
  end
  return out
end

---Fails if something that is no tensor may be a weight: what cannot be read, and an object with tensors in it, such as the part of a rank.
---@param tree any
---@param place string
---@param path string   for messages
local function refuse_objects(tree, place, path)
  for key, value in cbk.raw_items(tree) do
    local name = place .. tostring(key)
    if type(value) == "userdata" and cbk.kind(value) == "object" and not is_beside(name) and is_own(name) then
      local state = value.state
      local has_tensors = value.type == "unreadable" or kinds.is_dict(state) and holds_tensors(state)
      if has_tensors then
        cbk.fail("unsupported", ("'%s': '%s' is no tensor, but %s"):format(cbk.shown(path), cbk.shown(name), value.type == "unreadable"
          and cbk.shown(tostring(value)) or "an object of the class " .. cbk.shown(value.type)),
          { advice = "leave it out with --exclude, without --weights" })
      end
    elseif kinds.is_dict(value) and not is_beside(name) then
      refuse_objects(value, name .. ".", path)
    end
  end
end

---Whether `weights.of` finds weights: there are tensors, and not those of an optimizer or of random numbers alone.
---@param root any   of a checkpoint
---@return boolean
function weights.has(root) return kinds.is_dict(root) and holds_tensors(root) and not training_files.content(root) end

---The model's weights and buffers under their own names, in the order of the checkpoint.
---@param root any      of a checkpoint
---@param path string   for messages
---@return Dict weights
function weights.of(root, path)
  if not kinds.is_dict(root) or not holds_tensors(root) then
    cbk.fail("missing", ("'%s' has no dict of tensors, such as a model's state dict; `cbk ls` shows what it has"):format(cbk.shown(path)))
  end
  local holds = training_files.content(root)
  if holds then cbk.fail("missing", ("'%s' has no weights of a model: it holds %s"):format(cbk.shown(path), holds)) end
  local holder, passed_over = holder_of(root, {}, 0, "")
  if #passed_over > 0 then
    table.sort(passed_over)
    cbk.warn(("'%s' has other tensors as well, which are not copied: %s; --include copies them"):format(cbk.shown(path),
      naming.listed(passed_over, 3)))
  end
  refuse_objects(holder, "", path)
  local names, tensors = {}, {}
  for key, value in cbk.raw_leaves(holder) do
    local name = tostring(key)
    if kinds.is_tensor(value) and is_own(name) then names[#names + 1], tensors[#tensors + 1] = name, value end
  end
  local out, old = cbk.dict(), {}
  for i, name in ipairs(weights.unwrapped(names)) do
    if old[name] then
      cbk.fail("value", ("'%s': without the names of wrappers, %s and %s are one name: copy them with --include and --rename"):format(
        cbk.shown(path), cbk.quote(old[name]), cbk.quote(names[i])))
    end
    old[name] = names[i]
    out[name] = tensors[i]
  end
  return out
end

return weights

-- Finds a model's weights in a checkpoint, whatever a trainer has put around them: the dict that holds them, prefixes that all names
-- have, and the names of wrappers between those of modules. Names and kinds of values are used; elements are not read.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"

local weights = {}

-- Dicts that hold the weights, in the order of preference: an average ("ema") is taken if there is nothing else.
local CONTAINERS = { "state_dict", "model_state_dict", "model", "module", "net", "params", "ema" }
-- What trainers keep beside the weights, also as the first part of a name.
local BESIDE = { optimizer = true, optimizers = true, optimizer_states = true, lr_scheduler = true, lr_schedulers = true, scheduler = true,
  schedulers = true, grad_scaler = true, scaler = true, dataloader = true, rng_state = true, loops = true, callbacks = true }
-- Around a module inside the model: torch.compile, FSDP, activation checkpointing.
local WRAPPERS = { "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module" }
-- Around the whole model; taken off if all names have them.
local PREFIXES = { "module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_forward_module.", "app.", "state.",
  "state_dict." }
-- "model." may be a wrapper (Lightning, a trainer's state) or the name of a model without its head, as in LLaMA with a tied one. It is a
-- wrapper if a name of a whole model comes after it.
local AROUND_WHOLE = "model."
local WHOLE = { "model.", "lm_head.", "transformer.", "bert.", "roberta.", "gpt_neox.", "embed_out.", "score.", "classifier.", "encoder.",
  "module.", "_orig_mod.", "_fsdp_wrapped_module." }
local DEEPEST = 4 -- dicts around the weights

local function holds_tensors(value)
  if not kinds.is_dict(value) then return false end
  for _, item in cbk.raw_items(value) do
    if kinds.is_tensor(item) then return true end
  end
  return false
end

---The dict with the weights in a dict, and how it is called; nil: there is none.
---@return Dict|nil holder, string place
local function holder_of(dict, place, depth)
  for _, name in ipairs(CONTAINERS) do
    local value = cbk.raw(dict, name)
    if kinds.is_dict(value) and depth < DEEPEST then
      local holder, inner = holder_of(value, place .. name .. ".", depth + 1)
      if holder then return holder, inner end
    end
  end
  if holds_tensors(dict) then return dict, place end
  for name, value in cbk.raw_items(dict) do
    if kinds.is_dict(value) and not BESIDE[name] and depth < DEEPEST then
      local holder, inner = holder_of(value, place .. tostring(name) .. ".", depth + 1)
      if holder then return holder, inner end
    end
  end
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
  for prefix in function() return wrapper_of(out) end do
    for i, name in ipairs(out) do out[i] = name:sub(#prefix + 1) end
  end
  for i, name in ipairs(out) do
    for _, wrapper in ipairs(WRAPPERS) do
      name = name:gsub("^" .. wrapper .. "%.", ""):gsub("%f[%w_]" .. wrapper .. "%.", "")
    end
    out[i] = name
  end
  return out
end

---The model's weights and buffers under their own names, in the order of the checkpoint.
---@param root any   of a checkpoint
---@param path string   for messages
---@return Dict weights
function weights.of(root, path)
  local holder = kinds.is_dict(root) and holder_of(root, "", 0)
  if not holder then
    cbk.fail("missing", ("'%s' has no dict of tensors, such as a model's state dict; `cbk ls` shows what it has"):format(cbk.shown(path)))
  end
  local names, tensors = {}, {}
  for key, value in cbk.raw_leaves(holder) do
    local name = tostring(key)
    if kinds.is_tensor(value) and not BESIDE[name:match "^[^.]*"] then names[#names + 1], tensors[#tensors + 1] = name, value end
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

-- Keys of a checkpoint that no rule matches: an error, or, with --drop-unmatched-keys, a warning. The option may leave out extra keys,
-- never keys that the model needs.

local cbk = require "cbk"
local errors = require "cbk.errors"
local extents = require "cbk.extents"
local keys = require "converters.engine.keys"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local quantised = require "cbk.quantised"
local rules = require "converters.engine.rules"

local unmatched = {}

local MOST_KINDS = 3 -- of keys that may be left out; keys that differ only in numbers are one kind
local MOST_SHARE = 4 -- at most one of this many keys may be left out

---@class Unmatched
---@field keys string[]         without a rule
---@field all string[]          of the checkpoint
---@field lacking table         weights that are missing (fit_checks.lacking)
---@field shapes integer[][]     of the tensors among `keys`
---@field invented InventedTensor[]   weights that are made of random numbers
---@field is_dropped? boolean   --drop-unmatched-keys
---@field spare? table<string, boolean>   those of `keys` that the model does not need: it computes them, or only some versions have them;
---                                          nil if no class describes it
---@field check? string         the command that finds out more (default: `cbk identify`)
---@field context? string       further facts, as a part of the message
---@field advice? string        replaces the general advice

---The module of a key: "layers.0.mlp" of "layers.0.mlp.bias"; nil at the top.
local function module_of(key) return key:match "^(.*)%.[^.]*$" end

local BUFFERS = { "_extra_state$", "cos_cached$", "sin_cached$", "inv_freq$", "position_ids$", "token_type_ids$", "masked_bias$" }

---Whether a tensor that a model does not have is a buffer or program state, not a weight.
---@param key string
---@param tensor any
---@return boolean
function unmatched.is_buffer(key, tensor)
  for _, ending in ipairs(BUFFERS) do
    if key:find(ending) then return true end
  end
  if not kinds.is_tensor(tensor) then return true end
  return not cbk.dtype(tensor.dtype).floating or tensor:numel() == 0
end

---The layer of a key: "model.layers.0" of "model.layers.0.mlp.bias"; nil if it is in no layer.
local function layer_of(key) return key:match "^(.-%.%d+)%." end

---Whether a key is below a module that has a tensor of the model, such as "lm_head" of "lm_head.lora_magnitude_vector.default.weight".
---@param has_tensor table<string, true>   modules
local function is_below(key, has_tensor)
  local own = module_of(key)
  while own do
    if has_tensor[own] then return true end
    own = module_of(own)
  end
  return false
end

---The first key in a module that the model has, or in an extra module of its layers that has weights. Such a key is part of what the
---model computes: a bias, the scale of a weight, another norm.
---@param one Unmatched
---@return string|nil
local function part_of_module(one)
  local is_foreign, modules, layers, has_tensor = {}, {}, {}, {}
  for _, key in ipairs(one.keys) do is_foreign[key] = true end
  for _, key in ipairs(one.all) do
    local own, layer = not is_foreign[key] and module_of(key), layer_of(key)
    if own then has_tensor[own] = true end
    if own and layer then layers[layer] = true end
    while own and not modules[own] do
      modules[own], own = true, own ~= layer and module_of(own)
    end
  end
  for _, key in ipairs(one.keys) do
    local own, layer = not (one.spare and one.spare[key]) and module_of(key), layer_of(key)
    local is_weight = own and (key:find "%.weight$" or key:find "%.bias$")
    if layers[layer or ""] and is_weight or own and is_below(key, has_tensor) then return key end
    while own do
      if modules[own] and own ~= layer and module_of(own) then return key end
      own = own:find "weight$" and module_of(own) or nil -- "q_proj.weight.absmax" is of q_proj
    end
  end
end

---@param one Unmatched
local function are_few(one)
  local seen, count = {}, 0
  for _, key in ipairs(one.keys) do
    local kind = key:gsub("%d+", "0")
    if not seen[kind] then seen[kind], count = true, count + 1 end
  end
  return count <= MOST_KINDS and #one.keys * MOST_SHARE <= #one.all
end

---@param one Unmatched
local function lacks(one)
  local lacking = one.lacking
  return ("; %d %s missing: %s"):format(lacking.count, lacking.count == 1 and "weight is" or "weights are", naming.folded(lacking, 3))
end

---The first key with experts in one tensor, if weights of single experts are missing.
---@param one Unmatched
---@return string|nil
local function stacked_experts(one)
  local is_single = false
  for i = 1, #one.lacking do is_single = is_single or one.lacking[i]:find "%.experts%.%d" ~= nil end
  for _, key in ipairs(is_single and one.keys or {}) do
    if key:find "%.experts%.[^%d]" then return key end
  end
end

---@param one Unmatched
local function check_text(one)
  return one.check and ("; `%s` compares all keys with the table"):format(one.check)
    or "; check with `cbk identify` that the model and the format are right"
end

---Advice about the first key that is named like a scale of quantised weights; nil without such a key.
---@param one Unmatched
---@return string|nil
local function scale(one)
  local part = quantised.part_in(one.keys)
  return part and ("; '%s' is named as a scale of quantised weights: without it, the weights may be wrong; use the checkpoint that was "
    .. "quantised"):format(part)
end

-- Parts of names that PEFT gives the tensors of a model in memory.
local ADAPTERS = { "%.lora_", "%.modules_to_save%.", "%.original_module%.", "%.base_layer%.", "%.token_adapter%.", "%.ia3_", "%.oft_",
  "%.boft_", "%.vera_", "%.hada_", "%.lokr_" }

---Advice about the first key of an adapter that is still in the model: its weights are changed by others. Nil without such a key.
---@param one Unmatched
---@return string|nil
local function adapter(one)
  for _, key in ipairs(one.keys) do
    for _, part in ipairs(ADAPTERS) do
      if key:find(part) then
        return ("; '%s' is part of an adapter (PEFT) in the model: merge it in Python (merge_and_unload) and save the model, or save the "
          .. "adapter by itself (save_pretrained) and fold it with `cbk fold-lora-checkpoint --adapter DIR BASE -o NEW`"):format(key)
      end
    end
  end
end

---Why a key cannot be left out: it is part of a module. Nil if no key is.
---@param one Unmatched
---@return string|nil
local function part_text(one)
  local part = part_of_module(one)
  return part and ("; '%s' is part of a module of the model, which computes something else without it: use a checkpoint and a config of "
    .. "the same model"):format(part) or nil
end

---What is said of keys without a rule. If weights are missing as well, the keys may be these weights and must not be left out.
---@param one Unmatched
---@return string, string|nil advice   about an option of `cbk convert`
local function advice_on(one)
  if scale(one) then return scale(one) end
  if one.advice then return one.advice end
  if adapter(one) then return adapter(one) end
  local they = #one.keys == 1 and "it" or "them"
  if one.lacking.count > 0 then
    if one.context then return lacks(one) .. "; `cbk identify` says what of it can be converted" end
    local stacked = stacked_experts(one)
    if stacked then
      return lacks(one) .. ("; '%s' has the experts in one tensor, in a form that is not known: known are gate_up_proj with down_proj, "
        .. "and gate_proj, up_proj and down_proj, in shapes that go together, of 16 or 32 bits (`cbk copy --dequantize bfloat16`); or "
        .. "save the checkpoint with one tensor for each expert")
        :format(stacked)
    end
    if one.lacking.may_be_renamed then return lacks(one) .. "; if they have other names here, rename them with `cbk copy --rename`" end
    return lacks(one) .. ("; new names do not help, because no tensor without a rule has %s: use a checkpoint and a config of the same "
      .. "model"):format(one.lacking.count == 1 and "its shape" or "the shape of one of them")
  end
  if part_text(one) then return part_text(one) end
  if not are_few(one) then return check_text(one) end
  return "", ("to leave %s out, if the model works without %s, add --drop-unmatched-keys"):format(they, they)
end

---The first randomly initialised weight that one of the keys may be, by its shape.
---@param one Unmatched
---@return string|nil
local function invented_instead(one)
  local has = {}
  for _, shape in ipairs(one.shapes) do has[extents.shape(shape)] = true end
  for _, tensor in ipairs(one.invented) do
    if has[extents.shape(tensor.shape)] then return tensor.key end
  end
end

---Why the keys cannot be left out; nil if they can.
---@param one Unmatched
---@return string|nil
local function why_kept(one)
  local invented = invented_instead(one)
  if one.lacking.count > 0 then
    return (one.advice and "" or lacks(one)) .. "; --drop-unmatched-keys leaves out what is extra, and never makes up what is missing"
      .. (one.advice or adapter(one) or "")
  elseif #one.keys * 2 > #one.all then
    return ("; --drop-unmatched-keys leaves out a few extra keys, but these are %d of %d"):format(#one.keys, #one.all)
      .. (one.advice or check_text(one))
  elseif scale(one) or adapter(one) then
    return scale(one) or one.advice or adapter(one)
  elseif one.spare and part_text(one) then
    return part_text(one)
  elseif invented then
    return ("; '%s' would get random numbers, though one of these keys has its shape: give that the name of the weight with `cbk copy "
      .. "--rename`, or leave it out with `cbk copy --exclude`"):format(invented)
  end
end

local function beginning(one)
  local is_all = one.is_dropped or #one.keys < keys.ENOUGH_UNMATCHED
  return ("%s%d key%s not matched: "):format(is_all and "" or "at least ", #one.keys, #one.keys == 1 and " was" or "s were")
end

---Why a checkpoint with these keys is refused, and what to do; nil if they are left out.
---@param one Unmatched
---@return string|nil problem, string|nil advice
function unmatched.problem(one)
  local problem, advice
  if one.is_dropped then problem = why_kept(one) else problem, advice = advice_on(one) end
  return problem and beginning(one) .. naming.folded(one.keys) .. (one.context or "") .. problem or nil, advice
end

---Fails with the keys as `unmatched` of the error, or warns about the keys that are left out.
---@param one Unmatched
function unmatched.report(one)
  if #one.keys == 0 then return end
  local problem, advice = unmatched.problem(one)
  if problem then errors.fail_with("unmatched", problem, { unmatched = one, advice = advice }) end
  cbk.warn(beginning(one) .. naming.all_folded(one.keys) .. "; dropped because of --drop-unmatched-keys")
end

---The error of `unmatched.report`, with further facts about the keys.
---@param problem any
---@param more { advice?: string, context?: string, check?: string }
---@return any
function unmatched.explained(problem, more)
  local one = rules.variant(problem.unmatched, more)
  local text, advice = unmatched.problem(one)
  local out = errors.with(problem, { problem = text })
  out.advice = advice
  return out
end

return unmatched

-- Low-rank adaptation (LoRA): adds the product of the matrices A and B to a weight.

local cbk = require "cbk"
local extents = require "cbk.extents"
local quantised = require "cbk.quantised"

local low_rank = {}

-- what a module with a weight may have beside it
local ALONE = { weight = true, bias = true, lora_A = true, lora_B = true, _extra_state = true }

local function is_matrix(value)
  local kind = cbk.kind(value)
  return (kind == "tensor" or kind == "parameter" or kind == "ndarray") and value:dim() == 2
end

local function shown(value) return extents.shape(value:shape()) end

---The mistake in a module's three matrices, or nil.
---@param weight Tensor    (rows, columns); (columns, rows) if it is flipped
---@param a Tensor         (rank, columns)
---@param b Tensor         (rows, rank)
---@param rank integer
---@param flipped boolean  embeddings, and layers with fan_in_fan_out
---@return string|nil
function low_rank.mistake(weight, a, b, rank, flipped)
  for name, value in pairs { weight = weight, lora_A = a, lora_B = b } do
    if not is_matrix(value) then return name .. " is not a matrix" end
    if not cbk.dtype(value.dtype).floating or quantised.is_narrow(value.dtype) then
      return ("%s is %s: folding would round the update away; use weights of 16 or 32 bits"):format(name, value.dtype)
    end
  end
  local rows, columns = b:shape()[1], a:shape()[2]
  if flipped then rows, columns = columns, rows end
  local shape = weight:shape()
  if a:shape()[1] ~= rank or b:shape()[2] ~= rank then
    return ("lora_A %s and lora_B %s do not have the rank %d"):format(shown(a), shown(b), rank)
  elseif shape[1] ~= rows or shape[2] ~= columns then
    return ("lora_A %s and lora_B %s do not fit the weight %s"):format(shown(a), shown(b), shown(weight))
  end
end

---Fails if a matrix would spoil the whole weight, before anything is written.
---@param name string
---@param value Tensor
function low_rank.check_finite(name, value)
  local stats = value:stats()
  if stats.nan + stats.inf == 0 then return end
  cbk.fail("checkpoint", ("%s has %d NaN and %d infinite elements: folding would spread them over the weight"):format(name, stats.nan,
    stats.inf))
end

---Fails if other tensors are beside the weights in their modules: they may be scales, without which such a weight is only codes.
---@param model Dict
---@param weights string[]   keys: "layers.0.up_proj.weight"
function low_rank.check_alone(model, weights)
  local modules = {}
  for _, key in ipairs(weights) do
    local module = key:match "^(.*)%.weight$"
    if module then modules[module] = true end
  end
  for key in cbk.items(model) do
    local module, own = tostring(key):match "^(.*)%.([^.]*)$"
    if module and modules[module] and not ALONE[own] then
      cbk.fail("checkpoint", ("'%s' is beside the weight to which LoRA is added: if it is a scale of quantised weights, the sum would be "
        .. "wrong; use the checkpoint that was quantised"):format(key), { key = key })
    end
  end
end

---weight + B·A · scale, computed in float32 (float64 for a float64 weight) and rounded once. The weight is checked while it is streamed,
---and a commit counts results that overflow.
---@param scale number   alpha / rank
---@return Tensor
function low_rank.fold(weight, a, b, scale, flipped)
  local dtype = weight.dtype == "float64" and "float64" or "float32"
  a, b = a:to(dtype), b:to(dtype)
  local update = flipped and a:transpose(0, 1):matmul(b:transpose(0, 1)) or b:matmul(a)
  local base = weight:require_finite "LoRA is not folded: the weight itself is not finite"
  local folded = base:to(dtype):add(update:affine(scale, 0)):to(weight.dtype)
  return folded:as { role = weight.role, requires_grad = weight.requires_grad }
end

return low_rank

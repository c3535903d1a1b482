-- Activations by the names that configs of the Model Zoo and of Hugging Face have for them.

local errors = require "cstorch.errors"
local functional = require "cstorch.nn.functional"
local naming = require "cbk.naming"

local activations = {}

local function gelu_tanh(x) return functional.gelu(x, { approximate = "tanh" }) end

local known = {
  relu = functional.relu, silu = functional.silu, swish = functional.silu, tanh = functional.tanh, gelu = functional.gelu,
  gelu_new = gelu_tanh, gelu_pytorch_tanh = gelu_tanh, gelu_fast = gelu_tanh,
  quick_gelu = function(x) return x * (x * 1.702):sigmoid() end,
}

--- Of the Model Zoo's gated feed-forward parts, what the gate's product goes through.
local gated = { swiglu = functional.silu, geglu = functional.gelu, reglu = functional.relu, liglu = function(x) return x end }

---@param name string
---@return fun(x: cstorch.Tensor): cstorch.Tensor
function activations.plain(name)
  if known[name] then return known[name] end
  local names = naming.sorted(known)
  for _, one in ipairs(naming.sorted(gated)) do names[#names + 1] = one end
  errors.refuse({ value = name }, ("the activation '%s' is not known here%s; known: %s"):format(tostring(name),
    errors.suggestion(name, names), table.concat(names, ", ")))
end

---The activation of a gate, or nil if the name is that of an activation without one.
---@param name string
---@return (fun(x: cstorch.Tensor): cstorch.Tensor)|nil
function activations.gate(name) return gated[name] end

return activations

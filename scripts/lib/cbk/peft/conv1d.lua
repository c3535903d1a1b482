-- Layers of transformers whose weight is transposed.

local cbk = require "cbk"
local naming = require "cbk.naming"
local tensor_kinds = require "cbk.tensor_kinds"

local conv1d = {}

local is_tensor = tensor_kinds.is_array

-- Names of transformers' Conv1D layers, which have a transposed weight. Some models have linear layers with these names.
local CONV1D = { c_attn = true, c_proj = true, c_fc = true, c_fc2 = true, q_attn = true, kv_attn = true }

---Whether a model's layers with Conv1D names are really Conv1D: then their biases are as long as their weights are wide. PEFT decides by
---the module's type, and saves as `fan_in_fan_out` only the value for the last module that it adapted.
---@param model Dict
---@return boolean|nil   nil: there are none, or they do not show it
function conv1d.is_in(model)
  for key, bias in cbk.items(model) do
    local module = tostring(key):match "^(.*)%.bias$"
    local weight = module and CONV1D[naming.last(module)] and model[module .. ".weight"]
    local shape = is_tensor(weight) and is_tensor(bias) and weight:shape()
    if shape and #shape == 2 and shape[1] ~= shape[2] then return bias:shape()[1] == shape[2] end
  end
end

---Whether a module of a model with Conv1D layers has the name of one.
---@param module string
---@return boolean
function conv1d.is_name(module) return CONV1D[naming.last(module)] == true end

return conv1d

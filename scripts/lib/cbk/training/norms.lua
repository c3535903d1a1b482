-- The norms that the callback ComputeNorm logs, by their names there. Source: trainer/callbacks/norm.py of the Model Zoo 2.9.

local cstorch = require "cstorch"

local norms = {}

local function norm_of(list)
  local squares = cstorch.zeros {}
  for _, tensor in ipairs(list) do squares = squares + tensor:detach():to("float32"):norm():square() end
  return squares:sqrt()
end

---The norms of what is trained and of its gradients, of the whole model and of each layer.
---@param module cstorch.models.Trainable
---@return table<string, cstorch.Tensor>   without dims
function norms.of(module)
  local trained, gradients, of_layers = {}, {}, {}
  for name, p in module:named_parameters() do
    if p.requires_grad then trained[#trained + 1] = p end
    if p.grad then
      local layer = name:match "^.*layers%.(%d+)%."
      gradients[#gradients + 1] = p.grad
      if layer then
        of_layers[layer] = of_layers[layer] or {}
        table.insert(of_layers[layer], p.grad)
      end
    end
  end
  local out = { model_wise_params_norm = norm_of(trained), model_wise_grad_norm = norm_of(gradients) }
  for layer, list in pairs(of_layers) do out["per_layer_grad_norm/layer_" .. layer] = norm_of(list) end
  return out
end

return norms

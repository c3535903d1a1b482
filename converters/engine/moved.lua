-- Whether actions only move elements, so that what lies beside a weight, such as a mask or an optimizer's state, can follow it. They are
-- tried on a constant in place of the tensor.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"

local moved = {}

local PROBE = 3

---The first key of what `run` makes of tensors whose elements are computed: cast, multiplied, drawn at random; nil if all only move.
---@param tensors Dict
---@param run fun(tensors: Dict): Dict
---@return string|nil
function moved.computed(tensors, run)
  local probes, constants = cbk.dict(), {}
  for key, tensor in cbk.items(tensors) do
    if kinds.is_tensor(tensor) then
      probes[key] = cbk.full(tensor:shape(), PROBE, { dtype = tensor.dtype })
      constants[tensor.dtype] = probes[key]:fill()
    end
  end
  if not next(constants) then return nil end
  for key, part in cbk.items(run(probes)) do
    local is_moved = kinds.is_tensor(part) and constants[part.dtype] ~= nil and part:is_moved()
    if not is_moved or part:fill() ~= nil and part:fill() ~= constants[part.dtype] then return key end
  end
end

return moved

-- Whether actions only move elements, so that what lies beside a weight, such as a mask or an optimizer's state, can follow it. They are
-- tried on a constant in place of the tensor.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"

local moved = {}

local PROBE = 3

---@param tensor Tensor
local function probe_of(tensor) return cbk.full(tensor:shape(), PROBE, { dtype = tensor.dtype }) end

---@param part any   what became of a constant
local function is_kept(part, probe)
  if not (kinds.is_tensor(part) and part.dtype == probe.dtype and part:is_moved()) then return false end
  local constant = part:fill()
  return constant == nil or constant == probe:fill()
end

---The first key of what `run` makes of tensors whose elements are computed: cast, multiplied, drawn at random; nil if all only move.
---@param tensors Dict   one tensor or more, of one dtype
---@param run fun(tensors: Dict): Dict
---@return string|nil
function moved.computed(tensors, run)
  local probes, probe = cbk.dict(), nil
  for key, tensor in cbk.items(tensors) do
    if kinds.is_tensor(tensor) then
      probe = probe_of(tensor)
      probes[key] = probe
    end
  end
  for key, part in cbk.items(probe and run(probes) or cbk.dict()) do
    if not is_kept(part, probe) then return key end
  end
end

return moved

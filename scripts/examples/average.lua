-- The running average of weights (EMA), over checkpoints that may be larger than memory:
--
--   cbk copy first.mdl average.mdl --include model
--   cbk run scripts/examples/average.lua average.mdl second.mdl -o next.mdl [DECAY]
--
-- Each tensor of floating-point numbers becomes DECAY · average + (1 - DECAY) · second; DECAY is 0.999 by default. All else that the
-- average has comes from the second. Tensors are read, averaged and written block by block.

local cbk = require "cbk"
local cstorch = require "cstorch"
local quantised = require "cbk.quantised"

local average_path, new_path, flag, out_path, decay = unpack(arg)
decay = tonumber(decay or 0.999)
if flag ~= "-o" or not out_path or not decay or not (decay >= 0 and decay <= 1) then
  cbk.fail("usage", "usage: cbk run average.lua AVERAGE NEW -o NEXT [DECAY], with a number from 0 to 1")
end

local average, new, current = cbk.open(average_path), cbk.open(new_path), {}
for _, one in ipairs { average, new } do
  quantised.refuse(one.root, nil, ("cannot average '%s' with '%s'"):format(average_path, new_path))
end
for key, tensor in new:tensors() do current[key] = tensor end

local function text(tensor) return ("%s [%s]"):format(tensor.dtype, table.concat(cbk.totable(tensor:shape()), ", ")) end

--- The new tensor of the same key.
local function counterpart(key, tensor)
  local other = current[key]
  if other and text(other) == text(tensor) then return other end
  cbk.fail("value", ("cannot average '%s' with '%s': %s is %s, and %s there"):format(average_path, new_path, cbk.quote(key),
    text(tensor), other and text(other) or "missing"))
end

local function wide(tensor) return cstorch.tensor(tensor:to(tensor.dtype == "float64" and "float64" or "float32")) end

local averaged = cstorch.lazily(function()
  local out = {}
  for key, tensor in average:tensors() do
    if cbk.dtype(tensor.dtype).floating then
      out[key] = (wide(tensor) * decay + wide(counterpart(key, tensor)) * (1 - decay)):to(tensor.dtype) -- rounded once
    end
  end
  return out
end)

local root = cbk.rewrite(new.root, {
  path = function(key) return average:has(key) and key or nil end,
  leaf = function(key, value) return averaged[key] or value end,
})
cbk.create(out_path, { root = root }):commit()
print(("wrote '%s'"):format(out_path))

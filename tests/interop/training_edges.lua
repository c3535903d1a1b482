-- Runs single operators on numbers at the edge of their range: `cbk run training_edges.lua cases.pt codes.lua results.mdl results.json`.
-- training_edges.py writes them, and runs them in PyTorch.

local cbk = require "cbk"
local cstorch = require "cstorch"

local ENVIRONMENT = { C = cstorch, F = cstorch.nn.functional, pairs = pairs }

--- Results as HDF5 can hold them.
local function wide(tensor) return tensor:detach():to(tensor.dtype:find "float" and "float64" or "int64"):clone() end

local function run(case, given)
  local x = {}
  for _, tensor in cbk.items(given) do x[#x + 1] = cstorch.tensor(tensor) end
  for i, needs in ipairs(case.grads) do x[i].requires_grad = needs end
  local y = setfenv(assert(loadstring("local x = ... " .. case.code)), ENVIRONMENT)(x)
  if case.backward then y:backward(x[#x]) end
  local results, dtypes = { out = wide(y) }, { out = y.dtype }
  for i, needs in ipairs(case.grads) do
    if needs and case.backward then
      results["gradient" .. i], dtypes["gradient" .. i] = wide(x[i].grad), x[i].grad.dtype
    end
  end
  return results, dtypes
end

local given, results, dtypes = cstorch.load(arg[1]), {}, {}
for i, case in ipairs(dofile(arg[2])) do
  local name = "case" .. i
  local fine, values, kinds = pcall(run, case, given[name])
  results[name], dtypes[name] = fine and values or nil, fine and kinds or { error = tostring(values) }
end
cstorch.save(results, arg[3])
cbk.fs.write(arg[4], cbk.json(dtypes))

-- Runs modules with the weights of a PyTorch checkpoint: `cbk run training_modules.lua cases.pt results.mdl`, for training_interop.py.

local cbk = require "cbk"
local cstorch = require "cstorch"

local nn = cstorch.nn

--- What the checkpoint has as Lua's own tables, numbers and strings.
local function plain(value)
  local kind = type(value) == "userdata" and cbk.kind(value)
  if kind ~= "dict" and kind ~= "list" then return value end
  local copy = {}
  for key, item in cbk.items(value) do copy[key] = plain(item) end
  return copy
end

local function run(case)
  local arguments = plain(case.arguments)
  local module = nn[case.class](unpack(arguments))
  module:load_state_dict(case.state)
  local inputs, options = {}, {}
  for i, input in cbk.items(case.inputs) do inputs[i] = cstorch.tensor(input) end
  for name, value in cbk.items(case.options) do options[name] = cstorch.tensor(value) end
  if next(options) then inputs[#inputs + 1] = options end
  if inputs[1].dtype ~= "int64" then inputs[1].requires_grad = true end
  local out = module(unpack(inputs))
  out:square():sum():backward()
  local gradients = { input = inputs[1].grad }
  for name, p in module:named_parameters() do gradients["p." .. name] = p.grad end
  return { out = out:detach(), gradients = gradients }
end

local tree = cstorch.load(arg[1])
local results = {}
for name, case in cbk.items(tree) do results[name] = run(case) end
cstorch.save(results, arg[2])

-- The module `cstorch`: the training API. Its parts load when they are first used.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local namespace = require "cstorch.namespace"
local ordered_map = require "cstorch.ordered_map"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local cstorch = {
  class = class, REQUIRED = keywords.REQUIRED, OPTIONAL = keywords.OPTIONAL, UNTAGGED = keywords.UNTAGGED,
  check = errors.check, on_warning = errors.on_warning, items = ordered_map.items,
}

for _, name in ipairs {
  "tensor", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "arange", "rand", "randn", "randint", "manual_seed", "where", "cat",
  "stack", "is_tensor", "no_grad", "is_grad_enabled", "formula",
} do
  cstorch[name] = tensors[name]
end

---@return table?   the run in progress, a DataExecutor
function cstorch.current_executor() return session.executor end

---A number from a number or from a tensor without dims that can be read.
---@param x number|cstorch.Tensor
---@return number
function cstorch.value(x)
  if type(x) == "number" then return x end
  errors.check(tensors.is_tensor(x), "type", "value: expected a number or a tensor, found %s", errors.show(x))
  return tonumber(x:item())
end

--- Names of this module that are functions of a part, which loads when they are first used.
local MEMBERS = {
  configure = { "run.configure" }, backend = { "run.backend", "backend" }, use_cs = { "run.backend", "use_cs" }, compile = { "run.compile" },
  compile_step = { "run.trace" }, trace = { "run.trace" }, step_closure = { "run.closures", "step_closure" },
  checkpoint_closure = { "run.closures", "checkpoint_closure" }, run_step_closures = { "run.closures", "drain" },
  save = { "run.checkpoint", "save" }, load = { "run.checkpoint", "load" },
}
for name, place in pairs(MEMBERS) do
  cstorch[name] = function(...)
    local part = require("cstorch." .. place[1])
    local fn = place[2] and part[place[2]] or part
    cstorch[name] = fn
    return fn(...)
  end
end

return namespace("cstorch", cstorch, {
  nn = "cstorch.nn", optim = "cstorch.optim", amp = "cstorch.amp", metrics = "cstorch.metrics", utils = "cstorch.utils",
  testing = "cstorch.testing",
})

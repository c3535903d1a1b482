-- The module `cstorch`: the training API. Its parts are loaded on first use.

local ending = require "cbk.ending"
local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local namespace = require "cstorch.namespace"
local ordered_map = require "cstorch.ordered_map"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local cstorch = {
  class = class, REQUIRED = keywords.REQUIRED, OPTIONAL = keywords.OPTIONAL, UNTAGGED = keywords.UNTAGGED,
  check = errors.public_check, on_warning = errors.on_warning,
}

---Iterates over the keys and values of an ordered map, a table, or a container of cbk.
---@param map table
---@return fun(): any, any
function cstorch.items(map)
  errors.check(type(map) == "table" or type(map) == "userdata", "type", "items: expected a map or a list, found %s", errors.show(map))
  return ordered_map.items(map)
end

for _, name in ipairs {
  "tensor", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "arange", "rand", "randn", "randint", "manual_seed", "where",
  "cat", "stack", "is_tensor", "no_grad", "is_grad_enabled", "formula", "lazily",
} do
  cstorch[name] = tensors[name]
end

---The run in progress, or nil.
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

ending.add(function() require("cstorch.run.effects").end_script() end)

return namespace("cstorch", cstorch, {
  nn = "cstorch.nn", optim = "cstorch.optim", amp = "cstorch.amp", metrics = "cstorch.metrics", utils = "cstorch.utils",
  testing = "cstorch.testing", sparse = "cstorch.sparse", distributed = "cstorch.run.distributed",
  summarize_scalar = "cstorch.utils.summaries:summarize_scalar", summarize_tensor = "cstorch.utils.summaries:summarize_tensor",
  save_summaries = "cstorch.utils.summaries:save_summaries",
  configure = "cstorch.run.configure", backend = "cstorch.run.backend:backend", use_cs = "cstorch.run.backend:use_cs",
  compile = "cstorch.run.compile", compile_step = "cstorch.run.trace", trace = "cstorch.run.trace",
  step_closure = "cstorch.run.closures:step_closure", checkpoint_closure = "cstorch.run.closures:checkpoint_closure",
  run_step_closures = "cstorch.run.closures:drain", save = "cstorch.run.checkpoint:save", load = "cstorch.run.checkpoint:load",
})

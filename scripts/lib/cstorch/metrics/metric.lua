-- The base class of metrics: state in buffers, `update`, `compute`, and the value after the step.

local class = require "cstorch.class"
local closures = require "cstorch.run.closures"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local Module = require("cstorch.nn").Module
local session = require "cstorch.session"
local shapes = require "cstorch.shapes"
local systems = require "cstorch.run.systems"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

---@class cstorch.metrics.Metric : cstorch.nn.Module   The base class of metrics. A subclass defines reset, update and compute.
---@field name string
---@field num_updates integer    updates so far; on CSX those whose step has ended
---@field inputs table<string, any>   the keywords of `update`: name to default, REQUIRED or OPTIONAL
---@field runs_on_csx boolean    false: refused on CSX
local Metric = Module:subclass("Metric", { compute_on_system = true })

Metric.noun = "metric"
Metric.set_by_init = "num_updates"
Metric.counts = { num_updates = true, cached = true, number = true, was_updated = true }
Metric.positional = 1
class.optional(Metric, "cached", "number", "dtype", "was_updated", "inputs")
Metric.abstract = { "reset", "update", "compute" }
Metric.runs_on_csx = true

local function is_csx() return session.backend ~= nil and session.backend.kind == "CSX" end

--- `metric:update{…}` completes and checks the keywords, and forgets the computed value.
local function wrap_update(self)
  local update = self.class.update
  local count = closures.step_closure(function() self.num_updates = self.num_updates + 1 end)
  rawset(self, "update", function(object, given)
    check(object == self, "type", "%s.update: call it with a colon, as in metric:update{ … }", self.class.name)
    local inputs = keywords.complete(self.class.name .. ":update", self.inputs or {}, given)
    tensors.no_grad(update, self, inputs)
    rawset(self, "dtype", inputs.dtype)
    rawset(self, "cached", nil)
    rawset(self, "was_updated", true)
    if is_csx() then count() else self.num_updates = self.num_updates + 1 end
  end)
end

--- `metric:compute()` computes once for each update; on CSX the number arrives when the step has ended.
local function wrap_compute(self)
  local compute = self.class.compute
  local keep = closures.step_closure(function(value) rawset(self, "number", value:item()) end)
  rawset(self, "compute", function()
    if self.cached ~= nil then return self.cached end
    check(self.was_updated or not is_csx(), "runtime", "%s: compute was called before any update", self.class.name)
    local value = tensors.no_grad(systems.with_sums, self._buffers, compute, self)
    local name = self.class.name
    check(tensors.is_tensor(value), "type", "%s: its compute must return a 0-dim tensor, but returned %s", name, show(value))
    if self.dtype then value = value:to(self.dtype) end
    rawset(self, "cached", value)
    if is_csx() then keep(value) end
    return value
  end)
end

---Registers the metric. Declared keywords become fields before `reset` makes the state.
---@param name string
---@param kw table
function Metric:init(name, kw)
  Metric.super.init(self)
  check(type(name) == "string", "type", "%s: expected a name as first argument, found %s", self.class.name, show(name))
  check(kw.compute_on_system or not is_csx(), "value", "%s: compute_on_system must be true on CSX", self.class.name)
  check(self.runs_on_csx or not is_csx(), "runtime", "%s cannot run on CSX; use the CPU backend", self.class.name)
  for key, value in pairs(kw) do class.assign(self, key, keywords.plain(value)) end
  rawset(self, "name", name)
  rawset(self, "num_updates", 0)
  self:reset()
  wrap_update(self)
  wrap_compute(self)
  table.insert(session.metrics, self)
end

---Sets a state tensor to zeros: a buffer that is not saved. `reset` calls it for each.
---@param name string
---@param shape integer[]
function Metric:zero_state(name, shape)
  rawset(self, "cached", nil)
  rawset(self, "number", nil)
  local known = self._buffers[name]
  if known then
    tensors.no_grad(known.zero_, known)
  else
    self:register_buffer(name, tensors.to_device(tensors.zeros(shape)), { persistent = false })
  end
end

---Updates with a keyword table and returns the value, a 0-dim tensor.
---@param inputs table
---@return any
function Metric:forward(inputs)
  self:update(inputs)
  return self:compute()
end

---The value as a number; on CSX that of the last step that has ended.
---@return number
function Metric:value()
  if is_csx() and self.number ~= nil then return self.number end
  local value = self:compute()
  local name = self.class.name
  check(value:numel() == 1, "value", "%s:value: its compute must return a 0-dim tensor, not one of shape %s", name, shapes.text(value))
  return value:item()
end

return Metric

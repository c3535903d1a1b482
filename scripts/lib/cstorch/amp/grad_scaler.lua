-- Gradient scaling for half precision.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local recorded = require "cstorch.kept"
local keywords = require "cstorch.keywords"
local loaded = require "cstorch.loaded"
local Optimizer = require "cstorch.optim.optimizer"
local ordered_map = require "cstorch.ordered_map"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"
local text = require "cstorch.text"

local check, show = errors.check, errors.show

local LEAST_SCALE, DEFAULT_SCALE, DEFAULT_INCREASE = 2 ^ -14, 2 ^ 15, 2000

---@class cstorch.amp.GradScaler : cstorch.Class   Active on CSX; elsewhere it leaves losses and gradients alone.
local GradScaler = class.Object:subclass("GradScaler", {
  loss_scale = keywords.OPTIONAL, init_scale = keywords.OPTIONAL, steps_per_increase = keywords.OPTIONAL,
  min_loss_scale = keywords.OPTIONAL, max_loss_scale = keywords.OPTIONAL, overflow_tolerance = 0.05, max_gradient_norm = keywords.OPTIONAL,
})

GradScaler.noun = "scaler"
GradScaler.positional = 0
class.optional(GradScaler, "is_unit", "is_scaled", "trace", "overflowed", "non_clamped_scale", "num_skipped_steps", "steps_since_rescale",
  "overflows_since_rescale")

-- --- making one

--- `kw[name]` as a number; nil, false and 0 give the default.
local function number_or(kw, name, default)
  local value = kw[name]
  if not value or value == 0 then return default end
  check(type(value) == "number", "type", "GradScaler: expected a number as %s, found %s", name, show(value))
  return value
end

local function check_arguments(self, kw)
  local scale, tolerance = kw.loss_scale, kw.overflow_tolerance
  self.is_dynamic = scale == "dynamic"
  local is_known = self.is_dynamic or not scale or type(scale) == "number"
  check(is_known, "value", "GradScaler: loss_scale must be a number or 'dynamic', not %s", show(scale))
  local is_scale = type(scale) ~= "number" or scale >= 0 and scale < math.huge
  check(is_scale, "value", "GradScaler: loss_scale must be >= 0 and finite, not %s", show(scale))
  check(self.steps_per_increase > 0, "value", "GradScaler: steps_per_increase must be > 0, not %s", show(self.steps_per_increase))
  check(type(tolerance) == "number", "type", "GradScaler: expected a number as overflow_tolerance, found %s", show(tolerance))
  if not self.is_dynamic then return end
  check(self.min_loss_scale >= LEAST_SCALE, "value", "GradScaler: min_loss_scale must be >= 2^-14, not %g", self.min_loss_scale)
  check(tolerance >= 0, "value", "GradScaler: overflow_tolerance must be >= 0, not %g", tolerance)
end

--- A 0-dim tensor that lives across steps and is written in place.
local function kept(value, dtype) return tensors.to_device(tensors.full({}, value, { dtype = dtype })) end

--- The optimizers made so far, in their order.
local function registered_optimizers()
  local list = {}
  for optimizer in pairs(session.optimizers) do list[#list + 1] = optimizer end
  table.sort(list, function(a, b) return session.optimizers[a] < session.optimizers[b] end)
  return list
end

---`loss_scale` is a number (0 or nil: no scaling) or "dynamic". Dynamic scaling halves the scale when more than `overflow_tolerance` of
---the steps since the last change overflowed, and doubles it after more than `steps_per_increase` steps. It attaches to all optimizers
---made so far, so make it after them. It scales on the backend "CSX"; on "CPU" its methods do nothing but step.
---@param kw table
function GradScaler:init(kw)
  self.min_loss_scale = number_or(kw, "min_loss_scale", LEAST_SCALE)
  self.max_loss_scale = number_or(kw, "max_loss_scale", DEFAULT_SCALE)
  self.steps_per_increase = number_or(kw, "steps_per_increase", DEFAULT_INCREASE)
  self.max_gradient_norm = number_or(kw, "max_gradient_norm", nil)
  local initial = number_or(kw, "init_scale", DEFAULT_SCALE)
  check_arguments(self, kw)
  self.overflow_tolerance = kw.overflow_tolerance
  if self.is_dynamic then
    self.loss_scale = kept(math.min(self.max_loss_scale, initial), "float32")
    self.non_clamped_scale = kept(math.min(self.max_loss_scale, initial), "float32")
    self.steps_since_rescale, self.overflows_since_rescale = kept(0, "int64"), kept(0, "int64")
    self.num_skipped_steps = kept(0, "int64")
  else
    local scale = number_or(kw, "loss_scale", 1)
    self.loss_scale, self.is_unit = kept(scale, "float32"), scale == 1
  end
  self:_begin()
  self.optimizers = registered_optimizers()
  for _, optimizer in ipairs(self.optimizers) do self:_attach(optimizer) end
end

--- Clears the state before the next step.
function GradScaler:_begin() self.stages, self.squares, self.overflowed, self.is_scaled = {}, {}, nil, false end

--- Whether this optimizer's last step was taken: 1 or 0. Its schedules advance by it.
function GradScaler:_attach(optimizer)
  optimizer.scaler = self
  if self.is_dynamic then optimizer.step_was_taken = kept(1, "int64") end
end

local function is_active() return session.backend ~= nil and session.backend.kind == "CSX" end

-- --- the steps of a training step, in their order

local function check_optimizer(what, optimizer)
  check(class.is_a(optimizer, Optimizer), "type", "GradScaler:%s: expected an optimizer of cstorch.optim, found %s", what, show(optimizer))
end

---The loss times the scale; its backward gives scaled gradients.
---@param loss any   a tensor
---@return any
function GradScaler:scale(loss)
  check(tensors.is_tensor(loss), "type", "GradScaler:scale: expected a tensor, found %s", show(loss))
  if not is_active() then return loss end
  if self.trace ~= session.trace then self:_begin() end -- what a recorded step began that failed is void
  check(not self.is_scaled, "runtime", "GradScaler:scale was called twice without update")
  self.is_scaled, self.trace = true, session.trace
  if self.trace then
    self.trace.scalers = self.trace.scalers or {}
    self.trace.scalers[self] = true
    for name in pairs(self.class.keywords) do recorded.note(self.trace, self, name, "GradScaler." .. name) end
  end
  if self.is_unit then return loss end
  for _, optimizer in ipairs(self.optimizers) do
    for p in optimizer:parameters() do
      check(p.grad == nil, "runtime", "GradScaler:scale: gradients are left from the step before; call zero_grad first")
    end
  end
  return loss:to "float32" * self.loss_scale
end

local function unscale(self, optimizer)
  local squares
  for p in optimizer:gradients() do
    local grad = p.grad -- itself, as it is written
    check(p.dtype == "float32" or p.dtype == "float16", "type", "GradScaler: expected float32 or float16 parameters, found %s", p.dtype)
    if not self.is_unit then grad:copy_(grad:to "float32" / self.loss_scale) end
    if self.is_dynamic then
      local own = grad:to("float32"):square():sum()
      squares = squares and squares + own or own
    end
  end
  self.squares[optimizer] = squares
end

---Divides the optimizer's gradients by the scale. A second call does nothing.
---@param optimizer cstorch.optim.Optimizer
function GradScaler:unscale_(optimizer)
  check_optimizer("unscale_", optimizer)
  if not is_active() then return end
  check(self.stages[optimizer] ~= "stepped", "runtime", "GradScaler:unscale_ was called after step; call update first")
  if self.stages[optimizer] == "unscaled" then return end
  if not (self.is_unit or self.is_scaled and self.trace == session.trace) then
    errors.warn "GradScaler: no loss was scaled, but its gradients are divided by the loss scale: call scaler:scale(loss):backward()"
  end
  self.stages[optimizer] = "unscaled"
  tensors.no_grad(unscale, self, optimizer)
end

--- Warns about a step with gradients that are still scaled, or a limit of them.
---@param what string     what is done
---@param advice string   a call that comes before, or instead
function GradScaler:_check_unscaled(optimizer, what, advice)
  if self.is_unit or not self.is_scaled or self.trace ~= session.trace or self.stages[optimizer] then return end
  errors.warn(("%s: the gradients are still multiplied by the loss scale: %s"):format(what, advice))
end

--- Warns about a recorded step that scales a loss and does not end the step: a dynamic scale never changes.
function GradScaler:_check_recorded(trace)
  if not self.is_dynamic or not self.is_scaled or self.trace ~= trace then return end
  errors.warn "GradScaler: the step calls scale, but not update, so the dynamic scale never changes: call scaler:update() after scaler:step"
end

--- Clips within the scaler, as early releases did.
local function clip(self, optimizer, norm)
  if not self.max_gradient_norm then return end
  errors.warn "GradScaler: max_gradient_norm is deprecated; use max_gradient_norm of cstorch.amp.optimizer_step"
  local coefficient = (self.max_gradient_norm / (norm + 1e-6)):clamp(nil, 1)
  for p in optimizer:gradients() do p.grad:mul_(coefficient) end
end

--- Steps where the norm of the gradients is finite: NaN, infinity and an overflow of the squares count as overflow.
local function guarded_step(self, optimizer)
  local squares = self.squares[optimizer]
  check(squares, "runtime", "GradScaler:step: the optimizer has no gradients; call backward on the scaled loss first")
  local norm = squares:sqrt()
  local is_finite = norm:lt(math.huge)
  local taken = is_finite:to "int64"
  self.overflowed = self.overflowed and self.overflowed:maximum(1 - taken) or 1 - taken
  self.num_skipped_steps:add_(1 - taken)
  if not optimizer.step_was_taken then self:_attach(optimizer) end
  optimizer.step_was_taken:copy_(taken)
  tensors.when(is_finite, function()
    clip(self, optimizer, norm)
    optimizer:step()
  end)
end

---Steps the optimizer. With dynamic scaling a step whose gradients overflow changes nothing; on the backend "CPU" nothing is scaled, and
---every step is taken.
---@param optimizer cstorch.optim.Optimizer
function GradScaler:step(optimizer)
  check_optimizer("step", optimizer)
  if not is_active() then return optimizer:step() end
  check(self.stages[optimizer] ~= "stepped", "runtime", "GradScaler:step was called twice without update")
  self:unscale_(optimizer)
  self.stages[optimizer] = "stepped"
  if self.is_dynamic then return tensors.no_grad(guarded_step, self, optimizer) end
  return optimizer:step()
end

--- Halves and doubles by exact products, so that a traced step has no branch.
local function rescale(self)
  local scale, steps, overflows = self.loss_scale, self.steps_since_rescale, self.overflows_since_rescale
  steps:add_(1)
  overflows:add_(self.overflowed)
  local shrinks = (overflows:to "float32" / steps:to "float32"):gt(self.overflow_tolerance)
  scale:mul_(1 - shrinks:to "float32" * 0.5)
  steps:mul_(1 - shrinks:to "int64")
  overflows:mul_(1 - shrinks:to "int64")
  local grows = steps:gt(self.steps_per_increase)
  scale:mul_(grows:to "float32" + 1)
  steps:mul_(1 - grows:to "int64")
  overflows:mul_(1 - grows:to "int64")
  scale:clamp_(nil, self.max_loss_scale)
  self.non_clamped_scale:copy_(scale)
  scale:clamp_(self.min_loss_scale, nil)
end

---Ends the training step: adapts a dynamic scale.
function GradScaler:update(...)
  check(select("#", ...) == 0, "value", "GradScaler:update takes no argument; the scale follows from the overflows")
  if not is_active() then return end
  if self.is_dynamic then
    check(self.overflowed, "runtime", "GradScaler:update: no optimizer was stepped through the scaler since the last update")
    tensors.no_grad(rescale, self)
  end
  self:_begin()
end

-- --- looking at it

---The scale: a 0-dim tensor that `update` changes.
function GradScaler:get_scale() return self.loss_scale end

---The scale after the upper and before the lower limit.
function GradScaler:get_non_clamped_scale() return self.non_clamped_scale or self.loss_scale end

---How many steps were skipped: a 0-dim tensor that `step` changes.
function GradScaler:get_num_skipped_steps() return self.num_skipped_steps or kept(0, "int64") end

local SAVED = { "loss_scale", "steps_since_rescale", "overflows_since_rescale", "num_skipped_steps" }

---@return table   empty off CSX
function GradScaler:state_dict()
  local dict = ordered_map.new()
  if not is_active() then return dict end
  for _, name in ipairs(SAVED) do dict[name] = self[name] end
  return dict
end

--- Names of torch's state dict that mean the same.
local OF_TORCH = { scale = "loss_scale", _growth_tracker = "steps_since_rescale" }

--- The state dict of torch as one of this class; others as they are. Fails if torch's scale changes in another way.
local function translated(self, dict)
  if dict.scale == nil then return dict end
  local own, settings = ordered_map.new(), { growth_factor = 2, backoff_factor = 0.5, growth_interval = self.steps_per_increase }
  if not self.is_dynamic then settings = {} end
  for name, value in ordered_map.items(dict) do
    value = loaded.plain(value)
    local wanted = settings[name]
    check(not wanted or value == wanted, "value", "GradScaler: expected %s %s in the state dict of torch, found %s%s", name, show(wanted),
      show(value), name == "growth_interval" and "; make the scaler with this number as steps_per_increase" or "")
    if not wanted then own[OF_TORCH[name] or name] = value end
  end
  -- torch shrinks the scale at each overflow, and does not count skipped steps
  if self.is_dynamic then own.overflows_since_rescale, own.num_skipped_steps = 0, self.num_skipped_steps end
  return own
end

--- Warns about names that only one side has. Off the CSX a state dict is empty.
local function warn_of_misfits(self, dict)
  local missing, unknown, known = {}, {}, {}
  for _, name in ipairs(SAVED) do
    known[name] = rawget(self, name) ~= nil
    if known[name] and dict[name] == nil then missing[#missing + 1] = name end
  end
  for name in ordered_map.items(dict) do
    if not known[name] then unknown[#unknown + 1] = name end
  end
  if #missing > 0 then errors.warn("GradScaler: the state dict lacks " .. text.some(missing) .. ", which keep their values") end
  if #unknown > 0 then errors.warn("GradScaler: the state dict has " .. text.some(unknown) .. ", which this scaler does not use") end
end

---Restores what the state dict has, also one of torch; it warns about missing and unknown values. An empty one is that of a run without
---scaling, and changes nothing.
---@param state_dict table
function GradScaler:load_state_dict(state_dict)
  check(keywords.is_map(state_dict), "type", "GradScaler: expected a state dict, found %s", show(state_dict))
  loaded.check_names(state_dict, "GradScaler: the state dict")
  if ordered_map.items(state_dict)() == nil and not is_active() then return end
  local dict, writes = translated(self, state_dict), {}
  for _, name in ipairs(SAVED) do
    local value, own = keywords.plain(dict[name]), rawget(self, name)
    if own and value ~= nil then writes[#writes + 1] = loaded.writer(own, value, "GradScaler: " .. name) end
  end
  tensors.no_grad(function()
    for _, write in ipairs(writes) do write() end
  end)
  warn_of_misfits(self, dict)
end

return GradScaler

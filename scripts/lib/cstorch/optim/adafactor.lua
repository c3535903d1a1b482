-- Adafactor with a given learning rate and without a first moment.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local Optimizer = require "cstorch.optim.optimizer"

---@class Adafactor.Keywords
---@field lr? number
---@field eps? number[]
---@field clip_threshold? number
---@field decay_rate? number
---@field weight_decay? number
---@field scale_parameter? boolean

---α = lr·max(rms(p), eps2), or lr without scale_parameter; β = 1 - t^decay_rate; q = g² + eps1. With two dims and more:
---R = β·R + (1 - β)·mean of q over the last dim, C the same over the one before, u = g·√(mean(R)/R)/√C.
---Else v = β·v + (1 - β)·q, u = g/√v. Then u = α·u/max(1, rms(u)/clip_threshold); p = p - wd·α·p - u.
---Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018.
---@class cstorch.optim.Adafactor : cstorch.optim.Optimizer
---@overload fun(params: table, keywords: Adafactor.Keywords): cstorch.optim.Adafactor
local Adafactor = Optimizer:subclass("Adafactor", {
  lr = keywords.OPTIONAL, eps = { 1e-30, 1e-3 }, clip_threshold = 1.0, decay_rate = -0.8, beta1 = keywords.OPTIONAL, weight_decay = 0,
  scale_parameter = true, relative_step = false, warmup_init = false,
})

Adafactor.limits = { lr = { min = 0 } }
Adafactor.sparsified_state = { "exp_avg", "exp_avg_sq" }

local check = errors.check

function Adafactor:init(params, kw)
  check(not (kw.lr and kw.relative_step), "value", "Adafactor: lr and relative_step exclude each other; leave out relative_step")
  Adafactor.super.init(self, params, kw, { enable_global_step = true })
end

--- Fails on settings that the step does not compute.
function Adafactor.check_group(group)
  check(not group.warmup_init or group.relative_step, "value", "Adafactor: warmup_init needs relative_step, which is not supported")
  check(not group.relative_step, "value", "Adafactor: relative_step is not supported; give lr or a schedule")
  check(group.clip_threshold == 1, "value", "Adafactor: clip_threshold must be 1, not %s", errors.show(group.clip_threshold))
  check(group.beta1 == nil, "value", "Adafactor: beta1 is not supported; leave it out")
end

function Adafactor:preinitialize()
  for p, state in self:parameters() do
    if p:dim() >= 2 then
      state.exp_avg_sq_row = self.zeros(p:select(-1, 0))
      state.exp_avg_sq_col = self.zeros(p:select(-2, 0))
    else
      state.exp_avg_sq = self.zeros(p)
    end
  end
end

--- In float32 at least: the square of 300 is infinite in float16.
local function rms(x)
  if x.dtype == "float16" then x = x:to "float32" end
  return x:square():mean():sqrt()
end

--- The gradient over the root of its running second moment, which is factored into rows and columns.
local function precondition(g, state, q, beta)
  local row, column = state.exp_avg_sq_row, state.exp_avg_sq_col
  if not row then return g * state.exp_avg_sq:mul_(beta):add_(q * (1 - beta)):rsqrt() end
  row:mul_(beta):add_(q:mean(-1) * (1 - beta))
  column:mul_(beta):add_(q:mean(-2) * (1 - beta))
  return (row / row:mean(-1, { keepdim = true })):rsqrt():unsqueeze(-1) * column:rsqrt():unsqueeze(-2) * g
end

function Adafactor:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    check(group.lr, "value", "Adafactor: there is no learning rate; give lr or make a schedule before the first step")
    local step = self:increment_global_step(p)
    local rate = group.lr
    if group.scale_parameter then rate = rms(p):clamp(group.eps[2], nil) * rate end
    local u = precondition(g, state, g * g + group.eps[1], 1 - step ^ group.decay_rate)
    u = u / (rms(u) / group.clip_threshold):clamp(1, nil) * rate
    p:sub_(p * (rate * group.weight_decay)):sub_(u)
  end
  return loss
end

return Adafactor

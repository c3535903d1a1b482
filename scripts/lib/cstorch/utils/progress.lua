-- Progress lines of a run: loss, rates, and a stop if the loss is NaN or infinite.

local cbk = require "cbk"
local class = require "cstorch.class"
local closures = require "cstorch.run.closures"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local losses = require "cstorch.run.losses"
local session = require "cstorch.session"
local shapes = require "cstorch.shapes"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

---Prints a line every `log_steps` steps and on the last one, with the loss and the samples per second: since the line before, smoothed
---(Rate), and since the first step (GlobalRate). A loss that is NaN or infinite stops the run.
---@class cstorch.utils.Progress : cstorch.Class
---@field rate number          samples per second, smoothed: 0.6 of now and 0.4 of before
---@field global_rate number
local Progress = class.Object:subclass("Progress", {
  mode = "train", log_steps = 1, batch_size = keywords.REQUIRED, check_loss_values = true, print = false, clock = false,
})

Progress.noun = "progress"
Progress.positional = 0
class.optional(Progress, "start_time", "line_time", "rate", "global_rate")

---@param kw { mode: "train"|"eval", log_steps: integer, batch_size: integer, check_loss_values: boolean, print: fun(line: string) }
function Progress:init(kw)
  check(kw.mode == "train" or kw.mode == "eval", "value", "Progress: mode must be 'train' or 'eval', not %s", show(kw.mode))
  for _, name in ipairs { "log_steps", "batch_size" } do
    local value = kw[name]
    local is_count = type(value) == "number" and value == math.floor(value) and value >= 1
    check(is_count, "value", "Progress: %s must be an integer >= 1, not %s", name, show(value))
  end
  for _, name in ipairs { "print", "clock" } do
    check(not kw[name] or type(kw[name]) == "function", "type", "Progress: expected a function as %s, found %s", name, show(kw[name]))
  end
  self.title, self.log_steps, self.batch_size = kw.mode == "train" and "Train" or "Eval", kw.log_steps, kw.batch_size
  self.check_loss_values, self.print, self.clock = kw.check_loss_values, kw.print or print, kw.clock or cbk.clock
  self.samples, self.logged_samples = 0, 0
  self.closure = closures.step_closure(function(loss) self:_report(loss) end)
end

--- Rates below 1 keep three digits that count.
local function rate_text(rate)
  local digits = rate >= 1 and "%.2f" or "%.3g"
  return (digits .. " samples/sec"):format(rate)
end

local function update_rates(self)
  local now = self.clock()
  local since_line, since_start = now - self.line_time, now - self.start_time
  local current = since_line > 0 and (self.samples - self.logged_samples) / since_line or 0
  self.rate = self.rate and 0.6 * current + 0.4 * self.rate or current
  self.global_rate = since_start > 0 and self.samples / since_start or 0
  self.line_time, self.logged_samples = now, self.samples
end

function Progress:_report(loss)
  local executor = session.executor
  local step = executor and executor.initial_step + executor.user_iteration or 1
  local value = tensors.is_tensor(loss) and tonumber(loss:item()) or loss
  if self.check_loss_values then losses.check_value(step, value) end
  self.samples = self.samples + self.batch_size
  if step % self.log_steps ~= 0 and not (executor and executor.on_final_iteration) then return end
  update_rates(self)
  local device = session.backend and session.backend.kind or "CPU"
  self.print(("| %s Device=%s, Step=%d, Loss=%.5f, Rate=%s, GlobalRate=%s"):format(self.title, device, step, value, rate_text(self.rate),
    rate_text(self.global_rate)))
end

---Begins the clock of the rates; else the first step does, when it has ended.
function Progress:start()
  self.start_time = self.clock()
  self.line_time = self.start_time
end

---Call this in the loop or in the step: it reports at the end of the step.
---@param loss any   a 0-dim tensor
function Progress:step(loss)
  check(tensors.is_tensor(loss), "type", "Progress:step: expected the loss as a tensor, found %s", show(loss))
  check(loss:numel() == 1, "value", "Progress:step: expected a loss of one element, found shape %s", shapes.text(loss))
  if not self.start_time then self:start() end
  self.closure(loss)
end

return Progress

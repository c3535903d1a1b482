-- What the checkpoint of a run says of its training: the step, the learning rates, the loss scale.

local listing = require "cbk.listing"
local optimizer_table = require "cbk.optimizer_table"

local training_state = {}

local STEPS = { "global_step", "step", "iteration", "global_steps", "epoch" } -- the first that a checkpoint has
local SCALES = { "grad_scaler.scale", "scaler.scale", "grad_scaler._scale", "amp_scaler.scale", "grad_scaler.loss_scale" }

local function first_known(rows, keys)
  for _, key in ipairs(keys) do
    local i = rows:find(key)
    local text = i and listing.plain_text(rows:raw(i))
    if text then return key, text end
  end
end

---@param rows LeafRows
---@return string|nil key, string|nil text
function training_state.step(rows) return first_known(rows, STEPS) end

---@param rows LeafRows
---@return string|nil text
function training_state.loss_scale(rows) return select(2, first_known(rows, SCALES)) end

---The learning rates of an optimizer's groups as short texts; nil if it has none.
---@param optimizer Optimizer
---@return string[]|nil
function training_state.learning_rates(optimizer)
  for _, one in ipairs(optimizer_table.hyper_parameters(optimizer)) do
    if one.name == "lr" then
      local rates = {}
      for g, text in ipairs(one.values) do rates[g] = tonumber(text) and ("%.6g"):format(tonumber(text)) or text end
      return rates
    end
  end
end

return training_state

-- Optimizers as data: their settings in a config, and their states for each parameter.

local naming = require "cbk.naming"

local optimizers = {}

---@class Optimizer
---@field settings string   names in the config, from release 2.1 on
---@field zero string       a parameter's states that are zero before the first step. The others follow from settings: beta1_power,
---                        beta2_power, mu_product, eta, mu, step_size, and Adagrad's sum

--- By the lower-case name of the class. Files of old releases, and of PyTorch, have `step` for most of them.
---@type table<string, Optimizer>
local classes = {
  adadelta = { settings = "lr rho eps weight_decay maximize", zero = "step square_avg acc_delta" },
  adafactor = {
    settings = "lr eps clip_threshold decay_rate beta1 weight_decay scale_parameter relative_step warmup_init",
    zero = "step exp_avg exp_avg_sq exp_avg_sq_row exp_avg_sq_col",
  },
  adagrad = { settings = "lr lr_decay weight_decay initial_accumulator_value eps maximize", zero = "step" },
  adamax = { settings = "lr betas eps weight_decay maximize", zero = "step exp_avg exp_inf" },
  adambase = {
    settings = "lr betas eps weight_decay l2_regularization_rate correct_bias amsgrad",
    zero = "step exp_avg exp_avg_sq max_exp_avg_sq",
  },
  adamw = { settings = "lr betas eps weight_decay correct_bias amsgrad", zero = "step exp_avg exp_avg_sq max_exp_avg_sq" },
  adam = { settings = "lr betas eps weight_decay amsgrad", zero = "step exp_avg exp_avg_sq max_exp_avg_sq" },
  asgd = { settings = "lr lambd alpha t0 weight_decay maximize", zero = "step ax" },
  lamb = { settings = "lr betas eps weight_decay adam", zero = "step exp_avg exp_avg_sq" },
  lion = { settings = "lr betas weight_decay", zero = "step exp_avg" },
  muon = { settings = "lr weight_decay momentum nesterov ns_steps", zero = "momentum_buffer" },
  nadam = { settings = "lr betas eps weight_decay momentum_decay", zero = "step exp_avg exp_avg_sq" },
  radam = { settings = "lr betas eps weight_decay", zero = "step exp_avg exp_avg_sq" },
  rmsprop = { settings = "lr alpha eps weight_decay momentum centered", zero = "step square_avg momentum_buffer grad_avg" },
  rprop = { settings = "lr etas step_sizes", zero = "step prev" },
  sgd = { settings = "lr momentum dampening weight_decay nesterov maximize", zero = "step momentum_buffer" },
}

--- The states that a parameter gets at its first step, so that None is valid before.
local may_be_none = { momentum_buffer = true }

--- The places with names of parameters in a checkpoint's `optimizer` and its sparsity: keys of a dict, and lists in each group.
optimizers.BY_PARAMETER, optimizers.GROUPS, optimizers.LISTS = "state", "param_groups", { "params", "param_names" }

local settings, own_states, zero_at_first = {}, {}, {}
for name, class in pairs(classes) do
  settings[name], own_states[name] = naming.set(class.settings), naming.set(class.zero)
  for state in pairs(own_states[name]) do zero_at_first[state] = true end
end

---Whether a class takes a setting.
---@param class any   as the config names it
---@param setting string
---@return boolean
function optimizers.takes(class, setting)
  local own = settings[tostring(class):lower()]
  return own ~= nil and own[setting] == true
end

---Whether a state of a parameter is zero before the first step, whichever class has it.
---@param state string
---@return boolean
function optimizers.is_zero_at_first(state) return zero_at_first[state] == true end

---Whether a state has one number for each of a weight's.
---@param state string
---@return boolean
function optimizers.has_weights_shape(state)
  return state ~= "step" and optimizers.is_zero_at_first(state) and not optimizers.is_factor(state)
end

---Whether a class of optimizers has both states of a parameter; its count of steps says nothing.
---@param a string
---@param b string
---@return boolean
function optimizers.belong_together(a, b)
  for _, states in pairs(own_states) do
    if states[a] and states[b] and a ~= "step" and b ~= "step" then return true end
  end
  return false
end

---Whether a state has a number for each row, or each column, of a weight (Adafactor).
---@param state string
---@return boolean
function optimizers.is_factor(state) return state:find "_row$" ~= nil or state:find "_col$" ~= nil or state:find "^%a+_var$" ~= nil end

---Whether a state is a count, or a mean or a sum of squares, which is never negative.
---@param state string
---@return boolean
function optimizers.is_never_negative(state)
  return state == "step" or state == "exp_inf" or state:find "_sq$" ~= nil or state:find "_sq_" ~= nil or state == "square_avg"
end

---Whether a parameter may have None as this state.
---@param state string
---@return boolean
function optimizers.may_be_none(state) return may_be_none[state] == true end

return optimizers

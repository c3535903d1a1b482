-- cstorch.optim: optimizers, and functions that configure optimizers and schedules.

local namespace = require "cstorch.namespace"

local optim = {}

--- Class to file.
local FILES = {
  Optimizer = "optimizer", AdamBase = "adam_base",
  SGD = "sgd", Adam = "adam", AdamW = "adamw", Adagrad = "adagrad", Adadelta = "adadelta", Adafactor = "adafactor", Adamax = "adamax",
  ASGD = "asgd", Lamb = "lamb", Lion = "lion", NAdam = "nadam", RAdam = "radam", RMSprop = "rmsprop", Rprop = "rprop", Muon = "muon",
}

for name, file in pairs(FILES) do optim[name] = require("cstorch.optim." .. file) end

optim.lr_scheduler = require "cstorch.optim.lr_scheduler"
optim.weight_decay_scheduler = require "cstorch.optim.weight_decay_scheduler"
optim.scheduler = require "cstorch.optim.scheduler"
optim.configure_optimizer = require "cstorch.optim.configure_optimizer"
optim.configure_lr_scheduler = require("cstorch.optim.configure_schedules").configure_lr_scheduler
optim.configure_scheduler = require("cstorch.optim.configure_schedules").configure_scheduler
optim.configure_param_groups = require "cstorch.optim.configure_param_groups"

return namespace("cstorch.optim", optim)

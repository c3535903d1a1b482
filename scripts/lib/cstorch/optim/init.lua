-- cstorch.optim: optimizers, and what configures optimizers and schedules.

local class = require "cstorch.class"
local errors = require "cstorch.errors"

local optim = {}

--- Class to file.
local FILES = {
  Optimizer = "optimizer", AdamBase = "adam_base",
  SGD = "sgd", Adam = "adam", AdamW = "adamw", Adagrad = "adagrad", Adadelta = "adadelta", Adafactor = "adafactor", Adamax = "adamax",
  ASGD = "asgd", Lamb = "lamb", Lion = "lion", NAdam = "nadam", RAdam = "radam", RMSprop = "rmsprop", Rprop = "rprop", Muon = "muon",
}

for name, file in pairs(FILES) do optim[name] = require("cstorch.optim." .. file) end

return optim

-- cstorch.utils: data loading and ranges of steps.

local namespace = require "cstorch.namespace"

return namespace("cstorch.utils", { StepRange = require "cstorch.utils.step_range" }, { data = "cstorch.utils.data" })

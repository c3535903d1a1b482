-- cstorch.utils: data loading, ranges of steps, progress lines and summaries.

local namespace = require "cstorch.namespace"

return namespace("cstorch.utils", { StepRange = require "cstorch.utils.step_range" }, {
  data = "cstorch.utils.data", Progress = "cstorch.utils.progress",
  SummaryWriter = "cstorch.utils.summaries:SummaryWriter", SummaryReader = "cstorch.utils.summaries:SummaryReader",
})

-- For tests and the REPL.

local namespace = require "cstorch.namespace"
local session = require "cstorch.session"

local testing = {}

---Forgets the backend, the configuration, the run, closures, and registered optimizers, schedules and metrics.
function testing.reset() session.reset() end

return namespace("cstorch.testing", testing)

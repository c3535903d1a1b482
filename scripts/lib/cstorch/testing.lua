-- For tests and the REPL.

local session = require "cstorch.session"

local testing = {}

---Forgets the backend, the configuration, the run, closures, and registered optimizers, schedules and metrics.
function testing.reset() session.reset() end

return testing

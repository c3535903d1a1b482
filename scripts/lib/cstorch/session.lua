-- All global state of the training API in one table. `session.reset()` creates it again.

local session = {}

---@class cstorch.Session
---@field backend? table              what `cstorch.backend` made; `.kind` is "CSX", "CPU" or "GPU"
---@field configuration? table        the options of `cstorch.configure`
---@field executor? table             the run in progress
---@field optimizers table            optimizer to its number; does not keep optimizers alive
---@field optimizer_count integer     numbers given so far
---@field parameters table<cstorch.Tensor, cstorch.Tensor>   in use; as values they leave it before they are closed
---@field metrics table[]             in the order in which they were made
---@field summaries? table            the values recorded since the last `save_summaries`
---@field queued table[]              step closures that wait for the end of the step
---@field repeated table[]            closures that a traced step calls again in this step
---@field losses table<table, boolean>   tensors that are checked at the end of the step
---@field is_step_new? boolean        a step was recorded since the last one ended
---@field share? number                which part of a batch this rank has; nil: it is not known yet
---@field has_captured? boolean       a step closure has got a tensor
---@field unplaced table<integer, cstorch.Tensor>   tensors for the device of a backend that is not there yet; not kept alive
---@field unplaced_count integer      how many there were
---@field effects cstorch.Effects     what was done to weights
---@field nan_since? integer          the step from which on the loss is not finite
---@field nan_before? { since: integer, last: integer }   the same of the run before, and its last step
---@field sink? fun(message: string, info?: table)   where warnings go
---@field warned table<string, boolean>

---Forgets everything.
function session.reset()
  -- Nothing is allocated after this line: the collector, which may end an abandoned run, never sees a part of the state.
  local fresh = {
    reset = session.reset, optimizers = setmetatable({}, { __mode = "k" }), optimizer_count = 0,
    parameters = setmetatable({}, { __mode = "kv" }), metrics = {}, queued = {}, repeated = {},
    effects = { schedules = setmetatable({}, { __mode = "k" }), optimizers = setmetatable({}, { __mode = "k" }), idle = {}, made = 0,
      run_steps = 0, has_written = false, is_explained = false, is_nan = false },
    warned = {}, losses = {}, unplaced = setmetatable({}, { __mode = "v" }), unplaced_count = 0,
  }
  for name in pairs(session) do session[name] = fresh[name] end
  for name, value in pairs(fresh) do session[name] = value end
end

session.reset()

return session

-- Where a run happens: the emulated CSX, whose steps are recorded once and replayed, or the CPU, where they run as they are written.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

local backend = {}

local KINDS = { csx = "CSX", wse_ws = "CSX", cpu = "CPU", gpu = "GPU" }

---@class cstorch.Backend
---@field kind "CSX"|"CPU"|"GPU"
---@field mode? "train"|"eval"   what was called last of a compiled model
---@field artifact_dir? string
---@field compile_only boolean
---@field validate_only boolean

local OPTIONS = {
  artifact_dir = keywords.OPTIONAL, compile_dir = keywords.OPTIONAL, compile_only = false, validate_only = false,
  cluster_config = keywords.OPTIONAL,
}

--- The kind with the name, any case.
function backend.kind_of(name)
  local kind = type(name) == "string" and KINDS[name:lower()]
  return check(kind, "value", 'unknown backend %s: expected "CSX" (or "wse_ws"), "CPU" or "GPU"', show(name))
end

---Makes the one backend of the process, or returns it when there are no arguments.
---@param kind? string     "CSX", "wse_ws", "CPU" or "GPU", any case
---@param options? table   artifact_dir, compile_dir, compile_only, validate_only, cluster_config
---@return cstorch.Backend
function backend.backend(kind, options)
  if kind == nil and options == nil then
    return check(session.backend, "runtime", "there is no backend yet: call cstorch.compile(model, …) or cstorch.backend(kind)")
  end
  kind = backend.kind_of(kind)
  check(not session.backend, "runtime", "there is a backend already (%s), and only one for each process", (session.backend or {}).kind)
  local made = keywords.complete("backend", OPTIONS, options)
  made.kind = kind
  session.backend = made
  for _, tensor in pairs(session.unplaced) do tensors.to_device(tensor) end
  return made
end

---Whether the run is on the (emulated) CSX.
---@return boolean
function backend.use_cs() return session.backend ~= nil and session.backend.kind == "CSX" end

return backend

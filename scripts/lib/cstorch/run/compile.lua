-- `cstorch.compile`: puts a model on the backend's device.

local backends = require "cstorch.run.backend"
local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local Module = require "cstorch.nn.module"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

---The backend that `given` asks for: nil is the current one (or a new one on the CPU), a name makes one unless it is the current one.
local function backend_for(given)
  local current = session.backend
  if given == nil then return current or backends.backend "CPU" end
  if type(given) == "string" then
    if current and backends.kind_of(given) == current.kind then return current end
    return backends.backend(given)
  end
  check(type(given) == "table", "type", "compile: backend must be a name or what cstorch.backend returned, not %s", show(given))
  check(given == current, "runtime", "compile: the backend is not the current one")
  return given
end

--- Optimizers that were made before have state on the host.
local function move_optimizers()
  for optimizer in pairs(session.optimizers) do
    optimizer:visit_state(function(value)
      if tensors.is_tensor(value) then tensors.to_device(value) end
    end)
  end
end

---@class cstorch.CompiledModel
local Compiled = {}

function Compiled:__call(...)
  local trace = session.trace
  if trace then
    check(trace.model == nil or trace.model == self.module, "runtime", "a step may call one compiled model only, and this is a second one")
    trace.model = self.module
  end
  return self.module(...)
end

--- Public methods of the module, called with it.
function Compiled:__index(name)
  if type(name) == "string" and name:sub(1, 1) == "_" then
    errors.raise("value", "'%s' is private: a compiled model has the public names of its module", name)
  end
  local value = self.module[name]
  if type(value) ~= "function" then return value end
  local module = self.module
  return function(_, ...)
    local sets_mode = (name == "train" or name == "eval") and session.backend
    if sets_mode then session.backend.mode = (name == "eval" or (...) == false) and "eval" or "train" end
    return value(module, ...)
  end
end

function Compiled:__tostring() return tostring(self.module) end

---Puts the parameters and buffers of `model` on the backend's device. Tied parameters stay tied.
---@param model cstorch.nn.Module
---@param options? { backend: string|cstorch.Backend }   default: the current backend, or the CPU
---@return cstorch.CompiledModel   called like the model; it has its public methods
return function(model, options)
  check(class.is_a(model, Module), "type", "compile: expected an nn.Module, found %s", show(model))
  options = keywords.complete("compile", { backend = keywords.OPTIONAL }, options)
  local backend = backend_for(options.backend)
  for _, p in model:named_parameters() do tensors.to_device(p) end
  for _, buffer in model:named_buffers() do tensors.to_device(buffer) end
  move_optimizers()
  session.model = model
  return setmetatable({ module = model, device = backend.kind:lower() }, Compiled)
end

-- Input workers: each has a source of batches of its own. Worker w of each system streams the batches w, w + workers, ….

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local session = require "cstorch.session"
local systems = require "cstorch.run.systems"

local check, show = errors.check, errors.show

---@class cstorch.utils.data.Worker : cstorch.Class
---@field source any               what the input function returned
---@field state table              what `get_worker_state` returns while its source runs
local Worker = class.Object:subclass "Worker"
class.optional(Worker, "iterator", "part_size", "source")

local workers = {}

---The worker whose source is running; nil outside.
---@return table?
function workers.get_worker_state() return session.worker end

local function leave(outer, fine, ...)
  session.worker = outer
  if not fine then error((...), 0) end
  return ...
end

--- Runs `f` as this worker.
local function as_worker(self, f, ...)
  local outer = session.worker
  session.worker = self.state
  return leave(outer, pcall(f, ...))
end

local function has_method(source, name)
  return type(source) == "table" and class.has(source, name) and type(source[name]) == "function"
end

---@param input_fn function
---@param arguments table
---@param place { wse_id: integer, local_worker_id: integer, num_csx: integer, num_workers_per_csx: integer }
function Worker:init(input_fn, arguments, place)
  self.state = place
  place.global_worker_id = place.wse_id * place.num_workers_per_csx + place.local_worker_id
  place.total_num_workers = place.num_csx * place.num_workers_per_csx
  place.appliance_step, place.worker_step, place.samples_streamed = 0, 0, 0
  self.source = as_worker(self, input_fn, keywords.plain(arguments))
  local is_source = type(self.source) == "table" or has_method(self.source, "iter")
  local found = show(self.source)
  check(is_source, "type", "DataLoader: the input function must return a list of batches or an object with 'iter', not %s", found)
  self.is_list = not has_method(self.source, "iter")
end

---The number of batches, nil if unknown.
---@return integer?
function Worker:length()
  if self.is_list then return #self.source end
  if not has_method(self.source, "length") then return nil end
  local length = as_worker(self, self.source.length, self.source)
  check(length == nil or type(length) == "number", "type", "DataLoader: the source's length is %s, not a number", show(length))
  return length
end

local function list_iterator(list)
  local i = 0
  return function()
    i = i + 1
    return list[i]
  end
end

--- Starts the source, or starts it again.
local function open(self)
  if self.is_list then return list_iterator(self.source) end
  local iterator = as_worker(self, self.source.iter, self.source)
  local metatable = type(iterator) == "table" and getmetatable(iterator)
  local is_callable = type(iterator) == "function" or type(metatable) == "table" and metatable.__call ~= nil
  check(is_callable, "type", "DataLoader: the source's method iter must return an iterator function, not %s", show(iterator))
  return iterator
end

---Begins at the first batch.
function Worker:restart()
  self.iterator, self.state.worker_step, self.state.samples_streamed = nil, 0, 0
end

---The next batch; after the last one the source starts again.
---@return any
function Worker:next()
  local batch
  if self.iterator and self.is_list then
    batch = self.iterator()
  elseif self.iterator then
    batch = as_worker(self, self.iterator)
  end
  if batch == nil then
    self.iterator = open(self)
    batch = as_worker(self, self.iterator)
    check(batch ~= nil, "runtime", "DataLoader: the source yields no batch")
  end
  self.state.worker_step = self.state.worker_step + 1
  return batch
end

-- --- restartable sources

local METHODS = { "state_dict", "load_state_dict", "aggregate_state_dict", "deaggregate_state_dict" }

local function takes_strict(method)
  local info = debug.getinfo(method, "u")
  return info.nparams >= 3 or info.isvararg
end

---The methods that the source lacks for saving and loading its position.
---@return string[]
function Worker:missing_methods()
  local missing = {}
  for _, name in ipairs(METHODS) do
    if not has_method(self.source, name) then missing[#missing + 1] = name end
  end
  if missing[1] then return missing end
  local load, deaggregate = takes_strict(self.source.load_state_dict), takes_strict(self.source.deaggregate_state_dict)
  local with, without = "load_state_dict", "deaggregate_state_dict"
  if deaggregate then with, without = without, with end
  check(load == deaggregate, "type", "the source's %s takes 'strict', but %s does not; add it to both or to neither", with, without)
  return missing
end

---Calls a method of the source as this worker.
function Worker:call(name, ...) return as_worker(self, self.source[name], self.source, ...) end

---Loads this worker's part of an aggregated state dict.
---@param aggregated table
---@param strict boolean
function Worker:load(aggregated, strict)
  local options = takes_strict(self.source.load_state_dict) and { strict = strict } or nil
  self:call("load_state_dict", self:call("deaggregate_state_dict", aggregated, options), options)
end

---The workers of a run that this process emulates, by global number. Off CSX there is one.
---@param input_fn function
---@param arguments table
---@return cstorch.utils.data.Worker[] list, integer num_workers_per_csx
function workers.start(input_fn, arguments)
  local is_csx = session.backend and session.backend.kind == "CSX"
  local configuration = is_csx and session.configuration or {}
  local num_csx, per_csx = is_csx and systems.count(configuration.num_csx) or 1, configuration.num_workers_per_csx or 1
  local list, first, last = {}, systems.own(num_csx)
  for wse_id = first, last do
    for local_worker_id = 0, per_csx - 1 do
      list[#list + 1] = Worker(input_fn, arguments,
        { wse_id = wse_id, local_worker_id = local_worker_id, num_csx = num_csx, num_workers_per_csx = per_csx })
    end
  end
  return list, per_csx
end

return workers

-- Summaries: named scalars and tensors of a run in files, one line of JSON for each scalar and one checkpoint for each tensor.

local cbk = require "cbk"
local class = require "cstorch.class"
local closures = require "cstorch.run.closures"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

local summaries = {}

local EVENTS, TENSORS = "events.jsonl", "csevents"

local function check_name(what, name)
  check(type(name) == "string" and name ~= "", "type", "%s: expected a name, found %s", what, show(name))
end

local function check_step(what, step)
  check(type(step) == "number" and step == math.floor(step), "value", "%s: step must be an integer, not %s", what, show(step))
end

--- The file of a tensor: characters that a file name cannot have are replaced.
local function tensor_path(folder, name, step)
  local safe = name:gsub("[^%w._-]", "_")
  return cbk.fs.join(folder, TENSORS, ("%s.%d.h5"):format(safe, step))
end

---Writes summaries into a folder. Steps count from `base_step`.
---@class cstorch.utils.SummaryWriter : cstorch.Class
local SummaryWriter = class.Object:subclass("SummaryWriter", { log_dir = ".", base_step = 1 })

SummaryWriter.positional = 0

---@param kw { log_dir: string, base_step: integer }
function SummaryWriter:init(kw)
  local is_path = type(kw.log_dir) == "string" and kw.log_dir ~= ""
  check(is_path, "type", "SummaryWriter: expected a folder as log_dir, found %s", show(kw.log_dir))
  check_step("SummaryWriter: base", kw.base_step)
  self.log_dir, self.base_step = kw.log_dir, kw.base_step
  errors.of_cbk(cbk.fs.mkdir, cbk.fs.join(self.log_dir, TENSORS))
  self.write_scalar = closures.step_closure(function(name, value, step) self:_write_scalar(name, value, step) end)
  self.write_tensor = closures.step_closure(function(name, tensor, step)
    require("cstorch.run.checkpoint").save({ tensor = tensor }, tensor_path(self.log_dir, name, step))
  end)
end

--- The step of a summary without one: that of the run.
local function current_step(self)
  local executor = session.executor
  return self.base_step + math.max(0, executor and executor.iteration or 0)
end

function SummaryWriter:_write_scalar(name, value, step)
  if tensors.is_tensor(value) then value = tonumber(value:item()) end
  local file, problem = io.open(cbk.fs.join(self.log_dir, EVENTS), "a")
  check(file, "runtime", "SummaryWriter: cannot write: %s", tostring(problem))
  file:write(cbk.json({ name = name, step = step or current_step(self), value = value }, { python = true }), "\n")
  file:close()
end

---Writes a number or a 0-dim tensor at the end of the step.
---@param name string
---@param value any
---@param step? integer   default: the step of the run
function SummaryWriter:add_scalar(name, value, step)
  check_name("add_scalar", name)
  if step ~= nil then check_step("add_scalar", step) end
  check(type(value) == "number" or tensors.is_tensor(value), "type", "add_scalar: expected a number or a tensor, found %s", show(value))
  self.write_scalar(name, value, step)
end

---Writes a tensor at the end of the step, in a file of its own.
---@param name string
---@param tensor any
---@param step integer
function SummaryWriter:add_tensor(name, tensor, step)
  check_name("add_tensor", name)
  check_step("add_tensor", step)
  check(tensors.is_tensor(tensor), "type", "add_tensor: expected a tensor, found %s", show(tensor))
  self.write_tensor(name, tensor, step)
end

---Reads what a SummaryWriter wrote.
---@class cstorch.utils.SummaryReader : cstorch.Class
local SummaryReader = class.Object:subclass "SummaryReader"

---@param log_dir string
function SummaryReader:init(log_dir)
  local is_there = type(log_dir) == "string" and log_dir ~= "" and cbk.fs.exists(log_dir)
  check(is_there, "value", "SummaryReader: there is no folder %s", show(log_dir))
  self.log_dir = log_dir
end

---The scalars whose name matches a glob: name to list of { step =, value = } in the order of writing.
---@param glob string   "train/*"
---@return table<string, { step: integer, value: number }[]>
function SummaryReader:read_scalar(glob)
  check(type(glob) == "string", "type", "read_scalar: expected a pattern of names such as 'train/*', found %s", show(glob))
  local pattern = "^" .. glob:gsub("[%^%$%(%)%%%.%[%]%+%-]", "%%%0"):gsub("%*", ".*"):gsub("%?", ".") .. "$"
  local found, path = {}, cbk.fs.join(self.log_dir, EVENTS)
  for line in (cbk.fs.exists(path) and cbk.fs.read(path) or ""):gmatch "[^\n]+" do
    local fine, event = pcall(cbk.config.parse, line, "json")
    local is_event = fine and keywords.is_map(event) and type(event.name) == "string"
    check(is_event, "value", "read_scalar: '%s' has a line that is no summary: %s", path, line:sub(1, 60))
    if event.name:find(pattern) then
      found[event.name] = found[event.name] or {}
      table.insert(found[event.name], { step = event.step, value = event.value })
    end
  end
  return found
end

---One tensor.
---@param name string
---@param step integer
---@return any
function SummaryReader:read_tensor(name, step)
  check_name("read_tensor", name)
  check_step("read_tensor", step)
  local path = tensor_path(self.log_dir, name, step)
  check(cbk.fs.exists(path), "value", "SummaryReader: there is no tensor '%s' of step %s in '%s'", name, show(step), self.log_dir)
  return tensors.tensor(cbk.open(path).root.tensor)
end

summaries.SummaryWriter, summaries.SummaryReader = SummaryWriter, SummaryReader

-- --- the functions of release 1.8

--- Values of the step that has ended, by kind and name.
local function collected()
  session.summaries = session.summaries or { scalar = {}, tensor = {} }
  return session.summaries
end

local keep = {}
for _, kind in ipairs { "scalar", "tensor" } do
  keep[kind] = closures.step_closure(function(name, value) collected()[kind][name] = value end)
end

---Records a 0-dim tensor of the step under a name, for `save_summaries`.
---@param name string
---@param value any
function summaries.summarize_scalar(name, value)
  check_name("summarize_scalar", name)
  local is_scalar = type(value) == "number" or tensors.is_tensor(value)
  check(is_scalar, "type", "summarize_scalar: expected a number or a tensor, found %s", show(value))
  keep.scalar(name, value)
end

---Records a tensor of the step under a name, for `save_summaries`.
---@param name string
---@param tensor any
function summaries.summarize_tensor(name, tensor)
  check_name("summarize_tensor", name)
  check(tensors.is_tensor(tensor), "type", "summarize_tensor: expected a tensor, found %s", show(tensor))
  keep.tensor(name, tensor)
end

---Writes the values recorded in this step. Call this in a step closure.
---@param writer cstorch.utils.SummaryWriter
---@param step integer
function summaries.save_summaries(writer, step)
  check(class.is_a(writer, SummaryWriter), "type", "save_summaries: expected a SummaryWriter, found %s", show(writer))
  check_step("save_summaries", step)
  local noted = collected()
  for name, value in pairs(noted.scalar) do writer:_write_scalar(name, value, step) end
  for name, tensor in pairs(noted.tensor) do
    require("cstorch.run.checkpoint").save({ tensor = tensor }, tensor_path(writer.log_dir, name, step))
  end
  session.summaries = nil
end

return summaries

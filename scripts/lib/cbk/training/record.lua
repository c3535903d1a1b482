-- What a run leaves behind besides checkpoints, in its folder: params.yaml and run.json (what it was started with), metrics.jsonl,
-- TensorBoard's events.out.tfevents.*, and metrics.svg at the end.

local cbk = require "cbk"
local curves = require "cbk.plot.curves"
local kinds = require "converters.engine.kinds"
local numbers = require "cbk.numbers"
local systems = require "cstorch.run.systems"

---@class RunRecord
---@field dir string
---@field private metrics? file*   nil: another rank writes
---@field private events? file*
local Record = {}
Record.__index = Record

local record = {}

local FACTS = { "model", "parameters", "seed", "samples", "first_step", "last_step", "command" }
local ARE_COUNTS = { parameters = true, seed = true, samples = true, first_step = true, last_step = true }
local PARAMS, RUN, METRICS, PICTURE = "params.yaml", "run.json", "metrics.jsonl", "metrics.svg"

---@class RunFacts            What run.json says.
---@field model string         its name and class
---@field parameters integer
---@field seed integer
---@field samples integer       of the training data
---@field first_step integer   steps that the model was trained before this run began
---@field last_step integer    that it is to reach
---@field command string       that starts and resumes it

---@param path string
---@param mode string
---@return file*
local function open(path, mode)
  local file, problem = io.open(path, mode)
  if not file then cbk.fail("io", ("cannot write %s: %s"):format(cbk.quote(path), problem), { file = path }) end
  return file
end

---@param value any   of JSON
local function is_count(value)
  local number = tonumber(tostring(value))
  return type(value) ~= "string" and number ~= nil and number >= 0 and number == math.floor(number) and number < 2 ^ 53
end

local NOT_FINITE = { nan = true, inf = true, ["-inf"] = true }

---What is wrong with a line of metrics.jsonl; nil if nothing is.
---@param row any
---@return string|nil
local function problem_of(row)
  if not kinds.is_dict(row) then return ("expected an object such as {\"step\": 1, \"loss\": 2.5}, found %s"):format(cbk.json(row)) end
  if row.step == nil then return "it has no 'step'" end
  if not is_count(row.step) then return ("expected a whole number from 0 in 'step', found %s"):format(cbk.json(row.step)) end
  for name, value in cbk.items(row) do
    local is_number = NOT_FINITE[value] or type(value) ~= "string" and tonumber(tostring(value)) ~= nil
    if not is_number then return ("expected a number in '%s', found %s"):format(cbk.shown(name), cbk.json(value)) end
  end
end

---The lines of metrics.jsonl: none if there is no such file. A last line that a killed run left unfinished is not one.
---@param dir string
---@return Dict[]
function record.read(dir)
  local path, out = cbk.fs.join(dir, METRICS), {}
  if not cbk.fs.exists(path) then return out end
  for line in cbk.fs.read(path):gmatch "([^\n]*)\n" do
    local fine, row = pcall(cbk.parse_json, line)
    local problem = fine and problem_of(row) or not fine and "it is not JSON"
    if problem then
      cbk.fail("format", ("%s, line %d: %s"):format(cbk.quote(path), #out + 1, problem),
        { file = path, advice = "remove the line, or name another folder for the run" })
    end
    out[#out + 1] = row
  end
  return out
end

---Whether `cbk train` recorded a run in a folder.
---@param dir string
---@return boolean
function record.is_run(dir) return cbk.fs.exists(cbk.fs.join(dir, RUN)) and cbk.fs.exists(cbk.fs.join(dir, METRICS)) end

---The facts of a run that began in this folder; nil if none did.
---@param dir string
---@return RunFacts|nil
function record.facts(dir)
  local path = cbk.fs.join(dir, RUN)
  if not cbk.fs.exists(path) then return nil end
  local read, out = cbk.config.load(path), {}
  if not kinds.is_dict(read) then cbk.fail("format", ("%s has no fields: it is not of a run"):format(cbk.quote(path)), { file = path }) end
  for _, name in ipairs(FACTS) do
    local value = read[name]
    if value == nil then
      cbk.fail("format", ("%s has no '%s': it is not of a run of this version"):format(cbk.quote(path), name), { file = path })
    end
    local expected = ARE_COUNTS[name] and not is_count(value) and "a whole number from 0"
      or not ARE_COUNTS[name] and type(value) ~= "string" and "a text"
    if expected then
      cbk.fail("format", ("%s: expected %s in '%s', found %s"):format(cbk.quote(path), expected, name, cbk.json(value)),
        { file = path, field = name, advice = "write it as `cbk train` did, or name another folder for the run" })
    end
    out[name] = ARE_COUNTS[name] and tonumber(tostring(value)) or value
  end
  return out
end

---The params.yaml of the run; nil if it is not there.
---@param dir string
---@return string|nil
function record.config(dir)
  local path = cbk.fs.join(dir, PARAMS)
  return cbk.fs.exists(path) and cbk.fs.read(path) or nil
end

local held = {} -- folders, by their paths

---Keeps a folder for this run until the program ends. Fails if another run has it.
---@param dir string   which exists
function record.hold(dir)
  local path = cbk.fs.real(dir)
  if cbk.team_place() > 0 or held[path] then return end -- the first rank holds it for all
  if not cbk.fs.hold(path) then
    cbk.fail("exists", ("cannot train in %s: another run, which has not ended, has this folder"):format(cbk.quote(dir)),
      { file = dir, advice = "wait until it has ended, or name another folder with --model-dir" })
  end
  held[path] = true
end

---Begins to record a run, or goes on behind `step`: what was recorded of later steps is trained again, and removed. Of several ranks,
---the first one adds numbers; whole files are written by all of them together.
---@param dir string
---@param step integer        done so far
---@param options { params: string, facts: RunFacts }   the file, and what starts the run
---@return RunRecord
function record.begin(dir, step, options)
  cbk.fs.mkdir(dir)
  record.hold(dir)
  local kept = {}
  for _, row in ipairs(record.read(dir)) do
    if tonumber(tostring(row.step)) <= step then kept[#kept + 1] = cbk.json(row) .. "\n" end
  end
  local facts = {}
  for i, name in ipairs(FACTS) do facts[i] = { name, options.facts[name] } end
  cbk.fs.write(cbk.fs.join(dir, METRICS), table.concat(kept), { overwrite = true })
  cbk.fs.write(cbk.fs.join(dir, PARAMS), cbk.fs.read(options.params), { overwrite = true })
  cbk.fs.write(cbk.fs.join(dir, RUN), cbk.json(cbk.dict(facts), { indent = 2 }) .. "\n", { overwrite = true })
  if cbk.team_place() > 0 then return setmetatable({ dir = dir }, Record) end
  local events = open(cbk.fs.join(dir, ("events.out.tfevents.%d.%d.cbk"):format(os.time(), step)), "ab")
  events:write(cbk.tensorflow.event(os.time()))
  return setmetatable({ dir = dir, metrics = open(cbk.fs.join(dir, METRICS), "a"), events = events }, Record)
end

---Writes at once, so that a run that is killed leaves whole records.
---@param self RunRecord
---@param file file*
---@param bytes string
local function write(self, file, bytes)
  local fine, problem = file:write(bytes)
  if fine then fine, problem = file:flush() end
  if not fine then cbk.fail("io", ("cannot record the run in %s: %s"):format(cbk.quote(self.dir), problem), { file = self.dir }) end
end

---Adds numbers of a step.
---@param step integer
---@param members { [1]: string, [2]: number }[]   names and values, in the order of the line
function Record:add(step, members)
  if not self.metrics then return end
  local row, scalars = { { "step", step } }, {}
  for i, member in ipairs(members) do
    row[i + 1], scalars[member[1]] = { member[1], numbers.json_number(member[2]) }, member[2]
  end
  write(self, self.metrics, cbk.json(cbk.dict(row)) .. "\n")
  write(self, self.events, cbk.tensorflow.event(os.time(), step, scalars))
end

local PANELS = { "loss", "eval_loss", "lr", "loss_scale", "grad_norm", "model_wise_grad_norm", "model_wise_params_norm",
  "samples_per_second" }

---Whether a number is the loss of an evaluation: "eval_loss", or "validate_0/eval_loss" of several.
---@param name string
---@return boolean
function record.is_evaluation_loss(name) return name == "eval_loss" or name:find "/eval_loss$" ~= nil end

---The names of the numbers that have a curve: the usual ones, and the losses of several evaluations.
---@param rows Dict[]
---@return string[]
local function panels_of(rows)
  local out, is_known = { unpack(PANELS) }, {}
  for _, name in ipairs(PANELS) do is_known[name] = true end
  for _, row in ipairs(rows) do
    for name in cbk.items(row) do
      if record.is_evaluation_loss(name) and not is_known[name] then out[#out + 1], is_known[name] = name, true end
    end
  end
  return out
end

---The curves of a run's numbers.
---@param dir string
---@return Curve[]
function record.curves(dir)
  local out = {}
  local rows = record.read(dir)
  for _, name in ipairs(panels_of(rows)) do
    local curve = { name = name, steps = {}, values = {} }
    for _, row in ipairs(rows) do
      if row[name] ~= nil then
        curve.steps[#curve.steps + 1] = tonumber(tostring(row.step))
        curve.values[#curve.values + 1] = tonumber(tostring(row[name])) or 0 / 0
      end
    end
    if curve.steps[2] then out[#out + 1] = curve end
  end
  return out
end

---Ends the record, with a picture of it.
---@param title string
---@return Curve[]
function Record:finish(title)
  if self.metrics then
    self.metrics:close()
    self.events:close()
  end
  systems.exchange(true) -- the file is whole before others read it
  local list = record.curves(self.dir)
  local picture = curves.figure(title, list, { width = 800, height = 260 })
  if list[1] then cbk.fs.write(cbk.fs.join(self.dir, PICTURE), picture:svg(), { overwrite = true }) end
  return list
end

return record

-- cbk watch: follow the checkpoints of a run as they appear

local cbk = require "cbk"
local cli = require "cbk.cli"
local colour = require "cbk.colour"
local editor = require "cbk.editor"
local errors = require "cbk.errors"
local folder = require "cbk.watch.folder"
local lines = require "cbk.watch.lines"
local looks = require "cbk.watch.looks"
local measure = require "cbk.watch.measure"
local numbers = require "cbk.numbers"
local progress = require "cbk.progress"

local parser = cli.parser("watch", "Follow the checkpoints of a run as they appear, one line each.", [[
A line has the step in the name, the time of the file, the number of tensors, the norm of all weights,
how far they moved since the line before (the norm of the difference over the norm that they had there),
how many elements are NaN or infinite, the learning rate and the loss scale. Below it are new and removed
tensors, tensors with NaN that had none before, and those that moved more than 10 times as far as the median.

Checkpoints are files and folders with a step in their name: checkpoint_1000.mdl, checkpoint-1000/,
epoch=1-step=2000.ckpt, global_step1000/. One is read once it can be opened and its sizes and times
are the same in two looks. A file that stays damaged is a line with the error. The last checkpoint
stays open until the next one is compared with it: if you delete it earlier, its space on the disk is
freed only then.

Ctrl-C ends it, with the exit status 0. With --once, the exit status is 1 if a checkpoint cannot be read.

examples:
  cbk watch model_dir
  cbk watch model_dir --last 3 --interval 30
  cbk watch model_dir --once --json]])
parser:argument("dir", "the folder of the run; it may appear later"):argname "DIR"
parser:option("--last", "of the checkpoints that exist already, show the last N only (default: all)"):argname("N")
  :convert(cli.whole_number "--last")
parser:option("--interval", "look again after so many seconds (default: 2)"):argname("SECONDS"):convert(function(text)
  local seconds = tonumber(text)
  if seconds and seconds >= 0.01 and seconds <= 86400 then return seconds end
  return nil, ("--interval %s: expected seconds from 0.01 to 86400"):format(cbk.quote(text))
end)
parser:flag("--once", "end after the checkpoints that exist already")
parser:flag("--all", "also watch tensors that are not the model's, such as states of an optimizer")
cli.options(parser, "allow-records", "allow-external", "max-expansion", "io", "no-progress-bar", "json")
local args = parser:parse()

local INTERVAL = args.interval or 2
local UNREADABLE = 1

if cbk.fs.exists(args.dir) and not cbk.fs.is_dir(args.dir) then
  cli.usage_error("watch", ("%s is a file; name the folder that it is in"):format(cbk.quote(args.dir)))
end
if args.once and not cbk.fs.exists(args.dir) then
  cbk.fail("io", ("cannot watch %s: there is no such folder"):format(cbk.quote(args.dir)), { file = args.dir })
end
-- A trainer may write a file again while it is read. Read through a mapping, that would end the program.
if not args.io then cbk.read_by "pread" end

-- --- results

local style = { width = cli.columns(), colours = colour.enabled() }
local has_titles = false

local function print_lines(list)
  if cbk.terminal.is_tty "stderr" then cbk.terminal.progress "" end
  for _, line in ipairs(list) do io.stdout:write(line, "\n") end
  io.stdout:flush()
end

local function json_line(one, more)
  local out = cbk.dict { { "checkpoint", one.path }, { "step", numbers.json_whole(one.step) }, { "time", one.time } }
  for _, member in ipairs(more) do out[member[1]] = member[2] end
  print_lines { cbk.json(out, { shown = true }) }
end

---@param list MeasuredTensor[]
local function json_tensors(list)
  local out = cbk.list()
  for i, one in ipairs(list) do
    out[i] = cbk.dict { { "key", one.key } }
    for _, name in ipairs { "count", "moved", "before", "after" } do
      local value = one[name]
      out[i][name] = type(value) == "number" and numbers.json_number(value) or value
    end
  end
  return out
end

local function number_of(text) return tonumber(text) and numbers.json_number(tonumber(text)) or text end

---@param one WatchedCheckpoint
---@param m Measured
local function print_json(one, m)
  local rates, changed = cbk.list(), {}
  for i, text in ipairs(m.learning_rates) do rates[i] = number_of(text) end
  for _, list in ipairs { m.shapes, m.dtypes } do
    for _, tensor in ipairs(list) do changed[#changed + 1] = tensor end
  end
  json_line(one, {
    { "tensors", m.tensors }, { "bytes", numbers.json_whole(m.bytes) }, { "norm", numbers.json_number(m.norm) },
    { "moved", m.moved and numbers.json_number(m.moved) }, { "nan", numbers.json_whole(m.nan) },
    { "inf", numbers.json_whole(m.inf) }, { "learning_rates", rates }, { "loss_scale", m.loss_scale and number_of(m.loss_scale) },
    { "new", cbk.list(m.added) }, { "gone", cbk.list(m.removed) }, { "changed", json_tensors(changed) },
    { "broken", json_tensors(m.broken) }, { "far", json_tensors((lines.far(m))) }, { "unreadable", m.unreadable.count },
  })
end

local function print_measured(one, m)
  if args.json then return print_json(one, m) end
  if not has_titles then print_lines { lines.titles(style.width) } end
  has_titles = true
  print_lines(lines.of(one, m, style))
end

local function print_problem(one, problem)
  if args.json then return json_line(one, { { "error", cbk.config.parse(cbk.error_json(problem), "json").error } }) end
  if not has_titles then print_lines { lines.titles(style.width) } end
  has_titles = true
  print_lines { lines.problem(one, errors.text(problem), style) }
end

-- --- watching

local watched = looks.new(args.dir, { interval = INTERVAL, allowed = args.allow_external, last = args.last, only_first = args.once })
local previous, status = nil, 0 ---@type { opened: OpenedCheckpoint, one: WatchedCheckpoint }|nil, integer

---Forgets the checkpoint before if it was written again: what it had is no longer there. One that was removed can still be read.
local function check_previous()
  local mark = previous and cbk.fs.exists(previous.one.path) and folder.mark(previous.one.path)
  if mark and mark ~= previous.one.mark then previous = nil end
end

---@param one WatchedCheckpoint
local function measured(one)
  local opened = measure.open(one.path, cli.reading(args), args.all)
  check_previous()
  local has_progress = cli.has_progress(args) and cbk.terminal.is_tty "stderr"
  local show = has_progress and progress.reading(opened.bytes) or function() end
  local fine, result = pcall(measure.of, opened, previous and previous.opened, show)
  local had_previous = previous ~= nil
  check_previous()
  if not fine and had_previous and not previous then result = measure.of(opened, nil, show) elseif not fine then error(result, 0) end
  show()
  if previous then previous.opened.checkpoint:close() end
  previous = { opened = opened, one = one }
  return result
end

---@param one WatchedCheckpoint
---@return boolean is_shown   false: it may be unfinished
local function show(one)
  local fine, result = not one.problem, one.problem
  if fine then fine, result = pcall(measured, one) end
  if not fine and (type(result) ~= "table" or result.code == "interrupted" or result.code == "internal") then error(result, 0) end
  if fine then
    print_measured(one, result)
  elseif not one.problem and watched:may_grow(one) then
    return false
  else
    status = UNREADABLE
    print_problem(one, result)
  end
  watched:set_done(one)
  return true
end

---@param ready WatchedCheckpoint[]   in their order
---@return integer count   of those that were shown
local function show_all(ready)
  for i, one in ipairs(ready) do
    if not show(one) then return i - 1 end
  end
  return #ready
end

local is_waiting_for_folder = false

local function say_waiting()
  if args.json or watched.exists then return end
  if not is_waiting_for_folder then io.stderr:write(("there is no folder %s yet: waiting for it\n"):format(cbk.quote(args.dir))) end
  is_waiting_for_folder = true
end

local function watch()
  local count = 0
  while true do
    local ready, unsettled = watched:look()
    local shown = show_all(ready)
    count = count + shown
    if args.once and unsettled == 0 and shown == #ready then break end
    say_waiting()
    cbk.sleep(INTERVAL)
  end
  if count == 0 and args.last ~= 0 then
    cbk.fail("missing", ("%s has no checkpoint with a step in its name, such as checkpoint_1000.mdl or checkpoint-1000/"):format(
      cbk.quote(args.dir)), { file = args.dir })
  end
end

-- Ctrl-C ends the call alone.
local fine, failure = editor.call(watch)
local is_interrupted = not fine and type(failure[1]) == "table" and failure[1].code == "interrupted"
if not fine and not is_interrupted then error(failure[1], 0) end
if cbk.terminal.is_tty "stderr" then cbk.terminal.progress "" end
return args.once and not is_interrupted and status or 0

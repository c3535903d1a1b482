-- Commands that run again, up to their commit: jobs, whose work may be interrupted, or done by several programs (host/streaming/job.hpp),
-- and replays, which compute what was written (scripts/verify.lua).

local cbk = require "cbk"
local commands = require "cbk.commands"
local compiler = require "cbk.compiler"

local job = {}

local OWN = { ["--plan"] = 1, ["--resume"] = 0 } -- options of a job, and how many words follow them

---The words of a command without the options of jobs: those with which every process makes the same plan.
---@param words string[]   the command's name, and its arguments
---@return string[]
function job.command_of(words)
  local out, at = {}, 1
  while at <= #words do
    local name = words[at]:match "^(%-%-[%w-]+)=" or words[at]
    if OWN[name] then
      at = at + (words[at]:find("=", 1, true) and 1 or 1 + OWN[name])
    else
      out[#out + 1], at = words[at], at + 1
    end
  end
  return out
end

---Every commit of this program is planned, and not written.
---@param command string[]   with which every process makes the same plan
---@param folder string
function job.plan(command, folder) cbk.set_job { folder = folder, action = "plan", command = command } end

---Every commit of this program goes on where a killed one was.
---@param command string[]
function job.resume(command) cbk.set_job { action = "run", command = command } end

---@class JobStep   What a program did of a job, or of a replay.
---@field is_plan boolean
---@field folder string
---@field part integer       that it wrote, from 1
---@field parts integer
---@field differences? string[]   of a replay

---How a command that is a step of a job reports: as its options say.
---@type { json?: boolean, quiet?: boolean }
job.report = {}

local function step_text(step)
  if step.differences and not step.differences[1] then return "The replay computes the same bytes" end
  if step.differences then return "The replay computes other bytes:\n  " .. table.concat(step.differences, "\n  ") end
  if not step.is_plan then return ("Part %d of %d of the job '%s' is written"):format(step.part, step.parts, step.folder) end
  return ("Planned in '%s'. Next: `cbk work %s --part K/N` for each K of N parts, then `cbk finish %s`"):format(step.folder, step.folder,
    step.folder)
end

---Ends the program at its first commit: what comes after that in a script is done by the step that commits.
---@param step JobStep
function job.end_step(step)
  if job.report.json and not step.differences then
    local out = cbk.dict { { "written", false }, { "job", step.folder } }
    if not step.is_plan then
      out.part = step.part
      out.parts = step.parts
    end
    print(cbk.json(out, { indent = 2, shown = true }))
  elseif step.differences or not job.report.quiet then
    print(step_text(step))
  end
  os.exit(step.differences and step.differences[1] and 1 or 0)
end

---@class JobPlan   The file plan.json of a job.
---@field cbk string
---@field command string[]
---@field folder string    where the command runs
---@field bytes integer
---@field items integer

---@param folder string
---@return JobPlan
function job.read(folder)
  local path = cbk.fs.join(folder, "plan.json")
  if not cbk.fs.exists(path) then
    cbk.fail("usage", ("'%s' %s: `cbk convert … --plan %s` makes one, and so do the other commands that write"):format(folder,
      cbk.fs.exists(folder) and "is not a job" or "does not exist, but should be a job", folder))
  end
  local fine, plan = pcall(cbk.config.load, path)
  local words = {}
  local has_all = fine and cbk.kind(plan) == "dict" and cbk.kind(plan, "command") == "list" and type(plan.folder) == "string"
    and tonumber(plan.bytes) and tonumber(plan.items)
  for i, word in cbk.items(has_all and plan.command or cbk.list()) do words[i] = type(word) == "string" and word or nil end
  if not words[1] then
    cbk.fail("format", ("'%s' is not the plan of a job, or damaged: remove the folder, and begin again with --plan"):format(path))
  end
  return { cbk = plan.cbk, command = words, folder = plan.folder, bytes = tonumber(plan.bytes), items = tonumber(plan.items) }
end

local NO_WRITERS = { work = true, finish = true, status = true, verify = true, demo = true, repl = true, help = true, complete = true }

--- Runs a command again, in this program.
local function run(words)
  if NO_WRITERS[words[1]] then cbk.fail("usage", ("the command '%s' writes no output that can be made in steps"):format(words[1])) end
  local is_script = words[1] == "run"
  local script = is_script and words[2] or commands[words[1]]
  if not script then cbk.fail("usage", ("the command '%s' is unknown"):format(words[1])) end
  _G.arg = { [0] = is_script and script or words[1], unpack(words, is_script and 3 or 2) }
  if is_script then
    setmetatable(_G, nil) -- scripts of one's own may have globals
    package.path = cbk.fs.join(cbk.fs.dirname(cbk.fs.absolute(script)), "?.lua") .. ";" .. package.path
    compiler.start()
  end
  local chunk, why = loadfile(script)
  if not chunk then error(why, 0) end
  return chunk(unpack(_G.arg))
end

---Runs the planned command as a step of its job: up to its commit, or with it.
---@param folder string
---@param action "work"|"finish"
---@param part? integer   from 1
---@param parts? integer
function job.run(folder, action, part, parts)
  if action == "finish" and cbk.complete_job(folder) then return 0 end
  local plan = job.read(folder)
  cbk.set_job { folder = folder, action = action, part = part, parts = parts, command = plan.command, directory = plan.folder }
  local result = run(plan.command)
  if cbk.has_job() then cbk.fail("usage", ("the command of the job '%s' has written nothing"):format(folder)) end
  return result
end

local function has(words, wanted)
  for _, word in ipairs(words) do
    if word == wanted then return true end
  end
  return false
end

---Runs the command of a provenance again, up to the commit of its output, and compares instead of writing.
---@param path string   of the provenance
function job.replay(path)
  local words, folder, output = cbk.provenance_command(path)
  -- Other commands do not write by commits.
  if words[1] ~= "run" and not has(words, "--provenance") then
    cbk.fail("format", ("'%s': the command '%s' does not write a provenance"):format(path, cbk.shown(words[1] or "")))
  end
  if words[1] ~= "run" then words[#words + 1] = "--overwrite" end -- the output is there, and is not written
  if not cbk.fs.is_dir(folder) then
    cbk.fail("missing", ("'%s': the folder '%s', in which the command ran, is not there"):format(path, cbk.shown(folder)))
  end
  cbk.set_job { action = "replay", command = words, directory = folder, provenance = cbk.fs.absolute(path), output = output }
  run(words)
  cbk.fail("changed", ("the command in '%s' has not written '%s' again"):format(path, cbk.shown(output)))
end

return job

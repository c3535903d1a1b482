-- cbk status: how far a job is

local cbk = require "cbk"
local cli = require "cbk.cli"
local job = require "cbk.job"

local parser = cli.parser("status", "Show how far a job is: its parts, their speed, and the time that is left.", [[
With --json, `seconds_left` is null as long as nothing is written.

examples:
  cbk status job
  cbk status job --json]])
parser:argument("job", "the folder of the job")
cli.options(parser, "json")
local args = parser:parse()

local plan = job.read(args.job)
local begun, journals = cbk.job_journals(args.job)
local parts, order, done, last = {}, {}, 0, begun
for _, journal in ipairs(journals) do
  local name = journal.name:match "^part%-(.-)%."
  if not parts[name] then
    parts[name] = { bytes = 0, modified = 0 }
    order[#order + 1] = name
  end
  parts[name].bytes = parts[name].bytes + journal.bytes
  parts[name].modified = math.max(parts[name].modified, journal.modified)
  done, last = done + journal.bytes, math.max(last, journal.modified)
end
local seconds = math.max(last - begun, 1)
local speed = done / seconds
local left = speed > 0 and (plan.bytes - done) / speed or nil

if args.json then
  local list = {}
  for i, name in ipairs(order) do list[i] = { part = name, bytes = parts[name].bytes, modified = parts[name].modified } end
  cli.print_json { bytes = plan.bytes, done = done, bytes_per_second = speed, seconds_left = left, parts = list, command = plan.command }
  return
end
table.sort(order, function(a, b)
  local function numbers(name) return tonumber(name:match "of%-(%d+)") or 0, tonumber(name:match "^%d+") or 0 end
  local of_a, a_number = numbers(a)
  local of_b, b_number = numbers(b)
  if of_a ~= of_b then return of_a < of_b end
  return a_number < b_number
end)
print(("cbk %s"):format(cbk.shown(table.concat(plan.command, " "))))
for _, name in ipairs(order) do
  print(("  part %-9s %s"):format(name:gsub("%-of%-", "/"), cbk.format_size(parts[name].bytes)))
end
print(("%s of %s written (%.0f %%), %s/s%s"):format(cbk.format_size(done), cbk.format_size(plan.bytes),
  plan.bytes > 0 and 100 * done / plan.bytes or 100, cbk.format_size(math.floor(speed)),
  left and done < plan.bytes and (", about %d s left"):format(math.ceil(left)) or ""))

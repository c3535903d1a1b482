-- cbk verify: check that an output still has the bytes that were written

local cbk = require "cbk"
local cli = require "cbk.cli"
local job = require "cbk.job"

local parser = cli.parser("verify", "Check an output that was written with --provenance.", [[
All bytes are read, and compared with the digests in OUTPUT.provenance.json: differences are printed, and the exit status is 1. The output
may have got another name, together with that file. With --replay, the command that made the output runs again from its sources, up to the
place where it writes the output, and what it computes is compared; the output is not written. The command is the one in the
.provenance.json file: if it runs a script, the script has all your rights.

examples:
  cbk copy model.mdl model.safetensors --weights --provenance
  cbk verify model.safetensors
  cbk verify model.safetensors --replay]])
parser:argument("output", "a checkpoint, a folder of shards, or the .provenance.json of one")
parser:flag("--replay", "run the command again, and compare what it computes; asks before that")
parser:flag("--yes", "with --replay: do not ask")
cli.options(parser, "json")
local args = parser:parse()

local path = args.output:find "%.provenance%.json$" and args.output or args.output:gsub("/+$", "") .. ".provenance.json"
if not cbk.fs.exists(path) then
  if not cbk.fs.exists(args.output) then
    cbk.fail("missing", ("cannot verify %s: no such file or folder"):format(cbk.quote(args.output)))
  end
  cbk.fail("missing", ("there is no '%s': pass --provenance to the command that writes the output"):format(path))
end
local output = path:gsub("%.provenance%.json$", "")

---A word of a command line, as a shell would need it.
local function word_text(word)
  if word:find "^[%w_./=+:,@%-]+$" then return word end
  return "'" .. word:gsub("'", "'\\''") .. "'"
end

local different = cbk.provenance_differences(path, output)
if args.replay then
  if args.json then cli.usage_error("verify", "--json cannot be used with --replay") end
  for _, line in ipairs(different) do print(line) end
  if #different > 0 then return 1 end
  local words, folder = cbk.provenance_command(path)
  for i, word in ipairs(words) do words[i] = cbk.shown(word_text(word)) end
  local command = table.concat(words, " ")
  local question = ("The command in '%s', which ran in '%s':\n  cbk %s\nRun it?"):format(path, cbk.shown(folder), command)
  if not cli.confirmed(args, question) then return 1 end
  return job.replay(path)
end
if args.json then
  cli.print_json { equal = #different == 0, different = cbk.list(different) }
else
  for _, line in ipairs(different) do print(line) end
  print(#different == 0 and "The bytes are those that were written"
    or ("%d difference%s"):format(#different, #different == 1 and "" or "s"))
end
return #different == 0 and 0 or 1

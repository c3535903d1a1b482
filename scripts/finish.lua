-- cbk finish: commit a job whose parts are written

local cli = require "cbk.cli"
local job = require "cbk.job"

local parser = cli.parser("finish", "Check that all parts of a job are written, and give its output its name.", [[
If parts are missing, the error lists their numbers. If none is, this is the last step of the planned
command: its output appears, whole, and the job's folder is removed.

examples:
  cbk status job
  cbk finish job]])
parser:argument("job", "the folder of the job")
local args = parser:parse()

return job.run(args.job, "finish")

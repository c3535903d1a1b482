-- cbk work: write a part of a planned job

local cli = require "cbk.cli"
local job = require "cbk.job"

local parser = cli.parser("work", "Write a part of a job that was planned with --plan.", [[
Parts may be written in any order, at the same time, on any machine that sees the files, and twice without harm. A part that was killed
continues where it was. In a task of a Slurm array, or under srun or mpirun, the part follows from the task's number.

examples:
  cbk convert llama --to cs-2.4 -o out --plan job
  cbk work job --part 1/2
  cbk work job --part 2/2
  cbk finish job]])
parser:argument("job", "the folder of the job")
parser:option("--part", "the part to write, such as 3/16 (default: from SLURM_ARRAY_TASK_ID, the rank of mpirun, or SLURM_PROCID)")
  :argname "K/N"
local args = parser:parse()

--- The part of a task of Slurm: of an array, or of several that `srun` or `mpirun` started.
local function part_of_task()
  local function number(name) return tonumber(os.getenv(name) or "") end
  local id, count = number "SLURM_ARRAY_TASK_ID", number "SLURM_ARRAY_TASK_COUNT"
  local least, step = number "SLURM_ARRAY_TASK_MIN" or 1, number "SLURM_ARRAY_TASK_STEP" or 1
  if id and count then
    local at = (id - least) / step
    if at == math.floor(at) and at < count then return at + 1, count end
    cli.usage_error("work", ("the %d tasks of this array are not numbered in equal steps from %d, and this is task %d: pass --part K/N")
      :format(count, least, id))
  end
  for _, names in ipairs { { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" }, { "SLURM_PROCID", "SLURM_NTASKS" } } do
    local rank, tasks = number(names[1]), number(names[2])
    if rank and tasks then return rank + 1, tasks end
  end
  cli.usage_error("work", "which part? pass --part K/N (no task number of Slurm is set)")
end

job.read(args.job) -- an error of the folder comes before one of the part
local part, parts
if args.part then
  part, parts = args.part:match "^(%d+)/(%d+)$"
  part, parts = tonumber(part), tonumber(parts)
  if not part or part < 1 or parts < 1 or part > parts then
    cli.usage_error("work", ("--part expects K/N with K from 1 to N, such as 3/16, found '%s'"):format(args.part))
  end
else
  part, parts = part_of_task()
end
return job.run(args.job, "work", part, parts)

-- --shard-by: the file for each tensor.

local cbk = require "cbk"
local cli = require "cbk.cli"

local shard_by = {}

---Adds the option.
function shard_by.option(parser)
  parser:option("--shard-by", "write the tensors of each GLOB to a file of their own, the rest to a last one; may be repeated")
    :argname("GLOB"):count "*"
end

---The numbers of files by the names of tensors. The first matching glob is used.
---@param command string
---@param args { shard_by: string[], shard_size: any }
---@param names string[]
---@return table<string, integer>|nil   nil without the option
function shard_by.shards(command, args, names)
  if #args.shard_by == 0 then return nil end
  if args.shard_size then cli.usage_error(command, "--shard-by and --shard-size: only one of them can be used") end
  local tests, out = {}, {}
  for i, glob in ipairs(args.shard_by) do tests[i] = { matches = cbk.glob(glob), below = cbk.glob(glob .. "[./]*"), hits = 0 } end
  for _, name in ipairs(names) do
    for i, test in ipairs(tests) do
      if not out[name] and (test.matches(name) or test.below(name)) then out[name], test.hits = i, test.hits + 1 end
    end
  end
  for i, test in ipairs(tests) do
    if test.hits == 0 then cbk.fail("key", ("--shard-by %s matches no tensor that is left for it"):format(cbk.quote(args.shard_by[i]))) end
  end
  return out
end

return shard_by

-- cbk run tests/lua/run.lua [filter]: all tests of this folder, or those whose name contains the filter.

local cbk = require "cbk"
local harness = require "harness"

local folder = cbk.fs.dirname(arg[0])
local counts = { passed = 0, failed = 0, skipped = 0 }

local function run(name, with_busy_collector)
  dofile(cbk.fs.join(folder, name))
  for result, more in pairs(harness.run(arg[1], with_busy_collector)) do counts[result] = counts[result] + more end
end

-- What the bindings own is tested first: a collector that never rests walks the whole heap again and again.
local bindings = { "value_test.lua", "tensor_test.lua", "config_test.lua", "output_test.lua" }
for _, name in ipairs(bindings) do
  run(name, true)
  bindings[name] = true
end
for _, name in ipairs(cbk.fs.list(folder)) do
  if name:find "_test%.lua$" and not bindings[name] then run(name) end
end
print(("%d passed, %d failed, %d skipped"):format(counts.passed, counts.failed, counts.skipped))
return counts.failed == 0 and 0 or 1

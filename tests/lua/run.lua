-- cbk run tests/lua/run.lua [--part K/N] [FILTER]: all tests of this folder, those of every N-th file, or those whose names contain FILTER.

local cbk = require "cbk"
local harness = require "harness"

local folder = cbk.fs.dirname(arg[0])
local counts = { passed = 0, failed = 0, skipped = 0 }
local words = { ... }
local part, parts = 1, 1
if words[1] == "--part" then
  part, parts = words[2]:match "^(%d+)/(%d+)$"
  part, parts, words = tonumber(part), tonumber(parts), { unpack(words, 3) }
end

local function run(name, with_busy_collector)
  dofile(cbk.fs.join(folder, name))
  for result, more in pairs(harness.run(words[1], with_busy_collector)) do counts[result] = counts[result] + more end
end

-- What the bindings own is tested first: a collector that never rests walks the whole heap again and again.
local bindings = { "value_test.lua", "tensor_test.lua", "config_test.lua", "output_test.lua" }
local is_binding = {}
for i, name in ipairs(bindings) do
  is_binding[name] = true
  if i % parts == part % parts then run(name, true) end
end
local number = 0
for _, name in ipairs(cbk.fs.list(folder)) do
  if name:find "_test%.lua$" and not is_binding[name] then
    number = number + 1
    if number % parts == part % parts then run(name) end
  end
end
print(("%d passed, %d failed, %d skipped"):format(counts.passed, counts.failed, counts.skipped))
if counts.passed + counts.failed + counts.skipped == 0 then print "no test has such a name" end
return counts.failed == 0 and counts.passed > 0 and 0 or 1

-- cbk run tests/lua/run.lua [filter]: all tests of this folder, or those whose name contains the filter.

local cbk = require "cbk"
local harness = require "harness"

local folder = cbk.fs.dirname(arg[0])
for _, name in ipairs(cbk.fs.list(folder)) do
  harness.busy_collector(false)
  if name:find "_test%.lua$" then dofile(cbk.fs.join(folder, name)) end
end
local failed = harness.run(arg[1])
return failed == 0 and 0 or 1

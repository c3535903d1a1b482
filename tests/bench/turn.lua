-- Every matrix transposed: cbk run turn.lua IN OUT [--include GLOB]
local cbk = require "cbk"
local out = cbk.create(arg[2])
for key, t in cbk.open(arg[1]):tensors(arg[4]) do
  out[key] = t:dim() == 2 and t:transpose(0, 1) or t
end
out:commit { progress = false }

-- cstorch.distributed: the processes that run a script together.

local cbk = require "cbk"
local namespace = require "cstorch.namespace"

local distributed = {}

---How many processes run this script together: the ranks that `mpirun` or `srun` started, or 1.
---@return integer
function distributed.get_world_size() return (select(2, cbk.team_place())) end

---The number of this process among them, from 0. Rank 0 alone prints.
---@return integer
function distributed.get_rank() return (cbk.team_place()) end

return namespace("cstorch.distributed", distributed)

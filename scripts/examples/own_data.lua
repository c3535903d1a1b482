-- A data loader of your own that a run can continue: numbers and their squares, made when they are needed. The first loop stops
-- after three batches; a second one continues behind it.
--
--   cbk run scripts/examples/own_data.lua

local cstorch = require "cstorch"

local Squares = cstorch.class.Object:subclass("Squares", { count = cstorch.REQUIRED, batch_size = cstorch.REQUIRED })

function Squares:init(kw) self.count, self.batch_size, self.done = kw.count, kw.batch_size, 0 end

function Squares:length() return math.floor(self.count / self.batch_size) end -- batches of an epoch

function Squares:iter() -- from where the last iteration stopped, to the end of the epoch
  local has_begun = false
  return function()
    local first = self.done % (self.batch_size * self:length())
    if first == 0 and has_begun then return nil end
    self.done, has_begun = self.done + self.batch_size, true
    local x = cstorch.arange(first, first + self.batch_size):unsqueeze(1)
    return { x, x * x }
  end
end

-- These four make it restartable: the state of each worker, and that of all together.
function Squares:state_dict() return { done = self.done } end
function Squares:load_state_dict(state) self.done = state.done end
function Squares:aggregate_state_dict(states) return states[1] end -- luacheck: no unused args
function Squares:deaggregate_state_dict(state) return state end -- luacheck: no unused args

local function loader(steps)
  return cstorch.utils.data.DataLoader(function() return Squares { count = 12, batch_size = 2 } end, { num_steps = steps })
end

local function show(from)
  for i, batch in from:iter() do print(("batch %d: %s"):format(i, table.concat(batch[2]:flatten():tolist(), " "))) end
end

cstorch.backend "CPU"
local first = loader(3)
show(first)
local second = loader(4)
second:load_state_dict(first:state_dict())
show(second)

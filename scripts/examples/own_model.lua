-- A model of your own: letters of a text, from the two letters before. Trains it, prints the loss, and lets it write.
--
--   cbk run scripts/examples/own_model.lua

local cstorch = require "cstorch"
local nn, F = cstorch.nn, cstorch.nn.functional

local TEXT = ("she sells sea shells on the sea shore; "):rep(8)

local Letters = nn.Module:subclass "Letters"

function Letters:init(width)
  Letters.super.init(self)
  self.embedding = nn.Embedding(128, width) -- assigning a module or a parameter registers it
  self.hidden = nn.Linear(2 * width, 4 * width)
  self.head = nn.Linear(4 * width, 128)
end

---@param ids cstorch.Tensor   [batch, 2]
function Letters:forward(ids) return self.head(F.relu(self.hidden(self.embedding(ids):reshape { ids:size(0), -1 }))) end

local before, after = {}, {}
for i = 3, #TEXT do before[i - 2], after[i - 2] = { TEXT:byte(i - 2, i - 1) }, TEXT:byte(i) end
local batch = { cstorch.tensor(before, { dtype = "int64" }), cstorch.tensor(after, { dtype = "int64" }) }

cstorch.manual_seed(1)
local model = Letters(16)
local compiled = cstorch.compile(model, { backend = "CPU" })
local optimizer = cstorch.optim.AdamW(model:parameters(), { lr = 0.01 })
local loader = cstorch.utils.data.DataLoader(function() return { batch } end, { num_steps = 60 })
for i, one in loader:iter() do
  local loss = F.cross_entropy(compiled(one[1]), one[2])
  cstorch.amp.optimizer_step(loss, optimizer)
  if i % 20 == 0 then print(("step %d: loss %.4f"):format(i, loss:item())) end
end

local text = "sh"
cstorch.no_grad(function()
  for _ = 1, 30 do
    local ids = cstorch.tensor({ { text:byte(-2, -1) } }, { dtype = "int64" })
    text = text .. string.char(model(ids):argmax(-1):item())
  end
end)
print(text)

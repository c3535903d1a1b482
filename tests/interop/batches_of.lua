-- The batches that a run trains, in their order, as one file: cbk run batches_of.lua PARAMS STEPS OUT

local cstorch = require "cstorch"
local data = require "cbk.training.data"
local params = require "cbk.training.params"
local tasks = require "cbk.training.tasks"
local token_samples = require "cstorch.utils.data.token_samples"

local path, steps, out = unpack(arg)
local given = params.load(path)
local any_model = { limits = function() return {} end, longest = function() return math.huge end }
local loader = data.loader(given, given.fit.train_dataloader, { place = "trainer.fit.train_dataloader",
  task = tasks.of "GPT2LMHeadModel", layout = token_samples.TEXTS, module = any_model })
cstorch.backend "CPU"
local parts = { input_ids = {}, attention_mask = {}, labels = {} }
for _, batch in cstorch.utils.data.DataExecutor(loader, { num_steps = tonumber(steps) }):iter() do
  for name, list in pairs(parts) do list[#list + 1] = batch[name] end
end
local tree = {}
for name, list in pairs(parts) do tree[name] = cstorch.stack(list, 0) end
cstorch.save(tree, out)

-- The samples that a Model Zoo processor of text files makes, as JSON: cbk run samples_of.lua PARAMS COUNT

local cbk = require "cbk"
local converters = require "cbk.converters"
local data = require "cbk.training.data"
local models = require "cstorch.models"
local params = require "cbk.training.params"
local training_model = require "cbk.training.model"

converters.load()
local given = params.load(arg[1])
local own = training_model.of(given)
local module = models.trainable(own.list, 0)
local loader = data.loader(given, given.fit.train_dataloader, { place = "trainer.fit.train_dataloader", task = own.task, module = module,
  layout = training_model.task(given, own.task, module).layout })
loader:length()
local samples, out = loader.workers[1].source.samples, {}
for index = 0, tonumber(arg[2]) - 1 do
  local parts = samples:sample(index, 0)
  for name, list in pairs(parts) do parts[name] = type(list) == "table" and cbk.list(list) or list end
  out[index + 1] = cbk.dict(parts)
end
print(cbk.json(cbk.list(out)))

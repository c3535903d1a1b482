-- The logits that cbk computes: cbk run logits_of.lua MODEL FORMAT CONFIG CHECKPOINT IDS, with the ids of texts as "1 2 3,4 5 6". Prints
-- the shape in one line, then one number a line.

local cbk = require "cbk"
local classes = require "cbk.classes"
local converters = require "cbk.converters"
local models = require "cstorch.models"

local name, format, config, path, texts = unpack(arg)
converters.load()
local root = cbk.open(path).root
local given, ids = {}, {}
for key, value in cbk.items(format == "hf" and root or root.model) do given[key] = value end
for text in texts:gmatch "[^,]+" do
  local row = {}
  for id in text:gmatch "%d+" do row[#row + 1] = tonumber(id) end
  ids[#ids + 1] = row
end
local logits = models.new(classes.tensors(cbk.config.load(config), name, format), given):logits(ids)
print(table.concat(logits:shape(), " "))
for _, number in ipairs(logits:flatten():tolist()) do print(("%.9g"):format(number)) end

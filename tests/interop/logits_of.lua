-- What cbk computes: cbk run logits_of.lua MODEL FORMAT CONFIG CHECKPOINT NAME IDS [NAME IDS …], with the parts of a batch as
-- "1 2 3,4 5 6". Prints for each output its shape in one line, then one number a line.

local cbk = require "cbk"
local classes = require "cbk.classes"
local converters = require "cbk.converters"
local cstorch = require "cstorch"
local models = require "cstorch.models"

local name, format, config, path = unpack(arg)
converters.load()
local root = cbk.open(path).root
local given, batch = {}, {}
for key, value in cbk.items(format == "hf" and root or root.model) do given[key] = value end
for i = 5, #arg, 2 do
  local rows = {}
  for text in arg[i + 1]:gmatch "[^,]+" do
    local row = {}
    for id in text:gmatch "%d+" do row[#row + 1] = tonumber(id) end
    rows[#rows + 1] = row
  end
  batch[arg[i]] = cstorch.tensor(rows, { dtype = "int64" })
end
for _, output in ipairs { models.new(classes.tensors(cbk.config.load(config), name, format), given):outputs(batch) } do
  print(table.concat(output:shape(), " "))
  for _, number in ipairs(output:flatten():tolist()) do print(("%.9g"):format(number)) end
end

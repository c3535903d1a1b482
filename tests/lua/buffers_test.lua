-- Buffers that Hugging Face's classes make from the config: causal masks, numbers of positions. Files of different versions have them
-- with more or fewer dimensions; they are passed over all the same.

local cbk = require "cbk"
local catalogue = require("cbk.converters").catalogue
local conversion = require "conversion"
local harness = require "harness"
local naming = require "cbk.naming"
local tiny = require "tiny"

local describe, it = harness.describe, harness.it
local ways = tiny.newest_ways()

---A tensor of ones with `rank` dimensions, or with as many as the class has; nil if it does not have that many.
local function buffer_of(shape, rank)
  local inner = {}
  for _, extent in ipairs(shape) do
    if #inner > 0 or extent ~= 1 then inner[#inner + 1] = extent end
  end
  if #inner > rank then return nil end
  while #inner < rank do table.insert(inner, 1, 1) end
  local count, list = 1, {}
  for _, extent in ipairs(inner) do count = count * extent end
  for i = 1, count do list[i] = 1 end
  return cbk.tensor(list, { shape = inner, dtype = "float32" })
end

---The buffers of a model whose shape begins with 1, or that are numbers, each with its shape.
local function buffers_of(name, config)
  local job, out = conversion.job(name, "hf", ways[name].format), {}
  local class = catalogue.class_of(job.model, ways[name].converter, "hf")
  local tensors = class and class:tensors(config) or {}
  for _, one in ipairs(tensors) do
    local shape = {}
    for i, written in ipairs(one.extents) do shape[i] = tensors:size(written) end
    if one.buffer and (#shape == 0 or one.extents[1] == 1) then out[#out + 1] = { key = one.key, shape = shape } end
  end
  return out
end

describe("Buffers of masks and positions", function()
  local count = 0
  for _, name in ipairs(naming.sorted(ways)) do
    local config, root = tiny.model(ways[name])
    local buffers = buffers_of(name, config)
    count = count + #buffers
    local _ = #buffers > 0 and it(name .. ": may have any number of dimensions", function()
      local plain, wanted
      conversion.warnings(function() plain, wanted = conversion.run(name, "hf", ways[name].format, config, root) end)
      assert(plain ~= nil)
      for rank = 0, 4 do
        local with_buffers, made = cbk.copy(root), 0
        for _, one in ipairs(buffers) do
          with_buffers[one.key] = buffer_of(one.shape, rank)
          made = made + (with_buffers[one.key] ~= nil and 1 or 0)
        end
        local out
        conversion.warnings(function() _, out = conversion.run(name, "hf", ways[name].format, config, with_buffers) end)
        harness.equal(cbk.count(out.model), cbk.count(wanted.model), ("%s with %d buffers of rank %d"):format(name, made, rank))
        conversion.equal_tensors(wanted.model, out.model)
      end
    end)
  end

  it("are of several families", function() assert(count >= 8, count) end)

  it("of other sizes than the config says are refused", function()
    local config, root = tiny.model(ways.gpt2)
    root["transformer.h.0.attn.bias"] = conversion.counted({ 3, 3 }, 1)
    conversion.fails("'transformer.h.0.attn.bias': expected [1, 1, 4, 4] (n_positions=4), found [3, 3]", conversion.run, "gpt2", "hf",
      "cs-2.9", config, root)
  end)
end)

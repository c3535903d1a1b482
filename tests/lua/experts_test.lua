-- What the configs of mixtures of experts may say.

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"

local describe, it, raises = harness.describe, harness.it, harness.raises

describe("Mixtures of experts", function()
  for _, name in ipairs { "mixtral", "qwen3-moe" } do
    it("give a token to no more experts than there are: " .. name, function()
      local way = tiny.newest_ways()[name]
      local config, root = tiny.model(way)
      local too_many = cbk.copy(config)
      too_many.num_experts_per_tok = 9
      raises("num_experts_per_tok=9: only at most the number of experts", function()
        conversion.run(name, "hf", way.format, too_many, root)
      end)
      local converted, model = conversion.run(name, "hf", way.format, config, root)
      converted.model.moe.top_k = 9
      raises("moe.top_k=9: only at most the number of experts", function() conversion.run(name, way.format, "hf", converted, model) end)
    end)
  end
end)

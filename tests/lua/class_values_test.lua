-- Values of every kind in every field of every class: a config is described or refused in words, and no value is run.

local cbk = require "cbk"
require "cbk.converters"
local classes = require "cbk.classes"
local harness = require "harness"
local warnings = require "cbk.warnings"
local describe, it, equal = harness.describe, harness.it, harness.equal

local FILES = {
  hf = {
    "bert", "bloom", "clip", "dpr", "esm", "falcon", "gpt2", "gpt_neox", "gptj", "llama", "llava",
    "mllama", "mpt", "roberta", "t5", "vit",
  },
  zoo = { "bert", "decoder", "dpr", "llava", "mllama", "t5", "vision" },
}

local VALUES = {
  "(function() error 'it was run' end)()", "error", "hidden_size", "", "é", "1e999", true, -1, 0, 1.5, 1e300, 5, cbk.null, cbk.list {},
  cbk.list { 1 }, cbk.list { "a", "b" }, cbk.dict {}, cbk.dict { a = 1 },
}

---A config of small sizes.
local function small(one)
  local config = cbk.dict()
  for name, field in pairs(one.fields) do
    if field.kind == "size" or field.kind == "depth" then config[name] = 2 end
  end
  return config
end

---All that is asked of a class.
local function ask(one, config)
  local list = one:tensors(config)
  for _, tensor in ipairs(list) do list:mistake(tensor.key, { 1 }) end
  list:beyond "layers.9.weight"
  list:assumed_counts()
  list:assumed_biases()
  list:tied_names()
end

---What is raised that is not said about the config.
local function raw_errors(one)
  local out = {}
  for name, field in pairs(one.fields) do
    for _, key in ipairs { name, unpack(field.aliases) } do
      for _, value in ipairs(VALUES) do
        local config = small(one)
        config[name] = nil
        config[key] = value
        local fine, err = pcall(ask, one, config)
        if not fine and not (type(err) == "table" and err.code == "config") then
          out[#out + 1] = ("%s=%s: %s"):format(key, cbk.json(value), tostring(err))
        end
      end
    end
  end
  return out
end

describe("Values of configs", function()
  for side, names in pairs(FILES) do
    for _, file in ipairs(names) do
      for name, one in pairs(require(("converters.classes.%s.%s"):format(side, file))) do
        if type(one) == "table" and one.nodes then
          it(("are described or refused by %s of %s"):format(name, side), function() equal(raw_errors(one), {}) end)
        end
      end
    end
  end
end)

describe("Numbers of layers and experts that a config does not say", function()
  local sizes = {
    model_type = "qwen3_moe", vocab_size = 64, hidden_size = 16, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 4,
    intermediate_size = 32, moe_intermediate_size = 8, max_position_embeddings = 32, num_hidden_layers = 2,
  }
  for _, case in ipairs {
    { {}, "defaults are taken: num_experts=128" }, { { num_experts = 3 } }, { { num_local_experts = 3 } },
    { { num_experts = 3, num_hidden_layers = cbk.null }, "defaults are taken: num_hidden_layers=" },
  } do
    it("are named: " .. (case[2] or "none, as " .. next(case[1]) .. " is there"), function()
      local config, seen = cbk.dict(sizes), warnings.new()
      for name, value in pairs(case[1]) do config[name] = value ~= cbk.null and value or nil end
      local fine, list = seen:run(classes.tensors, config, "qwen3-moe", "hf")
      harness.equal({ fine, #list > 0, #seen.list }, { true, true, case[2] and 1 or 0 })
      if case[2] then harness.has(seen.list[1], case[2]) end
    end)
  end
end)

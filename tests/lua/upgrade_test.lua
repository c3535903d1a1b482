-- Upgrading old checkpoints: the rules of the spec fix, LoRA folding, muP configs, and `cbk upgrade` from end to end.

local python_int = require "cbk.python_int"
local spec = require "cbk.checkpoint_spec"
local harness = require "harness"

local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises

local function set(names)
  local has = {}
  for _, name in ipairs(names) do has[name] = true end
  return function(name) return has[name] == true end
end

describe("the spec fix", function()
  it("reads whole numbers as Python does", function()
    for text, number in pairs { ["7"] = 7, [" +1_000\n"] = 1000, ["-3"] = -3, ["007"] = 7 } do equal(python_int(text), number, text) end
    for _, text in ipairs { "", " ", "1.0", "1e3", "0x10", "_1", "1_", "1__0", "1 2", "+-1", "9999999999999999999" } do
      equal(python_int(text), nil, text)
    end
  end)

  it("finds the other name of a missing weight by its end", function()
    local keys = {
      "model.lm_head.weight", "optimizer.lm_head.weight", "my_ln_f.weight", "a.transformer_decoder.norm.bias", "a.ln_f.bias",
    }
    local stored = {
      "model.embedding_layer.word_embeddings.weight", "optimizer.embedding_layer.word_embeddings.weight",
      "my_transformer_decoder.norm.weight", "a.ln_f.bias",
    }
    equal(spec.missing_aliases(keys, set(stored)), {
      { key = keys[1], source = stored[1] }, { key = keys[2], source = stored[2] },
      { key = keys[3], source = stored[3] }, { key = keys[4], source = stored[4] },
    })
    equal(spec.missing_aliases(stored, set(stored)), {})
    equal(spec.alias_of "x.ln_f.weight", "x.transformer_decoder.norm.weight")
    raises("alias not found for missing key 'model.other'", function() spec.missing_aliases({ "model.other" }, set {}) end)
    raises("could not find key 'lm_head.weight'", function()
      spec.missing_aliases({ "embedding_layer.word_embeddings.weight" }, set { "model.lm_head.weight" })
    end)
    raises("could not find key", function()
      spec.missing_aliases({ "lm_head.weight", "embedding_layer.word_embeddings.weight" }, set {})
    end)
  end)

  it("counts the steps of each schedule since its milestone", function()
    local names = {
      "global_step", "lr_scheduler.last_epoch", "lr_scheduler._schedulers.0.last_epoch", "lr_scheduler._schedulers.2.last_epoch",
      "lr_scheduler._schedulers.1.last_epoch", "lr_scheduler._milestones.10", "lr_scheduler._milestones.9", "optimizer.last_epoch",
    }
    equal(spec.milestone_names(names), { "lr_scheduler._milestones.9", "lr_scheduler._milestones.10" })
    equal(spec.last_epochs(names, 100, { 30, 120 }), {
      { name = names[2], value = 100 }, { name = names[3], value = 100 }, { name = names[4], value = 0 }, { name = names[5], value = 70 },
    })
    equal(spec.last_epochs({ "lr_scheduler.4.last_epoch" }, 5, {}), { { name = "lr_scheduler.4.last_epoch", value = 5 } })
    raises("no milestone for schedule 3", function() spec.last_epochs({ "lr_scheduler.3.last_epoch" }, 5, { 1, 2 }) end)
    raises("'x' at its end is not a whole number", function() spec.milestone_names { "lr_scheduler.milestones.x" } end)
  end)
end)

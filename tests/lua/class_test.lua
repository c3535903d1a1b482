-- Model classes: what they have for a config, and how checkpoints are compared with them.

local cbk = require "cbk"
require "cbk.converters"
local class = require "converters.engine.class"
local class_tensors = require "converters.engine.class_tensors"
local fit = require "converters.engine.fit"
local conversion = require "conversion"
local harness = require "harness"
local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises

local size, depth, boolean, bias = class.kinds.size, class.kinds.depth, class.kinds.boolean, class.kinds.bias

local Made = class.new "Made" {
  fields = { words = size(7, "vocab"), width = size(), layers = depth(2), experts = size(2), tied = boolean(true), has_bias = bias(true) },
  renamed = { { "%.gamma$", ".weight" } },
  derived = function() return { inner = "4 * width" } end,
  tensors = function(c, since)
    return {
      { "embed.weight", { "words", "width" } },
      class.each("layers", "layers", {
        class.linear("up", "width", "inner", c.has_bias),
        class.each("experts", "experts", { class.norm("norm", "width", false) }),
      }),
      class.may_lack("the pooler", class.linear("pooler", "width", "width")),
      since "2.1" and { "late", { 1 }, buffer = true },
      { "head.weight", { "words", "width" }, tied = c.tied and "embed.weight" },
    }
  end,
}

local function keys_of(list)
  local out = {}
  for i, one in ipairs(list) do out[i] = one.key end
  return out
end

---How a checkpoint with the tensors of a config, but for some keys, fits the config.
local function fit_without(config, pattern, other_config)
  local keys = {}
  for _, key in ipairs(keys_of(Made:tensors(cbk.dict(other_config or config)))) do
    if not key:find(pattern) then keys[#keys + 1] = key end
  end
  return fit.of(Made:tensors(cbk.dict(config)), keys, function() end)
end

describe("Model classes", function()
  it("have tensors by what a config says, its aliases and the defaults", function()
    local list = Made:tensors(cbk.dict { width = 4, vocab = 5, layers = 1, experts = 1 })
    equal(keys_of(list), { "embed.weight", "layers.0.up.weight", "layers.0.up.bias", "layers.0.experts.0.norm.weight", "pooler.weight",
      "late", "head.weight" })
    equal(class_tensors.shape(list.by_key["layers.0.up.weight"]), { 16, 4 })
    equal(class_tensors.shape(list.by_key["embed.weight"]), { 5, 4 })
    equal(list.by_key["head.weight"].tied_to, "embed.weight")
    equal(#Made:tensors(cbk.dict { width = 4, tied = false }, { release = "2.0" }), 11)
    equal(Made:tensors(cbk.dict { width = 4, tied = false }).by_key["head.weight"].tied_to, nil)
    equal(keys_of(Made:tensors(cbk.dict { width = 4, layers = 1 }, { prefix = "model." }))[1], "model.embed.weight")
  end)

  it("take out fields that a release refuses, or warn of them", function()
    local refusing = class.new "Refusing" {
      fields = {}, removed = { old = "2.4" }, refused = { kept = "2.4", other = "2.5" }, tensors = function() return {} end,
    }
    local function heeded(release)
      local config = cbk.dict { old = 1, new = 2, kept = 3 }
      local said = conversion.warnings(function() refusing:remove_refused(config, release) end)
      return { cbk.count(config), said[1] }
    end
    equal({ heeded "2.3", heeded(nil) }, { { 3 }, { 3 } })
    equal(heeded "2.4", { 2, "the config has kept, which the Model Zoo's Refusing refuses since 2.4: remove this line to train" })
  end)

  it("refuse values that are none, and configs that describe too much", function()
    raises("width='wide': only a whole number", function() Made:tensors(cbk.dict { width = "wide" }) end)
    raises("more than 70000 tensors", function() Made:tensors(cbk.dict { width = 4, layers = 100000 }) end)
    local shapeless = class.new "Shapeless" { fields = {}, tensors = function() return { { "a.weight" } } end }
    raises("class Shapeless: the tensor 'a.weight' has no shape", function() shapeless:tensors(cbk.dict()) end)
    raises("has no 'width'", function() class_tensors.shape(Made:tensors(cbk.dict {}).by_key["embed.weight"]) end)
  end)

  it("name the fields of a wrong shape", function()
    local list = Made:tensors(cbk.dict { width = 4 })
    equal(list:mistake("layers.0.up.weight", { 16, 4 }), nil)
    equal(list:mistake("layers.0.up.weight", { 16, 5 }), "expected [16, 4] (width=4), found [16, 5]")
    local zoo = Made:tensors(cbk.dict { width = 4 }, { release = "2.4" })
    equal(zoo:mistake("model.embed.weight", { 8, 4 }), "expected [7, 4] (words is not in the config; default 7), found [8, 4]")
    equal(list:mistake("embed.weight", { 28 }), "expected [7, 4] (words=7, the default; width=4), found [28]")
    equal(list:mistake("other", { 28 }), nil)
  end)

  it("check extents of fields with dotted names, and of those that are false, and name a field as the file does", function()
    local Dotted = class.new "Dotted" {
      fields = { ["image.width"] = size(6), is_gated = boolean(false), words = size(7, "vocab") },
      derived = function(c) return { inner = { 2 * c["image.width"], "image.width", "is_gated" } } end,
      tensors = function() return { { "a", { "image.width", "words" } }, { "b", { "inner" } } } end,
    }
    for _, config in ipairs { cbk.dict { ["image.width"] = 4, vocab = 5 }, cbk.dict { image = cbk.dict { width = 4 }, vocab = 5 } } do
      local list = Dotted:tensors(config)
      equal(list:mistake("a", { 3, 5 }), "expected [4, 5] (image.width=4), found [3, 5]")
      equal(list:mistake("a", { 4, 6 }), "expected [4, 5] (vocab=5), found [4, 6]")
      equal(list:mistake("b", { 9 }), "expected [8] (image.width=4; is_gated=false, the default), found [9]")
    end
    equal(Dotted:tensors(cbk.dict { words = 3, vocab = 3 }):mistake("a", { 6, 4 }), "expected [6, 3] (words=3), found [6, 4]")
  end)

  it("know names of older files, prefixes, and what numbers are beyond a count", function()
    local list = Made:tensors(cbk.dict { width = 4 }, { release = "2.4" })
    equal(list:own_key "model.layers.1.experts.0.norm.gamma", "layers.1.experts.0.norm.weight")
    equal(Made:tensors(cbk.dict { width = 4 }):own_key "model.layers.1.experts.0.norm.gamma", nil) -- Hugging Face's names are whole
    equal(list:own_key "other", nil)
    equal(list:beyond "layers.2.up.weight", "layers=2")
    equal(list:beyond "layers.1.experts.7.norm.weight", "experts=2")
    equal(list:beyond "layers.1.other", nil)
  end)

  it("are tied to a name of the model, or to one beside theirs", function()
    local pair = { { "a", { "layers" } }, { "b", { "layers" }, tied = "a" }, { "c", { "layers" }, tied = "top" } }
    local Pair = class.new "Pair" { fields = { layers = depth(2) }, tensors = function()
      return { { "top", { "layers" } }, class.each("layers", "layers", pair) }
    end }
    local list = Pair:tensors(cbk.dict())
    equal({ list.by_key["layers.1.b"].tied_to, list.by_key["layers.1.c"].tied_to }, { "layers.1.a", "top" })
  end)

  it("fit a checkpoint that has a tied tensor under one name, and none that lacks a weight", function()
    local config = { width = 4, layers = 1 }
    equal(fit.mistakes(fit_without(config, "^$")), 0)
    equal(fit_without(config, "^head").missing, {})
    equal(fit_without({ width = 4, layers = 1, tied = false }, "^head").missing, { "head.weight" })
    equal(fit_without(config, "up%.weight").missing, { "layers.0.up.weight" })
    equal(fit_without({ width = 4, layers = 1 }, "^$", { width = 4, layers = 2 }).unknown[1], "layers.1.up.weight")
  end)

  it("let a checkpoint lack what it may lack, all of it", function()
    local found = fit_without({ width = 4 }, "pooler")
    equal({ found.missing, found.lacks[1].name, found.lacks[1].keys }, { {}, "the pooler", { "pooler.weight" } })
  end)

  it("take the checkpoint's word for biases that only a default asks for", function()
    local found = fit_without({ width = 4 }, "bias")
    equal({ found.missing, found.unsaid[1].name }, { {}, "has_bias" })
    equal(#fit_without({ width = 4, has_bias = true }, "bias").missing, 2)
    equal(fit_without({ width = 4 }, "0.up.bias").missing, { "layers.0.up.bias" })
  end)
end)

-- Mixtures of experts: what their configs may say; the Model Zoo's three layouts of their tensors, and what chooses one.

local cbk = require "cbk"
local classes = require "cbk.classes"
local conversion = require "conversion"
local convert = require("cbk.converters").convert
local harness = require "harness"
local tiny = require "tiny"
local zoo = require "converters.classes.zoo.decoder"

local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises

local PLACE = "transformer_decoder.layers.0.ffn."
local FUSED, SINGLE, FUNCTIONAL = "experts.fused_ffns.0.linear_layer.expert_weights", "experts.experts.1.0.linear_layer.weight",
  "experts.experts.1.ffn.0.linear_layer.weight"

---A model section with experts, as the Model Zoo's own configs have it.
---@param moe? table   further fields of the mixture
local function section(moe)
  return cbk.dict {
    hidden_size = 4, num_hidden_layers = 1, num_heads = 2, filter_size = 6, vocab_size = 5, max_position_embeddings = 3,
    nonlinearity = "swiglu", use_ffn_bias = true, share_embedding_weights = true,
    moe = conversion.with(cbk.dict { num_experts = 3, top_k = 1, load_balancing_loss_coef = 0.01 }, moe),
  }
end

---@param release string   "2.6"
---@param moe? table
local function made(release, moe)
  local config = section(moe)
  return cbk.dict { model = config }, cbk.dict { model = tiny.checkpoint(zoo.GPT2LMHeadModel, config, release) }
end

---The shapes of a layer's experts.
local function shapes_of(release, moe)
  local out = {}
  for _, one in ipairs(zoo.GPT2LMHeadModel:tensors(section(moe), { release = release })) do
    local key = not one.optional and one.key:match "ffn%.([eg]x?p?%l+%..*)$"
    if key then out[key] = table.concat(classes.shape(one), "x") end
  end
  return out
end

describe("Experts: tensors of the Model Zoo's class", function()
  local layouts = {
    [FUSED] = { ["2.3"] = { false, "optimized" }, ["2.5"] = { false, "optimized" }, ["2.6"] = { "optimized" }, ["2.9"] = { "optimized" } },
    [SINGLE] = { ["2.5"] = { "experimental" }, ["2.6"] = { false, "experimental" }, ["2.7"] = { false }, ["2.8"] = { false },
      ["2.9"] = { false, "experimental" } },
    [FUNCTIONAL] = { ["2.3"] = { "functional" }, ["2.6"] = { "functional" }, ["2.7"] = { "forge_experimental" },
      ["2.9"] = { "functional", "expert_parallel" } },
  }
  for key, releases in pairs(layouts) do
    it(key, function()
      for release, implementations in pairs(releases) do
        for _, own in ipairs(implementations) do
          local shapes = shapes_of(release, { moe_implementation = own or nil })
          for _, other in ipairs { FUSED, SINGLE, FUNCTIONAL } do
            equal(shapes[other] ~= nil, other == key, ("%s with %s, %s"):format(release, tostring(own), other))
          end
        end
      end
    end)
  end

  it("shared experts and biases", function()
    local fused = shapes_of("2.5", { num_shared_experts = 2 })
    equal({ fused["experts.fused_ffns.1.linear_layer.expert_weights"], fused["experts.fused_ffns.0.linear_layer_for_glu.expert_biases"],
      fused["gate.weight"] }, { "4x5x6", "6x5x1", "3x4" })
    local single = shapes_of("2.9", { num_shared_experts = 2, router_use_bias = true })
    equal({ single["experts.experts.2.1.linear_layer.weight"], single["experts.experts.3.1.linear_layer.weight"],
      single["experts.shared_experts.1.ffn.0.linear_layer_for_glu.bias"], single["gate.bias"] }, { "4x6", nil, "6", "3" })
    local functional = shapes_of("2.9", { num_shared_experts = 2, moe_implementation = "functional" })
    equal({ functional["experts.experts.4.ffn.1.linear_layer.weight"], functional["experts.experts.5.ffn.1.linear_layer.weight"],
      functional["gate.weight"] }, { "4x6", nil, "3x4" })
    equal(shapes_of("2.9", { num_experts = 1, num_shared_experts = 1 })["gate.weight"], "1x4")
    equal(shapes_of("2.9", { num_experts = 1 }), {})
  end)
end)

describe("Experts: Hugging Face", function()
  local cases = {
    mixtral = { { "cs-2.3", FUSED }, { "cs-2.5", FUSED }, { "cs-2.6", SINGLE }, { "cs-2.7", SINGLE }, { "cs-2.8", SINGLE },
      { "cs-2.9", SINGLE } },
    ["qwen3-moe"] = { { "cs-2.5", FUSED }, { "cs-2.6", SINGLE }, { "cs-2.9", SINGLE } },
  }
  local up = { mixtral = "block_sparse_moe.experts.1.w3.weight", ["qwen3-moe"] = "mlp.experts.1.up_proj.weight" }

  ---The tensors of a model whose experts are in one layout, in another one.
  local function with_layout(model, from, to)
    local out = cbk.dict()
    for key, value in cbk.items(model) do
      local expert, rest = key:match "ffn%.experts%.experts%.(%d+)%.(.*)$"
      if expert and to == FUNCTIONAL then
        out[key:gsub("%.experts%.%d+%.", "%0ffn.")] = value
      elseif expert and to == FUSED then
        local parts, place = {}, key:gsub("experts%.%d+%..*$", "")
        for i = 0, 2 do parts[i + 1] = model[("%sexperts.%d.%s"):format(place, i, rest)] end
        out[place .. "fused_ffns." .. rest:gsub("weight$", "expert_weights")] = cbk.stack(parts, 1)
      else
        out[key] = value
      end
    end
    is_true(out[PLACE .. to] ~= nil and (to == from or out[PLACE .. from] == nil))
    return out
  end

  for model, list in pairs(cases) do
    it(model .. ": a release gets the layout of its default, and gives it back", function()
      local config, root = tiny.model(tiny.newest_ways()[model])
      local want = root["model.layers.0." .. up[model]]
      for _, case in ipairs(list) do
        local format, key = unpack(case)
        local cs_config, cs = conversion.run(model, "hf", format, config, root)
        local written = cs.model[PLACE .. key]
        is_true(written ~= nil, format .. ": " .. key)
        conversion.same((key == FUSED and written:slice(1, 1, 2):reshape(want:shape()) or written):tolist(), want:tolist(), format)
        local _, back = conversion.run(model, format, "hf", cs_config, cs)
        conversion.equal_tensors(root, back, format)
      end
    end)

    it(model .. ": every layout is read, where the config says it, and the fused one by default", function()
      local config, root = tiny.model(tiny.newest_ways()[model])
      local cs_config, cs = conversion.run(model, "hf", "cs-2.6", config, root)
      for _, case in ipairs { { FUSED, "optimized" }, { FUSED, nil }, { SINGLE, "experimental" }, { FUNCTIONAL, "functional" } } do
        local layout, implementation = case[1], case[2]
        cs_config.model.moe.moe_implementation = implementation
        local back, _
        conversion.warnings(function()
          _, back = conversion.run(model, "cs-2.6", "hf", cs_config, cbk.dict { model = with_layout(cs.model, SINGLE, layout) })
        end)
        conversion.equal_tensors(root, back, layout)
      end
      cs_config.model.moe.moe_implementation = "optimized"
      conversion.fails("missing", conversion.run, model, "cs-2.6", "hf", cs_config, cs)
    end)
  end
end)

describe("Experts: steps between releases", function()
  local function step(model, src, tgt, config, root)
    local out
    local warnings = conversion.warnings(function() out = { conversion.run(model, src, tgt, config, root) } end)
    return out[1], out[2].model, warnings
  end

  for _, model in ipairs { "mixtral", "gpt2", "gptj" } do
    it(model .. ": 2.5 to 2.6 takes the experts apart, and back puts them together", function()
      local moe = { num_shared_experts = 2 }
      local config, root = made("2.5", moe)
      local old = root.model
      local new_config, new = step(model, "cs-2.5", "cs-2.6", config, root)
      local wanted = tiny.checkpoint(zoo.GPT2LMHeadModel, section(moe), "2.6")
      equal(cbk.count(new), cbk.count(wanted))
      for key, tensor in cbk.items(wanted) do equal(tostring(new[key] and new[key]:shape()), tostring(tensor:shape()), key) end
      local weights, biases = old[PLACE .. FUSED], old[PLACE .. "experts.fused_ffns.0.linear_layer.expert_biases"]
      for key, place in pairs { [SINGLE:gsub("weight$", "")] = 1, ["experts.shared_experts.1.ffn.0.linear_layer."] = 4 } do
        conversion.same(new[PLACE .. key .. "weight"]:tolist(), weights:slice(1, place, place + 1):reshape { 6, 4 }:tolist(), key)
        conversion.same(new[PLACE .. key .. "bias"]:tolist(), biases:slice(1, place, place + 1):reshape { 6 }:tolist(), key)
      end
      local _, back = step(model, "cs-2.6", "cs-2.5", new_config, cbk.dict { model = new })
      equal(cbk.count(back), cbk.count(old))
      conversion.equal_tensors(old, back)
    end)
  end

  for _, prefix in ipairs { "", "model." } do
    it(("2.5 to 2.6 takes the optimizer's state apart, of parameters named '%s…'"):format(prefix), function()
      local config, root = made("2.5", { num_shared_experts = 2 })
      local state, names = cbk.dict(), cbk.list()
      for i, key in ipairs(cbk.keys(root.model)) do
        local name = prefix .. key:gsub("^model%.", "")
        names[i], state[name] = name, cbk.dict { step = cbk.tensor { 7 }, exp_avg = root.model[key] * 2, exp_avg_sq = root.model[key] + i }
      end
      root.optimizer = cbk.dict { state = state, param_groups = cbk.list { cbk.dict { lr = 0.5, params = names } } }
      local out
      local warnings = conversion.warnings(function() out = select(2, conversion.run("mixtral", "cs-2.5", "cs-2.6", config, root)) end)
      is_true(not table.concat(warnings):find "optimizer", table.concat(warnings, "\n"))
      local new, params = out.optimizer.state, {}
      for _, name in cbk.items(out.optimizer.param_groups[1].params) do params[#params + 1] = name end
      equal({ cbk.count(new), #params }, { cbk.count(out.model), cbk.count(out.model) })
      for _, name in ipairs(params) do
        local key = prefix == "" and out.model[name] == nil and "model." .. name or name
        local weight = out.model[key] or out.model[(key:gsub("^model%.", ""))]
        conversion.same(new[name].exp_avg:tolist(), (weight * 2):tolist(), name)
        equal({ new[name].step:tolist(), tostring(new[name].exp_avg_sq:shape()) }, { { 7 }, tostring(weight:shape()) }, name)
      end
    end)
  end

  it("keeps states of another shape under the old names, with a warning", function()
    local config, root = made("2.5", {})
    local state = cbk.dict()
    for i, key in ipairs(cbk.keys(root.model)) do -- Adafactor with and without beta1
      local shape = root.model[key]:shape()
      state[key] = cbk.dict { exp_avg_sq_row = #shape > 1 and cbk.full({ unpack(shape, 1, #shape - 1) }, i) or nil }
      if i % 2 == 0 then state[key].exp_avg = root.model[key] end
    end
    root.optimizer = cbk.dict { state = state }
    local out
    local warnings = conversion.warnings(function() out = select(2, conversion.run("mixtral", "cs-2.5", "cs-2.6", config, root)) end)
    harness.has(table.concat(warnings, "\n"), "the optimizer's state keeps names of parameters that the new model lacks or has split")
    equal(cbk.count(out.optimizer.state), cbk.count(state))
  end)

  for _, count in ipairs { 0, 1 } do
    it(("masks of sparse weights follow them, with %d shared experts"):format(count), function()
      local config, root = made("2.5", { num_shared_experts = count })
      local dense = cbk.keys(root.model)
      for _, key in ipairs(dense) do root.model[key .. "_mask"] = root.model[key] * 3 end
      local new_config, new = conversion.run("mixtral", "cs-2.5", "cs-2.6", config, root)
      local masks = 0
      for key, value in cbk.items(new.model) do
        if not key:find "_mask$" then conversion.same((value * 3):tolist(), new.model[key .. "_mask"]:tolist(), key) end
        masks = masks + (key:find "_mask$" and 1 or 0)
      end
      equal(masks * 2, cbk.count(new.model))
      local _, back = conversion.run("mixtral", "cs-2.6", "cs-2.5", new_config, new)
      conversion.equal_tensors(root.model, back.model)
      for key in cbk.items(new.model) do
        if key:find "experts.experts.1.*_mask$" then new.model[key] = nil end
      end
      conversion.fails("cannot convert the masks of sparse weights: every part of a weight needs one", conversion.run, "mixtral", "cs-2.6",
        "cs-2.5", new_config, new)
    end)
  end

  it("other steps, explicit layouts and models without experts are copied", function()
    local cases = {
      { "2.4", "2.5" }, { "2.6", "2.7" }, { "2.8", "2.9" }, { "2.9", "2.8" }, { "2.5", "2.6", { moe_implementation = "optimized" } },
      { "2.5", "2.6", { moe_implementation = "functional" } }, { "2.6", "2.5", { moe_implementation = "experimental" } },
      { "2.5", "2.6", { num_experts = 1 } },
    }
    for _, case in ipairs(cases) do
      local src, tgt, moe = unpack(case)
      local config, root = made(src, moe)
      local job = conversion.job("mixtral", "cs-" .. src, "cs-" .. tgt)
      local copied = select(2, step("mixtral", "cs-" .. src, "cs-" .. tgt, config, root))
      conversion.equal_tensors(root.model, copied)
      equal(cbk.count(copied), cbk.count(root.model))
      conversion.warnings(convert.config, job, config)
      equal(job.copies[1], ("cs-%s -> cs-%s"):format(src, tgt))
    end
  end)

  it("a release refuses an implementation that came later", function()
    local cases = { { "2.5", "2.4", "experimental" }, { "2.7", "2.6", "forge_experimental" }, { "2.8", "2.7", "expert_parallel" } }
    for _, case in ipairs(cases) do
      local src, tgt, implementation = unpack(case)
      local config, root = made(src, { moe_implementation = implementation })
      for _, model in ipairs { "mixtral", "gpt2" } do
        local said = ("before release %s, is supported; to keep it"):format(src)
        conversion.fails(said, conversion.run, model, "cs-" .. src, "cs-" .. tgt, config, root)
      end
    end
  end)
end)

describe("Experts: configs", function()
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

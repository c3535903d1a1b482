-- Steps between releases against Hugging Face's tables: what is converted to a release, and from there to the one before or after it, is
-- what is converted there at once. For every model, for composites, and for each model inside a DPO model.

local cbk = require "cbk"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local tiny = require "tiny"
local trainer = require "converters.modelzoo.trainer"

local catalogue = converters.catalogue
local describe, it, is_true = harness.describe, harness.it, harness.is_true

-- Fields that a step keeps and Hugging Face's table does not write, or the other way round.
local exceptions = {
  name = true, -- of the model, and of DPR's encoders: 2.4 adds it, and the way back keeps it
  norm_first = true, use_ff_layer1_dropout = true, label_smoothing = true, z_loss_eps = true, -- 2.4 refuses them: there is a warning
  compute_eval_metrics = true, mutual_information = true, pooler_type = true, use_biencoder = true, -- DPR's, which 2.2 does not read
}

---The formats to which a model converts from Hugging Face, since 2.1, oldest first.
local function formats_of(model)
  local out = {}
  for _, converter in ipairs(model) do
    for _, format in ipairs(converter[1] == "hf" and catalogue.formats(converter[2]) or {}) do
      if catalogue.since(catalogue.release(format), "2.1") then out[#out + 1] = format end
    end
  end
  table.sort(out, function(a, b) return catalogue.place_of(a) < catalogue.place_of(b) end)
  return out
end

local function flat(section, prefix, out)
  out = out or {}
  for name in cbk.items(section) do
    local value = section[name]
    if cbk.kind(section, name) == "dict" then flat(value, prefix .. name .. ".", out) else out[prefix .. name] = value end
  end
  return out
end

local function same_configs(want, got, what)
  want, got = flat(trainer.model(want), ""), flat(trainer.model(got), "")
  for _, pair in ipairs { { want, got }, { got, want } } do
    for name, value in pairs(pair[1]) do
      local is_known = pair[2][name] == nil and exceptions[name:match "[^.]*$"]
      if not is_known then conversion.same(pair[2][name], value, what .. ": " .. name) end
    end
  end
end

local function same_weights(want, got, what)
  conversion.equal_tensors(want, got, what)
  conversion.same(cbk.count(got), cbk.count(want), what)
end

---Converts to a format, or returns why it cannot.
local function try(...)
  local out
  conversion.warnings(function(...) out = { pcall(conversion.run, ...) } end, ...)
  if out[1] then return { out[2], out[3] } end
  return nil, tostring(type(out[2]) == "table" and out[2].message or out[2])
end

---@param refusal? string   of releases that do not have the model
---@return integer   how many steps there were
local function check(model, config, root, refusal)
  local formats, made, count = formats_of(model), {}, 0
  for _, format in ipairs(formats) do
    local why
    made[format], why = try(model.model, "hf", format, config, root)
    is_true(made[format] ~= nil or refusal and why:find(refusal, 1, true), format .. ": " .. tostring(why))
  end
  for i = 2, #formats do
    for _, pair in ipairs { { formats[i - 1], formats[i] }, { formats[i], formats[i - 1] } } do
      local src, tgt = unpack(pair)
      if made[src] and made[tgt] then
        local what = src .. " to " .. tgt
        local got, why = try(model.model, src, tgt, unpack(made[src]))
        got = got or error(what .. ": " .. why)
        same_configs(made[tgt][1], got[1], what)
        same_weights(made[tgt][2].model, got[2].model, what)
        count = count + 1
      end
    end
  end
  return count
end

describe("Steps between releases", function()
  for _, name in ipairs(catalogue.names()) do
    local model = catalogue.find(name)
    if model.model == name and #formats_of(model) > 1 then
      it(name, function()
        local config, root = tiny.model(tiny.newest_ways()[name] or tiny.composite(name))
        is_true(check(model, config, root) > 0, "there is no step")
      end)
    end
  end

  local dpo = catalogue.find "dpo"
  for _, name in ipairs(dpo[1].wrap.models) do
    it("dpo, with " .. name .. " inside", function()
      local config, root
      conversion.warnings(function() config, root = tiny.model(tiny.newest_ways()[name]) end)
      if name == "santacoder" then config.attention_head_type = "multiquery" end
      local count = check(dpo, config, root, "the model inside has no format cs-2.")
      harness.equal(count, name == "mixtral" and 12 or 16)
    end)
  end
end)

describe("Steps between releases: DPO", function()
  local policy, reference = "policy_model.model.", "ref_model.model."
  local fused = "transformer_decoder.layers.0.ffn.experts.fused_ffns.0.linear_layer.expert_weights"

  local function mixtral(format)
    local config, root
    conversion.warnings(function()
      config, root = tiny.model(tiny.newest_ways().mixtral)
      config, root = conversion.run("dpo", "hf", format, config, root)
    end)
    return config, root
  end

  it("repacks the experts of the policy and of the reference, each from its own", function()
    local config, root = mixtral "cs-2.5-dpo"
    root.model[policy .. fused] = root.model[policy .. fused]:affine(2, 1)
    local out = try("dpo", "cs-2.5-dpo", "cs-2.6-dpo", config, root)[2].model
    local single = "transformer_decoder.layers.0.ffn.experts.experts.1.0.linear_layer.weight"
    same_weights(cbk.dict { a = out[reference .. single]:affine(2, 1) }, cbk.dict { a = out[policy .. single] })
    is_true(out[policy .. fused] == nil and out[reference .. fused] == nil)
  end)

  it("keeps the optimizer's state of what is not repacked", function()
    local config, root = mixtral "cs-2.5-dpo"
    local kept = policy .. "embedding_layer.word_embeddings.weight"
    root.optimizer = cbk.dict { state = cbk.dict { [kept] = cbk.dict { step = 3 } } }
    conversion.same(try("dpo", "cs-2.5-dpo", "cs-2.6-dpo", config, root)[2].optimizer.state[kept].step, 3)
  end)

  it("a release without the model inside is refused", function()
    local config, root = mixtral "cs-2.3-dpo"
    local _, why = try("dpo", "cs-2.3-dpo", "cs-2.2-dpo", config, root)
    is_true(why and why:find("model_name=mixtral: the model inside has no format cs-2.2-dpo", 1, true), why)
  end)

  it("a config that does not name the model inside is refused", function()
    local config, root = mixtral "cs-2.8-dpo"
    trainer.model(config).model_name = nil
    local _, why = try("dpo", "cs-2.8-dpo", "cs-2.9-dpo", config, root)
    is_true(why and why:find("the config has no 'model_name'", 1, true), why)
  end)
end)

describe("Steps between releases: fields that a newer release refuses", function()
  local function made(name, format, change)
    local config, root
    conversion.warnings(function()
      config, root = tiny.model(tiny.newest_ways()[name] or tiny.composite(name))
      config, root = conversion.run(name, "hf", format, config, root)
      change(trainer.model(config))
    end)
    return config, root
  end

  it("are named, also those of a part", function()
    for name, wanted in pairs {
      llama = { "the config has norm_first and use_ff_layer1_dropout, which the Model Zoo's GPT2LMHeadModel refuses since 2.4" },
      llava = { "LlamaModel refuses since 2.4", "the config has label_smoothing and z_loss_eps, which the Model Zoo's LlavaModel" },
    } do
      local config, root = made(name, "cs-2.3", function() end)
      local reported = table.concat(conversion.warnings(conversion.run, name, "cs-2.3", "cs-2.4", config, root), "\n")
      for _, text in ipairs(wanted) do is_true(reported:find(text, 1, true), reported) end
      local later = table.concat(conversion.warnings(conversion.run, name, "cs-2.4", "cs-2.5", config, root), "\n")
      is_true(not later:find("refuses since 2.4", 1, true), later)
    end
  end)

  it("are an error with a value that it does not compute with", function()
    local config, root = made("llama", "cs-2.3", function(section) section.norm_first = false end)
    conversion.fails("with norm_first=false: only true, since release 2.4, is supported", conversion.run, "llama", "cs-2.3", "cs-2.4",
      config, root)
  end)
end)

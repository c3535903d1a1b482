-- Files that are not what their user says: of another release or model, or with weights missing. Right ones are never doubted.

local cbk = require "cbk"
local classes = require "cbk.classes"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local check = require "cbk.recognise.doubts"
local huge_models = require "huge_models"
local tiny = require "tiny"
local trainer = require "converters.modelzoo.trainer"

local catalogue, convert = converters.catalogue, converters.convert
local bert_head = "bert_mlm_head.classifier.ffn.0.linear_layer.weight"
local describe, it, equal = harness.describe, harness.it, harness.equal

---Makes head and embedding one tensor where the config ties them.
local function tie(config, model)
  local section = trainer.model(config)
  local is_untied = (section.text_model or section).share_embedding_weights == false
  for key in cbk.items(is_untied and cbk.dict() or model) do
    local place = key:match "^(.*)lm_head%.weight$" or key == bert_head and "bert_encoder."
    local words = place and model[place .. "embedding_layer.word_embeddings.weight"]
    if words then model[key] = words end
  end
end

---The tiny model of a way, of a release.
---@return Dict config, Dict root
local function model_by(way)
  local config, root
  conversion.warnings(function() config, root = conversion.run(way.name, "hf", way.format, tiny.model(way)) end)
  tie(config, root.model)
  return config, root
end

---A tiny model of a release.
---@return Dict config, Dict root
local function model_of(name, format)
  for _, way in ipairs(tiny.ways()) do
    if way.name == name and way.format == format then return model_by(way) end
  end
  error(name .. " has no " .. format)
end

---What is said of files as those of a model and release, or why they are refused.
---@return string[]|nil doubts, string|nil problem
local function reported(name, src, tgt, config, root)
  local model, zoo_name = catalogue.find(name)
  local path = src == tgt and catalogue.stay(model, src) or catalogue.path(model, src, tgt)
  local job, doubts = { model = model, zoo_name = zoo_name, path = path, src = src, tgt = tgt, seed = 0 }, nil
  local fine, problem = true, nil
  conversion.warnings(function()
    fine, problem = pcall(function()
      local new = { config = convert.config(job, config), root = convert.checkpoint(job, root) }
      check.refuse(job, config, root)
      doubts = check.all(job, { config = config, root = root }, new)
    end)
  end)
  return fine and doubts or nil, not fine and (problem.message or tostring(problem)) or nil
end

local function one_of(list, part)
  harness.checked()
  local text = table.concat(list, "\n")
  if not text:find(part, 1, true) then error(("no %q in\n%s"):format(part, text), 2) end
end

---The same checkpoint with other keys; nil takes one out.
local function renamed(root, change)
  local model, out = cbk.dict(), cbk.copy(root)
  for key, value in cbk.items(root.model) do
    local name = change(key)
    if name then model[name] = value end
  end
  out.model = model
  return out
end

local function of_release(root, version)
  local out = cbk.copy(root)
  out.__metadata__ = cbk.list { cbk.dict { version = version } }
  return out
end

describe("a checkpoint's own word about its release", function()
  local said = "the checkpoint's __metadata__ says release %s, but --src-fmt is %s: converted as %s%s"
  for _, one in ipairs {
    { "bert", "2.0.0", "cs-2.0", "cs-2.9" }, { "bert", "2.0.1", "cs-2.0", "hf" }, { "gpt2", "2.10.0", "cs-2.9", "cs-2.8" },
    { "gpt2", "2.10.0", "cs-2.9", "cs-2.9" }, { "gpt2", "2.4.0", "cs-2.5", "hf" }, { "gpt2", nil, "cs-2.1", "cs-2.9" },
    { "dpo", "2.4.0", "cs-2.4-dpo", "cs-2.5-dpo" },
    { "bert", "2.0.0", "cs-2.1", "cs-2.9", ", without the changes from cs-2.0 to cs-2.1; if __metadata__ is right, use --src-fmt cs-2.0" },
    { "bert", "2.0.0", "cs-2.1", "hf", ", without the changes from cs-2.0 to cs-2.1; if __metadata__ is right, use --src-fmt cs-2.0" },
    { "bert", "2.1.0", "cs-2.0", "cs-2.9", "; if __metadata__ is right, use --src-fmt cs-2.1" },
    { "bert", "1.8.0", "cs-2.1", "cs-2.0", "; if __metadata__ is right, use --src-fmt cs-1.8" },
    { "bert", "2.11.0", "cs-2.1", "cs-2.0", "" },
    { "dpo", "2.5.0", "cs-2.4-dpo", "cs-2.6-dpo", "; if __metadata__ is right, use --src-fmt cs-2.5-dpo" },
  } do
    local name, version, src, tgt, rest = unpack(one, 1, 5)
    it(("%s %s as %s to %s"):format(name, version or "without it", src, tgt), function()
      local config, root = model_of(name, src)
      local doubts = reported(name, src, tgt, config, version and of_release(root, version) or root)
      equal(doubts[1], rest and said:format(version:match "^%d+%.%d+", src, src, rest) or nil)
    end)
  end
end)

describe("a checkpoint between releases", function()
  it("heads of another config than the one that the checkpoint keeps", function()
    local config, root = model_of("llama", "cs-2.4")
    local list = root.__metadata__
    list[#list].params = cbk.deep_copy(config)
    local function doubts() return table.concat(reported("llama", "cs-2.4", "hf", config, root), "\n") end
    equal(doubts(), "")
    local kept = trainer.model(list[#list].params)
    kept.num_heads, kept.dropout_rate = 3, 0.5
    harness.is_true(doubts():find("num_heads=2 (there 3); wrong numbers of heads", 1, true), doubts())
    list[#list].params = cbk.list()
    equal(doubts(), "")
  end)

  it("keeps a weight that no rule knows, with a warning", function()
    local config, root = model_of("bert", "cs-2.0")
    local doubts = reported("bert", "cs-2.1", "cs-2.9", config, root)
    one_of(doubts, "1 of 31 weight names are unknown in bert cs-2.9: bert_encoder.embedding_layer.position_embeddings.weight;")
  end)

  for _, one in ipairs {
    { "bert", "cs-2.0", "cs-2.9", "^bert_encoder%.transformer_encoder%.layers%.0%..*linear_layer" },
    { "llama", "cs-2.1", "cs-2.9", "proj_q_dense" }, { "t5", "cs-2.0", "cs-2.4", "^decoder%.layers%.0%.norm1" },
    { "falcon", "cs-2.1", "cs-2.2", "norm" }, { "dpo", "cs-2.1-dpo", "cs-2.9-dpo", "^policy_model.*proj_v" },
    { "gpt2", "cs-2.9", "cs-2.9", "norm1" },
  } do
    local name, src, tgt, pattern = unpack(one)
    it(("%s: missing weights that its config needs are reported"):format(name), function()
      local config, root = model_of(name, src)
      equal(reported(name, src, tgt, config, root), {})
      local doubts = reported(name, src, tgt, config, renamed(root, function(key) return not key:find(pattern) and key or nil end))
      one_of(doubts, "that its config needs (")
      equal(#doubts, 1)
    end)
  end

  it("reports weights that it may lack, too, as towards Hugging Face", function()
    local config, root = model_of("bert", "cs-2.1")
    local without = renamed(root, function(key) return not key:find "pooler" and not key:find "cls_head" and key or nil end)
    local function lacks(name) return without.model[name] == nil and root.model[name] ~= nil end
    assert(lacks "bert_encoder.pooler.pooler.ffn.0.linear_layer.weight" and lacks "bert_cls_head.classifier.ffn.0.linear_layer.weight")
    equal(reported("bert", "cs-2.1", "cs-2.9", config, without), { "the checkpoint lacks 4 weights that its config needs ("
      .. "bert_cls_head.classifier.ffn.0.linear_layer.weight, bert_cls_head.classifier.ffn.0.linear_layer.bias, "
      .. "bert_encoder.pooler.pooler.ffn.0.linear_layer.weight, bert_encoder.pooler.pooler.ffn.0.linear_layer.bias): "
      .. "the output lacks them as well" })
    config.model.disable_nsp, config.model.num_segments = true, 2
    equal(reported("bert", "cs-2.1", "cs-2.9", config, without), {})
    config.model.num_segments = nil -- a model without that head has none by default
    one_of(reported("bert", "cs-2.1", "cs-2.9", config, without), "1 of 27 weight names are unknown in bert cs-2.9: ")
  end)

  for _, one in ipairs {
    { "bert", "cs-2.0", bert_head, "bert_encoder.embedding_layer.word_embeddings.weight" },
    { "gpt2", "cs-2.1", "lm_head.weight", "embedding_layer.word_embeddings.weight" },
    { "dpo", "cs-2.4-dpo", "policy_model.model.lm_head.weight", "policy_model.model.embedding_layer.word_embeddings.weight" },
  } do
    local name, src, head, words = unpack(one)
    it(("of a %s: tied weights that differ are reported"):format(name), function()
      local config, root = model_of(name, src)
      local tgt = src:gsub("%d%.%d", "2.9")
      equal(reported(name, src, tgt, config, root), {})
      local said = ("the config ties '%s' and '%s', but their values differ: both are kept"):format(head, words)
      root.model[head] = root.model[head]:affine(2, 1)
      equal(reported(name, src, tgt, config, root), { said })
      config.model.share_embedding_weights = false
      local of_kept = "the config differs from the one in the checkpoint's __metadata__, which is not used: %s=false (there true)"
      equal(reported(name, src, tgt, config, root), { of_kept:format "share_embedding_weights" })
    end)
  end

  for _, one in ipairs {
    { "bert", "cs-1.7", "cs-2.9" }, { "bert", "cs-2.1", "cs-2.9", { use_output_bias_in_mlm = true } },
    { "gpt2", "cs-2.1", "cs-2.3", { norm_first = false } },
  } do
    it(("%s of %s is refused for layers that it lacks, even where Hugging Face has no such config"):format(one[1], one[2]), function()
      local config, root = model_of(one[1], one[2])
      for field, value in pairs(one[4] or {}) do config.model[field] = value end
      config.model.num_hidden_layers = 2
      local whole = { model = cbk.copy(root.model) }
      for key in cbk.items(root.model) do
        local second, count = key:gsub("layers%.0%.", "layers.1.")
        if count == 1 then whole.model[second] = root.model[key] end
      end
      equal(reported(one[1], one[2], one[3], config, cbk.dict(whole)), {})
      local _, problem = reported(one[1], one[2], one[3], config, root)
      one_of({ problem }, "layers.1.', but the config says num_hidden_layers=2")
    end)
  end

  it("with a model inside names what it lacks in full", function()
    local config, root = model_of("dpo", "cs-2.1-dpo")
    root = renamed(root, function(key) return key:find "^ref_model" and key or nil end)
    local doubts = reported("dpo", "cs-2.1-dpo", "cs-2.9-dpo", config, root)
    one_of(doubts, "weights that its config needs (policy_model.model.")
    for name in doubts[1]:match("needs %((.*)%)"):gmatch "[%w_]+%.[%w_.]+" do assert(name:find "^policy_model%.model%.", name) end
  end)

  it("with long names that no model has is refused in seconds", function()
    local names, before = {}, os.clock()
    for i = 1, 200 do names[i] = ("model.layers."):rep(1500) .. i end
    equal(#require("cbk.recognise.candidates").of_names({ "hf", "cs-2.0" }, names, function() end), 0)
    assert(os.clock() - before < 3, os.clock() - before)
  end)

  it("is refused where it is empty, of another model, or below another name", function()
    local config, root = model_of("bert", "cs-2.0")
    local llama_config, llama = model_of("llama", "cs-2.1")
    local parallel = renamed(root, function(key) return "module." .. key end)
    local nested = renamed(root, function(key) return "model.bert." .. key end)
    for _, case in ipairs {
      { "bert", "cs-2.0", config, cbk.dict { model = cbk.dict() }, "has no weights: nothing to convert" },
      { "bert", "cs-2.0", llama_config, llama, "choose with --model and --src-fmt" },
      { "bert", "cs-2.0", llama_config, llama, "they look like those of llama of " },
      { "falcon", "cs-2.0", config, root, "they look like those of bert of " },
      { "bert", "cs-2.0", config, parallel,
        "remove the prefix 'module.' with `cbk copy CHECKPOINT NEW --rename 'model.module.*=model.*'`" },
      { "bert", "cs-2.0", config, nested, "weight names are unknown in bert cs-2.0" },
    } do
      local doubts, problem = reported(case[1], case[2], "cs-2.9", case[3], case[4])
      equal(doubts, nil, case[5])
      one_of({ problem }, case[5])
    end
    equal(reported("bert", "cs-2.0", "cs-2.9", config, renamed(root, function(key) return "model." .. key end)), {})
  end)

  it("may have masks and factors of LoRA beside its weights", function()
    local config, root = model_of("llama", "cs-2.1")
    for key in cbk.items(cbk.copy(root.model)) do
      root.model[key .. "_mask"] = root.model[key]
      local module = key:match "^(.*dense_layer)%.weight$" or key:match "^(.*linear_layer.*)%.weight$"
      for _, factor in ipairs(module and { ".lora_A", ".lora_B" } or {}) do root.model[module .. factor] = root.model[key] end
    end
    equal(reported("llama", "cs-2.1", "cs-2.9", config, root), {})
  end)

  for _, one in ipairs {
    { "gpt2", { "ffn.gate.gate.weight" }, { "ffn.experts.%d.ffn.0.linear_layer.weight", "ffn.experts.%d.ffn.1.linear_layer.weight" } },
    { "llama", { "ffn.gate.weight" }, { "ffn.experts__.%d.fused_ffns.0.linear_layer.expert_weights",
      "ffn.experts__.%d.fused_ffns.0.linear_layer_for_glu.expert_weights", "ffn.experts__.%d.fused_ffns.1.linear_layer.expert_weights" } },
  } do
    local name, gate, experts = unpack(one)
    it(("of a %s with many experts is converted, with a warning about them"):format(name), function()
      local config, root = model_of(name, "cs-2.4")
      config.model.moe_params = cbk.dict { num_experts = 64, top_k = 2 }
      root = renamed(root, function(key) return not key:find "%.ffn%." and key or nil end)
      local layer, count, known = "transformer_decoder.layers.0.", 0, classes.tensors(config, name, "cs-2.4").by_key
      local function add(key)
        local shape = known[layer .. key] and classes.shape(known[layer .. key]) or { 2 }
        root.model[layer .. key] = conversion.counted(shape, 0)
        count = count + 1
      end
      for _, key in ipairs(gate) do add(key) end
      if known[layer .. gate[1]] then count = 0 end -- which the model has
      for i = 0, 63 do
        for _, key in ipairs(experts) do add(key:format(i)) end
      end
      local doubts, problem = reported(name, "cs-2.4", "cs-2.9", config, root)
      equal(problem, nil)
      equal(#doubts, 2) -- 2.9 stores experts in another form
      one_of(doubts, ("%d of %d weight names are unknown in %s cs-2.9: "):format(count, cbk.count(root.model), name))
      one_of(doubts, "weights that its config needs")
      one_of(doubts, "; they are kept as they are")
    end)
  end

  it("is looked through where a module of a training script is before its names", function()
    local dir = harness.temp_dir()
    local config, root = model_of("gpt2", "cs-2.0")
    cbk.config.save(config, dir .. "/p.yaml")
    cbk.create(dir .. "/a.mdl", { root = renamed(root, function(key) return "module." .. key end) }):commit { progress = false }
    local function run(file)
      return harness.cbk(dir, "convert", "--model", "gpt2", "--src-fmt", "cs-2.0", "--tgt-fmt", "cs-2.9", "--config", "p.yaml", file,
        "--dry-run")
    end
    local code, stdout, stderr = run "a.mdl"
    equal({ code, stderr }, { 0, "" })
    one_of({ stdout }, "Looked inside: the names are those without 'module.'\n")
  end)

  it("reports weights that the reference of a DPO model lacks", function()
    local model, root = conversion.run("dpo", "hf", "cs-2.4-dpo", tiny.model(tiny.newest_ways().llama))
    equal(reported("dpo", "cs-2.4-dpo", "cs-2.5-dpo", model, root), {})
    local lost = "ref_model.model.transformer_decoder.layers.0.self_attn.proj_q_dense_layer.weight"
    local without = renamed(root, function(key) return key ~= lost and key or nil end)
    equal(reported("dpo", "cs-2.4-dpo", "cs-2.5-dpo", model, without),
      { ("the checkpoint lacks 1 weight that its config needs (%s): the output lacks them as well"):format(lost) })
  end)

  it("is reported by the command, and by `cbk upgrade` too", function()
    local dir = harness.temp_dir()
    local config, root = model_of("gpt2", "cs-2.0")
    root = renamed(of_release(root, "2.0.0"), function(key) return not key:find "norm1.weight" and key or nil end)
    cbk.config.save(config, dir .. "/p.yaml")
    cbk.create(dir .. "/a.mdl", { root = root }):commit { progress = false }
    for option, command in pairs { ["--src-fmt"] = { "convert", "--tgt-fmt", "cs-2.4" }, ["--from"] = { "upgrade", "--to", "cs-2.4" } } do
      local code, stdout, stderr = harness.cbk(dir, command[1], "--model", "gpt2", option, "cs-2.1", command[2], command[3], "--config",
        "p.yaml", "a.mdl", "--dry-run")
      equal(code, 0, stderr)
      for _, part in ipairs {
        "the checkpoint's __metadata__ says release 2.0, but --src-fmt is cs-2.1: converted as cs-2.1",
        "1 of 22 weight names are unknown in gpt2 cs-2.4: embedding_layer.position_embeddings.weight",
        "the checkpoint lacks 1 weight that its config needs (transformer_decoder.layers.0.norm1.weight)",
      } do
        one_of({ stdout, stderr }, "warning: " .. part)
      end
    end
  end)

  it("of 70B is looked at in no time", function()
    local dir = harness.temp_dir()
    huge_models.write(dir, huge_models.llama_70b)
    local config, root
    conversion.warnings(function()
      local hf = cbk.open(dir .. "/model.safetensors").root
      config, root = conversion.run("llama", "hf", "cs-2.0", cbk.config.load(dir .. "/config.json"), hf)
    end)
    local start = os.clock()
    equal(reported("llama", "cs-2.0", "cs-2.9", config, root), {})
    assert(os.clock() - start < 2, os.clock() - start) -- some 0.1 s; interpreted, and on a slow machine, more
  end)

  it("is not doubted, of any model and release", function()
    local count = 0
    for _, way in ipairs(tiny.ways()) do
      local config, root = model_by(way)
      local own = catalogue.place_of(way.format)
      for _, format in ipairs((catalogue.groups(catalogue.find(way.name))[1] or {})) do
        local place, kind = catalogue.place_of(format)
        if kind ~= "-backbone" and place >= own and (place - own) % 2 == 0 then -- older ones lack some names, which is reported
          local doubts, problem = reported(way.name, way.format, format, config, root)
          equal(doubts or problem, {}, ("%s, %s to %s"):format(way.name, way.format, format))
          count = count + 1
        end
      end
    end
    assert(count > 500, count)
  end)
end)

-- What a Hugging Face config says and the Model Zoo has no place for: kept in the checkpoint, and put back; and the fields that follow
-- from the class and the weights.

local cbk = require "cbk"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local tiny = require "tiny"
local hf_config = require "converters.modelzoo.hf_config"

local describe, it, equal = harness.describe, harness.it, harness.equal
local null = cbk.null

--- Of each kind, in an order of their own; 1.50 and the null are to come back as they were written.
local extras = {
  { "transformers_version", "4.40.0" }, { "bos_token_id", 1 }, { "eos_token_id", cbk.list { 2, 5 } }, { "pad_token_id", null },
  { "use_cache", true }, { "my_own", cbk.dict { deep = cbk.dict { list = cbk.list { 1, cbk.float(1.5), "x" } } } },
  { "id2label", cbk.dict { ["0"] = "good", ["1"] = "bad" } }, { "with.dot", 3 },
}

local function with_extras(config)
  local out = cbk.copy(config)
  for _, pair in ipairs(extras) do
    if out[pair[1]] == nil then out[pair[1]] = pair[2] end
  end
  return out
end

local function quietly(f, ...)
  local results = {}
  local arguments = { ... }
  conversion.warnings(function() results = { f(unpack(arguments)) } end)
  return unpack(results)
end

local function there_and_back(name, formats, config, root)
  for i = 1, #formats - 1 do config, root = quietly(conversion.run, name, formats[i], formats[i + 1], config, root) end
  return config, root
end

--- Directly, and through the release before.
local function ways_back(name, format)
  local older = format:gsub("^(cs%-2%.)(%d+)", function(major, minor) return major .. minor - 1 end)
  local has_way = converters.catalogue.path(converters.catalogue.find(name), format, older)
  return { { "hf", format, "hf" }, has_way and { "hf", format, older, "hf" } or nil }
end

describe("Fields of Hugging Face configs", function()
  it("that the Model Zoo has no place for come back, of every family and through other releases", function()
    local count = 0
    for name, way in pairs(tiny.newest_ways()) do
      local config, root = tiny.model(way)
      local full = with_extras(config)
      for _, formats in ipairs(ways_back(name, way.format)) do
        local back = there_and_back(name, formats, full, root)
        for _, pair in ipairs(extras) do
          conversion.same(back[pair[1]], full[pair[1]], table.concat(formats, " -> ") .. ": " .. name .. ": " .. pair[1])
        end
        equal(cbk.json(back.my_own), cbk.json(full.my_own))
        count = count + 1
      end
    end
    assert(count > 20, count)
  end)

  it("of each part of a composite come back into its folder", function()
    local way = tiny.composite "llava"
    local config, root = tiny.model(way)
    config = cbk.copy(config)
    for _, part in ipairs { "image_model", "text_model" } do config[part] = with_extras(config[part]) end
    local back = there_and_back("llava", { "hf", way.format, "hf" }, config, root)
    for _, part in ipairs { "image_model", "text_model" } do
      for _, pair in ipairs(extras) do conversion.same(back[part][pair[1]], config[part][pair[1]], part .. ": " .. pair[1]) end
    end
    equal(cbk.totable(back.image_model.architectures), { "CLIPVisionModel" })
    equal(back.image_model.torch_dtype, "float32")
  end)

  it("are in the last element of __metadata__, and nowhere else", function()
    local config, root = tiny.model(tiny.newest_ways().gpt2)
    local cs_config, cs = quietly(conversion.run, "gpt2", "hf", "cs-2.4", with_extras(config), root)
    equal(#cs.__metadata__, 1)
    equal(cs.__metadata__[1].version, "2.4.0")
    equal(cs.__metadata__[1].hf_config.bos_token_id, 1)
    assert(not cbk.json(cs_config):find("bos_token_id", 1, true))
    local _, newer = quietly(conversion.run, "gpt2", "cs-2.4", "cs-2.5", cs_config, cs)
    equal(#newer.__metadata__, 2)
    equal(newer.__metadata__[2].hf_config.bos_token_id, 1)
  end)

  it("that convert-config alone loses are named", function()
    local config = with_extras((tiny.model(tiny.newest_ways().llama)))
    local reported = table.concat(conversion.warnings(converters.convert.config, conversion.job("llama", "hf", "cs-2.4"), config), "\n")
    assert(reported:find("are left out: ", 1, true) and reported:find("eos_token_id=[2, 5]", 1, true), reported)
    local job = conversion.job("llama", "hf", "cs-2.4", { keeps_fields = true })
    reported = table.concat(conversion.warnings(converters.convert.config, job, config), "\n")
    assert(reported:find("kept in the checkpoint, and restored on the way back: ", 1, true) and reported:find("my_own=", 1, true), reported)
    assert(not reported:find("eos_token_id", 1, true), reported)
  end)

  it("that a checkpoint claims do not replace those that the model has", function()
    local config, root = tiny.model(tiny.newest_ways().llama)
    local cs_config, cs = quietly(conversion.run, "llama", "hf", "cs-2.4", config, root)
    cs.__metadata__[1].hf_config = cbk.dict {
      vocab_size = 7, model_type = "evil", rope_scaling = cbk.dict { type = "linear", factor = 9 }, tie_word_embeddings = true, mine = 1,
    }
    local back = quietly(conversion.run, "llama", "cs-2.4", "hf", cs_config, cs)
    equal({ back.vocab_size, back.model_type, back.mine }, { config.vocab_size, "llama", 1 })
    assert(back.rope_scaling == nil or back.rope_scaling == null, "rope_scaling")
    equal(back.tie_word_embeddings, false)
    cs.__metadata__[1].hf_config = cbk.dict {
      auto_map = cbk.dict { AutoModel = "evil--model.Evil" }, trust_remote_code = true, mine = cbk.dict { custom_pipelines = 1, kept = 2 },
    }
    local reported = table.concat(conversion.warnings(function() back = conversion.run("llama", "cs-2.4", "hf", cs_config, cs) end), "\n")
    equal({ back.auto_map, back.trust_remote_code, back.mine.custom_pipelines, back.mine.kept }, { [4] = 2 })
    for _, name in ipairs { "auto_map", "trust_remote_code", "mine.custom_pipelines" } do
      assert(reported:find(("'%s' in the Hugging Face config that the checkpoint keeps is left out"):format(name), 1, true), reported)
    end
    for _, odd in ipairs { null, 3, "x", cbk.list { 1 } } do
      cs.__metadata__[1].hf_config = odd
      equal(hf_config.of(cs), nil)
    end
    equal(hf_config.of(cbk.dict { __metadata__ = cbk.list {} }), nil)
  end)
end)

describe("architectures and torch_dtype", function()
  local classes = {
    gpt2 = "GPT2LMHeadModel", ["gpt2-headless"] = "GPT2Model", llama = "LlamaForCausalLM", ["llama-headless"] = "LlamaModel",
    bert = "BertForPreTraining", ["bert-qa"] = "BertForQuestionAnswering", t5 = "T5ForConditionalGeneration", gptj = "GPTJForCausalLM",
    ["gptj-headless"] = "GPTJModel", ["gpt-neox"] = "GPTNeoXForCausalLM", ["gpt-neox-headless"] = "GPTNeoXModel",
    bloom = "BloomForCausalLM", ["bloom-headless"] = "BloomModel", mpt = "MPTForCausalLM", ["mpt-headless"] = "MPTModel",
    falcon = "FalconForCausalLM", ["falcon-headless"] = "FalconModel", ["clip-vit"] = "CLIPVisionModelWithProjection",
    mllama = "MllamaForConditionalGeneration",
    roberta = "RobertaForMaskedLM", ["esm-2"] = "EsmForMaskedLM", vit = "ViTForImageClassification", ["vit-headless"] = "ViTModel",
    dinov2 = "Dinov2ForImageClassification", ["dinov2-headless"] = "Dinov2Model",
    phi3 = "Phi3ForCausalLM", ["phi3-headless"] = "Phi3Model", qwen3 = "Qwen3ForCausalLM", ["qwen3-headless"] = "Qwen3Model",
    ["qwen3-moe"] = "Qwen3MoeForCausalLM", ["qwen3-moe-headless"] = "Qwen3MoeModel",
    gemma2 = "Gemma2ForCausalLM", ["gemma2-headless"] = "Gemma2Model",
    mistral = "MistralForCausalLM", ["mistral-headless"] = "MistralForCausalLM", mixtral = "MixtralForCausalLM",
    ["mixtral-headless"] = "MixtralModel", qwen2 = "Qwen2ForCausalLM", ["qwen2-headless"] = "Qwen2Model",
    btlm = "BTLMLMHeadModel", ["btlm-headless"] = "BTLMModel", jais = "JAISLMHeadModel",
    ["jais-headless"] = "JAISModel", codegen = "CodeGenForCausalLM", ["codegen-headless"] = "CodeGenModel",
    santacoder = "GPT2LMHeadCustomModel", ["santacoder-headless"] = "GPT2LMHeadCustomModel", starcoder = "GPTBigCodeForCausalLM",
    ["starcoder-headless"] = "GPTBigCodeForCausalLM", -- as the original converter writes them
    ["bert-sequence-classifier"] = "BertForSequenceClassification", ["bert-token-classifier"] = "BertForTokenClassification",
  }

  it("say the class and the dtype of every family", function()
    local ways = tiny.newest_ways()
    for name, way in pairs(ways) do
      if name ~= "dpo" and not way.converter.components then
        local config, root = tiny.model(way)
        local back = there_and_back(name, { "hf", way.format, "hf" }, config, root)
        assert(classes[name], name .. ": no class is expected")
        equal(back.architectures and back.architectures[1], classes[name], name)
        equal(back.torch_dtype, "float32", name)
      end
    end
  end)

  it("do not say the task of a head that was dropped on the way", function()
    local config, root = tiny.model(tiny.newest_ways().vit)
    config = conversion.with(config, { architectures = cbk.list { "ViTForMaskedImageModeling" } })
    local back = there_and_back("vit", { "hf", "cs-2.4", "hf" }, config, root)
    equal(back.architectures[1], "ViTForImageClassification")
  end)

  it("dtype follows the weights, whatever the config said", function()
    local config, root = tiny.model(tiny.newest_ways().llama)
    config = conversion.with(config, { torch_dtype = "float16" })
    local half = cbk.dict()
    for key, tensor in cbk.items(root) do half[key] = tensor:to "bfloat16" end
    equal(there_and_back("llama", { "hf", "cs-2.4", "hf" }, config, root).torch_dtype, "float32")
    equal(there_and_back("llama", { "hf", "cs-2.4", "hf" }, config, half).torch_dtype, "bfloat16")
    config = conversion.with(config, { dtype = "float16" }, { "torch_dtype" })
    local back = there_and_back("llama", { "hf", "cs-2.4", "hf" }, config, half)
    equal({ back.dtype, back.torch_dtype }, { "bfloat16" })
  end)

  it("a class that the config names stays where it is of the same kind", function()
    local config, root = tiny.model(tiny.newest_ways().gpt2)
    local named = conversion.with(config, { architectures = cbk.list { "GPT2MineLMHeadModel" } })
    equal(there_and_back("gpt2", { "hf", "cs-2.4", "hf" }, named, root).architectures[1], "GPT2MineLMHeadModel")
    named = conversion.with(config, { architectures = cbk.list { "GPTBigCodeForCausalLM" } }) -- of another family
    equal(there_and_back("gpt2", { "hf", "cs-2.4", "hf" }, named, root).architectures[1], "GPT2LMHeadModel")
    named = conversion.with(config, { architectures = cbk.list { "GPT2Model" } })
    equal(there_and_back("gpt2", { "hf", "cs-2.4", "hf" }, named, root).architectures[1], "GPT2LMHeadModel")
  end)

  it("T5 can compute a loss", function()
    local config, root = tiny.model(tiny.newest_ways().t5)
    equal(there_and_back("t5", { "hf", "cs-2.4", "hf" }, config, root).decoder_start_token_id, 0)
    config = conversion.with(config, { decoder_start_token_id = 4 })
    equal(there_and_back("t5", { "hf", "cs-2.4", "hf" }, config, root).decoder_start_token_id, 4)
  end)
end)

describe("cbk convert --src-fmt cs-auto", function()
  local function made(name, format)
    local dir = harness.temp_dir()
    local config, root = tiny.model(tiny.newest_ways()[name])
    config, root = quietly(conversion.run, name, "hf", format, with_extras(config), root)
    cbk.config.save(config, dir .. "/p.yaml")
    return dir, config, root
  end

  local function convert(dir, name, tgt)
    return harness.cbk(dir, "convert", "--model", name, "--src-fmt", "cs-auto", "--tgt-fmt", tgt, "--config", "p.yaml", "-o", "o",
      "a.mdl")
  end

  it("takes what cbk convert wrote, and its fields back", function()
    local dir, _, root = made("llama", "cs-2.4")
    cbk.create(dir .. "/a.mdl", { root = root }):commit { progress = false }
    local code, _, stderr = convert(dir, "llama", "hf")
    equal(code, 0, stderr)
    local back = cbk.config.load(dir .. "/o/a_to_hf/config.json")
    for _, pair in ipairs(extras) do conversion.same(back[pair[1]], pair[2], pair[1]) end
  end)

  it("finds a release that nothing says by names and config", function()
    local dir, _, root = made("llama", "cs-2.5")
    root = cbk.dict { model = root.model }
    cbk.create(dir .. "/a.mdl", { root = root, h5_version = "0.5", framework_version = "" }):commit { progress = false }
    local code, stdout, stderr = convert(dir, "llama", "hf")
    equal(code, 0, stderr)
    assert(stdout:find("Checkpoint saved to o/a_to_hf", 1, true), stdout)
  end)

  it("shows the evidence where it contradicts itself", function()
    local dir, config, root = made("llama", "cs-2.4")
    root.__metadata__[1].version = "1.9.0"
    cbk.create(dir .. "/a.mdl", { root = root }):commit { progress = false }
    cbk.config.save(config, dir .. "/p.yaml", { overwrite = true })
    local code, _, stderr = convert(dir, "llama", "hf")
    equal(code, 1)
    assert(stderr:find("'a.mdl' is of 1.9 (__metadata__ says 1.9.0), but 'p.yaml' has model.norm_type (2.0 and later); remove it, "
      .. "or pass --src-fmt cs-1.9", 1, true), stderr)
  end)

  it("can be left out for a release, where a stale field says another one", function()
    local dir, config, root = made("llama", "cs-2.1")
    cbk.create(dir .. "/a_to_cs-2.1.mdl", { root = root }):commit { progress = false }
    config.model.use_bfloat16 = true
    os.remove(dir .. "/p.yaml")
    cbk.config.save(config, dir .. "/config_to_cs-2.1.yaml")
    local function says(part, ...)
      local _, stdout, stderr = harness.cbk(dir, ...)
      assert((stdout .. stderr):find(part, 1, true), stdout .. stderr)
    end
    says("remove it, or pass --src-fmt cs-2.1", "convert", "a_to_cs-2.1.mdl", "--to", "hf")
    says("Checkpoint saved to o/a_to_cs-2.1_to_hf", "convert", "a_to_cs-2.1.mdl", "--to", "hf", "--src-fmt", "cs-2.1", "-o", "o")
    says("remove it, or pass --tgt-fmt cs-2.1", "diff", "--model", "llama", "o/a_to_cs-2.1_to_hf", "a_to_cs-2.1.mdl")
    says("the same", "diff", "--model", "llama", "o/a_to_cs-2.1_to_hf", "a_to_cs-2.1.mdl", "--tgt-fmt", "cs-2.1")
    says("remove it, or pass --src-fmt cs-2.1", "diff", "--model", "llama", "a_to_cs-2.1.mdl", "o/a_to_cs-2.1_to_hf")
    says("the same", "diff", "--model", "llama", "a_to_cs-2.1.mdl", "o/a_to_cs-2.1_to_hf", "--src-fmt", "cs-2.1")
  end)
end)

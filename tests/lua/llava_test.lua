-- LLaVA: two folders of Hugging Face files and one checkpoint, through the commands; the projector; what cannot be said.

local cbk = require "cbk"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local tiny = require "tiny"

local describe, it = harness.describe, harness.it
local same, fails, with, run = conversion.same, conversion.fails, conversion.with, conversion.run

-- --- a tower of two layers, a LLaMA of one, a projector of two Linears

local image_config = cbk.dict {
  model_type = "clip_vision_model", hidden_size = 4, num_attention_heads = 2, num_hidden_layers = 2, intermediate_size = 6,
  image_size = 8, patch_size = 4, num_channels = 3, projection_dim = 7, hidden_act = "quick_gelu", attention_dropout = 0.5,
}
local text_config = cbk.dict {
  model_type = "llava", hidden_size = 8, num_attention_heads = 2, num_hidden_layers = 1, vocab_size = 5, intermediate_size = 6,
  hidden_act = "silu", tie_word_embeddings = false, mm_hidden_size = 4, mm_projector_type = "mlp2x_gelu", mm_vision_select_layer = -2,
  mm_vision_select_feature = "patch", tune_mm_mlp_adapter = false,
}

local function config(text, image)
  return cbk.dict { image_model = with(image_config, image), text_model = with(text_config, text) }
end

local function checkpoint(without_projector)
  local image = {
    { "vision_model.embeddings.class_embedding", 4 }, { "vision_model.embeddings.patch_embedding.weight", 4, 3, 4, 4 },
    { "vision_model.embeddings.position_embedding.weight", 5, 4 }, { "vision_model.pre_layrnorm.{weight,bias}", 4 },
    { "vision_model.post_layernorm.{weight,bias}", 4 },
  }
  for i = 0, 1 do
    local layer = ("vision_model.encoder.layers.%d."):format(i)
    for _, name in ipairs { "q_proj", "k_proj", "v_proj", "out_proj" } do
      image[#image + 1] = { layer .. "self_attn." .. name .. ".{weight,bias}", 4, 4 }
    end
    for _, entry in ipairs { { "mlp.fc1", 6, 4 }, { "mlp.fc2", 4, 6 }, { "layer_norm1", 4 }, { "layer_norm2", 4 } } do
      image[#image + 1] = { layer .. entry[1] .. ".{weight,bias}", unpack(entry, 2) }
    end
  end
  local text = { { "model.embed_tokens.weight", 5, 8 }, { "model.norm.weight", 8 }, { "lm_head.weight", 5, 8 } }
  for _, entry in ipairs {
    { "self_attn.q_proj", 8, 8 }, { "self_attn.k_proj", 8, 8 }, { "self_attn.v_proj", 8, 8 }, { "self_attn.o_proj", 8, 8 },
    { "mlp.up_proj", 6, 8 }, { "mlp.gate_proj", 6, 8 }, { "mlp.down_proj", 8, 6 }, { "input_layernorm", 8 },
    { "post_attention_layernorm", 8 },
  } do
    text[#text + 1] = { "model.layers.0." .. entry[1] .. ".weight", unpack(entry, 2) }
  end
  if not without_projector then
    text[#text + 1] = { "model.mm_projector.0.{weight,bias}", 8, 4 }
    text[#text + 1] = { "model.mm_projector.2.{weight,bias}", 8, 8 }
  end
  return cbk.dict { image_model = conversion.checkpoint(image), text_model = conversion.checkpoint(text) }
end

local function there_and_back(release, source)
  local hf = checkpoint()
  local cs_config, cs = run("llava", "hf", release, source, hf)
  local again_config, again = run("llava", release, "hf", cs_config, cs)
  for part, tensors in cbk.items(hf) do
    conversion.equal_tensors(tensors, again[part])
    same(cbk.count(again[part]), cbk.count(tensors), part)
    for field, value in cbk.items(source[part]) do same(again_config[part][field], value, field) end
  end
  return cs_config, cs, again_config
end

describe("LLaVA", function()
  it("reads positions of transformers 5", function()
    for _, name in ipairs { "llava", "mmsimple-llava" } do
      local given = tiny.config(name, tiny.composite(name).converter)
      local text = given.text_model
      text.rope_scaling, text.rope_theta = nil, nil
      text.rope_parameters = cbk.dict { rope_type = "linear", factor = 2, rope_theta = 77 }
      local out = converters.convert.config(conversion.job(name, "hf", "cs-2.9"), given)
      local function find(map)
        for _, inner in cbk.items(map) do
          if cbk.kind(inner) == "dict" then
            if inner.pos_scaling_factor ~= nil then return inner end
            local found = find(inner)
            if found then return found end
          end
        end
      end
      local found = find(out)
      same({ found.pos_scaling_factor, found.pos_scaling_type, found.rope_theta }, { 2, "linear", 77 }, name)
    end
  end)

  for _, release in ipairs { "cs-2.2", "cs-2.9" } do
    it("comes back as it was by " .. release, function()
      local cs_config, cs = there_and_back(release, config())
      local model = cs_config.model
      same(model.name, release == "cs-2.9" and "llava" or nil)
      same({ model.image_model.name, model.text_model.name }, { "ViTModel", "LlamaModel" })
      same(model.image_model.image_size, cbk.list { 8, 8 })
      same(model.projector.image_model.layers_units, cbk.list { 8, 8 })
      same(model.projector.image_model.layers_activation, cbk.list { "gelu", cbk.null })
      same(model.freeze, cbk.list { "^image_model" })
      same(model.text_model.projector, nil)
      assert(cs.model["projector_image_model.ffn.1.linear_layer.weight"] ~= nil)
      -- the class token's position goes last
      local want = checkpoint().image_model["vision_model.embeddings.position_embedding.weight"]:tolist()
      same(cs.model["image_model.embedding_layer.position_embeddings.weight"]:tolist(), { want[2], want[3], want[4], want[5], want[1] })
    end)
  end

  it("reads the trainer's layout, and keys with 'model.'", function()
    local cs_config, cs = run("llava", "hf", "cs-2.4", config(), checkpoint())
    local prefixed = cbk.dict()
    for key, tensor in cbk.items(cs.model) do prefixed["model." .. key] = tensor end
    local trainer = cbk.dict { trainer = cbk.dict { init = cbk.dict { model = cs_config.model } } }
    local _, hf = run("llava", "cs-2.4", "hf", trainer, cbk.dict { model = prefixed })
    conversion.equal_tensors(checkpoint().text_model, hf.text_model)
    conversion.equal_tensors(checkpoint().image_model, hf.image_model)
  end)

  it("a LLaMA without a projector gets a random one", function()
    local warnings = {}
    local function convert()
      local cs
      warnings = conversion.warnings(function() cs = select(2, run("llava", "hf", "cs-2.4", config(), checkpoint(true))) end)
      return cs.model
    end
    local model = convert()
    local text = table.concat(warnings, "\n")
    assert(text:find("'projector_image_model.ffn.1.linear_layer.bias' is not in the checkpoint: uniform random values", 1, true))
    local first, second = model["projector_image_model.ffn.0.linear_layer.weight"], model["projector_image_model.ffn.1.linear_layer.weight"]
    same({ first:shape(), second:shape() }, { { 8, 4 }, { 8, 8 } })
    local stats = first:stats()
    assert(stats.max <= 0.5 and stats.min >= -0.5 and stats.std > 0.1)
    same(model["projector_image_model.ffn.1.linear_layer.bias"]:shape(), { 8 })
    same(convert()["projector_image_model.ffn.0.linear_layer.weight"]:tolist(), first:tolist())
  end)

  it("layers are counted from the embedding on one side only", function()
    local cs_config = there_and_back("cs-2.4", config { mm_vision_select_layer = 2 })
    same(cs_config.model.image_feature_select_layer_idx, 1)
    fails("mm_vision_select_layer=0", run, "llava", "hf", "cs-2.4", config { mm_vision_select_layer = 0 }, checkpoint())
  end)

  it("what is not trained stays so, part by part", function()
    for _, tuned in ipairs { false, true } do
      for _, unfrozen in ipairs { false, true } do
        local cs_config = there_and_back("cs-2.4", config { tune_mm_mlp_adapter = tuned, unfreeze_mm_vision_tower = unfrozen })
        local want = cbk.list()
        if not unfrozen then want[1] = "^image_model" end
        if tuned then want[#want + 1] = "^text_model" end
        same(cs_config.model.freeze, want)
      end
    end
    local cs_config, cs = run("llava", "hf", "cs-2.4", config(), checkpoint())
    local function back(freeze)
      cs_config.model.freeze = freeze
      local text = run("llava", "cs-2.4", "hf", cs_config, cs).text_model
      return { text.tune_mm_mlp_adapter, text.unfreeze_mm_vision_tower, text.freeze_mm_mlp_adapter }
    end
    same(back(cbk.list()), { false, true, false })
    for _, unsaid in ipairs { cbk.null, false } do same(back(unsaid or nil), { false, false, false }) end
    same(back(cbk.list { "text_model", "^projector_image_model" }), { true, true, true })
    fails("freeze='image_model'", back, "image_model")
  end)

  it("of a projector what Hugging Face cannot say is refused or named", function()
    local cs_config, cs = run("llava", "hf", "cs-2.4", config(), checkpoint())
    local layers = cs_config.model.projector.image_model
    layers.layers_dropout_rates = cbk.list { 0.1, cbk.null }
    local reported = table.concat(conversion.warnings(run, "llava", "cs-2.4", "hf", cs_config, cs), "\n")
    assert(reported:find("text_model.projector.image_model.layers_dropout_rates", 1, true), reported)
    layers.use_bias = false
    fails("projector.image_model.use_bias=false", run, "llava", "cs-2.4", "hf", cs_config, cs)
    layers.use_bias = nil
    fails("projector.image_model.use_bias=null", run, "llava", "cs-2.4", "hf", cs_config, cs)
  end)

  it("a projector is as deep as its name says", function()
    fails("2 weights are missing: model.mm_projector.4.weight, model.mm_projector.4.bias", run, "llava", "hf", "cs-2.4",
      config { mm_projector_type = "mlp3x_gelu" },
      checkpoint())
    fails("does not have with this config: text_model/model.mm_projector.2.weight", run, "llava", "hf", "cs-2.4",
      config { mm_projector_type = "mlp1x_gelu" }, checkpoint())
    local cs_config, cs = run("llava", "hf", "cs-2.4", config(), checkpoint())
    cs.model["projector_image_model.ffn.1.linear_layer.weight"] = nil
    fails("1 weight is missing: projector_image_model.ffn.1.linear_layer.weight", run, "llava", "cs-2.4", "hf", cs_config, cs)
  end)

  it("other classes than these have no counterpart", function()
    local cs_config, cs = run("llava", "hf", "cs-2.4", config(), checkpoint())
    for part, name in pairs { image_model = "Foo", text_model = "GPTModel" } do
      local changed = cbk.deep_copy(cs_config)
      changed.model[part].name = name
      fails(("name='%s'"):format(name), run, "llava", "cs-2.4", "hf", changed, cs)
    end
    cs_config.model.image_feature_select_mode = "bogus"
    fails("image_feature_select_mode='bogus'", run, "llava", "cs-2.4", "hf", cs_config, cs)
    fails("mm_vision_select_feature='bogus'", run, "llava", "hf", "cs-2.4", config { mm_vision_select_feature = "bogus" }, checkpoint())
  end)

  it("a whole CLIP is taken for its tower", function()
    local hf = checkpoint()
    hf.image_model["logit_scale"] = conversion.counted({ 1 }, 0)
    hf.image_model["text_model.final_layer_norm.weight"] = conversion.counted({ 4 }, 0)
    hf.image_model["visual_projection.weight"] = conversion.counted({ 7, 4 }, 0)
    local whole = cbk.dict { image_model = cbk.dict { model_type = "clip", vision_config = image_config }, text_model = text_config }
    whole.image_model.projection_dim, whole.image_model.text_config = 7, cbk.dict { hidden_size = 4 }
    local cs_config
    local reported = table.concat(conversion.warnings(function() cs_config = run("llava", "hf", "cs-2.4", whole, hf) end), "\n")
    same(cs_config.model.image_model.hidden_size, 4)
    assert(reported:find("left out: image_model.text_config, image_model.projection_dim", 1, true), reported)
  end)

  it("keys that no part knows are named with their part", function()
    local hf = checkpoint()
    hf.text_model.strange = conversion.counted({ 1 }, 0)
    fails("text_model/strange", run, "llava", "hf", "cs-2.4", config(), hf)
    local cs_config, cs = run("llava", "hf", "cs-2.4", config(), checkpoint())
    cs.model.strange = conversion.counted({ 1 }, 0)
    fails("1 key was not matched: strange", run, "llava", "cs-2.4", "hf", cs_config, cs)
    hf.text_model.strange, hf.image_model["vision_model.encoder.layers.1.mlp.fc1.weight"] = nil, nil
    fails("incomplete", run, "llava", "hf", "cs-2.4", config(), hf)
  end)

  it("what cannot be said is refused by name", function()
    local function refused(part, text, image)
      fails(part, run, "llava", "hf", "cs-2.4", config(text, image), checkpoint())
    end
    refused("mm_projector_type='linear'", { mm_projector_type = "linear" })
    refused("mm_hidden_size=6", { mm_hidden_size = 6 })
    refused("mm_use_im_start_end=true", { mm_use_im_start_end = true })
    refused("encoder_stride=2", {}, { encoder_stride = 2 })
    fails("no section 'text_model'", run, "llava", "hf", "cs-2.4", cbk.dict { image_model = image_config }, checkpoint())
    local function back(part, change)
      local cs_config, cs = run("llava", "hf", "cs-2.4", config(), checkpoint())
      change(cs_config.model)
      fails(part, run, "llava", "cs-2.4", "hf", cs_config, cs)
    end
    back("layers_activation", function(model) model.projector.image_model.layers_activation[1] = "relu" end)
    back("layers_units", function(model) model.projector.image_model.layers_units[1] = 6 end)
    back("projector.image_model.name='MLP'", function(model) model.projector.image_model.name = "MLP" end)
    back("projector.image_model.input_unit=6: only the hidden_size of the image_model (4)", function(model)
      model.projector.image_model.input_unit = 6
    end)
    back("image_size=[8, 4]", function(model) model.image_model.image_size[2] = 4 end)
    back("no map projector.image_model", function(model) model.projector = cbk.dict { other = 1 } end)
  end)

  it("features come from a layer that the image tower has", function()
    local function convert(src, tgt, source)
      local out
      conversion.warnings(function() out = require("cbk.converters").convert.config(conversion.job("llava", src, tgt), source) end)
      return out
    end
    for _, bad in ipairs { -30, -3, 3, 0, 1.5, "1" } do
      fails("mm_vision_select_layer=", convert, "hf", "cs-2.4", config { mm_vision_select_layer = bad })
    end
    fails("mm_vision_select_layer=-3: only 1 to 2, or -2 to -1", convert, "hf", "cs-2.4", config { mm_vision_select_layer = -3 })
    for left, right in pairs { [-2] = -2, [-1] = -1, [1] = 0, [2] = 1 } do
      local cs = convert("hf", "cs-2.4", config { mm_vision_select_layer = left })
      same(cs.model.image_feature_select_layer_idx, right)
      same(convert("cs-2.4", "hf", cs).text_model.mm_vision_select_layer, left)
    end
    for _, bad in ipairs { -3, 2, 0.5 } do
      local cs = convert("hf", "cs-2.4", config())
      cs.model.image_feature_select_layer_idx = bad
      fails("image_feature_select_layer_idx=" .. bad, convert, "cs-2.4", "hf", cs)
    end
  end)

  it("every field that is left out is named, those last that all configs have", function()
    local fields = { use_cache = true, torch_dtype = "bfloat16", transformers_version = "4.36.2", output_scores = true }
    for i = 1, 40 do fields[("own_%d"):format(i)] = i end
    local reported = table.concat(conversion.warnings(require("cbk.converters").convert.config, conversion.job("llava", "hf", "cs-2.4"),
      config(fields)), ",") .. ","
    local last_own, first_common = 0, math.huge
    for name, value in pairs(fields) do
      local shown = type(value) == "string" and "'" .. value .. "'" or tostring(value)
      local at = reported:find(("text_model.%s=%s,"):format(name, shown), 1, true)
      assert(at, name .. " is not named")
      if name:find "^own" then last_own = math.max(last_own, at) else first_common = math.min(first_common, at) end
    end
    assert(last_own < first_common)
  end)

  it("fields of the image model that the Model Zoo refuses are named", function()
    for _, model in ipairs { "llava", "mmsimple-llava" } do
      for release, is_refused in pairs { ["cs-2.3"] = false, ["cs-2.4"] = true } do
        local job = conversion.job(model, "hf", release)
        local said = table.concat(conversion.warnings(require("cbk.converters").convert.config, job, config()))
        same(said:find("num_classes and use_bias_in_output, which the Model Zoo's ViTModel refuses since 2.4", 1, true) ~= nil, is_refused)
      end
    end
  end)

  it("images in patches of a grid are another model's", function()
    local function reported(fields)
      return table.concat(conversion.warnings(require("cbk.converters").convert.config, conversion.job("llava", "hf", "cs-2.4"),
        config(fields)), "\n")
    end
    for field, bad in pairs { mm_patch_merge_type = { "spatial", "spatial_unpad" }, image_aspect_ratio = { "anyres", "anyres_max_9" } } do
      for _, value in ipairs(bad) do fails(("with %s='%s': only "):format(field, value), reported, { [field] = value }) end
    end
    for _, usual in ipairs { "flat", cbk.null } do
      local silent = reported { mm_patch_merge_type = usual, image_aspect_ratio = "pad" }
      assert(not silent:find "mm_patch_merge_type" and not silent:find "image_aspect_ratio", silent)
    end
    assert(reported({ image_aspect_ratio = "square" }):find("text_model.image_aspect_ratio='square'", 1, true))
  end)

  it("a missing field, and models that the folders do not hold, are reported", function()
    local function reported(text, image)
      return table.concat(conversion.warnings(require("cbk.converters").convert.config, conversion.job("llava", "hf", "cs-2.4"),
        config(text, image)), "\n")
    end
    local absent = config()
    absent.text_model = with(absent.text_model, {}, { "mm_hidden_size" })
    fails("the config of text_model has no 'mm_hidden_size': add the hidden_size of the image_model (4)",
      require("cbk.converters").convert.config, conversion.job("llava", "hf", "cs-2.4"), absent)
    assert(reported({}, { model_type = "siglip_vision_model" }):find("model_type='siglip_vision_model' is ignored", 1, true))
    assert(reported({ model_type = "llava_mpt" }, {}):find("model_type='llava_mpt' is ignored", 1, true))
    for _, usual in ipairs { "llava", "llava_llama" } do assert(not reported({ model_type = usual }, {}):find "model_type") end
  end)
end)

describe("CLIP", function()
  it("the tower with its projection comes back as it was, also with the keys of the Model Zoo's trainer or its wrapper", function()
    local hf = checkpoint().image_model
    hf["visual_projection.weight"] = conversion.counted({ 7, 4 }, 0)
    local cs_config, cs = conversion.there_and_back("clip-vit", "cs-2.4", image_config, hf)
    same({ cs_config.model.name, cs_config.model.num_classes }, { "vision_transformer", 7 })
    local prefixed = cbk.dict()
    for key, tensor in cbk.items(cs.model) do prefixed["model." .. key] = tensor end
    conversion.equal_tensors(hf, select(2, run("clip-vit", "cs-2.4", "hf", cs_config, cbk.dict { model = prefixed })))
    fails("model_type='vit'", run, "clip-vit", "hf", "cs-2.4", with(image_config, { model_type = "vit" }), hf)
  end)
end)

-- --- the commands, over files

---@param hf? Dict
---@param text? table   of the text model's config
local function write_source(folder, hf, text)
  local both = config(text)
  hf = hf or checkpoint()
  for part, tensors in cbk.items(hf) do
    local own = cbk.fs.join(folder, part)
    cbk.fs.mkdir(own)
    cbk.config.save(both[part], cbk.fs.join(own, "config.json"))
    cbk.create(cbk.fs.join(own, "model.safetensors"), { root = tensors, format = "safetensors" }):commit()
  end
end

local function call(...)
  local words = { ... }
  for i, word in ipairs(words) do words[i] = ("'%s'"):format(word) end
  local pipe = io.popen(("'%s' %s 2>&1; echo $?"):format(cbk.fs.program(), table.concat(words, " ")))
  local text = pipe:read "*a"
  pipe:close()
  return tonumber(text:match "(%d+)%s*$"), text
end

describe("LLaVA: files", function()
  it("a folder of folders has no single config: new and params say how to get one", function()
    local top = harness.temp_dir()
    local source = cbk.fs.join(top, "source")
    write_source(source)
    local advice = "`cbk convert-config %s --model llava --src-fmt hf --tgt-fmt cs-current`"
    local several = "it is a folder of several models (image_model, text_model), such as llava; make its config for the Model Zoo with "
    for _, words in ipairs {
      { "new", source, "--model", "llava", "-o", cbk.fs.join(top, "out.mdl") }, { "params", source },
      { "convert-config", source, "--src-fmt", "hf", "--tgt-fmt", "cs-2.4" },
    } do
      local code, text = call(unpack(words))
      assert(code == 1 and text:find(several .. advice:format(source), 1, true), text)
    end
    local code, text = call("params", cbk.fs.join(source, "text_model"), "--model", "llava")
    assert(code == 1 and text:find("llava is several models in hf", 1, true) and text:find(advice:format "FOLDER", 1, true), text)
    code, text = call("params", top)
    assert(code == 1 and text:find("the folder has no config.json", 1, true), text)
    code, text = call("convert-config", source, "--model", "llava", "--src-fmt", "hf", "--tgt-fmt", "cs-current", "-o", top)
    same(code, 0, text)
    code, text = call("new", cbk.fs.join(top, "source_to_cs-2.9.yaml"), "-o", cbk.fs.join(top, "out.mdl"))
    same(code, 0, text)
  end)

  it("a folder of folders becomes one checkpoint, and back", function()
    local top = harness.temp_dir()
    local source, out = cbk.fs.join(top, "source"), cbk.fs.join(top, "out")
    write_source(source)
    local model = { "--model", "llava" }
    local code, text = call("convert", model[1], model[2], "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", source, source, "-o", out)
    same(code, 0, text)
    local mdl, yaml = cbk.fs.join(out, "pytorch_model_to_cs-2.4.mdl"), cbk.fs.join(out, "config_to_cs-2.4.yaml")
    local back = cbk.fs.join(top, "back")
    local arguments = { "convert", "--model", "llava", "--src-fmt", "cs-2.4", "--tgt-fmt", "hf", "--config", yaml, mdl, "-o", back }
    code, text = call(unpack(arguments))
    same(code, 0, text)
    for part, tensors in cbk.items(checkpoint()) do
      conversion.equal_tensors(tensors, cbk.open(cbk.fs.join(back, part)).root)
    end
    local written = cbk.config.load(cbk.fs.join(back, "text_model", "config.json"))
    same(written.mm_vision_tower, cbk.fs.join(back, "image_model"))
    same(cbk.config.load(cbk.fs.join(back, "image_model", "preprocessor_config.json")).crop_size, cbk.dict { height = 8, width = 8 })
    code, text = call(unpack(arguments))
    assert(code == 1 and text:find("exists already", 1, true), text)
    code, text = call("convert-config", "--model", "llava", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", source, "-o", out)
    same(code, 0, text)
    same(cbk.config.load(cbk.fs.join(out, "source_to_cs-2.4.yaml")), cbk.config.load(yaml))
    local configs = cbk.fs.join(top, "configs")
    code, text = call("convert-config", "--model", "llava", "--src-fmt", "cs-2.4", "--tgt-fmt", "hf", yaml, "-o", configs)
    same(code, 0, text)
    assert(cbk.fs.exists(cbk.fs.join(configs, "image_model", "preprocessor_config.json")))
  end)

  it("a text model whose head is its embedding has one of them in its file", function()
    local source, hf = cbk.fs.join(harness.temp_dir(), "source"), checkpoint()
    hf.text_model["lm_head.weight"] = nil
    write_source(source, hf, { tie_word_embeddings = true })
    local code, text = call("convert", "--model", "llava", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", source, source,
      "--dry-run")
    same(code, 0, text)
    assert(text:find("text_model/model.embed_tokens.weight -> text_model.lm_head.weight  tied  float32 [5, 8]", 1, true), text)
  end)

  it("a folder that lacks a part is named, and nothing is left behind", function()
    local top = harness.temp_dir()
    local source, out = cbk.fs.join(top, "source"), cbk.fs.join(top, "out")
    write_source(source)
    cbk.fs.remove(cbk.fs.join(source, "text_model"), { recursive = true })
    local code, text = call("convert", "--model", "llava", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", source, source, "-o", out)
    assert(code == 1 and text:find("no folder 'text_model'", 1, true), text)
    assert(not cbk.fs.exists(out))
  end)
end)

describe("LLaVA as a MultimodalSimple", function()
  local model = "mmsimple-llava"

  for _, release in ipairs { "cs-2.3", "cs-2.9" } do
    it("comes back as it was by " .. release, function()
      local cs_config, cs = run(model, "hf", release, config({ mm_vision_select_layer = 1 }), checkpoint())
      local section = cs_config.model
      local first = section.image_model_list.image_models[1]
      local image = release == "cs-2.3" and first.image_model[1] or first.image_encoder
      same({ image.name, image.image_layer_idx }, { "ViTModel", 0 })
      same(section.image_model_list.global_image_projection.layers_units, cbk.list { 8, 8 })
      for _, name in ipairs { "image_model", "projector", "image_start_idx" } do same(section[name], nil) end
      assert(cs.model["image_model.image_model_list.0.0.embedding_layer.cls_embedding"] ~= nil)
      assert(cs.model["image_model.projection.ffn.1.linear_layer.weight"] ~= nil)
      local again_config, again = run(model, release, "hf", cs_config, cs)
      for part, tensors in cbk.items(checkpoint()) do conversion.equal_tensors(tensors, again[part]) end
      same({ again_config.text_model.mm_vision_select_layer, again_config.text_model.mm_projector_type }, { 1, "mlp2x_gelu" })
    end)
  end

  it("refuses several image models, projections of their own, and features behind the last norm", function()
    local cs_config = run(model, "hf", "cs-2.4", config(), checkpoint())
    local function refused(message, change)
      local changed = cbk.deep_copy(cs_config)
      change(changed.model.image_model_list)
      fails(message, converters.convert.config, conversion.job(model, "cs-2.4", "hf"), changed)
    end
    refused("must have one image model", function(list) list.image_models = cbk.list { list.image_models[1], list.image_models[1] } end)
    refused("without a projection of its own", function(list) list.image_models[1].projection_layer = cbk.dict { name = "x" } end)
    refused("image_layer_idx=null", function(list) list.image_models[1].image_encoder.image_layer_idx = cbk.null end)
    refused("no map image_model_list.global_image_projection", function(list) list.global_image_projection = nil end)
  end)

  it("has another place for the image model before 2.4", function()
    local cs_config, cs = run(model, "hf", "cs-2.3", config(), checkpoint())
    local newer = run(model, "cs-2.3", "cs-2.4", cs_config, cs)
    local section = newer.trainer and newer.trainer.init.model or newer.model
    same(section.image_model_list.image_models[1].image_encoder.name, "ViTModel")
  end)
end)

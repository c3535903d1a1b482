-- Fields of Hugging Face configs that are absent, or have another name: those of transformers 5, and of the first versions of a class.

local cbk = require "cbk"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local tiny = require "tiny"
local variations = require "variations"

local describe, it, equal = harness.describe, harness.it, harness.equal
local converted, refuses = variations.converted, variations.refuses

local dict = cbk.dict

---@return Dict config, Dict root
local function run(name, format, config, root)
  local to, out
  conversion.warnings(function() to, out = conversion.run(name, "hf", format, config, root) end)
  return to.model, out.model
end

---A config without a field, for each field; those of sections as "vision_config.hidden_size".
local function each_removed(config, visit)
  for _, name in ipairs(cbk.keys(config)) do
    local without = cbk.copy(config)
    without[name] = nil
    visit(name, without)
    for _, inner in ipairs(cbk.kind(config, name) == "dict" and cbk.keys(config[name]) or {}) do
      without = cbk.deep_copy(config)
      without[name][inner] = nil
      visit(name .. "." .. inner, without)
    end
  end
end

-- What the class's default says in older files, and no tensor depends on.
local MAY_BE_DEFAULT = {
  attn_pdrop = true, embd_pdrop = true, resid_pdrop = true, layer_norm_epsilon = true, max_position_embeddings = true, n_positions = true,
  model_type = true, head_dim = true, ["text_config.max_position_embeddings"] = true,
  ["vision_config.intermediate_layers_indices"] = true, ["vision_config.supported_aspect_ratios"] = true,
}

describe("Hugging Face configs without a field", function()
  local removed, refused, newest = 0, 0, tiny.newest_ways()
  for _, way in ipairs(tiny.ways()) do
    local is_newest = way.format == newest[way.name].format and not way.name:find "%-headless$" -- whose config is the same
    local _ = is_newest and it(("%s%s: are refused, or mean the same"):format(way.name, way.layout and " (other layout)" or ""), function()
      local config, root = tiny.model(way)
      local want_config, want = run(way.name, way.format, config, root)
      each_removed(config, function(name, without)
        local fine, to, out = pcall(run, way.name, way.format, without, root)
        removed, refused = removed + 1, refused + (fine and 0 or 1)
        if not fine then
          assert(type(to) == "table" and to.message, ("%s without %s: %s"):format(way.name, name, tostring(to)))
          return
        end
        equal(cbk.count(out), cbk.count(want), name)
        conversion.equal_tensors(want, out, name)
        if not MAY_BE_DEFAULT[name] then conversion.same(to, want_config, ("%s without %s"):format(way.name, name)) end
      end)
    end)
  end

  it("are many", function() assert(removed > 200 and refused > 100, ("%d, %d refused"):format(removed, refused)) end)

  it("say what the other side's class has another default for", function()
    local function base_of(name)
      local config = cbk.copy(variations.hf_config(name))
      config.rope_theta = nil
      return (run(name, variations.ways[name].format, config, select(2, tiny.model(tiny.newest_ways()[name])))).rope_theta
    end
    equal({ base_of "mixtral", base_of "mistral" }, { 1e6 }) -- of both classes of Mistral it is 10000
  end)

  it("that counts what no shape shows are refused", function()
    for name, field in pairs { bloom = "n_head", gpt2 = "n_head", ["clip-vit"] = "num_attention_heads", llama = "num_attention_heads",
      vit = "num_attention_heads", mixtral = "num_local_experts", ["qwen3-moe"] = "num_experts" } do
      local config = cbk.copy(variations.hf_config(name))
      config[field] = nil
      conversion.fails(("the config has no '%s'"):format(field), conversion.run, name, "hf", variations.ways[name].format, config, dict())
    end
  end)
end)

describe("Hugging Face configs with other names of fields", function()
  ---Under another name the field means the same, and a contradiction is said.
  local function same(name, field, other, section)
    local config, root = tiny.model(tiny.newest_ways()[name])
    local format = tiny.newest_ways()[name].format
    local want_config, want = run(name, format, config, root)
    local renamed = cbk.deep_copy(config)
    local map = section and renamed[section] or renamed
    map[other], map[field] = cbk.raw(map, field), nil
    local to, out = run(name, format, renamed, root)
    conversion.same(to, want_config, name)
    conversion.equal_tensors(want, out)
  end

  it("are read", function()
    for _, suffix in ipairs { "", "-headless" } do
      same("qwen3-moe" .. suffix, "num_experts", "num_local_experts")
      same("mixtral" .. suffix, "num_local_experts", "num_experts")
      same("gpt2" .. suffix, "n_head", "num_attention_heads")
      same("bloom" .. suffix, "n_head", "num_attention_heads")
      same("falcon" .. suffix, "hidden_size", "n_embed")
    end
    same("t5", "d_kv", "head_dim")
    same("mllama", "attention_heads", "num_attention_heads", "vision_config")
  end)

  it("of Falcon's key heads are read, also of its first version", function()
    local grouped = { model_type = "falcon", new_decoder_architecture = true, num_attention_heads = 4, multi_query = false }
    for _, field in ipairs { "num_kv_heads", "n_head_kv" } do
      grouped.num_kv_heads, grouped.n_head_kv = nil, nil
      grouped[field] = 2
      equal(converted({ "falcon", "hf", "cs-2.9", grouped }).extra_attention_params.num_kv_groups, 2, field)
    end
  end)

  it("of T5's tied embeddings: what scales the outputs decides", function()
    local config, root = tiny.model(tiny.newest_ways().t5)
    config.tie_word_embeddings = false
    root["lm_head.weight"] = conversion.counted({ 5, 8 }, 90000)
    local want_config, want = run("t5", "cs-2.9", config, root)
    local new = conversion.with(config, { tie_word_embeddings = true, scale_decoder_outputs = false })
    for _, release in ipairs { "cs-1.8", "cs-2.0", "cs-2.9" } do
      equal(run("t5", release, new, root).share_embedding_weights, false, release)
    end
    local to, out = run("t5", "cs-2.9", new, root)
    conversion.same(to, want_config)
    conversion.equal_tensors(want, out)
    equal(converted({ "t5", "hf", "cs-2.9", { tie_word_embeddings = true, scale_decoder_outputs = true } }).share_embedding_weights, true)
    refuses { { "t5", "hf", "cs-2.9", { tie_word_embeddings = false, scale_decoder_outputs = true },
      "scale_decoder_outputs=true: only false, where tie_word_embeddings is false," } }
  end)

  it("of positions may be in a map for each kind of attention, if all say the same", function()
    local function of(full, sliding, more)
      return { rope_parameters = conversion.with(dict { full_attention = dict(full), sliding_attention = dict(sliding) }, more or {}) }
    end
    local scaled = { rope_type = "linear", factor = 4, rope_theta = 500 }
    for _, name in ipairs { "llama", "mistral", "qwen3", "phi3" } do
      local release = name == "qwen3" and "cs-2.9" or "cs-2.4"
      local want = converted { name, "hf", release, { rope_parameters = dict(scaled) } }
      conversion.same(converted { name, "hf", release, of(scaled, scaled) }, want)
      refuses {
        { name, "hf", release, of(scaled, { rope_type = "default", rope_theta = 500 }),
          "rope_parameters.sliding_attention differs from rope_parameters.full_attention" },
        { name, "hf", release, of(scaled, scaled, { rope_theta = 7 }), "rope_parameters has a map 'sliding_attention', and properties" },
      }
    end
    refuses { { "llama", "hf", "cs-2.0", of(scaled, scaled), "before release 2.1" } }
  end)

  it("of the dtype: it is that of the new weights, under the name that the config has", function()
    for _, field in ipairs { "dtype", "torch_dtype" } do
      local config, root = tiny.model(tiny.newest_ways().llama)
      config[field] = "bfloat16"
      local cs_config, cs = conversion.run("llama", "hf", "cs-2.9", config, root)
      local job = conversion.job("llama", "cs-2.9", "hf")
      job.keeps_fields, job.source, job.hf_config = true, cs, require("converters.modelzoo.hf_config").of(cs)
      local back = converters.convert.config(job, cs_config)
      converters.convert.checkpoint(job, cs)
      back = job.files and job.files[#job.files] or back
      equal(back[field], "float32", field) -- of the tensors
      equal(back[field == "dtype" and "torch_dtype" or "dtype"], nil, field)
    end
  end)
end)

describe("Model Zoo configs without a field", function()
  local fields, sections = require "converters.engine.fields", require "converters.engine.sections"

  ---The fields of Hugging Face whose default a config of the Model Zoo without its own field does not mean.
  local function unlike(converter)
    local zoo, hf, out = sections.known_fields(converter, "right"), sections.known_fields(converter, "left"), {}
    for _, rule in ipairs(converter.config or {}) do
      local own, far = zoo[rule.right or ""], hf[rule.left or ""]
      if rule.kind == "pair" and own and far and far.default ~= nil then
        local is_same = own.default ~= nil and fields.same(own.default, far.default)
        if not is_same then out[#out + 1] = rule end
      end
    end
    return out
  end

  -- What tensors tell, or means the same under another name, or is written by another field.
  local TOLD = {
    position_embedding_type = true, layerscale_value = true, max_position_embeddings = true, ["image_model.image_size"] = true,
    ["image_model.patch_size"] = true, extra_attention_params = true, output_logits_scale = true, attention_dropout_rate = true,
  }

  it("are refused, or Hugging Face's say what they mean", function()
    local count, refused = 0, 0
    local function visit(name, way)
      local config, root = tiny.model(way)
      local zoo = conversion.run(name, "hf", way.format, config, root)
      for _, rule in ipairs(unlike(way.converter)) do
        local without = cbk.deep_copy(zoo.model or zoo.trainer.init.model)
        without[rule.right] = nil
        local fine, back = pcall(converters.convert.config, conversion.job(name, way.format, "hf"), dict { model = without })
        count, refused = count + 1, refused + (fine and 0 or 1)
        local is_said = not fine or TOLD[rule.right] or back[rule.left] ~= nil
        equal(is_said, true, ("%s of %s, without %s"):format(rule.left, name, rule.right))
      end
    end
    for name, way in pairs(tiny.newest_ways()) do
      local is_plain = not (way.converter.components or way.converter.wrap or way.converter.nested) and not name:find "%-headless$"
      if is_plain then conversion.warnings(function() visit(name, way) end) end
    end
    assert(count > 100 and refused < count, ("%d, %d refused"):format(count, refused))
  end)
end)

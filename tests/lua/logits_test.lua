-- Models that compute from a class and a config, and `cbk rules --logits`, which compares them on both sides of a conversion. That they
-- compute what PyTorch computes is tested in tests/interop/logits_interop.py.

local cbk = require "cbk"
local classes = require "cbk.classes"
local conversion = require "conversion"
local cstorch = require "cstorch"
local converters = require "cbk.converters"
local harness = require "harness"
local models = require "cstorch.models"
local random = require "cbk.round_trip.random"

local describe, it, equal = harness.describe, harness.it, harness.equal
local fails = conversion.fails

converters.load()

local LLAMA = { model_type = "llama", vocab_size = 50, hidden_size = 16, num_attention_heads = 4, num_key_value_heads = 2,
  num_hidden_layers = 2, intermediate_size = 24, max_position_embeddings = 64, tie_word_embeddings = false }

---A model with random weights.
---@param fields table   of a config.json, over those of LLaMA; of a Model Zoo section if `format` is a release
local function model(name, format, fields, change)
  local config = cbk.dict(fields)
  local list = classes.tensors(config, name, format)
  local given = {}
  for key, tensor in cbk.items(random.of_class(list)) do given[key] = tensor end
  if change then change(given) end
  return models.new(list, given)
end

---The fields of a config, over those of LLaMA or of another one.
local function with(fields, base)
  local out = {}
  for name, value in pairs(base or LLAMA) do out[name] = value end
  for name, value in pairs(fields) do out[name] = value end
  return out
end

---The largest difference of the logits of two configs with the same weights.
local function apart(a, b, length)
  local ids = { {} }
  for i = 1, length or 12 do ids[1][i] = i * 7 % 50 end
  local function logits(fields) return model("llama", "hf", with(fields)):logits(ids) end
  return (logits(a) - logits(b)):abs():amax():item()
end

local GPT2 = { vocab_size = 50, hidden_size = 16, num_heads = 2, num_hidden_layers = 1, filter_size = 24, max_position_embeddings = 8 }

describe("Models that compute", function()
  it("compute with every field that changes the logits, or refuse the config", function()
    for name, value in pairs { rope_theta = 50, rms_norm_eps = 0.1, hidden_act = "relu",
      rope_scaling = cbk.dict { rope_type = "linear", factor = 4.0 } } do
      assert(apart({}, { [name] = value }) > 1e-3, name)
    end
    fails("LlamaForCausalLM: nothing here computes with is_causal=false", model, "llama", "hf", with { is_causal = false })
    fails("rotary positions of type 'dynamic' are not known here; known: linear, llama3, yarn, longrope", model, "llama", "hf",
      with { rope_scaling = cbk.dict { rope_type = "dynamic", factor = 4.0 } })
    fails("the activation 'mish' is not known here; known: gelu, gelu_fast", model, "llama", "hf", with { hidden_act = "mish" })
    fails("position_embedding_type=fixed is not emulated; learned, rotary and alibi are", model, "gpt2", "cs-2.4",
      with({ position_embedding_type = "fixed" }, GPT2))
    fails("GPT2LMHeadModel: nothing here computes with norm_first=false", model, "gpt2", "cs-2.3", with({ norm_first = false }, GPT2))
  end)

  it("need all their weights, and take tied and older names", function()
    fails("LlamaForCausalLM: the checkpoint lacks 'model.layers.1.mlp.up_proj.weight'", model, "llama", "hf", with {}, function(given)
      given["model.layers.1.mlp.up_proj.weight"] = nil
    end)
    local ids = { { 1, 2, 3 } }
    local function tied(is_there)
      return model("llama", "hf", with { tie_word_embeddings = true }, function(given)
        given["lm_head.weight"] = is_there and given["model.embed_tokens.weight"] or nil
      end):logits(ids):tolist()
    end
    equal(tied(false), tied(true))
    local weights
    local new = model("gpt2", "cs-2.1", GPT2, function(given) weights = given end)
    local old = model("gpt2", "cs-2.0", GPT2, function(given)
      for key in pairs(given) do given[key] = weights[key] or weights[key:gsub("position_embeddings", "%0.embed")] end
    end)
    equal(old:longest(), 8)
    equal(old:logits(ids):tolist(), new:logits(ids):tolist())
  end)

  it("say what a text may have, and whether they have a head", function()
    local gpt2, llama = model("gpt2", "cs-2.4", GPT2), model("llama", "hf", LLAMA)
    equal({ gpt2:vocabulary(), gpt2:longest(), gpt2:has_head() }, { 50, 8, true })
    equal({ llama:vocabulary(), llama:longest(), llama:has_head() }, { 50, math.huge, true })
    local headless = model("llama-headless", "hf", LLAMA)
    equal({ headless:has_head(), headless:logits({ { 1, 2 } }):shape() }, { false, { 1, 2, 16 } })
    fails("the model has 8 positions, and the text 9 tokens", gpt2.logits, gpt2, { { 1, 2, 3, 4, 5, 6, 7, 8, 9 } })
  end)

  it("show what leaves each layer", function()
    local places = {}
    model("llama", "hf", LLAMA):logits({ { 1, 2 } }, function(place, x) places[#places + 1] = place .. " " .. x:size(-1) end)
    equal(places, { "the embedding 16", "layer 0 16", "layer 1 16", "the last norm 16" })
  end)
end)

local HEAD = [[
local decoder = require "converters.shared.decoder"
local fields = require "converters.engine.fields"
local llama = require "converters.shared.llama"
local rules = require "converters.engine.rules"
local classes = require "converters.classes.hf.llama"
local zoo = require "converters.classes.zoo.decoder"
local attention = rules.keys {
  { "self_attn.{q,k,v}_proj.{weight,bias}", "self_attn.proj_{q,k,v}_dense_layer.{weight,bias}" }, -- rows are not interleaved
  { "self_attn.o_proj.{weight,bias}", "self_attn.proj_output_dense_layer.{weight,bias}" },
}
local both = llama.converter { model_type = "llama" }
]]

---Runs `rules` on a file of one's own.
---@param keys string   of the converter
local function run(keys, more, ...)
  local dir = harness.temp_dir()
  cbk.fs.write(dir .. "/own.lua", HEAD .. ([[
return { decoder.models {
  model = "own", note = "%%s",
  classes = { with_head = classes.LlamaForCausalLM, headless = classes.LlamaModel, right = zoo.GPT2LMHeadModel },
  place = "model", embedding = "embed_tokens", rules.between("hf", "cs-2.9", rules.variant(both, { %s })),
} }]]):format(keys))
  for name, text in pairs(more or {}) do cbk.fs.write(dir .. "/" .. name, text) end
  return harness.cbk(dir, "rules", "own.lua", ...)
end

local function has(text, ...)
  for _, part in ipairs { ... } do assert(text:find(part, 1, true), ("no '%s' in: %s"):format(part, text)) end
end

describe("Models of checkpoints", function()
  it("are computed without a whole matrix in memory", function()
    local fields = with { vocab_size = 700000 } -- in parts of 2^23 elements
    local list, ids = classes.tensors(cbk.dict(fields), "llama", "hf"), { { 1, 699999, 5 } }
    local given, computed = {}, {}
    for key, tensor in cbk.items(random.of_class(list)) do given[key], computed[key] = tensor, cstorch.tensor(tensor) end
    local a, b = models.new(list, given):logits(ids), models.new(list, computed):logits(ids)
    equal(a:shape(), { 1, 3, 700000 })
    assert((a - b):abs():amax():item() < 1e-6)
  end)
end)

describe("rules --logits", function()
  it("goes on where a config cannot be computed", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", HEAD .. [[
local own = { "hf", "cs-2.9", keys = rules.keys {
  { "model.embed_tokens.weight", "embedding_layer.word_embeddings.weight" }, decoder.final_norm "model.norm", { "lm_head.weight" },
  { "model.layers.N", "transformer_decoder.layers.N", rules.keys { attention, llama.norms, llama.feed_forward } },
}, config = fields.config {
  { "hidden_size" }, { "intermediate_size", "filter_size" }, { "num_hidden_layers" }, { "num_attention_heads", "num_heads" },
  { "vocab_size" }, { "max_position_embeddings" }, { "rms_norm_eps", "layer_norm_epsilon" }, fields.fixed.left { model_type = "llama" },
  fields.fixed.right { rotary_dim = 16, norm_type = "rmsnorm", nonlinearity = "swiglu", position_embedding_type = "rotary",
    use_bias_in_output = false, use_ffn_bias = false, use_ffn_bias_in_attention = false, use_projection_bias_in_attention = false,
    share_embedding_weights = false },
} }
return { { model = "own", classes = { left = classes.LlamaForCausalLM, right = zoo.GPT2LMHeadModel }, own } }]])
    local status, out = harness.cbk(dir, "rules", "own.lua", "--logits")
    equal(status, 1, out)
    has(out, "logits not computed: rotary_dim: expected an even number up to the 8 elements of a head, found 16",
      "\n  logits of 48 tokens differ by at most")
  end)

  it("says which keys have no rule, without advice that `rules` does not take", function()
    local status, out = run("keys = llama.body(attention, llama.norms, rules.keys { { 'mlp.{up,gate}_proj.weight', "
      .. "'ffn.ffn.0.{linear_layer,linear_layer_for_glu}.weight' } })", nil, "--round-trip")
    equal(status, 1, out)
    has(out, "keys were not matched: model.layers.{0..2}.mlp.down_proj.weight")
    assert(not out:find("--drop-unmatched-keys", 1, true), out)
  end)

  it("finds rows in another order, which a round trip brings back", function()
    local wrong = "keys = llama.body(attention, llama.norms, llama.feed_forward)"
    local status, out = run(wrong, nil, "--round-trip")
    equal({ status, out:match "[^\n]*\n$" }, { 0, "clean\n" }, out)
    status, out = run(wrong, nil, "--logits")
    equal(status, 1, out)
    has(out, "own, hf to cs-2.9 and back: round trip: logits of 48 tokens differ by at most", "they part at layer 0; with random weights, ",
      "\n  logits of 48 tokens differ by at most ")
    status, out = run("", nil, "--logits")
    equal({ status, out:match "[^\n]*\n$" }, { 0, "clean\n" }, out)
    has(out, "own-headless, hf to cs-2.9 and back, random weights", "\n  hidden states of 48 tokens differ by at most ")
  end)

  it("reads a checkpoint's own weights", function()
    local dir = harness.temp_dir()
    local given = random.of_class(classes.tensors(cbk.dict(LLAMA), "llama", "hf"))
    for key, tensor in cbk.items(given) do given[key] = tensor:to "bfloat16" end
    cbk.create(dir .. "/m.safetensors", { root = given }):commit { progress = false }
    cbk.fs.write(dir .. "/config.json", cbk.config.dump(cbk.dict(with { torch_dtype = "bfloat16" }), "json"))
    local status, out = harness.cbk(dir, "rules", "llama", "m.safetensors", "--logits")
    equal(status, 0, out)
    has(out, "\nconfig: ./config.json\n", "the given weights: 21 of 21 tensors bit for bit\n  logits of 48 tokens differ by at most")
  end)

  it("says once why nothing is computed", function()
    local dir = harness.temp_dir()
    local status, out = harness.cbk(dir, "rules", "vit", "--logits")
    equal(status, 1, out)
    has(out, "vit, hf to cs-2.9 and back: round trip: no logits were compared: ViTForImageClassification is not computed here",
      "\n1 finding\n",
      "logits not computed: ViTForImageClassification is not computed here; decoders such as LlamaForCausalLM and GPT2LMHeadModel are\n")
    equal(select(2, out:gsub("logits not computed: ViTForImageClassification", "")), 1)
    status, out = harness.cbk(dir, "rules", "llava", "--logits")
    equal(status, 1, out)
    has(out, "round trip: nothing was converted there and back: the model has several parts, or is inside another one")
  end)

  for _, name in ipairs {
    "bloom", "btlm", "codegen", "falcon", "gemma2", "gpt2", "gpt-neox", "gptj", "jais", "llama", "mistral", "mixtral", "mpt", "phi3",
    "qwen2", "qwen3", "santacoder", "starcoder",
  } do
    it("is clean for " .. name .. ", and computes all that it tries", function()
      local status, out = harness.cbk(harness.temp_dir(), "rules", name, "--logits")
      equal(status, 0, out)
      local trips, computed = select(2, out:gsub("bit for bit", "")), select(2, out:gsub("\n  logits of %d+ tokens differ", ""))
      assert(trips > 5 and trips == computed, out)
    end)
  end

  it("is clean for qwen3-moe, with fewer experts than its class has", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/config.json", [[{ "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 50,
      "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "moe_intermediate_size": 24 }]])
    local status, out = harness.cbk(dir, "rules", "qwen3-moe", "--config", "config.json", "--logits")
    equal(status, 0, out)
    local _, computed = out:gsub("\n  logits of 48 tokens differ", "")
    assert(computed > 5, out)
  end)
end)

describe("diff --logits", function()
  ---A folder with a checkpoint "a" of LLaMA, and "b", the same converted.
  local function folder()
    local dir = harness.temp_dir()
    cbk.fs.mkdir(dir .. "/a")
    cbk.create(dir .. "/a/model.safetensors", { root = random.of_class(classes.tensors(cbk.dict(LLAMA), "llama", "hf")) })
      :commit { progress = false }
    cbk.fs.write(dir .. "/a/config.json", cbk.config.dump(cbk.dict(LLAMA), "json"))
    local status, _, err = harness.cbk(dir, "convert", "a", "--to", "cs-2.4", "-o", "b")
    equal(status, 0, err)
    return dir
  end

  it("finds the same logits after a conversion, and the layer of a weight that changed", function()
    local dir = folder()
    local status, out, err = harness.cbk(dir, "diff", "a", "b", "--logits")
    equal(status, 0, err)
    has(out, "comparing llama, hf, and llama, cs-2.4\n")
    has(out, "logits of 48 tokens differ by at most ", "; the largest is ", "\nthe same\n")
    local root = cbk.open(dir .. "/a/model.safetensors").root
    local changed = cbk.copy(root)
    changed["model.layers.1.self_attn.k_proj.weight"] = root["model.layers.1.self_attn.k_proj.weight"]:flip(0)
    cbk.fs.mkdir(dir .. "/c")
    cbk.create(dir .. "/c/model.safetensors", { root = changed }):commit { progress = false }
    cbk.fs.write(dir .. "/c/config.json", cbk.config.dump(cbk.dict(LLAMA), "json"))
    status, out = harness.cbk(dir, "diff", "c", "b", "--logits")
    equal(status, 1)
    has(out, "; they part at layer 1\ndifferent\n")
    status, out = harness.cbk(dir, "diff", "c", "b", "--logits", "--rtol", "10")
    equal({ status, out:match "[^\n]*\n$" }, { 0, "the same\n" })
    status, out = harness.cbk(dir, "diff", "c", "b", "--logits", "--json")
    local found = cbk.config.parse(out, "json")
    equal({ status, found.equal, found.logits.same, found.logits.parted_at, found.logits.what }, { 1, false, false, "layer 1", "logits" })
  end)

  it("says why it cannot compare", function()
    local dir = folder()
    local root = cbk.copy(cbk.open(dir .. "/a/model.safetensors").root)
    root["model.layers.1.mlp.up_proj.weight"] = root["model.layers.1.mlp.up_proj.weight"] * (0 / 0)
    cbk.fs.mkdir(dir .. "/nan")
    cbk.create(dir .. "/nan/model.safetensors", { root = root }):commit { progress = false }
    cbk.fs.write(dir .. "/nan/config.json", cbk.config.dump(cbk.dict(LLAMA), "json"))
    local function refused(said, ...)
      local status, _, err = harness.cbk(dir, "diff", ...)
      equal(status, 2)
      has(err, said)
    end
    refused("those of A are NaN, from layer 1 on; 'cbk check' finds NaN in weights", "nan", "nan", "--logits")
    refused("--logits and --key cannot be combined", "a", "b", "--logits", "--key", "x")
    refused("--logits and --from cannot be combined", "a", "b", "--logits", "--from", "hf")
    refused("--logits and --converter cannot be combined", "a", "b", "--logits", "--converter", "x.lua")
    refused("--logits and --from cannot be combined", "a", "b", "--logits", "--from", "hf")
    refused("--logits and --converter cannot be combined", "a", "b", "--logits", "--converter", "x.lua")
    cbk.create(dir .. "/x.safetensors", { root = cbk.dict { { "x", conversion.counted({ 2 }, 0) } } }):commit { progress = false }
    refused("cannot compute 'x.safetensors': no model has these tensor names", "a", "x.safetensors", "--logits")
    cbk.fs.mkdir(dir .. "/vit")
    cbk.fs.write(dir .. "/vit/config.json", [[{ "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 16,
      "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 24, "image_size": 8, "patch_size": 4 }]])
    local status, _, err = harness.cbk(dir, "new", "vit/config.json", "-o", "vit/model.safetensors")
    equal(status, 0, err)
    refused("cannot compare logits: ViTForImageClassification", "a", "vit", "--logits")
    cbk.fs.remove(dir .. "/a/config.json")
    refused("without its config: there is no config.json beside it; put the config into the folder of the checkpoint", "a", "b", "--logits")
  end)
end)

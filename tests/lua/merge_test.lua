-- `cbk merge`: what it refuses, and with which words. The formulas are compared in tests/interop/merge_interop.py.

local cbk = require "cbk"
local harness = require "harness"

local describe, it, equal = harness.describe, harness.it, harness.equal

local function contains(text, part)
  harness.is_true(text:find(part, 1, true) ~= nil, ("%q does not contain %q"):format(text, part))
end

---A folder with the models a, b (two layers), deep (three), wide (other shapes), and the files of merges.
local function models()
  local dir = harness.temp_dir()
  for name, size in pairs { a = { 2, 2 }, b = { 2, 2 }, deep = { 3, 2 }, wide = { 2, 3 } } do
    local root = cbk.dict { { "model.embed_tokens.weight", cbk.full({ 5, 2 }, 1) } }
    for layer = 0, size[1] - 1 do root[("model.layers.%d.up.weight"):format(layer)] = cbk.full({ size[2], 2 }, layer + 1) end
    root["lm_head.weight"] = cbk.full({ 5, 2 }, 2)
    cbk.create(cbk.fs.join(dir, name, "model.safetensors"), { root = root }):commit()
    cbk.config.save(cbk.dict { num_hidden_layers = size[1], vocab_size = 5 }, cbk.fs.join(dir, name, "config.json"))
  end
  return dir
end

local function merge(dir, text, ...)
  cbk.fs.write(dir .. "/m.yml", text, { overwrite = true })
  return harness.cbk(dir, "merge", "m.yml", "-o", "out", ...)
end

local BOTH = "models: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 1}}]\n"

-- The YAML, what the message contains.
local REFUSED = {
  { BOTH, "merge_method is missing; known: dare_linear" },
  { "merge_method: tie\n" .. BOTH, "there is no merge_method 'tie'; did you mean 'ties'?" },
  { "merge_method: linear\n", "expected either 'models' or 'slices', found neither" },
  { "merge_method: linear\nslices: []\n" .. BOTH, "found both" },
  { "merge_method: linear\nmodel: []\n", "unknown field 'model'; did you mean 'models'?" },
  { "merge_method: linear\nmodules: {}\n" .. BOTH, "'modules' is not supported; merge models of one module" },
  { "merge_method: linear\nchat_template: auto\n" .. BOTH, "'chat_template' is not supported" },
  { "merge_method: linear\ntokenizer_source: union\n" .. BOTH, "tokenizer_source: only 'base' is supported, found 'union'" },
  { "merge_method: linear\ntokenizer_source: base\n" .. BOTH, "needs a base_model" },
  { "merge_method: linear\ndtype: float8\n" .. BOTH, "dtype: expected float32, bfloat16 or float16" },
  { "merge_method: linear\nmodels: []\n", "models: expected a list of maps" },
  { "merge_method: linear\nmodels: [a]\n", "models[1]: expected a map" },
  { "merge_method: linear\nmodels: [{parameters: {weight: 1}}]\n", "models[1].model is missing" },
  { "merge_method: linear\nmodels: [{model: 5}]\n", "models[1].model: expected the path of a model" },
  { "merge_method: linear\nmodels: [{model: org/name}]\n", "models are folders on this machine" },
  { "merge_method: linear\nmodels: [{model: a+lora}]\n", "cbk fold-lora-checkpoint --adapter lora a" },
  { "merge_method: linear\nmodels: [{model: a, weight: 1}]\n", "models[1]: unknown field 'weight'" },
  { "merge_method: linear\nmodels: [{model: a}, {model: a/}]\n", "'a/' is listed twice, first in models[1]" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {wieght: 1}}]\n", "unknown parameter 'wieght'; did you mean 'weight'?" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {weight: heavy}}]\n", "models[1].parameters.weight: expected a number" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {weight: []}}]\n", "found an empty list" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {weight: [1, {value: 2}]}}]\n", "cannot be mixed" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {weight: [{filter: x}]}}]\n", "weight[1]: value is missing" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {weight: [{filter: x, values: 1}]}}]\n", "unknown field 'values'" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {weight: {value: 1}}}]\n", "expected a number, a list of them" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {weight: [{filter: up, value: 1}]}}]\n",
    "parameter 'weight' is missing of 'a'" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: -1}}]\n", "the sum 0" },
  { "merge_method: ties\n" .. BOTH, "base_model is missing, which ties needs" },
  { "merge_method: ties\nbase_model: a\nparameters: {density: -1}\n" .. BOTH, "parameters.density: expected at least 0" },
  { "merge_method: ties\nbase_model: a\nparameters: {density: 0.01}\n" .. BOTH, "keeps none of 10 elements" },
  { "merge_method: slerp\nbase_model: a\n" .. BOTH, "the parameter 't' is missing" },
  { "merge_method: slerp\nbase_model: a\nmodels: [{model: a}]\n", "slerp merges exactly 2 models, one of them the base_model, found 1" },
  { "merge_method: passthrough\n" .. BOTH, "passthrough merges exactly 1 model, found 2" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {weight: 1}}, {model: deep, parameters: {weight: 1}}]\n",
    "has 2 layers of 'model.layers', but 'deep' has 3; merge equal parts of them with slices" },
  { "merge_method: linear\nmodels: [{model: a, parameters: {weight: 1}}, {model: wide, parameters: {weight: 1}}]\n",
    "'model.layers.0.up.weight' is [2, 2] in 'a', but [3, 2] in 'wide'" },
  { "merge_method: passthrough\nslices: [{sources: [{model: a}]}]\n", "layer_range: expected the first layer and the one after the last" },
  { "merge_method: passthrough\nslices: [{sources: [{model: a, layer_range: [1, 1]}]}]\n", "expected the first layer and the one" },
  { "merge_method: passthrough\nslices: [{sources: [{model: a, layer_range: [0, 4]}]}]\n", "'a' has 2 layers, so that [0, 4] is beyond" },
  { "merge_method: passthrough\nslices: [{sources: [{model: a, layer_range: [0, 1]}], residual_weight: 1}]\n", "'residual_weight' is not" },
  { "merge_method: linear\nparameters: {weight: 1}\nslices: [{sources: [{model: a, layer_range: [0, 1]}, "
    .. "{model: b, layer_range: [0, 2]}]}]\n", "all sources of a slice must have the same number of layers, found 1 and 2" },
  { "merge_method: task_arithmetic\nbase_model: b\nparameters: {weight: 1}\nslices: [{sources: [{model: a, layer_range: [0, 1]}]}]\n",
    "the base model 'b' is not among the sources" },
}

describe("merge", function()
  it("names what is wrong in the config, and writes nothing", function()
    local dir = models()
    for _, case in ipairs(REFUSED) do
      local code, _, err = merge(dir, case[1])
      equal(code, 1, case[1] .. err)
      contains(err, case[2])
      equal(cbk.fs.exists(dir .. "/out"), false)
    end
  end)

  it("names a tensor that one of the models lacks", function()
    local dir = models()
    local root = cbk.copy(cbk.open(dir .. "/b").root)
    root["model.layers.1.bias"] = cbk.full({ 2 }, 1)
    cbk.create(dir .. "/b/model.safetensors", { root = root, overwrite = true }):commit()
    local code, _, err = merge(dir, "merge_method: linear\n" .. BOTH)
    equal(code, 1)
    contains(err, "'model.layers.1.bias' is missing in 'a', but another model of the merge has it")
  end)

  it("refuses quantised models", function()
    local dir = models()
    cbk.config.save(cbk.dict { quantization_config = cbk.dict { quant_method = "fp8" } }, dir .. "/b/config.json", { overwrite = true })
    local root = cbk.copy(cbk.open(dir .. "/b").root)
    root["model.layers.1.up.weight"] = root["model.layers.1.up.weight"]:to "float8_e4m3fn"
    root["model.layers.1.up.weight_scale_inv"] = cbk.full({ 1, 1 }, 1)
    cbk.create(dir .. "/b/model.safetensors", { root = root, overwrite = true }):commit()
    local code, _, err = merge(dir, "merge_method: linear\n" .. BOTH)
    equal(code, 1)
    contains(err, "cannot merge 'b': the weights are quantised")
  end)

  it("refuses what is no model", function()
    local dir = models()
    cbk.fs.remove(dir .. "/b/model.safetensors")
    cbk.create(dir .. "/b/pytorch_model.bin", { root = cbk.dict { model = cbk.dict { w = cbk.full({ 2 }, 1) }, epoch = 3 } }):commit()
    local code, _, err = merge(dir, "merge_method: linear\n" .. BOTH)
    equal(code, 1)
    contains(err, "cannot merge 'b': 'epoch' is not a tensor; `cbk copy --weights` takes the weights out of a training checkpoint")
  end)

  it("warns of parameters that the method does not read", function()
    local dir = models()
    local code, _, err = merge(dir, "merge_method: linear\nparameters: {density: 0.5, int8_mask: true}\n" .. BOTH)
    equal(code, 0, err)
    contains(err, "the parameter 'density' has no effect on the method linear")
    contains(err, "the parameter 'int8_mask' has no effect")
  end)

  it("wants a folder for the output, and leaves what exists", function()
    local dir = models()
    cbk.fs.write(dir .. "/m.yml", "merge_method: linear\n" .. BOTH)
    local code, _, err = harness.cbk(dir, "merge", "m.yml", "-o", "out.safetensors")
    equal(code, 2)
    contains(err, "expected the name of a folder")
    equal((harness.cbk(dir, "merge", "m.yml")), 2)
    local _, dry = harness.cbk(dir, "merge", "m.yml", "-o", "out", "--dry-run")
    contains(dry, "would be merged into out")
    equal(cbk.fs.exists(dir .. "/out"), false)
    equal((harness.cbk(dir, "merge", "m.yml", "-o", "out")), 0)
    equal(cbk.fs.read(dir .. "/out/mergekit_config.yml"), cbk.fs.read(dir .. "/m.yml"))
    equal((harness.cbk(dir, "merge", "m.yml", "-o", "out")), 1)
    equal((harness.cbk(dir, "merge", "m.yml", "-o", "out", "--overwrite")), 0)
  end)

  it("refuses other tokenizers if the result shall have the base model's", function()
    local dir = models()
    cbk.fs.write(dir .. "/a/tokenizer.json", "{}")
    cbk.fs.write(dir .. "/b/tokenizer.json", "{ }")
    local text = "merge_method: linear\nbase_model: a\ntokenizer_source: base\n" .. BOTH
    local code, _, err = merge(dir, text)
    equal(code, 1)
    contains(err, "'tokenizer.json' of 'b' differs from that of the base model")
    cbk.fs.write(dir .. "/b/tokenizer.json", "{}", { overwrite = true })
    equal((merge(dir, text)), 0)
  end)
end)

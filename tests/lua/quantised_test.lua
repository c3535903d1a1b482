-- Quantised weights: every method is recognised by names, dtypes and shapes, and no command computes with codes. What cbk makes of them is
-- in dequantised_test.lua.

local cbk = require "cbk"
local classes = require "cbk.classes"
local harness = require "harness"
local quantised = require "cbk.quantised"

local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local has, lacks = harness.has, harness.lacks

-- --- a tiny model, of which one weight is quantised

local WEIGHT = "model.layers.0.mlp.up_proj.weight"
local STEM = "model.layers.0.mlp.up_proj"

local function llama()
  return cbk.dict { { "model_type", "llama" }, { "architectures", cbk.list { "LlamaForCausalLM" } }, { "vocab_size", 24 },
    { "hidden_size", 16 }, { "num_attention_heads", 2 }, { "num_hidden_layers", 1 }, { "intermediate_size", 32 },
    { "tie_word_embeddings", false } }
end

local made = 0

---A tensor of small numbers, different from every other.
local function counted(dtype, ...)
  local count, numbers = 1, {}
  made = made + 1
  for _, extent in ipairs { ... } do count = count * extent end
  for i = 1, count do numbers[i] = (i * 7 + made) % 113 end
  return cbk.tensor(numbers, { shape = { ... } }):to(dtype)
end

---@class MethodCase
---@field name string      what the method is called
---@field tensors table<string, Tensor>   in place of the weight [32, 16], by what is behind the module's name
---@field codes string     which of them is the codes
---@field config? Dict     the quantization_config
---@field field? string    its name
---@field is_read? boolean  cbk makes numbers of the codes

---@type MethodCase[]
local METHODS = {
  { name = "FP8, a scale per block", is_read = true, codes = ".weight",
    tensors = { [".weight"] = counted("float8_e4m3fn", 32, 16), [".weight_scale_inv"] = counted("float32", 2, 1) },
    config = cbk.dict { quant_method = "fp8", weight_block_size = cbk.list { 16, 16 } } },
  { name = "FP8, a scale per row, compressed-tensors float-quantized", is_read = true, codes = ".weight",
    tensors = { [".weight"] = counted("float8_e4m3fn", 32, 16), [".weight_scale"] = counted("bfloat16", 32, 1) },
    config = cbk.dict { quant_method = "compressed-tensors", format = "float-quantized" }, field = "compression_config" },
  { name = "FP8, a scale per tensor", is_read = true, codes = ".weight", tensors = { [".weight"] = counted("float8_e4m3fn", 32, 16),
    [".weight_scale"] = cbk.full({}, 1), [".input_scale"] = cbk.full({}, 1) } },
  { name = "FP8, a scale per tensor", is_read = true, codes = ".weight",
    tensors = { [".weight"] = counted("float8_e5m2", 32, 16), [".scale_weight"] = counted("float32", 1) } },
  { name = "int8, a scale per row", is_read = true, codes = ".weight",
    tensors = { [".weight"] = counted("int8", 32, 16), [".weight_scale"] = counted("float32", 32, 1) } },
  { name = "bitsandbytes int8", is_read = true, codes = ".weight",
    tensors = { [".weight"] = counted("int8", 32, 16), [".SCB"] = counted("float32", 32),
    [".weight_format"] = cbk.full({}, 0, { dtype = "uint8" }) },
    config = cbk.dict { quant_method = "bitsandbytes", load_in_8bit = true, load_in_4bit = false } },
  { name = "bitsandbytes int8", is_read = true, codes = ".weight",
    tensors = { [".weight"] = counted("int8", 32, 16), [".weight.SCB"] = counted("float32", 32) } },
  { name = "bitsandbytes NF4", codes = ".weight", tensors = { [".weight"] = counted("uint8", 256, 1),
    [".weight.absmax"] = counted("uint8", 8), [".weight.quant_map"] = counted("float32", 16),
    [".weight.nested_absmax"] = counted("float32", 1),
    [".weight.nested_quant_map"] = counted("float32", 256), [".weight.quant_state.bitsandbytes__nf4"] = counted("uint8", 90) },
    config = cbk.dict { quant_method = "bitsandbytes", load_in_4bit = true, bnb_4bit_quant_type = "nf4" } },
  { name = "bitsandbytes FP4", codes = ".weight", tensors = { [".weight"] = counted("uint8", 256, 1),
    [".weight.absmax"] = counted("float32", 8),
    [".weight.quant_map"] = counted("float32", 16), [".weight.quant_state.bitsandbytes__fp4"] = counted("uint8", 90) } },
  { name = "MXFP4", is_read = true, codes = ".weight_blocks", tensors = { [".weight_blocks"] = counted("uint8", 32, 1, 8),
    [".weight_scales"] = counted("uint8", 32, 1) },
    config = cbk.dict { quant_method = "mxfp4" } },
  { name = "GPTQ", is_read = true, codes = ".qweight",
    tensors = { [".qweight"] = counted("int32", 2, 32), [".qzeros"] = counted("int32", 1, 4),
    [".scales"] = counted("float16", 1, 32), [".g_idx"] = cbk.full({ 16 }, 0, { dtype = "int32" }) },
    config = cbk.dict { quant_method = "gptq", bits = 4 } },
  { name = "AWQ", is_read = true, codes = ".qweight",
    tensors = { [".qweight"] = counted("int32", 16, 4), [".qzeros"] = counted("int32", 1, 4),
    [".scales"] = counted("float16", 1, 32) }, config = cbk.dict { quant_method = "awq", bits = 4 } },
  { name = "compressed-tensors, packed into int32", codes = ".weight_packed", tensors = { [".weight_packed"] = counted("int32", 32, 2),
    [".weight_scale"] = counted("bfloat16", 32, 1), [".weight_shape"] = counted("int64", 2) } },
  { name = "NVFP4 (compressed-tensors)", codes = ".weight_packed", tensors = { [".weight_packed"] = counted("uint8", 32, 8),
    [".weight_scale"] = counted("float8_e4m3fn", 32, 1), [".weight_global_scale"] = counted("float32", 1) } },
  { name = "modelopt NVFP4", codes = ".weight", tensors = { [".weight"] = counted("uint8", 32, 8),
    [".weight_scale"] = counted("float8_e4m3fn", 32, 1),
    [".weight_scale_2"] = cbk.full({}, 1) }, config = cbk.dict { quant_method = "modelopt", quant_algo = "NVFP4" } },
  { name = "MLX", codes = ".weight", tensors = { [".weight"] = counted("uint32", 32, 2), [".scales"] = counted("bfloat16", 32, 1),
    [".biases"] = counted("bfloat16", 32, 1) }, config = cbk.dict { group_size = 16, bits = 4 }, field = "quantization" },
  { name = "quanto", codes = ".weight._data",
    tensors = { [".weight._data"] = counted("int8", 32, 16), [".weight._scale"] = counted("float32", 32, 1) } },
  { name = "HQQ", codes = ".W_q", tensors = { [".W_q"] = counted("uint8", 16, 16), [".scale"] = counted("float16", 32, 1),
    [".zero"] = counted("float16", 32, 1) } },
  { name = "EXL2", codes = ".q_weight", tensors = { [".q_weight"] = counted("int32", 4, 32), [".q_scale"] = counted("int32", 1, 4),
    [".q_scale_max"] = counted("float16", 1), [".q_groups"] = counted("int16", 2) } },
  { name = "AQLM", codes = ".codes", tensors = { [".codes"] = counted("int16", 32, 2, 1), [".codebooks"] = counted("float16", 1, 16, 1, 8),
    [".scales"] = counted("float16", 32, 1, 1, 1) } },
}

---The tensors of a model; `change` may put others in place.
local function model(dtype, change)
  local root = classes.new(llama(), "llama", "hf", { dtype = dtype })
  if change then change(root) end
  return root
end

---A case whose tensors somebody cast, as `{k: v.to(dtype) for k, v in tensors.items()}` does.
---@param case MethodCase
---@param dtype string
---@return MethodCase
local function cast(case, dtype)
  local out = { name = case.name, codes = case.codes, config = case.config, field = case.field, tensors = {} }
  for tail, tensor in pairs(case.tensors) do out.tensors[tail] = tensor:to("float32"):to(dtype) end
  return out
end

---A folder with config.json and model.safetensors.
local function folder(root, config)
  local dir = harness.temp_dir()
  cbk.create(dir .. "/model.safetensors", { root = root }):commit { progress = false }
  cbk.config.save(config or llama(), dir .. "/config.json")
  return dir
end

---The tiny model, quantised.
---@param case MethodCase
---@param without_scales? boolean
local function quantised_folder(case, without_scales)
  local config = llama()
  if case.config then config[case.field or "quantization_config"] = case.config end
  return folder(model(nil, function(root)
    root[WEIGHT] = nil
    for tail, tensor in pairs(case.tensors) do
      local is_codes = tail == case.codes
      if is_codes or not without_scales then root[STEM .. tail] = tensor end
    end
  end), config)
end

---Runs a command that must fail; what it prints on stderr.
local function refused(dir, ...)
  local code, out, err = harness.cbk(dir, ...)
  if code == 0 then error(("cbk %s succeeded: %s"):format(table.concat({ ... }, " "), out), 2) end
  return err
end

local function no_bad_advice(text)
  for _, advice in ipairs { "--drop-unmatched-keys", "--exclude", "0.4", "--h5-version", "leave it out", "leave them out" } do
    lacks(text, advice)
  end
end

local function adapter()
  local dir = harness.temp_dir()
  cbk.create(dir .. "/adapter_model.safetensors", { root = cbk.dict {
    ["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"] = counted("float32", 1, 16),
    ["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"] = counted("float32", 16, 1),
  } }):commit { progress = false }
  cbk.config.save(cbk.dict { peft_type = "LORA", r = 1, lora_alpha = 1 }, dir .. "/adapter_config.json")
  return dir
end

describe("quantised weights", function()
  it("are recognised by method, with their codes and scales", function()
    for _, case in ipairs(METHODS) do
      local root, parts = cbk.dict { { "other", counted("float32", 2) } }, {}
      for tail, tensor in pairs(case.tensors) do
        root[STEM .. tail] = tensor
        if tail ~= case.codes and tail ~= ".input_scale" then parts[#parts + 1] = STEM .. tail end
      end
      local config = case.config and cbk.dict { [case.field or "quantization_config"] = case.config } or nil
      local found = quantised.find(root, config)
      equal(#found.weights, 1, case.name)
      local one = found.weights[1]
      equal(found:method(), case.name)
      equal(one.key, STEM .. case.codes)
      equal(one.name, WEIGHT, case.name)
      table.sort(parts)
      table.sort(one.parts)
      equal(one.parts, parts, case.name)
      equal((found:names(cbk.keys(root))), { "other", one.name }, case.name)
      is_true(found:is_quantised() and found:problem(), case.name)
    end
  end)

  it("are refused by every command that would compute with codes, with the method's name", function()
    local lora = adapter()
    for _, case in ipairs(METHODS) do
      local dir = quantised_folder(case)
      local commands = {
        { "copy", dir, "cast.safetensors", "--to-dtype", "bfloat16" },
        { "import", dir .. "/model.safetensors", "-o", "cast.pt", "--to-dtype", "bfloat16" },
        { "infer", dir, dir, "-o", "mine.lua" },
      }
      for _, words in ipairs(case.is_read and {} or {
        { "convert", dir, "--model", "llama", "--to", "cs-2.5", "-o", "out" },
        { "convert", dir, "--model", "llama", "--to", "cs-2.5", "-o", "out", "--drop-unmatched-keys" },
        { "fold-lora-checkpoint", "--adapter", lora, dir, "-o", "merged" },
        { "copy", dir, "numbers.safetensors", "--dequantize", "bfloat16" },
      }) do commands[#commands + 1] = words end
      for _, words in ipairs(commands) do
        local err = refused(dir, unpack(words))
        has(err, quantised.find(cbk.open(dir).root).weights[1].method)
        no_bad_advice(err)
      end
      equal(cbk.fs.list(dir), { "config.json", "model.safetensors" }, case.name)
    end
  end)

  it("are recognised when somebody cast codes and scales to wider floats", function()
    local lora = adapter()
    for _, case in ipairs(METHODS) do
      local dir = quantised_folder(cast(case, "bfloat16"))
      local found = quantised.find(cbk.open(dir).root)
      equal({ #found.weights, found.weights[1] and found.weights[1].name }, { 1, WEIGHT }, case.name)
      for _, words in ipairs {
        { "convert", dir, "--model", "llama", "--to", "cs-2.5", "-o", "out" },
        { "copy", dir, "cast.safetensors", "--to-dtype", "float32" },
        { "copy", dir, "left.safetensors", "--exclude", found.weights[1].parts[1] },
        { "fold-lora-checkpoint", "--adapter", lora, dir, "-o", "merged" },
      } do
        local err = refused(dir, unpack(words))
        has(err, "the weight" .. (words[4] == "--exclude" and " is quantised" or "s are quantised"))
        has(err, found.weights[1].method)
        no_bad_advice(err)
      end
      equal(cbk.fs.list(dir), { "config.json", "model.safetensors" }, case.name)
      for _, command in ipairs { "ls", "identify" } do
        local _, out = harness.cbk(dir, command, dir)
        has(out, "quantised: ")
      end
      local _, checked = harness.cbk(dir, "check", dir)
      has(checked, "1 weight is quantised")
      lacks(checked, "clean")
    end
  end)

  it("are recognised by a plain 'scale' too, if its shape or the config says so", function()
    for shape, config in pairs { ["32 1"] = false, [""] = false, ["2 4"] = false, ["7"] = true } do
      local extents = {}
      for extent in shape:gmatch "%d+" do extents[#extents + 1] = tonumber(extent) end
      local dir = quantised_folder { name = "", codes = ".weight", tensors = { [".weight"] = counted("bfloat16", 32, 16),
        [".scale"] = #extents > 0 and counted("float32", unpack(extents)) or cbk.full({}, 2) },
        config = config and cbk.dict { quant_method = "fp8" } or nil }
      for _, words in ipairs { { "copy", dir, "cast.safetensors", "--to-dtype", "float32" },
        { "fold-lora-checkpoint", "--adapter", adapter(), dir, "-o", "merged" } } do
        has(refused(dir, unpack(words)), "the weights are quantised")
      end
      local _, listed = harness.cbk(dir, "ls", dir)
      has(listed, "quantised: ")
    end
  end)

  it("are not folded with a tensor of any name beside them", function()
    local q = "model.layers.0.self_attn.q_proj"
    for _, name in ipairs { ".weight_s", ".weight_scaler", ".multiplier" } do
      local dir = folder(model(nil, function(root) root[q .. name] = counted("float32", 16, 1) end))
      local err = refused(dir, "fold-lora-checkpoint", "--adapter", adapter(), dir, "-o", "merged")
      has(err, ("'%s' is beside the weight"):format(q .. name))
    end
    for _, name in ipairs { ".bias", "._extra_state", ".lora_magnitude.weight" } do
      local dir = folder(model(nil, function(root) root[q .. name] = counted("float32", 16) end))
      local code, _, err = harness.cbk(dir, "fold-lora-checkpoint", "--adapter", adapter(), dir, "-o", "merged")
      equal(code, 0, err)
    end
  end)

  it("keep all of their parts under names that belong together", function()
    local up, gate = STEM, "model.layers.0.mlp.gate_proj"
    local dir = quantised_folder(METHODS[1])
    local root = cbk.copy(cbk.open(dir).root)
    root[gate .. ".weight"], root[gate .. ".weight_scale_inv"] = counted("float8_e4m3fn", 32, 16), counted("float32", 2, 1)
    cbk.create(dir .. "/two.safetensors", { root = root }):commit { progress = false }
    local swap = { "--rename", "^(.*)gate_proj%.weight$=%1X.weight", "--rename", "^(.*)up_proj%.weight$=%1gate_proj.weight",
      "--rename", "^(.*)X%.weight$=%1up_proj.weight" }
    has(refused(dir, "copy", "two.safetensors", "swapped.safetensors", unpack(swap)), "rename both in the same way")
    equal((harness.cbk(dir, "copy", "two.safetensors", "same.safetensors", "--rename", "up_proj=UP", "--rename", "gate_proj=up_proj",
      "--rename", "UP=gate_proj")), 0)
    equal(cbk.open(dir .. "/same.safetensors").root[up .. ".weight"]:sha256(), root[gate .. ".weight"]:sha256())
    for _, case in ipairs(METHODS) do
      local parts = quantised.find(cbk.open(quantised_folder(case)).root).weights[1].parts
      local one = quantised_folder(case)
      for _, part in ipairs(parts) do
        has(refused(one, "copy", one, "left.safetensors", "--rename", "^" .. part:gsub("%p", "%%%0") .. "$=elsewhere"), "elsewhere")
      end
    end
  end)

  it("are named by ls, check and identify", function()
    for _, case in ipairs(METHODS) do
      local dir = quantised_folder(case)
      local _, listed = harness.cbk(dir, "ls", dir)
      has(listed:match "^[^\n]*", case.name)
      local code, checked = harness.cbk(dir, "check", dir)
      equal(code, 0, checked)
      has(checked, ("quantised (%s)"):format(case.name))
      lacks(checked, "clean")
      no_bad_advice(checked)
      local _, identity = harness.cbk(dir, "identify", dir)
      has(identity, "quantised: " .. case.name)
      if case.is_read then has(identity, "convert  cbk convert") else lacks(identity, "convert  ") end
      no_bad_advice(identity)
      local _, json = harness.cbk(dir, "identify", "--json", dir)
      local result = cbk.totable(cbk.config.parse(json, "json"))
      equal({ result.quantised.method, result.quantised.weights, result.command == cbk.null }, { case.name, 1, not case.is_read })
      equal(result.model, "llama", identity)
    end
  end)

  it("are copied with their scales, and not without", function()
    for _, case in ipairs(METHODS) do
      local dir = quantised_folder(case)
      equal((harness.cbk(dir, "copy", dir, "whole.safetensors")), 0, case.name)
      local whole = cbk.open(dir .. "/whole.safetensors").root
      for key, tensor in cbk.tensors(cbk.open(dir .. "/model.safetensors").root) do
        is_true(tensor.dtype == whole[key].dtype and tensor:compare(whole[key]).same_bits, key)
      end
      equal((harness.cbk(dir, "copy", dir, "norms.safetensors", "--include", "*norm*", "--to-dtype", "bfloat16")), 0, case.name)
      equal((harness.cbk(dir, "copy", dir, "renamed.safetensors", "--rename", "model.*=net.*")), 0, case.name)
      equal(quantised.find(cbk.open(dir .. "/renamed.safetensors").root).weights[1].key, "net" .. STEM:sub(6) .. case.codes)
      for _, part in ipairs(quantised.find(cbk.open(dir).root).weights[1].parts) do
        has(refused(dir, "copy", dir, "left.safetensors", "--exclude", part), ("without '%s'"):format(part))
      end
      local name = quantised.find(cbk.open(dir).root).weights[1].parts[1]
      if #quantised.find(cbk.open(dir).root).weights[1].parts == 1 then
        has(refused(dir, "copy", dir, "apart.safetensors", "--rename", "^" .. name:gsub("%p", "%%%0") .. "$=elsewhere"), "elsewhere")
      end
    end
  end)

  it("are no reason to advise another version of H5, or to leave them out", function()
    local dir = quantised_folder(METHODS[1])
    local err = refused(dir, "copy", dir, "new.mdl")
    has(err, METHODS[1].name)
    has(err, "safetensors")
    no_bad_advice(err)
    local int8 = refused(dir, "copy", quantised_folder(METHODS[6]), "new.mdl")
    has(int8, "bitsandbytes int8")
    no_bad_advice(int8)
  end)

  it("are found in a checkpoint of the Model Zoo, in wrapped files and at the top", function()
    local codes, scale = counted("float8_e4m3fn", 4, 4), counted("float32", 1, 1)
    for prefix, root in pairs {
      ["model."] = cbk.dict { model = cbk.dict { ["a.weight"] = codes, ["a.weight_scale_inv"] = scale } },
      ["state_dict.net."] = cbk.dict { state_dict = cbk.dict { ["net.a.weight"] = codes, ["net.a.weight_scale_inv"] = scale } },
      [""] = cbk.dict { ["a.weight"] = codes, ["a.weight_scale_inv"] = scale },
    } do
      equal(quantised.find(root).weights[1].key, prefix .. "a.weight")
    end
    equal(quantised.find(cbk.dict { weight = counted("int8", 4, 4), SCB = counted("float32", 4) }).weights[1].key, "weight")
  end)

  it("are not what other tensors of few bits are", function()
    for name, root in pairs {
      mask = cbk.dict { ["h.0.attn.bias"] = counted("uint8", 1, 1, 4, 4), ["h.0.attn.scale"] = counted("float32", 1),
        ["h.0.attn.c_attn.weight"] = counted("float32", 4, 4) },
      counts = cbk.dict { ["bn.weight"] = counted("float32", 4), ["bn.num_batches"] = counted("int32", 1),
        logit_scale = counted("float32", 1) },
      wide = cbk.dict { ["a.weight"] = counted("bfloat16", 4, 4), ["a.scale"] = counted("float32", 7),
        ["norm.weight"] = counted("bfloat16", 4), ["norm.scale"] = counted("float32", 4),
        logit = counted("float32", 1), logit_scale = counted("float32", 1) },
    } do
      local found = quantised.find(root)
      equal({ #found.weights, #found.narrow, found:is_quantised(), found:summary() }, { 0, 0, false, nil }, name)
    end
  end)

  it("are refused by upgrade, and by rules where cbk does not read the method", function()
    for _, case in ipairs(METHODS) do
      local folder_of_case = quantised_folder(case)
      local code, out = harness.cbk(folder_of_case, "rules", "llama", folder_of_case, "--config", folder_of_case .. "/config.json")
      equal(code, case.is_read and 0 or 1, case.name)
      if not case.is_read then has(out, case.name) end
      lacks(out, "fit no rule")
    end
    local dir = quantised_folder(METHODS[1])
    equal((harness.cbk(dir, "export", dir, WEIGHT, "-o", "codes.npy", "--raw")), 0)
    equal((harness.cbk(dir, "export", dir, WEIGHT, "-o", "w.npy")), 0)
    local _, codes = cbk.tensors(cbk.open(dir .. "/codes.npy").root)()
    local _, weight = cbk.tensors(cbk.open(dir .. "/w.npy").root)()
    equal({ codes.dtype, weight.dtype }, { "uint8", "float32" })
    equal((harness.cbk(dir, "convert", folder(model()), "--to", "cs-2.3", "-o", "zoo")), 0)
    local file, config
    for _, name in ipairs(cbk.fs.list(dir .. "/zoo")) do
      local path = dir .. "/zoo/" .. name
      if name:find "%.mdl$" then file = path elseif name:find "%.yaml$" then config = path end
    end
    local root = cbk.copy(cbk.open(file).root)
    root.model = cbk.copy(root.model)
    local key
    for name in cbk.items(root.model) do key = name:find "ffn%.0%.linear_layer%.weight$" and name or key end
    root.model[key] = counted("int8", 32, 16)
    root.model[key:gsub("weight$", "SCB")] = counted("float32", 32)
    cbk.create(dir .. "/old.mdl", { root = root, format = "h5", h5_version = "0.4" }):commit { progress = false }
    has(refused(dir, "upgrade", "--model", "llama", "--config", config, "old.mdl", "--to", "cs-2.5", "--yes"), "bitsandbytes int8")
    local code, said, err = harness.cbk(dir, "convert", "--model", "llama", "--src-fmt", "cs-2.3", "--to", "hf", "--config", config,
      "old.mdl", "-o", "back")
    equal(code, 0, err)
    has(said, "Dequantised: 1 weight (bitsandbytes int8) to bfloat16")
  end)
end)

describe("weights of 8 bits without scales", function()
  local function dropped(dtype, value, config)
    return folder(model(nil, function(root) root[WEIGHT] = cbk.full({ 32, 16 }, value, { dtype = dtype }) end), config)
  end

  it("are not converted, folded, or called clean", function()
    for _, dtype in ipairs { "float8_e4m3fn", "float8_e5m2", "int8", "uint8" } do
      local dir = dropped(dtype, 1)
      local err = refused(dir, "convert", dir, "--to", "cs-2.5", "-o", "out")
      has(err, dtype)
      has(err, "no scales")
      no_bad_advice(err)
      local code, out = harness.cbk(dir, "check", dir)
      equal(code, 1)
      has(out, "[lost-scales]")
      lacks(out, "clean")
      local _, identity = harness.cbk(dir, "identify", dir)
      lacks(identity, "convert  ")
    end
    local plain = dropped("float8_e4m3fn", 1)
    local _, _, said = harness.cbk(plain, "copy", plain, "plain.safetensors", "--to-dtype", "bfloat16")
    has(said, "weights of 8 bits without scales are written as plain numbers: 1, such as ")
    local lora = adapter()
    local dir = folder(model(nil, function(root)
      local key = "model.layers.0.self_attn.q_proj.weight"
      root[key] = root[key]:to("float8_e4m3fn", { allow_overflow = true })
    end))
    has(refused(dir, "fold-lora-checkpoint", "--adapter", lora, dir, "-o", "merged"), "float8_e4m3fn")
  end)

  it("are no more plain as vectors of 8 bits", function()
    for _, dtype in ipairs { "int8", "uint8" } do
      local dir = folder(model(nil, function(root) root["model.norm.weight"] = cbk.full({ 16 }, 1, { dtype = dtype }) end))
      refused(dir, "convert", dir, "--to", "cs-2.5", "-o", "out")
      local code, out = harness.cbk(dir, "check", dir)
      equal(code, 1)
      has(out, ("it is %s, and LlamaForCausalLM has floats there"):format(dtype))
    end
  end)

  it("are no more plain as whole numbers or flags of any width", function()
    for _, dtype in ipairs { "int16", "int32", "int64", "bool" } do
      local dir = dropped(dtype, 1)
      local err = refused(dir, "convert", dir, "--to", "cs-2.5", "-o", "out")
      has(err, ("is no floats, such as '%s' (%s)"):format(WEIGHT, dtype))
      no_bad_advice(err)
      local code, out = harness.cbk(dir, "check", dir)
      equal(code, 1)
      has(out, ("it is %s, and LlamaForCausalLM has floats there"):format(dtype))
      local _, identity = harness.cbk(dir, "identify", dir)
      lacks(identity, "convert  ")
    end
  end)

  it("are codes if the config says so", function()
    local config = llama()
    config.quantization_config = cbk.dict { quant_method = "fp8" }
    local dir = dropped("float8_e4m3fn", 1, config)
    for _, words in ipairs { { "convert", dir, "--to", "cs-2.5", "-o", "out" }, { "copy", dir, "a.pt", "--to-dtype", "float16" },
      { "fold-lora-checkpoint", "--adapter", adapter(), dir, "-o", "merged" } } do
      local err = refused(dir, unpack(words))
      has(err, "FP8")
      has(err, "there are no scales")
    end
    local _, out = harness.cbk(dir, "check", dir)
    has(out, "error ")
    has(out, "FP8")
    local _, listed = harness.cbk(dir, "ls", dir)
    has(listed, "quantised: FP8, without scales")
  end)

  it("are cast by copy if they are plain numbers", function()
    for dtype, reached in pairs { float8_e4m3fn = 448, float8_e5m2 = 57344 } do
      local dir = dropped(dtype, 0.5)
      equal((harness.cbk(dir, "copy", dir, "plain.safetensors", "--to-dtype", "bfloat16")), 0)
      equal(cbk.open(dir .. "/plain.safetensors").root[WEIGHT]:tolist()[1][1], 0.5)
      local codes = dropped(dtype, -reached)
      has(refused(dir, "copy", codes, "codes.safetensors", "--to-dtype", "bfloat16"), ("up to %d"):format(reached))
      equal((harness.cbk(dir, "copy", codes, "same.safetensors")), 0)
    end
  end)
end)

describe("a config that says quantised of weights that are not", function()
  local FIELDS = {
    quantization_config = cbk.dict { quant_method = "fp8" }, compression_config = cbk.dict { quant_method = "compressed-tensors" },
    quantization = cbk.dict { group_size = 64, bits = 4 },
  }

  it("does not keep the field through the Model Zoo and back", function()
    for field, value in pairs(FIELDS) do
      local config = llama()
      config[field], config.bos_token_id = value, 1
      local dir = folder(model(), config)
      local code, _, err = harness.cbk(dir, "convert", dir, "--to", "cs-2.5", "-o", "zoo")
      equal(code, 0, err)
      has(err, "but none are: left out of the new config: " .. field)
      local name = cbk.fs.basename(dir) .. "_to_cs-2.5"
      local _, _, more = harness.cbk(dir, "convert", ("zoo/%s.mdl"):format(name), "--to", "hf", "-o", "back")
      lacks(more, field)
      local back = cbk.config.load(("%s/back/%s_to_hf/config.json"):format(dir, name))
      equal({ back[field], back.bos_token_id }, { nil, 1 }, field)
    end
  end)

  it("does not get it back from what a checkpoint keeps", function()
    local hf_config = require "converters.modelzoo.hf_config"
    for field, value in pairs(FIELDS) do
      local to, kept = cbk.dict(), cbk.dict { [field] = value, text = cbk.dict { [field] = value, a = 1 }, b = 2 }
      hf_config.restore(to, kept, function() return false end)
      equal(to, { text = { a = 1 }, b = 2 }, field)
    end
  end)

  it("is a finding of check", function()
    for field, value in pairs(FIELDS) do
      local config = llama()
      config[field] = value
      local _, out = harness.cbk(harness.temp_dir(), "check", folder(model(), config))
      has(out, ("'%s' in the config says that the weights are quantised"):format(field))
    end
    local _, out = harness.cbk(harness.temp_dir(), "check", folder(model()))
    lacks(out, "quantised")
  end)

  it("does not keep it when an adapter is folded", function()
    local config = llama()
    config.quantization_config = FIELDS.quantization_config
    local dir = folder(model(), config)
    local code, _, err = harness.cbk(dir, "fold-lora-checkpoint", "--adapter", adapter(), dir, "-o", "merged")
    equal(code, 0, err)
    has(err, "but none are: 'quantization_config' is left out")
    local folded = cbk.config.load(dir .. "/merged/config.json")
    config.quantization_config = nil
    equal(folded, cbk.totable(config))
  end)

  it("does not keep it when the config alone is converted", function()
    local config = llama()
    config.quantization_config = FIELDS.quantization_config
    local dir = harness.temp_dir()
    cbk.config.save(config, dir .. "/config.json")
    local code, _, err = harness.cbk(dir, "convert-config", "config.json", "--to", "cs-2.5")
    equal(code, 0, err)
    has(err, "quantised (FP8)")
  end)

  it("is believed where it says that nothing is quantised", function()
    equal(quantised.stated(cbk.dict { quantization_config = cbk.null }), nil)
    equal(quantised.stated(cbk.dict { quantization_config = cbk.dict { quant_method = "bitsandbytes", load_in_4bit = false,
      load_in_8bit = false } }), nil)
    equal(quantised.stated(cbk.dict { text_config = cbk.dict { quantization_config = FIELDS.quantization_config } }).field,
      "text_config.quantization_config")
  end)
end)

describe("scales that no weight needs", function()
  it("are never advised to be left out", function()
    local dir = folder(model(nil, function(root) root["model.layers.0.mlp.weight_scale"] = counted("float32", 32, 1) end))
    local err = refused(dir, "convert", dir, "--to", "cs-2.5", "-o", "out")
    has(err, "model.layers.0.mlp.weight_scale")
    no_bad_advice(err)
    local _, out = harness.cbk(dir, "check", dir)
    has(out, "weight_scale")
    no_bad_advice(out)
  end)
end)

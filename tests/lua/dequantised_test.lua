-- What cbk makes of quantised weights: numbers of each method against loops over codes, and parts that do not fit.

local cbk = require "cbk"
local dequantised = require "cbk.dequantised"
local harness = require "harness"

local describe, it, equal, is_true, has, lacks = harness.describe, harness.it, harness.equal, harness.is_true, harness.has, harness.lacks

local seed = 0

---Whole numbers from `low` to `high`, other ones at each call.
local function random(low, high, ...)
  local count, list = 1, {}
  for _, extent in ipairs { ... } do count = count * extent end
  for i = 1, count do
    seed = (seed * 1103515245 + 12345) % 2 ^ 31
    list[i] = low + math.floor(seed / 65536) % (high - low + 1)
  end
  return list
end

local function tensor(list, dtype, ...)
  local made = cbk.tensor(list, { shape = { ... }, dtype = "float64" })
  return made:to(dtype)
end

---8 codes of 4 bits in each int32; place[i] is the number of the code with the i-th lowest bits.
local function packed(codes, place, ...)
  local out = {}
  for i = 1, #codes, 8 do
    local word = 0
    for k = 1, 8 do word = word + codes[i + (place and place[k] or k - 1)] * 16 ^ (k - 1) end
    out[#out + 1] = word >= 2 ^ 31 and word - 2 ^ 32 or word
  end
  return tensor(out, "int32", ...)
end

---[rows, columns] to [columns, rows].
local function transposed(list, rows, columns)
  local out = {}
  for j = 1, columns do
    for i = 1, rows do out[#out + 1] = list[(i - 1) * columns + j] end
  end
  return out
end

local AWQ = { 0, 2, 4, 6, 1, 3, 5, 7 }
local E2M1 = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6 }

---@class NumbersCase
---@field name string
---@field tensors table<string, Tensor>   by what is behind "w"
---@field config? table
---@field want number[]     exact in float32: scales are multiples of powers of two
---@field shape integer[]
---@field key? string       default: "w.weight"

local function fp8(name, scale, scale_of, config, ending)
  local codes, want = random(-7, 7, 5, 6), {}
  for i = 0, 4 do
    for j = 0, 5 do want[#want + 1] = codes[i * 6 + j + 1] * scale_of(i, j) end
  end
  return { name = name, want = want, shape = { 5, 6 }, config = config,
    tensors = { [".weight"] = tensor(codes, "float8_e4m3fn", 5, 6), [ending or ".weight_scale"] = scale,
      [".input_scale"] = cbk.full({}, 9) } }
end

local function int8()
  local codes, scales, want = random(-127, 127, 3, 4), { 127, 254, 63.5 }, {}
  for i = 1, 12 do want[i] = codes[i] * scales[math.ceil(i / 4)] / 127 end
  return { name = "bitsandbytes int8", want = want, shape = { 3, 4 },
    tensors = { [".weight"] = tensor(codes, "int8", 3, 4), [".SCB"] = tensor(scales, "float32", 3) } }
end

---Blocks of 4 codes, of [expert, out, in] or [out, in].
local function mxfp4(is_experts)
  local codes, powers, list, want = random(0, 15, 2, 3, 2, 4), random(125, 130, 2, 3, 2), {}, {}
  for i = 1, #codes, 2 do list[#list + 1] = codes[i] + 16 * codes[i + 1] end
  for i, code in ipairs(codes) do want[i] = E2M1[code + 1] * 2 ^ (powers[math.ceil(i / 4)] - 127) end
  if not is_experts then
    return { name = "MXFP4 of a matrix", want = want, shape = { 6, 8 },
      tensors = { [".weight_blocks"] = tensor(list, "uint8", 6, 2, 2), [".weight_scales"] = tensor(powers, "uint8", 6, 2) } }
  end
  local turned = {}
  for expert = 0, 1 do
    for _, number in ipairs(transposed({ unpack(want, expert * 24 + 1, expert * 24 + 24) }, 3, 8)) do turned[#turned + 1] = number end
  end
  return { name = "MXFP4 of experts", want = turned, shape = { 2, 8, 3 }, key = "w.experts",
    tensors = { [".experts_blocks"] = tensor(list, "uint8", 2, 3, 2, 2), [".experts_scales"] = tensor(powers, "uint8", 2, 3, 2) } }
end

---GPTQ or AWQ of [16 inputs, 8 outputs] in 4 groups.
---@param options { awq?: boolean, index?: integer[], term?: integer, config?: table }
local function grouped(name, options)
  local q, z, s, want = random(0, 15, 16, 8), random(0, 15, 4, 8), random(1, 9, 4, 8), {}
  for o = 0, 7 do
    for i = 0, 15 do
      local group = options.index and options.index[i + 1] or math.floor(i / 4)
      want[#want + 1] = (q[i * 8 + o + 1] - z[group * 8 + o + 1] - (options.term or 0)) * s[group * 8 + o + 1] / 8
    end
  end
  for i, number in ipairs(s) do s[i] = number / 8 end
  local place = options.awq and AWQ or nil
  local codes = options.awq and packed(q, place, 16, 1) or packed(transposed(q, 16, 8), nil, 8, 2):transpose(0, 1)
  return { name = name, want = want, shape = { 8, 16 }, config = options.config,
    tensors = { [".qweight"] = codes, [".qzeros"] = packed(z, place, 4, 1), [".scales"] = tensor(s, "float16", 4, 8),
      [".g_idx"] = options.index and tensor(options.index, "int32", 16) or nil } }
end

local ORDER = { 3, 1, 0, 2, 2, 2, 0, 1, 1, 3, 3, 0, 0, 1, 2, 3 }
local function config(settings) return cbk.dict { { "torch_dtype", "float16" }, { "quantization_config", settings } } end

---@type NumbersCase[]
local CASES = {
  fp8("a scale per tensor", cbk.full({}, 0.5), function() return 0.5 end),
  fp8("a scale per row", tensor({ 1, 2, 4, 8, 0.25 }, "bfloat16", 5, 1), function(i) return ({ 1, 2, 4, 8, 0.25 })[i + 1] end),
  fp8("a scale per row, one dim", tensor({ 1, 2, 4, 8, 0.25 }, "float32", 5), function(i) return ({ 1, 2, 4, 8, 0.25 })[i + 1] end),
  fp8("ComfyUI's name", cbk.full({ 1 }, 2), function() return 2 end, nil, ".scale_weight"),
  fp8("blocks of the config", tensor({ 1, 2, 4, 8, 16, 32 }, "float32", 3, 2),
    function(i, j) return 2 ^ (2 * math.floor(i / 2) + math.floor(j / 4)) end,
    { quant_method = "fp8", weight_block_size = cbk.list { 2, 4 } }, ".weight_scale_inv"),
  fp8("blocks of 128", cbk.full({ 1, 1 }, 4), function() return 4 end, nil, ".weight_scale_inv"),
  int8(), mxfp4(true), mxfp4(false),
  grouped("GPTQ", { term = 1 }),
  grouped("GPTQ with groups in another order", { term = 1, index = ORDER }),
  grouped("gptq_v2", { term = 0, index = ORDER, config = { quant_method = "gptq", checkpoint_format = "gptq_v2", bits = 4 } }),
  grouped("AWQ", { awq = true, config = { quant_method = "awq", version = "GEMM", group_size = 4 } }),
}

local function tree_of(case)
  local root = cbk.dict { { "norm.weight", cbk.full({ 3 }, 1) } }
  for tail, value in pairs(case.tensors) do root["w" .. tail] = value end
  return root
end

local function flat(value) return value:reshape { value:numel() }:tolist() end

describe("numbers of quantised weights", function()
  it("are those of loops over the codes, under the weight's name", function()
    for _, case in ipairs(CASES) do
      local tree, found = dequantised.tree(tree_of(case), case.config and config(cbk.dict(case.config)))
      local key = case.key or "w.weight"
      equal(#found.weights, 1, case.name)
      local keys = cbk.keys(tree)
      table.sort(keys)
      equal(keys, { "norm.weight", key }, case.name)
      local weight = tree[key]
      equal({ weight.dtype, weight:shape() }, { "float32", case.shape }, case.name)
      local got = flat(weight)
      for i, number in ipairs(case.want) do
        local is_near = math.abs(got[i] - number) <= 1e-6 * math.abs(number)
        is_true(is_near, ("%s: element %d is %g, expected %g"):format(case.name, i, got[i], number))
      end
      local rows = cbk.leaf_rows(tree_of(case))
      equal(dequantised.shape(found, rows, found.weights[1]), case.shape, case.name)
    end
  end)

  it("are rounded once to a dtype that is asked for", function()
    for _, case in ipairs(CASES) do
      local plain = dequantised.tree(tree_of(case), case.config and config(cbk.dict(case.config)))
      local half = dequantised.tree(tree_of(case), case.config and config(cbk.dict(case.config)), { dtype = "float16" })
      local key = case.key or "w.weight"
      equal(half[key].dtype, "float16")
      is_true(half[key]:compare(plain[key]:to "float16").same_bits, case.name)
    end
  end)

  it("have the dtype of the config, else bfloat16, for a conversion", function()
    local tree = tree_of(CASES[1])
    equal(dequantised.model(tree, nil, "x")["w.weight"].dtype, "bfloat16")
    for dtype, section in pairs { float16 = { torch_dtype = "float16" }, float32 = { text_config = cbk.dict { dtype = "float32" } },
      bfloat16 = { dtype = "float8_e4m3fn" } } do
      local own = cbk.dict(section)
      own.quantization_config = cbk.dict { quant_method = "fp8" }
      local root, plain, text = dequantised.model(tree, own, "x")
      equal({ root["w.weight"].dtype, plain.quantization_config }, { dtype, nil })
      has(text, "1 weight (FP8, a scale per tensor) to " .. dtype)
    end
    local same, _, text = dequantised.model(cbk.dict { a = cbk.full({ 2 }, 1) }, nil, "x")
    equal({ #flat(same.a), text }, { 2, nil })
  end)
end)

-- --- parts that do not fit

---@class MistakeCase
---@field base integer     of CASES
---@field put table<string, Tensor|false>
---@field config? table
---@field words string[]

local function number_of(name)
  for i, case in ipairs(CASES) do
    if case.name == name then return i end
  end
end

local BLOCKS, GPTQ, ACT, AWQ_CASE = number_of "blocks of the config", number_of "GPTQ", number_of "gptq_v2", number_of "AWQ"
local EXPERTS, INT8 = number_of "MXFP4 of experts", number_of "bitsandbytes int8"
local TWO_FOUR = { quant_method = "fp8", weight_block_size = cbk.list { 2, 4 } }

---@type MistakeCase[]
local MISTAKES = {
  { base = 1, put = { [".weight_scale"] = cbk.full({ 4 }, 1) }, words = { "'w.weight_scale'", "[4]", "[5, 6]" } },
  { base = 1, put = { [".weight_scale"] = cbk.full({}, 1, { dtype = "int32" }) }, words = { "'w.weight_scale' is int32", "floats" } },
  { base = 1, put = { [".weight_scale"] = cbk.full({ 2, 2 }, 1) }, words = { "[2, 2]", "expected [1, 1]", "128 x 128" } },
  { base = BLOCKS, put = { [".weight_scale_inv"] = cbk.full({ 2, 2 }, 1) }, config = TWO_FOUR,
    words = { "'w.weight_scale_inv'", "expected [3, 2]", "2 x 4" } },
  { base = BLOCKS, put = {}, config = { weight_block_size = cbk.list { 0, 4 } }, words = { "weight_block_size", "[0, 4]" } },
  { base = BLOCKS, put = {}, config = { weight_block_size = cbk.list { 128 } }, words = { "weight_block_size" } },
  { base = BLOCKS, put = {}, config = { weight_block_size = cbk.list { 1e300, 4 } }, words = { "expected [1, 2]" } },
  { base = INT8, put = { [".SCB"] = cbk.full({ 4 }, 1) }, words = { "'w.SCB'", "a scale for each row of [3, 4]" } },
  { base = INT8, put = { [".weight_format"] = cbk.full({}, 2, { dtype = "uint8" }) }, words = { "'w.weight_format'" } },
  { base = EXPERTS, put = { [".experts_scales"] = cbk.full({ 2, 3, 1 }, 1, { dtype = "uint8" }) },
    words = { "'w.experts_scales'", "[2, 3, 1]" } },
  { base = GPTQ, put = { [".scales"] = cbk.full({ 4, 7 }, 1) }, words = { "'w.scales'", "[4, 7]" } },
  { base = GPTQ, put = { [".qzeros"] = cbk.full({ 4, 2 }, 1, { dtype = "int32" }) }, words = { "'w.qzeros'", "[4, 16]" } },
  { base = GPTQ, put = { [".qzeros"] = cbk.full({ 4, 1 }, 1, { dtype = "int64" }) }, words = { "'w.qzeros' is int64" } },
  { base = GPTQ, put = { [".qzeros"] = cbk.full({ 4 }, 1, { dtype = "int32" }) }, words = { "'w.qzeros' has [4]", "matrices" } },
  { base = GPTQ, put = {}, config = { group_size = 8 }, words = { "expected 2 groups", "found 4" } },
  { base = ACT, put = { [".g_idx"] = cbk.full({ 16 }, 4, { dtype = "int32" }) }, words = { "'w.g_idx' has group 4", "0 to 3" } },
  { base = ACT, put = { [".g_idx"] = cbk.full({ 16 }, -1, { dtype = "int64" }) }, words = { "'w.g_idx' has group -1" } },
  { base = ACT, put = { [".g_idx"] = cbk.full({ 15 }, 0, { dtype = "int32" }) }, words = { "'w.g_idx'", "expected [16]" } },
  { base = ACT, put = { [".g_idx"] = cbk.full({ 16 }, 0) }, words = { "'w.g_idx' is float32" } },
  { base = AWQ_CASE, put = { [".scales"] = cbk.full({ 3, 8 }, 1) }, words = { "'w.scales'", "[3, 8]" } },
}

---Methods that are named and refused.
local REFUSED = {
  { base = 1, put = { [".weight"] = cbk.full({ 5, 6 }, 1, { dtype = "bfloat16" }) }, words = { "codes as bfloat16" } },
  { base = 1, put = { [".weight_zero_point"] = cbk.full({}, 1, { dtype = "int8" }) }, words = { "zero_point" } },
  { base = INT8, put = { [".weight"] = cbk.full({ 3, 4 }, 1, { dtype = "float32" }) }, words = { "bitsandbytes int8", "float32" } },
  { base = EXPERTS, put = { [".experts_scales"] = cbk.full({ 2, 3, 2 }, 1) }, words = { "MXFP4", "float32" } },
  { base = GPTQ, put = {}, config = { quant_method = "gptq", bits = 8 }, words = { "GPTQ", "8 bits" } },
  { base = GPTQ, put = {}, config = { quant_method = "gptq", checkpoint_format = "marlin" }, words = { "GPTQ", "marlin" } },
  { base = GPTQ, put = { [".qzeros"] = false }, words = { "GPTQ", "no '*.qzeros'" } },
  { base = AWQ_CASE, put = {}, config = { quant_method = "awq", version = "gemv" }, words = { "AWQ", "gemv" } },
}

---@param case MistakeCase
---@return string problem
local function problem_of(case)
  local root = tree_of(CASES[case.base])
  for tail, value in pairs(case.put) do root["w" .. tail] = value or nil end
  local fine, problem = pcall(dequantised.tree, root, case.config and config(cbk.dict(case.config)))
  is_true(not fine, table.concat(case.words, ", "))
  return cbk.problem_text(problem)
end

describe("parts that do not fit their codes", function()
  it("are errors that name the key and what was expected", function()
    for _, case in ipairs(MISTAKES) do
      local text = problem_of(case)
      has(text, "cannot read 'w.")
      for _, word in ipairs(case.words) do has(text, word) end
    end
  end)

  it("are refused by name where the method is another one", function()
    for _, case in ipairs(REFUSED) do
      local text = problem_of(case)
      has(text, "the weights are quantised")
      for _, word in ipairs(case.words) do has(text, word) end
    end
  end)

  it("are refused where codes are shared and scales are not", function()
    local codes = cbk.tensor(random(-7, 7, 4, 4), { shape = { 4, 4 }, dtype = "int8" })
    local root = cbk.dict { { "a.weight", codes }, { "a.weight_scale", cbk.tensor { 2 } }, { "b.weight", codes },
      { "b.weight_scale", cbk.tensor { 3 } } }
    local fine, problem = pcall(dequantised.tree, root)
    is_true(not fine)
    has(cbk.problem_text(problem), "'a.weight' and 'b.weight' share their codes")
  end)

  it("take neither time nor memory where shapes are huge", function()
    local huge = cbk.full({ 2 ^ 40, 2 ^ 15 }, 1, { dtype = "int8" })
    local tree = dequantised.tree(cbk.dict { { "w.weight", huge }, { "w.weight_scale", cbk.full({ 2 ^ 40, 1 }, 2) } })
    equal(tree["w.weight"]:slice(0, 2 ^ 39, 2 ^ 39 + 1):slice(1, 0, 2):tolist(), { { 2, 2 } })
    local blocks = cbk.full({ 2 ^ 30, 2 ^ 24, 16 }, 1, { dtype = "uint8" })
    local fine, problem = pcall(dequantised.tree, cbk.dict { { "w_blocks", blocks },
      { "w_scales", cbk.full({ 2 ^ 30, 2 ^ 24 }, 1, { dtype = "uint8" }) } })
    is_true(not fine)
    has(cbk.problem_text(problem), "too large")
  end)
end)

-- --- commands

local function folder_of(case, method)
  local dir = harness.temp_dir()
  cbk.create(dir .. "/model.safetensors", { root = tree_of(case) }):commit { progress = false }
  cbk.config.save(config(cbk.dict(case.config or { quant_method = method or "fp8" })), dir .. "/config.json")
  return dir
end

describe("cbk copy --dequantize", function()
  it("works with the other options, which see the weights' own names", function()
    local dir = folder_of(CASES[GPTQ], "gptq")
    equal((harness.cbk(dir, "copy", dir, "a.safetensors", "--dequantize", "float32", "--include", "w.*", "--rename", "^w=model.w")), 0)
    local root = cbk.open(dir .. "/a.safetensors").root
    equal(cbk.keys(root), { "model.w.weight" })
    equal(flat(root["model.w.weight"]), CASES[GPTQ].want)
    equal((harness.cbk(dir, "copy", dir, "b.pt", "--dequantize", "bfloat16", "--to-dtype", "bfloat16")), 0)
    for _, value in cbk.tensors(cbk.open(dir .. "/b.pt").root) do equal(value.dtype, "bfloat16") end
    equal((harness.cbk(dir, "copy", dir, "shards", "--format", "safetensors", "--shard-size", "300B", "--dequantize", "float32")), 0)
    equal(#cbk.fs.list(dir .. "/shards"), 3)
    equal((harness.cbk(dir, "copy", dir, "plain.safetensors", "--dequantize", "float32", "--weights")), 0)
    equal((harness.cbk(dir, "copy", dir, "model", "--format", "safetensors", "--dequantize", "float32", "--weights", "--shard-size",
      "1MB")), 0)
    local plain = cbk.config.load(dir .. "/model/config.json")
    equal({ plain.torch_dtype, plain.quantization_config }, { "float16", nil })
  end)

  it("refuses what it cannot do, and writes nothing", function()
    local dir = folder_of(CASES[1])
    local code, _, err = harness.cbk(dir, "copy", dir, "a.safetensors", "--dequantize", "bfloat16", "--to-dtype", "float32")
    equal(code, 2)
    has(err, "--dequantize bfloat16 and --to-dtype float32")
    code, _, err = harness.cbk(dir, "copy", dir, "a.safetensors", "--dequantize", "int8")
    equal(code, 2)
    has(err, "expected a floating dtype")
    cbk.create(dir .. "/plain.safetensors", { root = cbk.dict { a = cbk.full({ 2 }, 1) } }):commit { progress = false }
    code, _, err = harness.cbk(dir, "copy", "plain.safetensors", "a.safetensors", "--dequantize", "bfloat16")
    equal(code, 1)
    has(err, "it has no quantised weights")
    local root = tree_of(CASES[1])
    root["lost.weight"] = cbk.full({ 4, 4 }, 1, { dtype = "float8_e4m3fn" })
    cbk.create(dir .. "/lost.safetensors", { root = root }):commit { progress = false }
    code, _, err = harness.cbk(dir, "copy", "lost.safetensors", "a.safetensors", "--dequantize", "bfloat16")
    equal(code, 1)
    has(err, "'lost.weight'")
    equal(cbk.fs.exists(dir .. "/a.safetensors"), false)
  end)

  it("counts what a dtype cannot hold", function()
    local root = cbk.dict { { "w.weight", cbk.full({ 2, 2 }, 448, { dtype = "float8_e4m3fn" }) }, { "w.weight_scale", cbk.full({}, 1e4) } }
    local dir = harness.temp_dir()
    cbk.create(dir .. "/model.safetensors", { root = root }):commit { progress = false }
    local code, _, err = harness.cbk(dir, "copy", "model.safetensors", "a.safetensors", "--dequantize", "float16")
    equal(code, 1)
    has(err, "float16")
  end)
end)

describe("commands for looking at values", function()
  it("read numbers, and scales by their keys", function()
    local case = CASES[GPTQ]
    local dir = folder_of(case, "gptq")
    local _, out = harness.cbk(dir, "show", dir, "w.weight")
    has(out, "float32 [8, 16]")
    has(out, "computed from the codes in w.qweight (GPTQ")
    _, out = harness.cbk(dir, "show", dir, "w.scales")
    has(out, "float16 [4, 8]")
    _, out = harness.cbk(dir, "stats", dir)
    has(out, "w.weight")
    lacks(out, "qzeros")
    _, out = harness.cbk(dir, "stats", dir, "--key", "w.qzeros")
    has(out, "w.qzeros")
    _, out = harness.cbk(dir, "ls", dir)
    has(out, "w.weight  [8, 16]  GPTQ")
    harness.cbk(dir, "copy", dir, "plain.safetensors", "--dequantize", "float32")
    local code
    code, out = harness.cbk(dir, "diff", dir, "plain.safetensors")
    equal(code, 0, out)
    equal((harness.cbk(dir, "export", dir, "w.weight", "-o", "w.npy")), 0)
    equal((harness.cbk(dir, "plot", dir, "w.weight", "-o", "w.svg")), 0)
    equal((harness.cbk(dir, "report", dir, "-o", "page.html")), 0)
    has(cbk.fs.read(dir .. "/page.html"), "w.weight")
    local _, json = harness.cbk(dir, "ls", "--json", dir)
    for _, entry in ipairs(cbk.totable(cbk.config.parse(json, "json")).entries) do
      if entry.key == "w.qweight" then equal(entry.weight, { name = "w.weight", method = "GPTQ", shape = { 8, 16 } }) end
    end
  end)

  it("name a scale that does not fit, and show what is stored", function()
    local dir = harness.temp_dir()
    local root = tree_of(CASES[1])
    root["w.weight_scale"] = cbk.full({ 4 }, 1)
    cbk.create(dir .. "/model.safetensors", { root = root }):commit { progress = false }
    local code, out, err = harness.cbk(dir, "stats", "model.safetensors")
    equal(code, 0)
    has(err, "'w.weight_scale' has the shape [4]")
    has(out, "float8_e4m3fn")
    code, out = harness.cbk(dir, "check", "model.safetensors")
    equal(code, 1)
    has(out, "[scales]")
  end)
end)

-- The arithmetic of quantised weights: for each reader of `cbk.quantised`, which dtypes and settings it reads, and the lazy float32 tensor
-- of a weight. Products are rounded once, in float32.

local cbk = require "cbk"
local extents = require "cbk.extents"

---@class PackedWeight
---@field weight QuantisedWeight
---@field codes Tensor
---@field parts table<string, Tensor>   scales, zero points and the like, by the ending of the scheme
---@field settings table|Dict           quantization_config; empty if there is none

---@class CodesReader
---@field why_not fun(dtype: string, dtype_of: table<string, string>, settings: table|Dict): string|nil   why codes of this dtype with
---these parts, by ending, cannot be read; nil if they can
---@field shape fun(codes: integer[], method: string): integer[]|nil   of the weight, from that of its codes; nil if codes cannot have it
---@field read fun(packed: PackedWeight): Tensor   float32; errors: parts that do not fit the codes

---@type table<string, CodesReader>
local codes = {}

local function same_shape(shape) return shape end

local function refuse(text, ...) cbk.fail("checkpoint", text:format(...)) end

---The only part with one of these endings, which other parts must not be beside.
local function only(parts, endings)
  local found
  for ending, part in pairs(parts) do
    if not endings[ending] then return nil, ending end
    if found then return nil, ending end
    found = part
  end
  return found
end

---A scale as float32.
---@param packed PackedWeight
---@param ending string
local function scale_at(packed, ending)
  local scale, key = packed.parts[ending], packed.weight.part_of[ending]
  if not cbk.dtype(scale.dtype).floating then refuse("the scale '%s' is %s; expected floats", key, scale.dtype) end
  return scale:to "float32"
end

-- --- repeating

---@param tensor Tensor
---@param dim integer    from 0
---@param times integer
---@param extent integer   of the result, which may cut the last repetition
local function repeated(tensor, dim, times, extent)
  local shape = tensor:shape()
  local spread, whole = {}, {}
  for i, n in ipairs(shape) do
    spread[#spread + 1], whole[i] = n, i == dim + 1 and n * times or n
    if i == dim + 1 then spread[#spread + 1] = 1 end
  end
  local wide = tensor:reshape(spread)
  spread[dim + 2] = times
  return wide:expand(spread):reshape(whole):slice(dim, 0, extent)
end

---The scale of each element: one for the tensor, for each row, or for what the extents of 1 repeat; nil if the shapes do not fit.
---@param scale Tensor
---@param shape integer[]
local function broadcast(scale, shape)
  local own, fitting = scale:shape(), {}
  for i in ipairs(shape) do fitting[i] = 1 end
  if scale:numel() ~= 1 then
    if #own == 1 and #shape > 1 then own = { own[1], 1 } end
    if #own ~= #shape then return nil end
    for i, extent in ipairs(own) do
      if extent ~= 1 and extent ~= shape[i] then return nil end
      fitting[i] = extent
    end
  end
  return scale:reshape(fitting):expand(shape)
end

---The extents of a block, from the config; nil if it has none.
local function stated_block(settings)
  local size = settings.weight_block_size
  local groups = settings.config_groups
  for _, group in cbk.items(cbk.kind(groups) == "dict" and groups or cbk.dict()) do -- of compressed-tensors
    local weights = cbk.kind(group) == "dict" and group.weights
    local own = cbk.kind(weights) == "dict" and weights.block_structure or nil
    if own ~= nil and own ~= cbk.null then
      if size ~= nil and cbk.json(size) ~= cbk.json(own) then
        refuse("the config has blocks of %s and of %s", cbk.json(size), cbk.json(own))
      end
      size = own
    end
  end
  local list = size ~= nil and cbk.kind(size) == "list" and cbk.totable(size) or nil
  if not list then return nil end
  local rows, columns = list[1], list[2]
  if #list ~= 2 or type(rows) ~= "number" or type(columns) ~= "number" or rows < 1 or columns < 1 or rows % 1 + columns % 1 > 0 then
    refuse("the block size of the config (weight_block_size, block_structure) is %s; expected two positive whole numbers", cbk.json(size))
  end
  return { rows, columns }
end

local USUAL = { 128, 128 } -- the block of DeepSeek-V3, whose layout others took over

---The scale of each element where the last two dims are cut into blocks; the last blocks may be cut short.
local function by_block(scale, shape, block, key)
  local own, want = scale:shape(), {}
  for i, extent in ipairs(shape) do want[i] = extent end
  for i = 1, 2 do
    local dim = #shape - 2 + i
    want[dim] = math.ceil(shape[dim] / block[i])
  end
  if extents.shape(own) ~= extents.shape(want) then
    refuse("the scale '%s' has the shape %s; expected %s for blocks of %d x %d in %s", key, extents.shape(own), extents.shape(want),
      block[1], block[2], extents.shape(shape))
  end
  scale = repeated(scale, #shape - 2, block[1], shape[#shape - 1])
  return repeated(scale, #shape - 1, block[2], shape[#shape])
end

-- --- a scale for each block, row or tensor

local SCALES = { _scale_inv = true, _scale = true, [".scale_weight"] = true, [".scale"] = true, [".scale_inv"] = true }
local FLOATS = { float8_e4m3fn = true, float8_e5m2 = true, float8_e4m3fnuz = true, float8_e5m2fnuz = true }

---w x scale. FP8 of DeepSeek, compressed-tensors, FBGEMM, ModelOpt; int8 of compressed-tensors.
codes.scaled = {
  shape = same_shape,
  why_not = function(dtype, dtype_of)
    if not FLOATS[dtype] and dtype ~= "int8" then return ("the codes are %s"):format(dtype) end
    local scale, other = only(dtype_of, SCALES)
    if not scale then return ("'%s' beside the codes is not understood"):format(other) end
  end,
  read = function(packed)
    local ending = next(packed.parts)
    local scale, key, shape = scale_at(packed, ending), packed.weight.part_of[ending], packed.codes:shape()
    local block = stated_block(packed.settings)
    local is_matrix = #shape >= 2 and #scale:shape() == #shape
    local fitting = not (block and is_matrix) and broadcast(scale, shape)
    if not fitting and not is_matrix then
      refuse("the scale '%s' has the shape %s, which does not fit the codes %s", key, extents.shape(scale:shape()), extents.shape(shape))
    end
    fitting = fitting or by_block(scale, shape, block or USUAL, key)
    return packed.codes:to "float32" * fitting
  end,
}

---w x SCB / 127, in the order of bitsandbytes, which multiplies with the rounded 1 / 127.
codes.int8 = {
  shape = same_shape,
  why_not = function(dtype)
    if dtype ~= "int8" then return ("the codes are %s"):format(dtype) end
  end,
  read = function(packed)
    local ending, layout = ".SCB", packed.parts[".weight_format"]
    local scale, shape = scale_at(packed, ending), packed.codes:shape()
    if layout and layout:numel() == 1 and layout:reshape {}:item() ~= 0 then
      refuse("'%s' says that the codes are not stored in rows", packed.weight.part_of[".weight_format"])
    end
    if #shape ~= 2 or scale:numel() ~= shape[1] then
      refuse("'%s' has the shape %s; expected a scale for each row of %s", packed.weight.part_of[ending], extents.shape(scale:shape()),
        extents.shape(shape))
    end
    return (packed.codes:to "float32" * broadcast(scale:reshape { shape[1], 1 }, shape)):affine(1 / 127)
  end,
}

-- --- codes of 4 bits

-- The numbers of the OCP Microscaling format, 1 sign, 2 exponent and 1 mantissa bit.
local E2M1 = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 }

---e2m1 x 2^(scale - 127). Of experts, the blocks are [expert, out, n, 16], and the weight is [expert, in, out], as gpt-oss's class has it
---in Hugging Face's transformers: its checkpoints of 16 bits have that shape, and so do configs and converters. A matrix stays [out, in].
codes.mxfp4 = {
  shape = function(shape)
    local out, n = { unpack(shape) }, #shape
    if n < 2 then return nil end
    out[n], out[n - 1] = nil, 2 * shape[n] * shape[n - 1]
    if n > 3 then out[n - 2], out[n - 1] = out[n - 1], out[n - 2] end
    return out
  end,
  why_not = function(dtype, dtype_of)
    if dtype ~= "uint8" then return ("the codes are %s"):format(dtype) end
    local scale = dtype_of._scales
    if scale ~= "uint8" and scale ~= "float8_e8m0fnu" then return ("the scales are %s"):format(scale) end
  end,
  read = function(packed)
    local blocks, scale = packed.codes, packed.parts._scales:bits "float8_e8m0fnu"
    local shape, own = blocks:shape(), scale:shape()
    local width = shape[#shape]
    shape[#shape] = nil
    if #shape < 2 or extents.shape(shape) ~= extents.shape(own) then
      refuse("'%s' has the shape %s, which does not fit the blocks %s", packed.weight.part_of._scales, extents.shape(own),
        extents.shape(blocks:shape()))
    end
    local n, is_experts = shape[#shape], #shape >= 3
    shape[#shape] = n * width
    scale = (is_experts and scale:transpose(-2, -1) or scale):to "float32"
    blocks = blocks:reshape(shape)
    local dim = #shape - (is_experts and 2 or 1)
    blocks = is_experts and blocks:transpose(-2, -1) or blocks -- the packed codes, which are fewer than the numbers
    return blocks:unpack(4, { dim = dim, values = E2M1 }) * repeated(scale, dim, 2 * width, 2 * n * width)
  end,
}

local PLACES_OF_AWQ = { 0, 4, 1, 5, 2, 6, 3, 7 } -- it stores number 2 second

---Codes packed along the columns of [rows, columns / 8], as numbers [columns, rows]. The packed elements are transposed, not the numbers.
---@param packed Tensor
---@param places integer[]|nil
---@param values number[]|nil
local function unpacked_columns(packed, places, values)
  return packed:transpose(0, 1):unpack(4, { dim = 0, places = places, values = values })
end

---The numbers -(code + term).
local function negative(term)
  local out = {}
  for code = 0, 15 do out[code + 1] = -(code + term) end
  return out
end

---The group of each input, of GPTQ's `g_idx`; nil if groups follow each other.
---@param index Tensor
local function groups_in(index, size, groups, key)
  if not cbk.dtype(index.dtype).integer then refuse("'%s' is %s; expected integers", key, index.dtype) end
  local list, is_plain = index:tolist(), true
  for i, group in ipairs(list) do
    group = tonumber(group)
    if group < 0 or group >= groups then refuse("'%s' has group %d for input %d; expected 0 to %d", key, group, i - 1, groups - 1) end
    is_plain = is_plain and group == math.floor((i - 1) / size)
  end
  return not is_plain and list or nil
end

---How many inputs share a scale.
local function group_size(settings, inputs, groups)
  local size = settings.group_size
  if type(size) == "number" and size > 0 and size % 1 == 0 then
    if math.ceil(inputs / size) ~= groups then
      refuse("expected %d groups of %d inputs (group_size of the config) for %d inputs, found %d", math.ceil(inputs / size), size, inputs,
        groups)
    end
    return size
  end
  if groups == 0 or inputs % groups ~= 0 then
    refuse("%d inputs are not %d groups of one size; the config has no group_size", inputs, groups)
  end
  return inputs / groups
end

---(q + z) x scale, where z is the negative zero point, repeated for the inputs of its group.
---@param q Tensor   [out, in]
---@param z Tensor   [out, groups]
---@param packed PackedWeight
local function grouped(q, z, packed)
  local part_of, inputs, scale = packed.weight.part_of, q:shape()[2], scale_at(packed, ".scales")
  local want, own = { z:shape()[2], z:shape()[1] }, scale:shape()
  if q:shape()[1] ~= want[2] or extents.shape(own) ~= extents.shape(want) then
    refuse("the scales '%s' have the shape %s, the zero points '%s' are for %s, and the codes for %d outputs", part_of[".scales"],
      extents.shape(own), part_of[".qzeros"], extents.shape(want), q:shape()[1])
  end
  scale = scale:transpose(0, 1)
  local index = packed.parts[".g_idx"]
  if index and extents.shape(index:shape()) ~= extents.shape { inputs } then
    refuse("'%s' has the shape %s; expected [%d]", part_of[".g_idx"], extents.shape(index:shape()), inputs)
  end
  local size = index and math.ceil(inputs / math.max(want[1], 1)) or group_size(packed.settings, inputs, want[1])
  local groups = index and groups_in(index, size, want[1], part_of[".g_idx"])
  if groups then
    local both = cbk.stack({ z, scale }, 0):index_select(2, groups)
    return (q + both:select(0, 0)) * both:select(0, 1)
  end
  return (q + repeated(z, 1, size, inputs)) * repeated(scale, 1, size, inputs)
end

---GPTQ: (q - (z + 1)) x scale; format gptq_v2: (q - z) x scale. AWQ: (q - z) x scale. Codes are [in / 8, out] or [in, out / 8], the weight
---is [out, in].
codes.grouped = {
  shape = function(shape, method)
    if #shape ~= 2 then return nil end
    return method == "AWQ" and { 8 * shape[2], shape[1] } or { shape[2], 8 * shape[1] }
  end,
  why_not = function(dtype, dtype_of, settings)
    if dtype ~= "int32" and dtype ~= "uint32" then return ("the codes are %s"):format(dtype) end
    local bits = settings.bits
    if bits ~= nil and bits ~= 4 then return ("the codes have %s bits, and cbk reads 4"):format(tostring(bits)) end
    local method, packing = settings.quant_method, settings.packing_format
    if type(method) == "string" and method ~= "gptq" and method ~= "awq" then return ("quant_method is '%s'"):format(method) end
    if type(packing) == "string" then return ("packing_format is '%s'"):format(packing) end
    local format = settings.checkpoint_format
    if type(format) == "string" and format ~= "gptq" and format ~= "gptq_v2" then return ("checkpoint_format is '%s'"):format(format) end
    local version = settings.version
    if type(version) == "string" and version:lower() ~= "gemm" then return ("version is '%s'"):format(version) end
    for _, ending in ipairs { ".scales", ".qzeros" } do
      if not dtype_of[ending] then return ("there is no '*%s'"):format(ending) end
    end
  end,
  read = function(packed)
    local q, zeros, key = packed.codes, packed.parts[".qzeros"], packed.weight.part_of[".qzeros"]
    if #q:shape() ~= 2 or #zeros:shape() ~= 2 then
      refuse("the codes have the shape %s, and '%s' has %s; expected matrices", extents.shape(q:shape()), key, extents.shape(zeros:shape()))
    end
    if zeros.dtype ~= "int32" and zeros.dtype ~= "uint32" then refuse("'%s' is %s; expected int32", key, zeros.dtype) end
    if packed.weight.method == "AWQ" then
      return grouped(unpacked_columns(q, PLACES_OF_AWQ), unpacked_columns(zeros, PLACES_OF_AWQ, negative(0)), packed)
    end
    local term = packed.settings.checkpoint_format == "gptq_v2" and 0 or 1
    return grouped(q:transpose(0, 1):unpack(4), unpacked_columns(zeros, nil, negative(term)), packed)
  end,
}

return codes

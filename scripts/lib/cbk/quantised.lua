-- Recognises quantised weights: which tensors of a checkpoint are codes, which scales beside them turn codes into numbers, and by which
-- method. It uses names, dtypes, shapes and the config; elements are not read. `cbk.dequantised` makes numbers of the codes; where no
-- reader for a method exists, commands that compute with weights refuse the checkpoint (`Quantised:problem`).

local cbk = require "cbk"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"

local quantised = {}

-- --- methods, by the names beside the codes

---How many elements share a scale, for people.
---@param codes LeafRow
---@param scale LeafRow
local function per(codes, scale)
  if not scale.shape or scale.numel == 1 then return "a scale per tensor" end
  local is_row = codes.shape and scale.numel == codes.shape[1] and scale.shape[1] == codes.shape[1]
  return is_row and "a scale per row" or "a scale per block"
end

local WIDE = { bfloat16 = true, float16 = true, float32 = true, float64 = true } -- somebody cast the codes, which makes no weights of them

---@param codes LeafRow
---@param scale LeafRow
---@param has fun(tail: string): LeafRow|nil   returns the tensor beside the codes with this ending
local function plain(codes, scale, has)
  if codes.type:find "^float8" then return "FP8, " .. per(codes, scale) end
  if WIDE[codes.type] then return ("codes as %s, %s"):format(codes.type, per(codes, scale)) end
  if codes.type == "object" or codes.type == "uint8" and (has "_scale_2" or scale.type:find "^float8_e4m3") then return "NVFP4" end
  return ("%s, %s"):format(codes.type, per(codes, scale))
end

---AWQ packs 8 columns into one number, GPTQ 8 rows.
local function gptq_or_awq(codes, _, has)
  local scales = has ".scales"
  local is_awq = not has ".g_idx" and scales and #scales.shape == 2 and #codes.shape == 2 and codes.shape[2] < scales.shape[2]
  return is_awq and "AWQ" or "GPTQ"
end

---@class QuantisedScheme   The endings of a quantised weight's names, after their common part.
---@field codes string
---@field weight string       the ending of the weight's own name
---@field tells string[]      any of these beside a tensor shows that it is codes
---@field more? string[]      other tensors that the codes need
---@field method string|fun(codes: LeafRow, scale: LeafRow, has: fun(tail: string): LeafRow|nil): string
---@field any_dtype? boolean  the codes may be packed into elements of any dtype
---@field reader? string       what makes numbers of the codes, in `cbk.dequantised`

---@type QuantisedScheme[]   if several fit, the first is used
local SCHEMES = {
  { codes = "", weight = "", any_dtype = true, more = { ".nested_absmax", ".nested_quant_map" },
    tells = { ".absmax", ".quant_map", ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4" },
    method = function(_, _, has) return "bitsandbytes " .. (has ".quant_state.bitsandbytes__fp4" and "FP4" or "NF4") end },
  { codes = ".weight", weight = ".weight", tells = { ".SCB" }, more = { ".weight_format" }, method = "bitsandbytes int8", reader = "int8" },
  { codes = "", weight = "", tells = { ".SCB" }, more = { ".weight_format" }, method = "bitsandbytes int8", reader = "int8" },
  { codes = "_blocks", weight = "", tells = { "_scales" }, method = "MXFP4", reader = "mxfp4" },
  { codes = ".qweight", weight = ".weight", tells = { ".scales", ".qzeros", ".g_idx" }, method = gptq_or_awq, reader = "grouped" },
  { codes = "_packed", weight = "", tells = { "_scale", "_global_scale", "_zero_point" }, more = { "_shape", "_g_idx" },
    method = function(codes, _, has)
      return has "_global_scale" and "NVFP4 (compressed-tensors)" or ("compressed-tensors, packed into %s"):format(codes.type)
    end },
  { codes = ".weight", weight = ".weight", tells = { ".scales" }, more = { ".biases" },
    method = function(codes) return codes.type == "uint32" and "MLX" or codes.type .. " with 'scales'" end },
  { codes = "", weight = "", tells = { "_scale_inv", "_scale", "_scales", "_scale_2", "_global_scale", "_zero_point" },
    more = { "_g_idx", "_shape" }, method = plain, reader = "scaled" },
  { codes = ".weight", weight = ".weight", tells = { ".scale_weight", ".qscale_weight", ".scale", ".scale_inv", ".weight_scales" },
    method = plain, reader = "scaled" },
  { codes = "._data", weight = "", tells = { "._scale", "._shift" }, method = "quanto" },
  { codes = "_qdata", weight = "", tells = { "_scale", "_zero_point" }, method = "torchao" },
  { codes = ".W_q", weight = ".weight", tells = { ".scale", ".zero", ".meta" }, method = "HQQ",
    more = { ".nbits", ".group_size", ".shape", ".axis", ".packing", ".zero_q", ".scale_q", ".meta_scale", ".meta_zero" } },
  { codes = ".q_weight", weight = ".weight", tells = { ".q_scale", ".q_scale_max" }, method = "EXL2",
    more = { ".q_groups", ".q_group_map", ".q_perm", ".q_invperm" } },
  { codes = ".trellis", weight = ".weight", tells = { ".suh", ".svh", ".su", ".sv" }, more = { ".mcg", ".mul1" }, method = "EXL3" },
  { codes = ".codes", weight = ".weight", tells = { ".codebooks" }, more = { ".scales" }, method = "AQLM" },
  { codes = ".Qidxs", weight = ".weight", tells = { ".SU", ".SV", ".Wscale" }, method = "QuIP#" },
  { codes = ".indices", weight = ".weight", tells = { ".centroids", ".centroids.weight" }, method = "VPTQ",
    more = { ".res_indices", ".res_centroids", ".res_centroids.weight", ".weight_scale", ".weight_bias", ".perm" } },
}

local ENDING = 3 -- characters by which the schemes of a name are found

---The endings in `tells`, indexed by their last characters.
---@type table<string, { scheme: QuantisedScheme, rank: integer, tail: string }[]>
local by_ending = {}
for rank, scheme in ipairs(SCHEMES) do
  for _, tail in ipairs(scheme.tells) do
    local ending = tail:sub(-ENDING)
    by_ending[ending] = by_ending[ending] or {}
    table.insert(by_ending[ending], { scheme = scheme, rank = rank, tail = tail })
  end
end

-- Tensors beside quantised weights that are not needed for their values.
local BESIDE = { "input_scale", "output_scale", "k_scale", "v_scale", "kv_scale", "input_global_scale", "act_scale", "scale_input",
  "qscale_act", "weight_format", "input_zero_point", "activation_scale" }
local IS_BESIDE = {}
for _, name in ipairs(BESIDE) do IS_BESIDE[name] = true end

---Whether a key is named like a scale or another part of quantised weights. Nobody should be advised to drop it.
---@param key string
---@return boolean
function quantised.is_part_name(key)
  local name = "." .. key
  for _, one in ipairs(by_ending[name:sub(-ENDING)] or {}) do
    local stem = name:sub(1, -#one.tail - 1)
    local is_plain = one.tail == ".scale" or one.tail == "_scale" and not stem:find "weight$" and not stem:find "_proj$"
    if name:sub(-#one.tail) == one.tail and not is_plain then return true end
  end
  local last = naming.last(name)
  return IS_BESIDE[last] or last:find "^qzeros$" ~= nil or last:find "^g_idx$" ~= nil
end

---The first key that is named like a part of quantised weights.
---@param keys string[]
---@return string|nil
function quantised.part_in(keys)
  for _, key in ipairs(keys) do
    if quantised.is_part_name(key) then return key end
  end
end

-- --- dtypes

local PACKED = { int8 = true, uint8 = true, int16 = true, uint16 = true, int32 = true, uint32 = true }

---Whether a dtype has less than 16 bits, so that it can hold only codes of a weight, or a weight rounded to one of 256 numbers.
---@param dtype string
---@return boolean
function quantised.is_narrow(dtype)
  return dtype == "int8" or dtype == "uint8" or dtype:find "^float8" ~= nil and dtype ~= "float8_e8m0fnu"
end

---The class of an object; nil for other rows.
---@param rows LeafRows
local function class_of(rows, i, row) return row.type == "object" and tostring(rows:raw(i).type) or nil end

---Elements smaller than a byte are an object without a dtype (safetensors' F4 and F6).
local function is_below_a_byte(class) return class ~= nil and class:find "^safetensors%.F%d" ~= nil end

---Whether a checkpoint can have weights of few bits without scales, and whether names show which these are. Most checkpoints have none,
---so that their rows, maybe a million, need not be searched.
---@param rows LeafRows
---@return boolean has_narrow, boolean is_by_name
local function possible(rows)
  local totals, has_narrow, has_floats = rows:totals(), false, false
  for _, one in ipairs(totals.dtypes) do
    local is_narrow = quantised.is_narrow(one.dtype)
    has_narrow = has_narrow or is_narrow
    has_floats = has_floats or is_narrow and one.dtype:find "^float" ~= nil
  end
  local has_objects = totals.objects > 0
  return has_narrow or has_objects, not (has_floats or has_objects)
end

-- --- quantisation in a config

local FIELDS = { quantization_config = true, compression_config = true, quantization = true }

local NAMES = { fp8 = "FP8", fbgemm_fp8 = "FP8 (FBGEMM)", gptq = "GPTQ", awq = "AWQ", mxfp4 = "MXFP4", hqq = "HQQ", aqlm = "AQLM",
  vptq = "VPTQ", exl2 = "EXL2", exl3 = "EXL3", nvfp4 = "NVFP4" }

---"bitsandbytes NF4"; nil if nothing is quantised.
local function bitsandbytes(field)
  if field.load_in_4bit == true then return "bitsandbytes " .. (field.bnb_4bit_quant_type == "fp4" and "FP4" or "NF4") end
  if field.load_in_8bit == true then return "bitsandbytes int8" end
  if field.load_in_4bit == nil and field.load_in_8bit == nil then return "bitsandbytes" end
end

---The method that a field of a config names, for people; nil if the field does not say that weights are quantised.
---@param name any
---@param field any
---@return string|nil
local function method_of(name, field)
  if not FIELDS[name] or cbk.kind(field) ~= "dict" or cbk.count(field) == 0 then return nil end
  local stated = field.quant_method or field.quant_algo
  if stated == "bitsandbytes" then return bitsandbytes(field) end
  if type(stated) ~= "string" then stated = name == "quantization" and field.group_size and "MLX" or "an unnamed method" end
  local format = type(field.quant_method) == "string" and (field.format or field.quant_algo)
  return (NAMES[stated] or stated) .. (type(format) == "string" and " " .. format or "")
end

---Whether a field of a config says that weights are quantised.
---@param name any
---@param value any
---@return boolean
function quantised.is_field(name, value) return method_of(name, value) ~= nil end

local DEEPEST = 4 -- sections in sections of a config

---@class QuantisedStatement
---@field method string
---@field field string   the path in the config
---@field settings Dict  the field's value

---The quantisation that a config states for its weights; nil if it states none.
---@param config any
---@param place? string
---@param depth? integer
---@return QuantisedStatement|nil
function quantised.stated(config, place, depth)
  if type(config) ~= "userdata" or cbk.kind(config) ~= "dict" or (depth or 0) > DEEPEST then return nil end
  for name, value in cbk.items(config) do
    local path = (place or "") .. tostring(name)
    local method = method_of(name, value)
    if method then return { method = method, field = path, settings = value } end
    local inner = type(value) == "userdata" and quantised.stated(value, path .. ".", (depth or 0) + 1)
    if inner then return inner end
  end
end

---A config without the fields that say how its weights are quantised, and their paths.
---@param config Dict
---@param place? string
---@return Dict config, string[] fields
function quantised.without_fields(config, place, depth)
  local out, fields = config, {}
  if type(config) ~= "userdata" or cbk.kind(config) ~= "dict" or (depth or 0) > DEEPEST then return config, fields end
  for name, value in cbk.items(config) do
    local path, inner, more = (place or "") .. tostring(name), value, {}
    if quantised.is_field(name, value) then inner, more = nil, { path }
    elseif type(value) == "userdata" then inner, more = quantised.without_fields(value, path .. ".", (depth or 0) + 1) end
    if #more > 0 then
      if out == config then out = cbk.copy(config) end
      out[name] = inner
      for _, one in ipairs(more) do fields[#fields + 1] = one end
    end
  end
  return out, fields
end

---The config.json beside a checkpoint, for commands that need no config otherwise; nil if there is none.
---@param path string         a file or a folder
---@param allowed? string[]   folders where links out of the folder may lead: --allow-external
---@return Dict|nil
---@return any problem        why it cannot be read; values of quantised weights may depend on it
function quantised.config_beside(path, allowed)
  local fine, config = pcall(function()
    local file = cbk.fs.beside(cbk.fs.folder_of(path), "config.json", allowed)
    return file and cbk.config.load(file)
  end)
  if not fine then return nil, config end
  return type(config) == "userdata" and cbk.kind(config) == "dict" and config or nil
end

-- --- quantisation in a checkpoint

---@class QuantisedWeight
---@field key string        of the codes
---@field name string       of the weight
---@field method string
---@field parts string[]    keys of the scales and other tensors that the codes need
---@field part_of table<string, string>   the same, by the ending of the scheme: "_scale_inv"
---@field reader? string    of the scheme
---@field shape? integer[]  of the weight; nil if several codes are packed into an element

---@class Quantised
---@field weights QuantisedWeight[]       in the order of the checkpoint
---@field narrow { key: string, dtype: string }[]   weights of less than 16 bits without scales
---@field stated? QuantisedStatement
local Quantised = {}
Quantised.__index = Quantised

---Whether a tensor with the usual name "scale" may be the scale of a matrix of floats: one number, or one for each row or block.
---@param row LeafRow     the matrix
---@param scale LeafRow
---@param is_stated boolean   the config says that the weights are quantised
local function is_scale_of(row, scale, is_stated)
  if not scale.shape or #row.shape < 2 then return false end
  if is_stated or scale.numel == 1 or scale.numel == row.shape[1] then return true end
  return #scale.shape == 2 and #row.shape == 2 and scale.shape[1] <= row.shape[1] and scale.shape[2] <= row.shape[2]
    and scale.numel < row.numel
end

---The codes in a checkpoint, each with the best scheme for it.
---@param rows LeafRows
---@param is_stated boolean   the config says that the weights are quantised
---@return table<integer, { scheme: QuantisedScheme, rank: integer, stem: string, scale: integer }>
local function codes_in(rows, is_stated)
  local best = {}
  for i = 1, #rows do
    local name = "." .. rows:path(i)
    for _, one in ipairs(by_ending[name:sub(-ENDING)] or {}) do
      local stem = name:sub(-#one.tail) == one.tail and name:sub(1, -#one.tail - 1)
      local at = stem and rows:find((stem .. one.scheme.codes):sub(2))
      if at and at ~= i and not (best[at] and best[at].rank <= one.rank) then
        local row, has_own_name = rows[at], one.scheme.codes ~= "" and one.scheme.codes ~= ".weight"
        local is_code = row.shape and (PACKED[row.type] or quantised.is_narrow(row.type) or one.scheme.any_dtype or has_own_name
          or quantised.is_part_name(rows:path(i)) or is_scale_of(row, rows[i], is_stated))
        if is_code or is_below_a_byte(class_of(rows, at, row)) then
          best[at] = { scheme = one.scheme, rank = one.rank, stem = stem, scale = i }
        end
      end
    end
  end
  return best
end

---@param rows LeafRows
---@return QuantisedWeight
local function weight_of(rows, at, one)
  local row, scheme, parts, part_of = rows[at], one.scheme, {}, {}
  local function has(tail)
    local found = rows:find((one.stem .. tail):sub(2))
    return found and rows[found] or nil
  end
  for _, list in ipairs { scheme.tells, scheme.more or {} } do
    for _, tail in ipairs(list) do
      local found = rows:find((one.stem .. tail):sub(2))
      if found then
        parts[#parts + 1] = rows:path(found)
        part_of[tail] = parts[#parts]
      end
    end
  end
  local method = type(scheme.method) == "function" and scheme.method(row, rows[one.scale], has) or scheme.method
  local is_plain = quantised.is_narrow(row.type) and (row.type ~= "uint8") and scheme.codes == scheme.weight and not scheme.any_dtype
  return { key = rows:path(at), name = (one.stem .. scheme.weight):sub(2), method = method, parts = parts, part_of = part_of,
    reader = scheme.reader, shape = is_plain and row.shape or nil }
end

---Whether a key is named like a weight.
local function is_weight_name(path) return path:sub(-7) == ".weight" or path == "weight" end

---Adds matrices that are weights of less than 16 bits without scales, and tensors quantised by PyTorch, which contain their scales.
---@param rows LeafRows
---@param is_taken table<string, boolean>   codes and scales
---@param is_by_name boolean
---@param out Quantised
local function add_others(rows, is_taken, is_by_name, out)
  for i = 1, #rows do
    local path = rows:path(i)
    local row = (not is_by_name or is_weight_name(path)) and not is_taken[path] and rows[i]
    local class = row and class_of(rows, i, row) or nil
    local is_narrow = row and row.shape and #row.shape >= 2 and quantised.is_narrow(row.type)
    if is_below_a_byte(class) then
      out.narrow[#out.narrow + 1] = { key = path, dtype = naming.last(class) }
    elseif class == "torch.quantized" then
      out.weights[#out.weights + 1] = { key = path, name = path, method = "quantised tensors of PyTorch", parts = {}, part_of = {} }
    elseif is_narrow and (is_weight_name(path) or row.type:find "^float8") then
      out.narrow[#out.narrow + 1] = { key = path, dtype = row.type }
    end
  end
end

---The quantised weights of a checkpoint, from its rows.
---@param rows LeafRows
---@param config Dict|nil   the config of the checkpoint
---@return Quantised
function quantised.find_in_rows(rows, config)
  local out = setmetatable({ weights = {}, narrow = {}, stated = quantised.stated(config) }, Quantised)
  local has_narrow, is_by_name = possible(rows)
  local found, places, is_taken = codes_in(rows, out.stated ~= nil), {}, {}
  for at in pairs(found) do places[#places + 1] = at end
  table.sort(places)
  for _, at in ipairs(places) do
    local weight = weight_of(rows, at, found[at])
    out.weights[#out.weights + 1], is_taken[weight.key] = weight, true
    for _, part in ipairs(weight.parts) do is_taken[part] = true end
  end
  if has_narrow then add_others(rows, is_taken, is_by_name, out) end
  return out
end

---The quantised weights of a checkpoint, or of a part of it. Names are relative to `tree`.
---@param tree any
---@param config? Dict|nil  the config of the checkpoint
---@return Quantised
function quantised.find(tree, config) return quantised.find_in_rows(cbk.leaf_rows(tree), config) end

---Whether the weights are codes: with scales, or only according to the config.
---@return boolean
function Quantised:is_quantised() return #self.weights > 0 or self.stated ~= nil and #self.narrow > 0 end

---The method, for people: "FP8, a scale per block".
---@return string
function Quantised:method()
  local names, seen = {}, {}
  for _, one in ipairs(self.weights) do
    if not seen[one.method] and #names < 3 then names[#names + 1], seen[one.method] = one.method, true end
  end
  local own = table.concat(names, " and ")
  if not self.stated then return own end
  if own == "" then return self.stated.method end
  local stated = self.stated.method
  if own:lower():find(stated:match "^[%w_-]*":lower(), 1, true) then return own end
  return stated:lower():find(own:lower(), 1, true) and stated or ("%s, %s"):format(own, stated)
end

---The quantised weights in a few words, for listings; nil if there are none.
---@return string|nil   "quantised: FP8, a scale per block (7 weights)"
function Quantised:summary()
  if #self.weights > 0 then return ("quantised: %s (%s)"):format(self:method(), numbers.counted(#self.weights, "weight")) end
  if #self.narrow == 0 then return nil end
  local count = numbers.counted(#self.narrow, "weight")
  if self.stated then return ("quantised: %s, without scales (%s)"):format(self:method(), count) end
  return ("%s of less than 16 bits, without scales"):format(count)
end

---The same for JSON; nil if the weights are not quantised.
---@return Dict|nil
function Quantised:as_json()
  if not self:is_quantised() then return nil end
  local count = #self.weights > 0 and #self.weights or #self.narrow
  return cbk.dict { { "method", self:method() }, { "weights", count }, { "has_scales", #self.weights > 0 } }
end

---The keys of a checkpoint after dequantisation: codes get the name of their weight, scales are left out.
---@param keys string[]
---@return string[] names
---@return table<string, QuantisedWeight> by_name
function Quantised:names(keys)
  local renamed, by_name, out, is_left_out = {}, {}, {}, self:left_out()
  for _, one in ipairs(self.weights) do renamed[one.key], by_name[one.name] = one.name, one end
  if #self.weights == 0 then return keys, by_name end
  for _, key in ipairs(keys) do
    if not is_left_out(key) then out[#out + 1] = renamed[key] or key end
  end
  return out, by_name
end

---Which keys have no place beside the numbers: the scales of the codes, and what is kept for them with activations.
---@param with_beside? boolean   false: what is kept for activations stays
---@return fun(key: string): boolean
function Quantised:left_out(with_beside)
  local is_part, stems = {}, {}
  for _, one in ipairs(self.weights) do
    local stem = one.name:gsub("%.?weight$", "")
    stems[stem], stems[stem:match "^(.*)%.[^.]*$" or ""] = true, true -- of a module, and of the one around it
    for _, part in ipairs(one.parts) do is_part[part] = true end
  end
  return function(key)
    local last = naming.last(key)
    local module = key:sub(1, math.max(#key - #last - 1, 0))
    return is_part[key] or with_beside ~= false and IS_BESIDE[last] and stems[module] or false
  end
end

---Adds weights that are numbers in the tree already.
---@param weights QuantisedWeight[]
function Quantised:add(weights)
  for _, one in ipairs(weights) do self.weights[#self.weights + 1] = one end
end

-- --- messages

local ADVICE = "use the checkpoint of 16 or 32 bits that it was made from, or dequantise it with the program that quantised it"

local OF_READABLE = "make numbers of them with `cbk copy --dequantize bfloat16`, or use the checkpoint that it was made from"

---Why cbk cannot compute with the weights; nil if they are not quantised.
---@param weight? QuantisedWeight   the one that cannot be read (default: the first)
---@param why? string               why it cannot
---@return string|nil
function Quantised:problem(weight, why)
  local one, bare = weight or self.weights[1], self.narrow[1]
  if one then
    local with = one.parts[1] and (" with '%s'"):format(one.parts[1]) or ""
    local advice = not why and one.reader and OF_READABLE or ADVICE
    return ("the weights are quantised (%s), and %s: %s, such as '%s'%s; %s"):format(self:method(),
      why or "cbk does not multiply their scales in here", numbers.counted(#self.weights, "weight"), one.key, with, advice)
  elseif self:is_quantised() then
    return ("the weights are quantised (%s, says %s of the config), but there are no scales for %s, such as '%s' (%s); get the checkpoint "
      .. "with its scales, or %s"):format(self:method(), self.stated.field, numbers.counted(#self.narrow, "weight"), bare.key, bare.dtype,
      ADVICE)
  end
end

---Why weights of less than 16 bits without scales cannot be the weights of a model.
---@param narrow { key: string, dtype: string }[]
---@param owner string   "Qwen3ForCausalLM"
---@return string
function quantised.narrow_problem(narrow, owner)
  local one = narrow[1]
  if not cbk.dtype(one.dtype).floating and not quantised.is_narrow(one.dtype) then
    return ("%s of %s %s no floats, such as '%s' (%s): they may be the codes of quantised weights, without what makes numbers of them; %s")
      :format(numbers.counted(#narrow, "weight"), owner, #narrow == 1 and "is" or "are", one.key, one.dtype, ADVICE)
  end
  local cast = one.dtype:find "^float8" and "; if they are plain numbers, `cbk copy --to-dtype bfloat16` makes weights of them" or ""
  return ("%s of %s %s less than 16 bits and no scales, such as '%s' (%s): they may be the codes of quantised weights, without what makes "
    .. "numbers of them; %s%s"):format(numbers.counted(#narrow, "weight"), owner, #narrow == 1 and "has" or "have", one.key, one.dtype,
    ADVICE, cast)
end

---Fails if the weights of a checkpoint are quantised.
---@param tree any
---@param config Dict|nil
---@param cannot string   "cannot fold LoRA into 'base'"
---@return Quantised      without quantised weights
function quantised.refuse(tree, config, cannot)
  local found = quantised.find(tree, config)
  local problem = found:problem()
  if problem then cbk.fail("unsupported", problem, { context = { cannot } }) end
  return found
end

return quantised

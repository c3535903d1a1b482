-- Hugging Face folders in the shape of huge models, which take no room: for planning. The bench makes one too.

local cbk = require "cbk"
local classes = require "cbk.classes"
local converters = require "cbk.converters"

local huge_models = {}

---A safetensors file without its bytes, which the disk does not hold either.
---@param tensors ClassTensor[]
local function sparse(path, tensors)
  local offset, header = 0, cbk.dict()
  for _, one in ipairs(tensors) do
    local size = 2
    for _, extent in ipairs(classes.shape(one)) do size = size * extent end
    header[one.key] = cbk.dict { dtype = "BF16", shape = cbk.list(classes.shape(one)), data_offsets = cbk.list { offset, offset + size } }
    offset = offset + size
  end
  local text = cbk.json(header)
  local file = assert(io.open(path, "wb"))
  local length, bytes = #text, {}
  for i = 1, 8 do bytes[i], length = string.char(length % 256), math.floor(length / 256) end
  file:write(table.concat(bytes), text)
  file:seek("set", 8 + #text + offset - 1)
  file:write "\0"
  file:close()
end

huge_models.llama_70b = { "llama", cbk.dict {
  model_type = "llama", hidden_size = 8192, num_attention_heads = 64, num_key_value_heads = 8, num_hidden_layers = 80,
  intermediate_size = 28672, vocab_size = 32000,
} }
huge_models.mixtral_8x22b = { "mixtral", cbk.dict {
  model_type = "mixtral", hidden_size = 6144, num_attention_heads = 48, num_key_value_heads = 8, num_hidden_layers = 56,
  intermediate_size = 16384, vocab_size = 32000, num_local_experts = 8, num_experts_per_tok = 2, max_position_embeddings = 65536,
} }
huge_models.qwen3_235b = { "qwen3-moe", cbk.dict {
  model_type = "qwen3_moe", hidden_size = 4096, num_attention_heads = 64, num_key_value_heads = 4, head_dim = 128,
  num_hidden_layers = 94, moe_intermediate_size = 1536, vocab_size = 151936, num_experts = 128, num_experts_per_tok = 8,
  norm_topk_prob = true, rope_theta = 1000000,
} }

---@param dir string   gets config.json and model.safetensors
---@param model table  one of the above
function huge_models.write(dir, model)
  converters.load()
  local name, config = unpack(model)
  local tensors = {}
  for _, one in ipairs(classes.tensors(config, name, "hf")) do
    if not one.buffer and not one.optional and not one.tied then tensors[#tensors + 1] = one end
  end
  sparse(dir .. "/model.safetensors", tensors)
  cbk.fs.write(dir .. "/config.json", cbk.json(config))
end

return huge_models

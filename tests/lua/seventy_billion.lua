-- A Hugging Face folder in the shape of a 70B model, which takes no room: for planning. The bench makes it too.

local cbk = require "cbk"

---A safetensors file without its bytes, which the disk does not hold either.
local function sparse(path, tensors)
  local offset, header = 0, cbk.dict()
  for _, one in ipairs(tensors) do
    local size = 2
    for _, extent in ipairs(one[2]) do size = size * extent end
    header[one[1]] = cbk.dict { dtype = "BF16", shape = cbk.list(one[2]), data_offsets = cbk.list { offset, offset + size } }
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

---LLaMA of 70B in `dir`: 80 layers, grouped queries.
return function(dir)
  local tensors = { { "model.embed_tokens.weight", { 32000, 8192 } } }
  for layer = 0, 79 do
    for _, one in ipairs {
      { "self_attn.q_proj", { 8192, 8192 } }, { "self_attn.k_proj", { 1024, 8192 } }, { "self_attn.v_proj", { 1024, 8192 } },
      { "self_attn.o_proj", { 8192, 8192 } }, { "mlp.gate_proj", { 28672, 8192 } }, { "mlp.up_proj", { 28672, 8192 } },
      { "mlp.down_proj", { 8192, 28672 } }, { "input_layernorm", { 8192 } }, { "post_attention_layernorm", { 8192 } },
    } do
      tensors[#tensors + 1] = { ("model.layers.%d.%s.weight"):format(layer, one[1]), one[2] }
    end
  end
  tensors[#tensors + 1] = { "model.norm.weight", { 8192 } }
  tensors[#tensors + 1] = { "lm_head.weight", { 32000, 8192 } }
  sparse(dir .. "/model.safetensors", tensors)
  cbk.fs.write(dir .. "/config.json", cbk.json(cbk.dict {
    model_type = "llama", hidden_size = 8192, num_attention_heads = 64, num_key_value_heads = 8, num_hidden_layers = 80,
    intermediate_size = 28672, vocab_size = 32000,
  }))
end

-- Random models as training leaves them: sizes that change with depth, unusual ends, norms near 0, single large elements.

local cbk = require "cbk"

local healthy = {}

---@class ModelMaker   Makes the tensors of one model. Numbers are those of the seed.
---@field root Dict
---@field layers integer
---@field dtype string
local Maker = {}
Maker.__index = Maker

function Maker:next()
  self.state = (self.state * 1103515245 + 12345) % 2 ^ 31
  return math.floor(self.state / 2 ^ 8) / 2 ^ 23
end

---A number between two, as likely in each factor of two.
function Maker:between(low, high) return low * (high / low) ^ self:next() end

---About normal.
function Maker:normal()
  local sum = -6
  for _ = 1, 12 do sum = sum + self:next() end
  return sum
end

---A size for each layer: a smooth change by a factor of up to 5, a bend, unusual ends, and noise.
---@param options? { noise: number, ends: number }
---@return number[]   from 0
function Maker:trend(options)
  options = options or {}
  local slope, bend, out = math.log(self:between(0.2, 5)), math.log(self:between(0.5, 2)), {}
  for layer = 0, self.layers - 1 do
    local x = layer / math.max(1, self.layers - 1) - 0.5
    out[layer] = math.exp(slope * x + bend * (4 * x * x - 0.5) + (options.noise or 0.15) * self:normal())
  end
  for _, layer in ipairs { 0, self.layers - 1 } do out[layer] = out[layer] * self:between(1 / (options.ends or 3), options.ends or 3) end
  return out
end

function Maker:seed()
  self.number = self.number + 1
  return self.number
end

function Maker:add(key, tensor) self.root[key] = tensor:to(self.dtype) end

---A matrix of each layer; `pattern` has one %d.
function Maker:matrices(pattern, shape, options)
  local sizes = self:trend(options)
  local std = options and options.std or 0.02
  for layer = 0, self.layers - 1 do
    self:add(pattern:format(layer), cbk.randn(shape, { seed = self:seed(), std = std * sizes[layer] }))
  end
end

---A vector of each layer, around a mean that grows from `first` to `last`.
function Maker:vectors(pattern, size, first, last, spread)
  for layer = 0, self.layers - 1 do
    local mean = first + (last - first) * (layer / math.max(1, self.layers - 1)) ^ 0.5
    local std = math.max(math.abs(mean), 1e-3) * (spread or 0.2)
    self:add(pattern:format(layer), cbk.randn({ size }, { seed = self:seed(), mean = mean, std = std * self:between(0.7, 1.4) }))
  end
end

---Multiplies one element of a tensor, as training does in a few layers ("super weights").
function healthy.with_element(tensor, value)
  local flat = tensor:reshape { tensor:numel() }
  local place = math.floor(tensor:numel() / 3)
  local parts = { flat:slice(0, 0, place), cbk.tensor({ value }):to(tensor.dtype), flat:slice(0, place + 1, tensor:numel()) }
  return cbk.cat(parts, 0):reshape(tensor:shape())
end

function healthy.new(seed, layers)
  local maker = setmetatable({ state = seed * 7919 + 17, number = seed * 1000, root = cbk.dict() }, Maker)
  maker:next()
  maker.layers = layers or 6 + math.floor(maker:next() * 20)
  maker.dtype = ({ "float32", "bfloat16", "float16" })[1 + math.floor(maker:next() * 3)]
  return maker
end

local D, F, V = 32, 48, 64

function healthy.llama(maker)
  local prefix = "model.layers.%d."
  maker:add("model.embed_tokens.weight", cbk.randn({ V, D }, { seed = maker:seed(), std = 0.02 }))
  for _, name in ipairs { "q_proj", "k_proj", "v_proj", "o_proj" } do
    maker:matrices(prefix .. "self_attn." .. name .. ".weight", { D, D })
  end
  for _, name in ipairs { "q_proj", "k_proj" } do -- as in Qwen 2: those of the first layer are much larger
    maker:matrices(prefix .. "self_attn." .. name .. ".bias", { D }, { std = 1, noise = 0.6, ends = 30 })
  end
  for _, name in ipairs { "gate_proj", "up_proj" } do maker:matrices(prefix .. "mlp." .. name .. ".weight", { F, D }) end
  maker:matrices(prefix .. "mlp.down_proj.weight", { D, F })
  local super = "model.layers.1.mlp.down_proj.weight"
  if maker.layers > 1 then maker.root[super] = healthy.with_element(maker.root[super], 0.5 + 1 * maker:next()) end
  maker:vectors(prefix .. "input_layernorm.weight", D, maker:between(0.01, 0.2), 0.45)
  maker:vectors(prefix .. "post_attention_layernorm.weight", D, 0.1, 0.5, 0.1)
  maker:add("lm_head.weight", cbk.randn({ V, D }, { seed = maker:seed(), std = 0.02 }))
end

function healthy.gpt2(maker)
  local prefix = "h.%d."
  maker:add("wte.weight", cbk.randn({ V, D }, { seed = maker:seed(), std = 0.14 }))
  maker:add("wpe.weight", cbk.cat({ cbk.full({ 8, D }, 0), cbk.randn({ 40, D }, { seed = maker:seed(), std = 0.02 }) }, 0))
  for name, shape in pairs { ["attn.c_attn"] = { D, 3 * D }, ["attn.c_proj"] = { D, D }, ["mlp.c_fc"] = { D, 4 * D } } do
    maker:matrices(prefix .. name .. ".weight", shape, { std = 0.1 })
    maker:matrices(prefix .. name .. ".bias", { shape[2] }, { std = 0.1, noise = 0.8, ends = 10 })
  end
  for _, name in ipairs { "ln_1", "ln_2" } do
    maker:vectors(prefix .. name .. ".weight", D, 0.2, 0.6)
    maker:matrices(prefix .. name .. ".bias", { D }, { std = 0.03, noise = 0.5 })
  end
end

---Before the first step: norms are 1, biases 0, and projections smaller in deeper layers.
function healthy.fresh(maker)
  for layer = 0, maker.layers - 1 do
    local key = ("encoder.layer.%d."):format(layer)
    for i, name in ipairs { "attention.self.query", "attention.output.dense", "output.dense" } do
      local std = i == 2 and 0.02 / math.sqrt(2 * maker.layers) or 0.02
      maker:add(key .. name .. ".weight", cbk.randn({ D, D }, { seed = maker:seed(), std = std }))
      maker:add(key .. name .. ".bias", cbk.full({ D }, 0))
    end
    maker:add(key .. "output.LayerNorm.weight", cbk.full({ D }, 1))
    maker:add(key .. "output.LayerNorm.bias", cbk.full({ D }, 0))
  end
  maker:add("embeddings.word_embeddings.weight", cbk.cat({ cbk.full({ 1, D }, 0), -- the padding token
    cbk.randn({ V, D }, { seed = maker:seed(), std = 0.02 }) }, 0))
end

function healthy.experts(maker)
  for expert = 0, 3 do
    for _, name in ipairs { "w1", "w2", "w3" } do
      local key = ("layers.%%d.block_sparse_moe.experts.%d.%s.weight"):format(expert, name)
      maker:matrices(key, { D, F }, { noise = 0.35 })
    end
  end
  maker:matrices("layers.%d.block_sparse_moe.gate.weight", { 8, D }, { noise = 0.4 })
  maker:vectors("layers.%d.norm.weight", D, 0.1, 1)
end

function healthy.t5(maker)
  for _, side in ipairs { "encoder", "decoder" } do
    for _, name in ipairs { "q", "k", "v", "o" } do
      maker:matrices(side .. ".block.%d.layer.0.SelfAttention." .. name .. ".weight", { D, D }, { std = name == "q" and 0.05 or 0.4 })
    end
    maker:matrices(side .. ".block.%d.layer.1.DenseReluDense.wi.weight", { F, D }, { std = 0.5, ends = 4 })
    maker:vectors(side .. ".block.%d.layer.0.layer_norm.weight", D, 0.1, 0.3)
    local table_key = side .. ".block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    maker:add(table_key, cbk.randn({ 32, 8 }, { seed = maker:seed(), std = 5 }))
  end
  maker:add("shared.weight", cbk.randn({ V, D }, { seed = maker:seed(), std = 10 }))
end

---Norms without their 1, as Gemma's, and scales of residual branches, as in vision models: both differ much by layer.
function healthy.scales(maker)
  maker:matrices("blocks.%d.attn.qkv.weight", { 3 * D, D })
  maker:matrices("blocks.%d.norm.weight", { D }, { std = 2, noise = 1, ends = 10 })
  maker:vectors("blocks.%d.ls1.gamma", D, 1e-5, 1, 0.5)
  maker:matrices("blocks.%d.mixer.A_log", { D }, { std = 1, noise = 0.5 })
end

function healthy.adapter(maker)
  for _, name in ipairs { "q_proj", "v_proj" } do
    local key = "base_model.model.model.layers.%d.self_attn." .. name
    maker:matrices(key .. ".lora_A.weight", { 8, D }, { std = 0.1 })
    maker:matrices(key .. ".lora_B.weight", { D, 8 }, { std = 0.01, noise = 0.6, ends = 4 })
  end
end

---Weights with an optimizer's states, whose sizes are those of the gradients.
function healthy.training(maker)
  maker:matrices("model.layers.%d.dense.weight", { D, D })
  for layer = 0, maker.layers - 1 do
    for _, name in ipairs { "exp_avg", "exp_avg_sq" } do
      local size = layer == 3 and 100 or 1
      local tensor = cbk.rand({ D, D }, { seed = maker:seed(), low = 0, high = 1e-6 * size })
      maker:add(("optimizer.state.model.layers.%d.dense.weight.%s"):format(layer, name), tensor)
    end
  end
end

---Codes of GPTQ and their scales: one scale is far from the others.
function healthy.codes(maker)
  for layer = 0, maker.layers - 1 do
    local key = ("model.layers.%d.mlp.up_proj."):format(layer)
    local words = {}
    for i = 1, D / 8 * F do words[i] = math.floor(maker:next() * 2 ^ 31) end
    maker.root[key .. "qweight"] = cbk.tensor(words, { shape = { D / 8, F }, dtype = "int32" })
    maker.root[key .. "qzeros"] = cbk.full({ 1, F / 8 }, 0x77777777, { dtype = "int32" })
    local size = layer == 4 and 50 or 1
    maker.root[key .. "scales"] = cbk.rand({ 1, F }, { seed = maker:seed(), low = 1e-3 * size, high = 2e-3 * size }):to "float16"
    maker.root[key .. "g_idx"] = cbk.full({ D }, 0, { dtype = "int32" })
  end
end

healthy.kinds = { "llama", "gpt2", "fresh", "experts", "t5", "scales", "adapter", "training", "codes" }

---@param kind string
---@param seed integer
---@param layers? integer
---@return Dict root, integer layers
function healthy.model(kind, seed, layers)
  local maker = healthy.new(seed, layers)
  healthy[kind](maker)
  return maker.root, maker.layers
end

return healthy

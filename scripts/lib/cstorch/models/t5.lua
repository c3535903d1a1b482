-- T5: an encoder, and a decoder that attends to its output, of the Model Zoo and of Hugging Face. Source: t5_model.py and
-- RelativePositionEmbeddingLayer.py of the Model Zoo 2.9, modeling_t5.py of transformers 4.48.

local activations = require "cstorch.models.activations"
local errors = require "cstorch.errors"
local functional = require "cstorch.nn.functional"
local kinds = require "converters.engine.kinds"
local parts = require "cstorch.models.parts"
local stack = require "cstorch.models.stack"
local tensors = require "cstorch.tensors"
local zoo_layers = require "cstorch.models.zoo_layers"

local FARTHEST = 128 -- tokens; all that are farther away share a bucket

---@class cstorch.models.Side   The encoder or the decoder of a model.
---@field name string        "encoder", for messages
---@field place string       what is before the names of its layers and norms
---@field words string
---@field relative string    the table of biases: [buckets, heads]
---@field layers cstorch.models.Stack
---@field dropout cstorch.models.StackDropout

---@class cstorch.models.EncoderDecoder   A description: what it computes, with the names of its tensors.
---@field encoder cstorch.models.Side
---@field decoder cstorch.models.Side
---@field head string
---@field embedding_scale? number
---@field head_scale? number         of what the head reads
---@field farthest integer
---@field has_outer_dropout boolean   behind the last norms
---@field has_early_dropout boolean   a second one behind the embeddings
---@field norm cstorch.models.Norm
---@field is_scaled_after? boolean    the head's output is scaled, not what it reads
---@field rates? table<string, number>
local EncoderDecoder = {}
EncoderDecoder.__index = EncoderDecoder

---The bucket of a distance: one for each small one, then of logarithmic width.
---@param distance integer    of the key from the query, positive behind it
---@param buckets integer
---@param is_both_ways boolean
---@param farthest integer
local function bucket_of(distance, buckets, is_both_ways, farthest)
  local first = 0
  if is_both_ways then
    buckets = math.floor(buckets / 2)
    first, distance = distance > 0 and buckets or 0, math.abs(distance)
  else
    distance = math.max(0, -distance)
  end
  local exact = math.floor(buckets / 2)
  if distance < exact then return first + distance end
  local far = exact + math.floor(math.log(distance / exact) / math.log(farthest / exact) * (buckets - exact))
  return first + math.min(far, buckets - 1)
end

---What is added to the scores of each head: [heads, length, length].
---@param w cstorch.models.Weights
---@param name string
---@param length integer
---@param is_both_ways boolean
---@param farthest integer
local function relative_bias(w, name, length, is_both_ways, farthest)
  local of_distance, buckets = {}, tonumber(w:stored(name .. ".weight"):shape()[1])
  for distance = 1 - length, length - 1 do
    of_distance[#of_distance + 1] = bucket_of(distance, buckets, is_both_ways, farthest)
  end
  local rows = w:embedding(name, tensors.tensor(of_distance, { dtype = "int64" }))
  local at = tensors.arange(length)
  local distances = (at:unsqueeze(0) - at:unsqueeze(1) + (length - 1)):to "int64"
  return functional.embedding(distances, rows):permute { 2, 0, 1 }
end

---@param side cstorch.models.Side
---@param w cstorch.models.Weights
---@param ids cstorch.Tensor
---@param pass cstorch.models.StackPass
function EncoderDecoder:side(side, w, ids, pass)
  local p = { p = pass.dropout.embedding }
  local x = w:embedding(side.words, ids)
  if self.embedding_scale then x = x * self.embedding_scale end
  if self.has_early_dropout then x = functional.dropout(x, p) end
  pass.seen(("the %s's embedding"):format(side.name), x)
  pass.bias = relative_bias(w, side.relative, ids:size(1), side == self.encoder, self.farthest)
  x = stack.run(side.layers, w:below(side.place), functional.dropout(x, p), pass)
  pass.seen(("the %s's last norm"):format(side.name), x)
  return self.has_outer_dropout and functional.dropout(x, p) or x
end

---@param w cstorch.models.Weights
---@param batch table   input_ids and decoder_input_ids; attention_mask may be missing
---@param pass cstorch.models.Pass
---@return cstorch.Tensor   # logits of the decoder's tokens
function EncoderDecoder:forward(w, batch, pass)
  local seen, mask = pass.seen or function() end, stack.padding(batch.attention_mask)
  local function run(side, ids, own)
    own.dropout, own.seen, own.recomputed = pass.training and side.dropout or stack.NO_DROPOUT, seen, pass.recomputed
    return self:side(side, w, ids, own)
  end
  local memory = run(self.encoder, batch.input_ids, { mask = mask })
  local x = run(self.decoder, batch.decoder_input_ids,
    { mask = stack.earlier(batch.decoder_input_ids:size(1)), memory = memory, memory_mask = mask })
  if self.head_scale and not self.is_scaled_after then x = x * self.head_scale end
  local logits = w:linear(self.head, x)
  return self.is_scaled_after and logits * self.head_scale or logits
end

local function rows(given, name) return tonumber(given[name .. ".weight"]:shape()[1]) end

function EncoderDecoder:vocabulary(given) return math.min(rows(given, self.encoder.words), rows(given, self.decoder.words)) end
function EncoderDecoder.longest() return math.huge end
function EncoderDecoder.has_head() return true end

---@return table<string, integer>   # by features: the numbers are below these
function EncoderDecoder:limits(given)
  local words = rows(given, self.decoder.words)
  return { input_ids = rows(given, self.encoder.words), decoder_input_ids = words, labels = words }
end

---What a sample costs: the tokens that go through a matrix, and the operations of scores and their sums.
---@param lengths table<string, integer>   of the parts of a sample
---@return fun(name: string): integer, number
function EncoderDecoder:work(lengths)
  local source, target, s, t = lengths.input_ids, lengths.decoder_input_ids, self.encoder.layers, self.decoder.layers
  return function(name)
    local is_of_memory = name:find("multihead_attn.proj_[kv]_") ~= nil
    return (is_of_memory or name:find "^encoder") and source or target
  end, 4 * s.depth * source * source * s.inner + 4 * t.depth * (target / 2 + source) * target * t.inner
end

-- --- the Model Zoo's

---The factors of learning rates that muP gives to layers that are wider than its base model's.
---@param c table
---@param whole Dict
---@param wider number
---@return table<string, number>
local function rates_of(c, whole, wider)
  local has_own_heads = kinds.present(c.mup_base_d_kv)
  local out = { ["*embedding*weight"] = wider ^ -0.5, ["*lm_head*weight"] = wider ^ -0.5 }
  for _, side in ipairs { "*decoder", "*encoder" } do
    for _, part in ipairs { "q", "k", "v" } do
      out[("%s*attn.proj_%s*dense*weight"):format(side, part)] = has_own_heads and 1 / wider or wider ^ -0.5
    end
    out[side .. "*attn.proj_output*dense*weight"] = has_own_heads and 1 / zoo_layers.wider(whole, "d_kv", "mup_base_d_kv") or wider ^ -0.5
    out[side .. "*ffn.ffn.0*weight"] = 1 / wider
    out[side .. "*ffn.ffn.1*weight"] = 1 / zoo_layers.wider(whole, "d_ff", "mup_base_d_ff")
  end
  return out
end

---@param c table
---@param whole Dict
---@param name "encoder"|"decoder"
---@param wider number|nil   with muP
---@return cstorch.models.Side
local function side_of_zoo(c, whole, name, wider)
  local scale, is_scaled = c[name .. "_attention_logits_alpha"] or 1, wider or c.use_transformer_initialization
  if is_scaled then
    local by_width = c[("scale_%s_qk_dot_by_d"):format(name)]
    if kinds.absent(whole[("scale_%s_qk_dot_by_d"):format(name)]) then by_width = wider ~= nil end
    scale = scale * c.d_kv ^ (by_width and -1 or -0.5)
  end
  -- Queries and keys are scaled each; the scales of values and outputs cancel out, as outputs have no bias.
  if wider and kinds.absent(c.mup_base_d_kv) then scale = scale / wider end
  local is_decoder, p = name == "decoder", c.dropout_rate
  local function attention(place)
    return { project = zoo_layers.project(place, c.d_kv), scale = scale, output = zoo_layers.output(place) }
  end
  return {
    name = name, place = name .. ".", words = name .. "_embeddings.word_embeddings",
    dropout = { embedding = p, attention = p, residual = p, inner = not is_decoder and c.relu_dropout_rate or p },
    relative = name .. "_embeddings.position_embed_helper.relative_attention_bias",
    layers = {
      layer = "layers.%d.", inner = c.d_kv * c.num_heads,
      seen_as = name .. " layer %d", norm = zoo_layers.norm(c.norm_type, c.layer_norm_epsilon),
      depth = is_decoder and c.decoder_num_hidden_layers or c.encoder_num_hidden_layers,
      norms = { attention = "norm1", cross = "norm2", feed_forward = is_decoder and "norm3" or "norm2" },
      is_norm_first = c.use_pre_encoder_decoder_layer_norm, attention = attention "self_attn",
      cross = is_decoder and attention "multihead_attn" or nil, final_norm = "norm",
      feed_forward = zoo_layers.feed_forward(c.encoder_nonlinearity, "ffn.ffn.0", "ffn.ffn.1"),
    },
  }
end

local zoo, hugging_face = {}, {}

---@param c table
---@param whole Dict
---@return cstorch.models.EncoderDecoder
function zoo.T5ForConditionalGeneration(c, whole)
  local kind, other = c.position_embedding_type, c.decoder_nonlinearity
  errors.check(kind == "relative", "value", "position_embedding_type=%s is not emulated for T5; relative is", tostring(kind))
  errors.check(other == nil or other == c.encoder_nonlinearity, "value",
    "decoder_nonlinearity=%s differs from encoder_nonlinearity, with which the Model Zoo computes both sides", tostring(other))
  zoo_layers.check_groups(c, false)
  zoo_layers.check_base(whole, { "mup_base_d_model", "mup_base_d_ff" })
  local wider = kinds.present(c.mup_base_d_model) and c.d_model / c.mup_base_d_model or nil
  local out = {}
  out.encoder, out.decoder = side_of_zoo(c, whole, "encoder", wider), side_of_zoo(c, whole, "decoder", wider)
  out.head, out.farthest, out.norm = "lm_head", FARTHEST, out.encoder.layers.norm
  out.embedding_scale = (c.embeddings_alpha or 1) * (wider and c.d_model ^ 0.5 or 1)
  if wider then
    local alpha = kinds.present(c.output_logits_alpha) and c.output_logits_alpha ~= 0 and c.output_logits_alpha or 1
    out.head_scale, out.is_scaled_after = alpha / wider ^ (c.scale_output_logits_by_d and 1 or 0.5), true
    out.rates = rates_of(c, whole, wider)
  elseif c.share_embedding_weights then
    out.head_scale = c.d_model ^ -0.5
  end
  out.has_outer_dropout, out.has_early_dropout = c.use_dropout_outside_residual_path, c.use_pre_encoder_decoder_dropout
  return setmetatable(out, EncoderDecoder)
end

-- --- Hugging Face's

local GATED = "^gated%-(.*)$"

---@param c table
---@param place string
local function feed_forward(c, place)
  local gate = c.feed_forward_proj:match(GATED)
  local is_gated = c.is_gated_act
  if is_gated == nil then is_gated = gate ~= nil end
  local act = c.dense_act_fn or (c.feed_forward_proj == "gated-gelu" and "gelu_new" or gate or c.feed_forward_proj)
  if not is_gated then return parts.plain("linear", place .. "wi", place .. "wo", act) end
  return parts.gated("linear", { up = place .. "wi_1", gate = place .. "wi_0", down = place .. "wo" }, activations.plain(act))
end

---@param c table
---@param name "encoder"|"decoder"
---@param depth integer
---@return cstorch.models.Side
local function side_of_hugging_face(c, name, depth)
  local is_decoder = name == "decoder"
  local function attention(place)
    return { project = parts.apart(place .. "q", place .. "k", place .. "v", c.d_kv), scale = 1,
      output = function(w, x) return w:linear(place .. "o", x) end }
  end
  local last, p = is_decoder and "layer.2." or "layer.1.", c.dropout_rate
  return {
    name = name, place = name .. ".", words = name .. ".embed_tokens",
    dropout = { embedding = p, attention = p, residual = p, inner = p },
    relative = name .. ".block.0.layer.0.SelfAttention.relative_attention_bias",
    layers = {
      layer = "block.%d.", seen_as = name .. " layer %d", norm = { kind = "rmsnorm", eps = c.layer_norm_epsilon }, depth = depth,
      norms = { attention = "layer.0.layer_norm", cross = "layer.1.layer_norm", feed_forward = last .. "layer_norm" },
      is_norm_first = true, attention = attention "layer.0.SelfAttention.",
      cross = is_decoder and attention "layer.1.EncDecAttention." or nil, final_norm = "final_layer_norm",
      feed_forward = feed_forward(c, last .. "DenseReluDense."),
    },
  }
end

---@param c table
---@return cstorch.models.EncoderDecoder
function hugging_face.T5ForConditionalGeneration(c)
  local is_scaled = c.scale_decoder_outputs
  if is_scaled == nil then is_scaled = c.tie_word_embeddings end
  return setmetatable({
    encoder = side_of_hugging_face(c, "encoder", c.num_layers),
    decoder = side_of_hugging_face(c, "decoder", c.num_decoder_layers or c.num_layers),
    head = "lm_head", farthest = c.relative_attention_max_distance, head_scale = is_scaled and c.d_model ^ -0.5 or nil,
    has_outer_dropout = true, has_early_dropout = false, norm = { kind = "rmsnorm", eps = c.layer_norm_epsilon },
  }, EncoderDecoder)
end

return { zoo = zoo, hugging_face = hugging_face }

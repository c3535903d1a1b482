-- The classes of a Model Zoo model's modules, by the names of its parameters: settings such as LoRA's target modules name
-- classes, checkpoints name modules.

local modules = {}

local lm = "GPT2LMHeadModel"

---The class of each model, and the class of its `model.` child.
modules.models = {
  gpt2 = { "Gpt2Model", lm }, gpt3 = { "GPT3Model", lm }, llama = { "LlamaModel", lm }, mistral = { "MistralModel", lm },
  mixtral = { "MixtralModel", lm }, bloom = { "BloomModel", lm }, btlm = { "BTLMModel", lm }, jais = { "JAISModel", lm },
  santacoder = { "SantaCoderModel", lm }, starcoder = { "StarCoderModel", lm }, gemma2 = { "Gemma2Model", lm },
  gptj = { "GptjModel", "GPTJModel" }, ["gpt-neox"] = { "GPTNeoXModel", "GPTJModel" }, falcon = { "FalconModel", "GPTJModel" },
  t5 = { "T5ForConditionalGenerationModel", "T5ForConditionalGeneration" },
  transformer = { "TransformerModel", "T5ForConditionalGeneration" },
  bert = { "BertForPreTrainingModel", "BertPretrainModel" },
  ["bert/classifier"] = { "BertForSequenceClassificationModel", "BertForSequenceClassification" },
  ["bert/extractive_summarization"] = { "BertSummarizationModel", "BertForSummarization" },
  ["bert/token_classifier"] = { "BertForTokenClassificationModel", "BertForTokenClassification" },
}

local decoder_lm = { embedding_layer = "EmbeddingLayer", transformer_decoder = "TransformerDecoder", lm_head = "Linear" }
local bert = { bert_encoder = "BertModel", classifier = "Linear" }
local attention = {
  proj_q_dense_layer = "Linear", proj_k_dense_layer = "Linear", proj_v_dense_layer = "Linear", proj_output_dense_layer = "Linear",
}
local decoder_layer = { self_attn = "attention", multihead_attn = "attention", ffn = "FeedForwardNetwork" }

---The classes of a class's children. `0` means every number; a name with a dot is a plain ModuleList.
local children = {
  [lm] = decoder_lm, GPTJModel = decoder_lm,
  T5ForConditionalGeneration = {
    encoder_embeddings = "EmbeddingLayer", decoder_embeddings = "EmbeddingLayer", encoder = "TransformerEncoder",
    decoder = "TransformerDecoder", lm_head = "Linear",
  },
  BertPretrainModel = { bert_encoder = "BertModel", bert_mlm_head = "BertMLMHead", bert_cls_head = "BertClassifierHead" },
  BertForSequenceClassification = bert, BertForSummarization = bert, BertForTokenClassification = bert,
  BertModel = { embedding_layer = "EmbeddingLayer", transformer_encoder = "TransformerEncoder", pooler = "BertPooler" },
  BertPooler = { pooler = "FeedForwardNetwork" },
  BertClassifierHead = { classifier = "FeedForwardNetwork" },
  BertMLMHead = { mlm_transform = "BertMLMHeadTransform", classifier = "FeedForwardNetwork" },
  BertMLMHeadTransform = { ffn = "FeedForwardNetwork" },
  EmbeddingLayer = {
    word_embeddings = "Embedding", segment_embeddings = "Embedding", memory_token_embedding = "Embedding",
    position_embeddings = "LearnedPositionEmbeddingLayer", position_embed_helper = "RelativePositionEmbeddingLayer",
  },
  LearnedPositionEmbeddingLayer = { embed = "Embedding" },
  RelativePositionEmbeddingLayer = { relative_attention_bias = "Embedding" },
  TransformerDecoder = { layers = "TransformerDecoder.layers" },
  ["TransformerDecoder.layers"] = { [0] = "decoder layer" },
  TransformerDecoderLayer = decoder_layer, GPTJDecoderLayer = decoder_layer,
  TransformerEncoder = { layers = "TransformerEncoder.layers" },
  ["TransformerEncoder.layers"] = { [0] = "TransformerEncoderLayer" },
  TransformerEncoderLayer = { self_attn = "attention", ffn = "FeedForwardNetwork" },
  MultiheadAttention = attention, MultiQueryAttention = attention,
  FeedForwardNetwork = { ffn = "FeedForwardNetwork.list" },
  ["FeedForwardNetwork.list"] = { [0] = "SingleFeedForwardLayer" },
  SingleFeedForwardLayer = { linear_layer = "Linear", linear_layer_for_glu = "Linear" },
  SparseMoEBlock = { gate = "Linear", experts = "ExpertsFeedForwardNetwork" },
  ExpertsFeedForwardNetwork = { experts = "ExpertsFeedForwardNetwork.list" },
  ["ExpertsFeedForwardNetwork.list"] = { [0] = "FeedForwardNetwork" },
}

local function is_moe(config)
  local moe = config.moe_params
  return type(moe) == "userdata" and (tonumber(moe.num_experts) or 1) > 1 or (tonumber(config.num_experts) or 1) > 1
end

---Classes that depend on the config.
local function settle(class, config, root, is_leaf)
  if class == "attention" then
    return config.attention_module == "multiquery_attention" and "MultiQueryAttention" or "MultiheadAttention"
  elseif class == "decoder layer" then
    return root == "GPTJModel" and "GPTJDecoderLayer" or "TransformerDecoderLayer"
  elseif class == "LearnedPositionEmbeddingLayer" and is_leaf then
    return "Embedding" -- of releases that kept the table itself there
  end
  return class
end

---The classes of a module and of all modules around it, outermost first.
---@param path string     "model.transformer_decoder.layers.0.self_attn.proj_q_dense_layer"
---@param model string    as the Model Zoo names it
---@param config Dict     its model section
---@return string[] classes
---@return boolean complete  false: further classes of this module are unknown
function modules.classes(path, model, config)
  local known = modules.models[model]
  if not known then return {}, false end
  local out, at, rest = { known[1] }, known[2], path
  if path:find "^model%." then rest = path:sub(7) end
  out[2] = at
  for name, more in rest:gmatch "([^.]+)(%.?)" do
    local child = children[at] and children[at][name:find "^%d+$" and 0 or name]
    if not child then return out, false end
    if child == "FeedForwardNetwork" and name == "ffn" and at:find "DecoderLayer$" and is_moe(config) then child = "SparseMoEBlock" end
    at = settle(child, config, known[2], more == "")
    out[#out + 1] = at:find(".", 1, true) and "ModuleList" or at
  end
  return out, true
end

---Every class that `classes` may return.
modules.known = { ModuleList = true, MultiheadAttention = true, MultiQueryAttention = true, TransformerDecoderLayer = true,
  GPTJDecoderLayer = true, SparseMoEBlock = true }
for _, pair in pairs(modules.models) do
  modules.known[pair[1]], modules.known[pair[2]] = true, true
end
for _, names in pairs(children) do
  for _, class in pairs(names) do modules.known[class] = true end
end

return modules

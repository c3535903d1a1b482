-- Models that compute, from a class of the converters and a config: the Model Zoo's, and Hugging Face's in their own layout.

local bert = require "cstorch.models.bert"
local decoder = require "cstorch.models.decoder"
local errors = require "cstorch.errors"
local hugging_face = require "cstorch.models.hugging_face"
local initial = require "cstorch.models.initial"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local t5 = require "cstorch.models.t5"
local tensors = require "cstorch.tensors"
local text = require "cstorch.text"
local Trainable = require "cstorch.models.trainable"
local weights = require "cstorch.models.weights"
local zoo = require "cstorch.models.zoo"

local models = {}

---@class cstorch.models.Description   What a model computes: a Decoder, an Encoder (BERT) or an EncoderDecoder (T5).
---@field norm cstorch.models.Norm
---@field rates? table<string, number>   factors of learning rates by globs, of muP
---@field continues? boolean             texts, token by token
---@field forward fun(self, w: cstorch.models.Weights, batch: table, pass: cstorch.models.Pass): cstorch.Tensor, cstorch.Tensor|nil
---@field vocabulary fun(self, given: table): integer        token ids are below this
---@field longest fun(self, given: table): number             tokens that a text may have; math.huge where nothing limits them
---@field limits fun(self, given: table): table<string, integer>   of parts of a batch
---@field has_head fun(self): boolean
---@field work fun(self, lengths: table<string, integer>): (fun(name: string): integer), number   what a sample costs

---@type table<Class, cstorch.models.Describe>
local describes = {}
---@param classes table<string, Class>
---@param by_name table<string, cstorch.models.Describe>
local function add(classes, by_name)
  for name, describe in pairs(by_name) do describes[classes[name]] = describe end
end
local function decoders(by_key)
  local out = {}
  for key, describe in pairs(by_key) do out[key] = function(c, whole) return decoder.new(describe(c, whole)) end end
  return out
end
add(require "converters.classes.zoo.decoder", decoders(zoo))
add(require "converters.classes.zoo.bert", bert.zoo)
add(require "converters.classes.hf.bert", bert.hugging_face)
add(require "converters.classes.zoo.t5", t5.zoo)
add(require "converters.classes.hf.t5", t5.hugging_face)
for class, describe in pairs(decoders(hugging_face)) do describes[class] = describe end

---Whether models of a class can be computed.
---@param class Class
---@return boolean
function models.knows(class) return describes[class] ~= nil end

---The fields of a config that say how parameters begin.
models.initializers = initial.fields

---Kinds of fields that are seen in the shapes of tensors; rates are of dropout.
local SHAPES = naming.set "size length depth rate"

---Fields that are seen in which tensors there are, and those that change no logits.
local OTHERS = naming.set [[
attention_bias mlp_bias bias no_bias use_projection_bias_in_attention use_ffn_bias_in_attention use_ffn_bias use_bias_in_output
tie_word_embeddings share_embedding_weights num_extra_input_vocab_tokens attention_module extra_attention_params attention_inner_dim
use_ffn_bias_in_mlm use_output_bias_in_mlm add_pooling_layer share_encoder_decoder_embedding extra_ids
expansion_ratio learned_pos_emb norm_type use_rms_norm alibi_trainable_slopes initializer_range
reorder_and_upcast_attn router_aux_loss_coef cache_implementation]]

---The values of a config, which notes the fields that are read.
---@param values table<string, any>
---@return table values, table<string, true> read
local function noted(values)
  local read = {}
  return setmetatable({}, { __index = function(_, name)
    read[name] = true
    local value = values[name]
    if kinds.present(value) then return value end
  end }), read
end

---Fields with a value of their own that nothing here computes with.
---@param list ClassTensors
---@param read table<string, true>
---@return string[]
local function unread_fields(list, read)
  local out = {}
  for _, name in ipairs(list.class.field_names) do
    local field, value = list.class.fields[name], list.values[name]
    local counts = not (read[name] or SHAPES[field.kind] or OTHERS[name] or field.free or kinds.absent(value))
    local is_usual = counts and (value == field.default or field.unused and field.unused(value, list.config))
    if counts and not is_usual then out[#out + 1] = ("%s=%s"):format(name, errors.show(value)) end
  end
  return out
end

---The name that the class's newest release has for a tensor.
---@param class Class
---@param name string
---@return string
local function newest_name(class, name)
  for _, pair in ipairs(class.renamed or {}) do
    local newer, count = name:gsub(pair[1], pair[2])
    if count > 0 then return newer end
  end
  return name
end

---The model's weights by the keys of the class. Fails if one is missing.
---@param list ClassTensors
---@param given table<string, Tensor|cstorch.Tensor>
local function by_own_key(list, given)
  local out, missing = {}, {}
  for key, tensor in pairs(given) do
    local own = list:own_key(key)
    local one = own and list.by_key[own]
    if one and not one.foreign then out[own] = tensor end
  end
  for _, one in ipairs(list) do
    if one.tied_to and not out[one.key] then out[one.key] = out[one.tied_to] end
    local may_lack = one.buffer or one.optional or one.part or one.foreign
    if not (out[one.key] or may_lack) then missing[#missing + 1] = one.key end
  end
  errors.check(#missing == 0, "value", "%s: the checkpoint lacks %s", list.class.name, text.some(missing))
  return out
end

---The same by the names that the class's newest release has, which the computation uses.
---@generic T
---@param class Class
---@param by_key table<string, T>
---@return table<string, T>
local function by_newest_name(class, by_key)
  local out = {}
  for name, value in pairs(by_key) do out[newest_name(class, name)] = value end
  return out
end

---What a model computes. Fails if its class is not known here, or its config has a field that nothing computes with.
---@param list ClassTensors   the tensors of the class for a config
---@return cstorch.models.Description
local function described(list)
  local name = list.class.name
  errors.check(models.knows(list.class), "value", "%s is not computed here; decoders such as LlamaForCausalLM and GPT2LMHeadModel are",
    name)
  local c, read = noted(list.values)
  local own = describes[list.class](c, list.config)
  local unread = unread_fields(list, read)
  errors.check(#unread == 0, "value", "%s: nothing here computes with %s", name, table.concat(unread, ", "))
  return own
end

---@class cstorch.models.Model
---@field description cstorch.models.Description
---@field given table<string, Tensor|cstorch.Tensor>   the weights by the names of the class
local Model = {}
Model.__index = Model

---A model that computes. Fails if its class is not known here, its config has a field that nothing computes with, or weights are missing.
---@param list ClassTensors                            the tensors of the class for a config
---@param given table<string, Tensor|cstorch.Tensor>   the weights by their keys
---@return cstorch.models.Model
function models.new(list, given)
  return setmetatable({ description = described(list), given = by_newest_name(list.class, by_own_key(list, given)) }, Model)
end

---A new model to be trained, with first values. Fails as `models.new`.
---@param list ClassTensors   the tensors of the Model Zoo's class for a config
---@param seed integer
---@return cstorch.models.Trainable
function models.trainable(list, seed)
  return Trainable(list, described(list), initial.values(list, seed), by_newest_name)
end

---The names of a model's parameters, each with one element: for what needs no more, whatever the size of the model.
---@param list ClassTensors
---@return cstorch.models.Trainable
function models.outline(list)
  local first = {}
  for _, one in ipairs(list) do
    local is_parameter = not (one.buffer or one.optional or one.foreign)
    if is_parameter then first[one.key] = one.tied_to and first[one.tied_to] or tensors.zeros { 1 } end
  end
  return Trainable(list, described(list), first, by_newest_name)
end

---A model with the weights of a checkpoint, in memory as float32. Fails as `models.new`.
---@param list ClassTensors
---@param given table<string, Tensor|cstorch.Tensor>   the weights by their keys
---@return cstorch.models.Trainable
function models.module(list, given)
  local own, known, read = described(list), by_own_key(list, given), {}
  for _, one in ipairs(list) do
    local tied = one.tied_to and read[one.tied_to]
    if known[one.key] then read[one.key] = tied or weights.read(known[one.key]) end
  end
  return Trainable(list, own, read, by_newest_name)
end

---@return boolean
function Model:has_head() return self.description:has_head() end

---Token ids are below this.
---@return integer
function Model:vocabulary() return self.description:vocabulary(self.given) end

---The tokens that a text may have; math.huge where nothing limits them.
---@return number
function Model:longest() return self.description:longest(self.given) end

---What the model gives for a batch: logits, and those of a second head.
---@param batch table<string, cstorch.Tensor>
---@param seen? fun(place: string, x: cstorch.Tensor)
---@return cstorch.Tensor, cstorch.Tensor|nil
function Model:outputs(batch, seen)
  local description = self.description
  return tensors.no_grad(description.forward, description, weights.new(self.given), batch, { seen = seen })
end

---Logits of token ids, which a second side of the model gets, too. A model may be larger than memory.
---@param ids integer[][]                             a list for each text, of one length
---@param seen? fun(place: string, x: cstorch.Tensor)   gets what leaves the embedding, each layer and the last norm
---@return cstorch.Tensor   # [texts, length, vocabulary]; [texts, length, width] of a class without a head
function Model:logits(ids, seen)
  local texts = tensors.tensor(ids, { dtype = "int64" })
  return (self:outputs({ input_ids = texts, token_type_ids = texts * 0, decoder_input_ids = texts }, seen))
end

return models

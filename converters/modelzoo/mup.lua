-- Models in the maximal-update parametrization (muP). Towards Hugging Face its multipliers are folded into the weights; an upgrade
-- from 2.2 rewrites them as fields of release 2.3.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local narrow = require "converters.engine.narrow"

local present = kinds.present

local mup = {}

local function truthy(value) return present(value) and value ~= false and value ~= 0 end
local function number(value, default) return present(value) and value or default end

---Refuses a field of a multiplier that is not a number; a divisor must be above 0.
local function check_number(section, name, path)
  local value, divides = section[name], name:find "^mup_base_" or name == "decoder_kernel"
  if not present(value) or type(value) == "boolean" and name:find "^scale_" then return end
  if type(value) == "number" and value == value and (value > 0 or not divides) then return end
  fields.refuse(path or name, value, divides and "a number above 0" or name:find "^scale_" and "true or false" or "a number")
end

local old_fields = { "output_logits_scale", "embeddings_scale", "scale_qk_dot_by_d" }

---The style of a CS model config: "2.3" (mup_base_*), "2.2", or nil without muP.
function mup.style(model)
  for name, value in cbk.items(model) do
    if type(name) == "string" and name:find "^mup_base_" and present(value) then return "2.3" end
  end
  local has = 0
  for _, name in ipairs(old_fields) do has = has + (truthy(model[name]) and 1 or 0) end
  if has == 3 then return "2.2" end
  if truthy(model.scale_qk_dot_by_d) or truthy(model.output_logits_scale) then
    cbk.fail("config", "incomplete muP config: all or none of scale_qk_dot_by_d, embeddings_scale and output_logits_scale must be set")
  end
  return nil
end

-- --- the factor of each tensor; keys are CS keys without `model.`

local function set(...)
  local out = {}
  for _, name in ipairs { ... } do out[name] = true end
  return out
end

---A field with the default true.
local function unless_false(value) return value == nil or truthy(value) end

local function head_size(model) return math.floor((number(model.attention_inner_dim, model.hidden_size)) / model.num_heads) end

---A factor of the keys: with it, scores are divided by the size of a head, and not by its root. Source: AttentionLayer.py of the Model Zoo.
local function keys_scale(model, by_d)
  return by_d and number(model.attention_type, "scaled_dot_product") == "scaled_dot_product" and head_size(model) ^ -0.5 or 1
end

---The factor of logits, by the width or its root.
local function logits_scale(model, width, by_d) return number(model.output_logits_alpha, 1) / (by_d and width or width ^ 0.5) end

---Of the decoder classes and BERT.
---@param folding Folding
local function scale_2_2(model, key, folding)
  if key:find ".%.proj_k_dense_layer" then return keys_scale(model, truthy(model.scale_qk_dot_by_d)) end
  if folding.logits[key] then return model.output_logits_scale end
  if folding.embeddings(model)[key] then return model.embeddings_scale end
end

---@param folding Folding
local function scale_2_3(model, key, folding)
  if key:find ".%.proj_k_dense_layer" then
    return number(model.attention_logits_alpha, 1) * keys_scale(model, unless_false(model.scale_qk_dot_by_d))
  end
  if folding.logits[key] then
    if not present(model.mup_base_hidden_size) then return nil end
    return logits_scale(model, model.hidden_size / model.mup_base_hidden_size, unless_false(model.scale_output_logits_by_d))
  end
  if folding.embeddings(model)[key] then return number(model.embeddings_scale, 1) end
end

---T5 scales queries, values and outputs too.
---@param folding Folding
local function scale_t5(model, key, folding)
  local width = present(model.mup_base_d_model) and model.d_model / model.mup_base_d_model or 1
  local own_kv = present(model.mup_base_d_kv)
  local part = own_kv and 1 or width ^ -0.5
  if key:find ".%.proj_q_dense_layer" then return part / model.d_kv ^ 0.5 end
  for _, stack in ipairs { "encoder", "decoder" } do
    if key:find(stack .. ".*proj_k_dense_layer") then
      local by_d = unless_false(model["scale_" .. stack .. "_qk_dot_by_d"])
      return number(model[stack .. "_attention_logits_alpha"], 1) * part * (by_d and model.d_kv ^ -0.5 or 1)
    end
  end
  if key:find ".%.proj_v_dense_layer" then return part end
  if key:find ".%.proj_output_dense_layer" then return own_kv and 1 or width ^ 0.5 end
  if folding.logits[key] then return logits_scale(model, width, truthy(model.scale_output_logits_by_d)) end
  if key:find "embeddings%.word_embeddings%.weight$" then return number(model.embeddings_alpha, 1) * model.d_model ^ 0.5 end
end

---Without muP only the logits of attention have a factor.
local function scale_alone(model, key)
  local stack = key:match "^(%a+)coder" -- of T5
  local name = stack and ("%scoder_attention_logits_alpha"):format(stack) or "attention_logits_alpha"
  return key:find ".%.proj_k_dense_layer" and number(model[name], 1) or nil
end

-- --- families

---@class Folding   How the multipliers of a family are folded.
---@field words string                  the embedding, and the head that may be the same tensor
---@field head string
---@field logits table<string, true>    the tensors of the logits
---@field embeddings? fun(model: Dict): table<string, true>   the tensors that embeddings_scale multiplies
---@field scale table<string, fun(model: Dict, key: string, folding: Folding): number|nil>   by style
---@field fields string[]               the fields that are folded
---@field alone string[]                those that the Model Zoo applies without muP as well, and that are folded then

local gpt_fields = {
  "mup_base_hidden_size", "mup_base_filter_size", "attention_logits_alpha", "output_logits_alpha", "scale_output_logits_by_d",
  "embeddings_scale", "scale_qk_dot_by_d", "output_logits_scale",
}
local gpt_scale = { ["2.2"] = scale_2_2, ["2.3"] = scale_2_3, alone = scale_alone }

local gpt_embeddings = set("embedding_layer.word_embeddings.weight", "embedding_layer.position_embeddings.weight",
  "embedding_layer.position_embeddings.embed.weight")
local gpt_norm = set("embedding_ln_f.weight", "embedding_ln_f.bias")

local bert_embeddings = set("bert_encoder.embedding_layer.word_embeddings.weight",
  "bert_encoder.embedding_layer.position_embeddings.weight", "bert_encoder.embedding_layer.position_embeddings.embed.weight",
  "bert_encoder.embedding_layer.segment_embeddings.weight")
local mlm_head, nsp_head = "bert_mlm_head.classifier.ffn.0.linear_layer.", "bert_cls_head.classifier.ffn.0.linear_layer."

-- The norm behind BERT's embeddings undoes any multiplier but for its epsilon, which float32 does not notice up to this one.
local NO_EPSILON = 1e-12

---@type table<string, Folding>
local foldings = {
  gpt = {
    words = "embedding_layer.word_embeddings.weight", head = "lm_head.weight", logits = set("lm_head.weight", "lm_head.bias"),
    embeddings = function(model) return truthy(model.embedding_layer_norm) and gpt_norm or gpt_embeddings end,
    scale = gpt_scale, fields = gpt_fields, alone = { "attention_logits_alpha" },
  },
  bert = {
    words = "bert_encoder.embedding_layer.word_embeddings.weight", head = mlm_head .. "weight",
    logits = set(mlm_head .. "weight", mlm_head .. "bias", nsp_head .. "weight", nsp_head .. "bias"),
    embeddings = function(model) return number(model.layer_norm_epsilon, 1e-5) > NO_EPSILON and bert_embeddings or {} end,
    scale = gpt_scale, fields = gpt_fields, alone = { "attention_logits_alpha" },
  },
  t5 = {
    words = "decoder_embeddings.word_embeddings.weight", head = "lm_head.weight", logits = set("lm_head.weight", "lm_head.bias"),
    scale = { ["2.2"] = scale_t5, ["2.3"] = scale_t5, alone = scale_alone },
    alone = { "encoder_attention_logits_alpha", "decoder_attention_logits_alpha" },
    fields = {
      "mup_base_d_model", "mup_base_d_ff", "mup_base_d_kv", "encoder_attention_logits_alpha", "decoder_attention_logits_alpha",
      "output_logits_alpha", "scale_output_logits_by_d", "embeddings_alpha", "scale_encoder_qk_dot_by_d", "scale_decoder_qk_dot_by_d",
    },
  },
}

-- --- folding

-- What one style has and the other does not; each is refused beside the other style's, but for a value that changes nothing.
local OF_STYLE = { ["2.2"] = { output_logits_scale = true }, ["2.3"] = { attention_logits_alpha = true, output_logits_alpha = true } }

---Refuses muP fields that belong to other families, or to the other style: each has its own.
---@param style "2.2"|"2.3"
---@param own string[]   the fields that folding reads
local function check_fields(model, style, own)
  local known, base_fields = {}, {}
  for _, field in ipairs(own) do
    known[field] = true
    if field:find "^mup_base_" then base_fields[#base_fields + 1] = field end
  end
  for name, value in cbk.items(model) do
    local is_foreign = style == "2.2" and name == "scale_qk_dot_by_d" or type(name) == "string" and name:find "^mup_base_"
    if is_foreign and present(value) and not known[name] then
      fields.refuse(name, value, ("muP by this model's own fields (%s)"):format(table.concat(base_fields, ", ")))
    end
  end
  local is_old = style == "2.2"
  for _, name in ipairs(naming.sorted(OF_STYLE[is_old and "2.3" or "2.2"])) do
    local value = model[name]
    if known[name] and present(value) and value ~= 1 then
      fields.refuse(name, value, ("1 beside the muP fields of release %s (%s)"):format(style,
        table.concat(is_old and old_fields or base_fields, ", ")))
    end
  end
end

---The muP fields of a config, for messages.
local function shown_fields(model)
  local out = {}
  for name, value in cbk.items(model) do
    local is_one = type(name) == "string" and name:find "^mup_base_" or name == "scale_qk_dot_by_d" or name == "output_logits_scale"
    if is_one and present(value) then out[#out + 1] = ("%s=%s"):format(name, fields.shown(value)) end
  end
  return table.concat(out, ", ")
end

---A weight times a number.
---@param factor number|nil
---@param warned table<string, boolean>   dtypes with a warning
---@return Tensor, string|nil   what was done
local function multiplied(key, tensor, factor, warned)
  if not factor then return tensor end
  if narrow.rounds(tensor.dtype, factor) and not warned[tensor.dtype] then
    warned[tensor.dtype] = true
    cbk.warn(narrow.text(("muP multiplies weights such as '%s'"):format(key), tensor.dtype))
  end
  return tensor:affine(factor, 0), ("muP: x %g"):format(factor)
end

---Gives the head and the embedding a tensor each. A checkpoint may have tied tensors once: the other one is null, or the head is missing.
---@param folding Folding
local function untie(source, folding)
  local function name_of(key) return source["model." .. key] ~= nil and "model." .. key or key end
  local words, head = name_of(folding.words), name_of(folding.head)
  local out = cbk.copy(source)
  if present(source[words]) and not present(source[head]) then out[head] = source[words] end
  if present(source[head]) and source[words] == cbk.null then out[words] = source[head] end
  return out
end

-- Multipliers that the Model Zoo applies without muP as well. Source: gpt2_model.py, bert_model.py and t5_model.py of release 2.9.
local MULTIPLIERS = { "attention_logits_alpha", "encoder_attention_logits_alpha", "decoder_attention_logits_alpha", "embeddings_scale",
  "embeddings_alpha" }

---The fields to fold of a config without muP. Names those that no weight can take over: the original converter leaves that of the
---embeddings out; those of attention are refused.
---@param folding Folding|nil
---@param name string
---@param has_rule table<string, boolean>
---@return string[]
local function fields_alone(model, folding, name, has_rule)
  local out, is_folded = {}, set(unpack(folding and folding.alone or {}))
  for _, field in ipairs(MULTIPLIERS) do
    check_number(model, field)
    local is_idle = has_rule[field] or not present(model[field]) or model[field] == 1
    local text = ("%s=%s"):format(field, fields.shown(model[field]))
    if is_folded[field] then
      out[#out + 1] = not is_idle and field or nil
    elseif not is_idle and field:find "^embeddings" then
      cbk.warn(("%s multiplies the embeddings in the Model Zoo, also without muP, and is left out: the converted model computes "
        .. "something else"):format(text))
    elseif not is_idle then
      cbk.fail("config", ("the config has %s, which cannot be converted for %s"):format(text, name))
    end
  end
  return out
end

---@param family? "gpt"|"bert"|"t5"|false   nil: muP cannot be folded; false: the family has no muP
---@param name string          the model's name, for messages
---@param has_rule table<string, boolean>   fields that the table of the model converts
---@return Dict folded         the model section without muP
---@return (fun(key: string, tensor: any): any, string?)|nil view  scales a tensor of the checkpoint on reading, and returns what it did
---@return (fun(source: Dict): Dict)|nil untie   gives head and embedding a tensor each, as they are scaled differently
function mup.fold(model, family, name, has_rule)
  if family == false then return model, nil end
  local style = mup.style(model)
  if style and not family then
    cbk.fail("config", ("the config uses muP (%s), which cannot be converted for %s"):format(shown_fields(model), name))
  end
  local folding, folded, warned = foldings[family or false], cbk.copy(model), {}
  if style then check_fields(model, style, folding.fields) end
  local names = style and folding.fields or fields_alone(model, folding, name, has_rule)
  if #names == 0 then return model, nil end
  for _, field in ipairs(names) do
    check_number(model, field)
    folded[field] = nil
  end
  if style then folded.share_embedding_weights = false end
  return folded, function(key, tensor)
    if not kinds.is_tensor(tensor) then return tensor end
    key = key:gsub("^model%.", "")
    local factor = folding.scale[style or "alone"](model, key, folding)
    return multiplied(key, tensor, factor ~= 1 and factor or nil, warned)
  end, style and model.share_embedding_weights ~= false and function(source) return untie(source, folding) end or nil
end

-- --- 2.2 -> 2.3

local function widen(model, field, factor)
  local old = model[field]
  if cbk.kind(model, field) ~= "dict" or not present(old.std) then return end
  local new = cbk.copy(old)
  for _, part in ipairs(old.name == "truncated_normal" and { "std", "a", "b" } or { "std" }) do
    check_number(old, part, field .. "." .. part)
    if present(old[part]) then new[part] = cbk.float(old[part] * factor) end
  end
  model[field] = new
end

local function remove_kernel(optimizer)
  local adjust = optimizer.adjust_learning_rate
  adjust.decoder_kernel = nil
  if cbk.count(adjust) == 0 then optimizer.adjust_learning_rate = nil end
end

---Rewrites the muP fields of 2.2 as those of 2.3, in place; needs the learning rate's adjustment, which is removed.
---@param moves Moves
function mup.upgrade(model, optimizer, moves)
  local adjust = optimizer and optimizer.adjust_learning_rate
  if mup.style(model) ~= "2.2" then
    -- A converted config says only that the learning rate is not adjusted; the trainer layout would need the optimizer's name.
    local is_idle = kinds.is_dict(adjust) and fields.same(adjust.decoder_kernel, 1) and optimizer.optimizer_type == nil
    return is_idle and remove_kernel(optimizer) or nil
  end
  local kernel = present(adjust) and cbk.kind(adjust) == "dict" and adjust.decoder_kernel
  if not truthy(kernel) then
    cbk.fail("config", "a muP config of release 2.2 needs optimizer.adjust_learning_rate.decoder_kernel")
  end
  check_number(adjust, "decoder_kernel", "optimizer.adjust_learning_rate.decoder_kernel")
  check_number(model, "output_logits_scale")
  for _, field in ipairs { "hidden_size", "filter_size", "num_hidden_layers" } do
    if type(model[field]) ~= "number" then
      cbk.fail("config", ("a muP config of release 2.2 needs '%s': only decoder models had muP then"):format(field))
    end
  end
  remove_kernel(optimizer)
  local width = 1 / kernel
  model.mup_base_hidden_size = cbk.float(model.hidden_size / width)
  model.mup_base_filter_size = cbk.float(model.filter_size / width)
  model.output_logits_alpha = cbk.float(model.output_logits_scale * width)
  model.output_logits_scale = nil
  moves[#moves + 1] = { "model.output_logits_scale", "model.output_logits_alpha" }
  widen(model, "initializer", width ^ 0.5)
  widen(model, "output_layer_initializer", width ^ 0.5 * (2 * model.num_hidden_layers) ^ 0.5)
end

return mup

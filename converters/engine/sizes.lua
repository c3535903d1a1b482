-- Fields that count something: what computes with them, or loops over them, may rely on whole numbers within bounds. And those that
-- are numbers at least.

local sizes = {}

---The fields, each with its largest value.
local largest = {}
local widths = "hidden_size n_embd d_model num_heads num_attention_heads n_head n_heads vocab_size"
for name in widths:gmatch "%S+" do largest[name] = 2 ^ 53 end
local depths = "num_hidden_layers n_layer n_layers num_layers encoder_num_hidden_layers decoder_num_hidden_layers"
for name in depths:gmatch "%S+" do largest[name] = 1e5 end

local others = "filter_size intermediate_size d_ff d_kv max_position_embeddings image_size patch_size num_labels num_classes"
local shapes = {}
for name in others:gmatch "%S+" do shapes[name] = true end

local numbers = {}
local measures = "layer_norm_epsilon layer_norm_eps rms_norm_eps initializer_range initializer_factor rope_theta rotary_dim rotary_pct "
  .. "rotary_emb_base pos_scaling_factor embeddings_scale filter_size intermediate_size n_inner d_ff d_kv max_position_embeddings "
  .. "n_positions max_seq_len num_labels num_classes num_key_value_heads num_kv_heads n_head_kv attention_dropout hidden_dropout "
  .. "attn_pdrop embd_pdrop emb_pdrop resid_pdrop hidden_dropout_prob attention_probs_dropout_prob classifier_dropout task_dropout "
  .. "dropout_rate attention_dropout_rate embedding_dropout_rate residual_dropout_rate encoder_output_dropout_rate"
for name in measures:gmatch "%S+" do numbers[name] = true end

---Whether the field is a number, where it is not null.
---@param name string
---@return boolean
function sizes.is_number(name) return numbers[name] == true end

---The widths that are split among heads, of the fields that count these.
sizes.split_among = {
  num_heads = { "hidden_size" }, num_attention_heads = { "hidden_size" }, n_head = { "n_embd", "hidden_size" }, n_heads = { "d_model" },
}

---Whether tensors have their shapes from the field: without it, and without a default, no model is described.
---@param name string
---@return boolean
function sizes.shapes(name) return largest[name] ~= nil or shapes[name] == true end

---@param name string
---@return boolean
function sizes.has(name) return largest[name] ~= nil end

---@param name? string  the field
---@return string
function sizes.supported(name)
  local most = largest[name] or 2 ^ 53
  return most < 2 ^ 53 and ("a whole number from 1 to %d"):format(most) or "a whole number of at least 1"
end

---@param value any
---@param name? string  the field
---@return boolean
function sizes.is(value, name)
  return type(value) == "number" and value % 1 == 0 and value >= 1 and value <= (largest[name] or 2 ^ 53)
end

return sizes

-- Fields that count something: what computes with them, or loops over them, may rely on whole numbers within bounds.

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

-- Pairs of corresponding config fields, by their values: fields with the same name first, then numbers that only one field of each side
-- has, then the fields with the most similar names.

local cbk = require "cbk"
local names = require "cbk.infer.names"
local pretrained = require "converters.engine.pretrained"
local source = require "cbk.infer.source"

local fields = {}

---@class FieldPair
---@field left string
---@field right string
---@field text? string     the third entry of a config rule

---@class InferredFields
---@field pairs FieldPair[]
---@field finish_right? string   an expression
---@field left string[]      fields without a partner
---@field right string[]
---@field used string[]      fields of the right that the functions of pairs read
---@field guesses string[]   pairs with values that other fields have too: "n_inner, filter_size"
---@field sections table<Side, string[]>   whose fields have dotted names here: "rope_parameters.rope_theta"
---@field configs { left: Dict, right: Dict }   with these names

local function is_plain(value)
  return type(value) == "number" and value == value or type(value) == "string" or type(value) == "boolean"
end

---Unlike names of the same thing.
local ALIKE = {}
for _, list in ipairs {
  "n_embd hidden_size d_model embed_dim width",
  "n_head num_attention_heads num_heads n_heads attention_heads heads encoder_attention_heads",
  "n_layer num_hidden_layers num_layers n_layers depth", "n_inner intermediate_size filter_size d_ff ffn_dim ffn_hidden_size",
  "n_positions max_position_embeddings n_ctx seq_length max_seq_len", "vocab_size", "tie_word_embeddings share_embedding_weights",
  "layer_norm_eps rms_norm_eps layer_norm_epsilon norm_eps", "activation_function hidden_act nonlinearity encoder_nonlinearity",
  "attn_pdrop attention_dropout attention_dropout_rate attention_probs_dropout_prob", "embd_pdrop embedding_dropout_rate",
  "resid_pdrop dropout_rate hidden_dropout_prob residual_dropout_rate", "num_labels num_classes", "d_kv head_dim",
  "decoder_layers decoder_num_hidden_layers num_decoder_layers", "num_layers encoder_num_hidden_layers",
} do
  local first = list:match "%S+"
  for word in list:gmatch "%S+" do ALIKE[word] = ALIKE[word] or first end
end

local function likeness(a, b)
  a = a:match "[^.]+$" or a
  if a == b then return 3 end
  return ALIKE[a] and ALIKE[a] == ALIKE[b] and 2 or names.likeness(a, b)
end

local MOST_FIELDS = 400    -- of a config, which are compared with each other; models have up to a hundred
local MOST_ENTRIES = 20000 -- with those of its sections

---Fails for a config with so many fields that comparing them takes minutes.
---@param config Dict
---@param side Side
function fields.check(config, side)
  local count, entries = 0, 0
  local function look(map)
    for name, value in cbk.items(map) do
      entries = entries + 1
      local kind = entries <= MOST_ENTRIES and cbk.kind(map, name)
      if kind == "dict" or kind == "list" then look(value) end
      if entries > MOST_ENTRIES then return end
    end
  end
  look(config)
  for _, value in cbk.items(config) do count = count + (is_plain(value) and 1 or 0) end
  if count <= MOST_FIELDS and entries <= MOST_ENTRIES then return end
  cbk.fail("unsupported", ("the config of the %s has too many fields to compare them: at most %d at its top, and %d in all"):format(side,
    MOST_FIELDS, MOST_ENTRIES))
end

---A config with fields of its sections under dotted names, as rules see them (`nested`).
---@param config Dict
---@param is_open fun(section: string): boolean   which sections
---@return Dict
local function without_sections(config, is_open)
  local out = cbk.dict()
  for name, value in cbk.items(config) do
    if type(name) == "string" and cbk.kind(config, name) == "dict" and is_open(name) then
      for inner in cbk.items(value) do out[("%s.%s"):format(name, tostring(inner))] = cbk.raw(value, inner) end
    else
      out[name] = cbk.raw(config, name)
    end
  end
  return out
end

---Plain fields of a config, in its order. One that is named as the rule for all fields has no rule of its own.
local function plain_fields(config)
  local out = {}
  for name, value in cbk.items(config) do
    if type(name) == "string" and name ~= "*" and is_plain(value) then out[#out + 1] = name end
  end
  return out
end

---Whether a field is in a section, where functions of other fields do not find it.
local function is_in_section(name) return name:find(".", 1, true) ~= nil end

---A config with the fields of all its sections under dotted names, unless these are too many to compare.
---@param config Dict
---@return Dict
local function flattened(config)
  local out = without_sections(config, function(section) return not pretrained.is_common(section) and not is_in_section(section) end)
  return #plain_fields(out) <= MOST_FIELDS and out or config
end

---The sections of a side whose fields belong to fields of the other side.
---@param pairs_of FieldPair[]
---@param side Side
---@return string[] names, table<string, boolean> is_one
local function sections_of(pairs_of, side)
  local out, is_one = {}, {}
  for _, pair in ipairs(pairs_of) do
    local section = pair[side]:match "^([^.]+)%."
    if section and not is_one[section] then out[#out + 1], is_one[section] = section, true end
  end
  return out, is_one
end

---@param left Dict
---@param right Dict
---@param used { left: table<string, boolean>, right: table<string, boolean> }
local function by_value(left, right, used, out)
  local list, count = {}, { left = {}, right = {} }
  local of_left, of_right = plain_fields(left), plain_fields(right)
  for _, name in ipairs(of_left) do count.left[left[name]] = (count.left[left[name]] or 0) + 1 end
  for _, name in ipairs(of_right) do count.right[right[name]] = (count.right[right[name]] or 0) + 1 end
  for i, a in ipairs(of_left) do
    for k, b in ipairs(of_right) do
      local value = left[a]
      if value == right[b] then
        local is_alone = count.left[value] == 1 and count.right[value] == 1
        local alike = likeness(a, b)
        local is_telling = type(value) == "number" and value ~= 0 and value ~= 1 or type(value) == "string"
        local is_fine = alike >= 2 or is_telling and (is_alone or alike >= 0.4)
        local is_guess = alike < 2 and not is_alone
        if is_fine then list[#list + 1] = { a, b, alike + (is_alone and 0.5 or 0), i + k, is_guess } end
      end
    end
  end
  table.sort(list, function(x, y)
    if x[3] ~= y[3] then return x[3] > y[3] end
    return x[4] < y[4]
  end)
  for _, one in ipairs(list) do
    local a, b = one[1], one[2]
    if not used.left[a] and not used.right[b] then
      used.left[a], used.right[b] = true, true
      out.pairs[#out.pairs + 1] = { left = a, right = b }
      if one[5] then out.guesses[#out.guesses + 1] = ("%s, %s"):format(a, b) end
    end
  end
end

---Pairs numbers that only one remaining field of each side has.
local function by_rest(left, right, used, out)
  local rest = { left = {}, right = {} }
  for side, config in pairs { left = left, right = right } do
    for _, name in ipairs(plain_fields(config)) do
      local value = config[name]
      if not used[side][name] and type(value) == "number" and value ~= 0 and value ~= 1 then
        rest[side][value] = rest[side][value] == nil and name or false
      end
    end
  end
  for _, name in ipairs(plain_fields(left)) do
    local other = not used.left[name] and rest.left[left[name]] == name and rest.right[left[name]]
    if other then
      used.left[name], used.right[other] = true, true
      out.pairs[#out.pairs + 1] = { left = name, right = other }
      out.guesses[#out.guesses + 1] = ("%s, %s"):format(name, other)
    end
  end
end

---The fields of the left for the entries of a map: by value, those with the most similar names first.
---@return table<any, string> fields   by entry
local function fields_of_map(left, map, used)
  local found, out, taken = {}, {}, {}
  for entry, value in cbk.items(map) do
    for _, field in ipairs(plain_fields(left)) do
      local is_open = left[field] == value and type(value) ~= "string" and not is_in_section(field) and not used.left[field]
      local alike = is_open and likeness(field, tostring(entry))
      local is_telling = type(value) == "number" and value ~= 0 and value ~= 1
      if is_open and (is_telling or alike >= 1) then
        found[#found + 1] = { entry = entry, field = field, alike = alike, place = #found }
      end
    end
  end
  table.sort(found, function(one, other)
    if one.alike ~= other.alike then return one.alike > other.alike end
    return one.place < other.place
  end)
  for _, one in ipairs(found) do
    if not out[one.entry] and not taken[one.field] then out[one.entry], taken[one.field] = one.field, true end
  end
  return out
end

---Whether a map has sizes that are no field of the left: then it is a section of its own, and other models have other sizes.
local function has_other_sizes(map, field_of)
  for entry, value in cbk.items(map) do
    if type(value) == "number" and value > 1 and value % 1 == 0 and not field_of[entry] then return true end
  end
  return false
end

---Maps of the right whose entries are fields of the left, such as the number of experts.
local function by_map(left, right, used, out)
  for name, map in cbk.items(right) do
    local is_open = cbk.kind(right, name) == "dict" and not used.right[name]
    local field_of, entries, first = is_open and fields_of_map(left, map, used) or {}, {}, nil
    for entry, value in cbk.items(is_open and not has_other_sizes(map, field_of) and map or cbk.dict()) do
      local field = field_of[entry]
      if field then
        entries[#entries + 1] = ("{ %s, field = %s }"):format(source.text(entry), source.text(field))
        first = first or field
        used.left[field] = true
      elseif is_plain(value) then
        entries[#entries + 1] = ("{ %s, value = %s }"):format(source.text(entry), source.plain(value))
      end
    end
    if first then
      used.right[name] = true
      out.pairs[#out.pairs + 1] = { left = first, right = name, text = ("values.in_map { %s }"):format(table.concat(entries, ", ")) }
    end
  end
end

---Fields of attention that follow from others.
local function of_heads(left, right, used, out)
  local count, width = right.num_heads, right.hidden_size
  if type(count) ~= "number" or type(width) ~= "number" then return end
  local function left_field(value, ...)
    local best, score
    for _, field in ipairs(plain_fields(left)) do
      for _, like in ipairs { ... } do
        local alike = likeness(field, like)
        if left[field] == value and alike >= 0.5 and (not score or alike > score) then best, score = field, alike end
      end
    end
    return best
  end
  local extra = right.extra_attention_params
  local groups = cbk.kind(right, "extra_attention_params") == "dict" and extra.num_kv_groups or nil
  local keys = "num_key_value_heads"
  if left[keys] ~= nil and left[keys] == (groups or count) then
    used.left[keys], used.right.extra_attention_params, used.right.attention_module = true, true, true
    out.pairs[#out.pairs + 1] = { left = keys, right = "extra_attention_params", text = "values.grouped_queries" }
    out.used[#out.used + 1] = "attention_module"
  end
  local inner = right.attention_inner_dim
  local head, heads = type(inner) == "number" and inner / count or width / count, left_field(count, "num_heads")
  if heads and is_in_section(heads) then heads = nil end
  local size = type(inner) == "number" and heads and left_field(head, "head_dim")
  if size then
    used.left[size], used.right.attention_inner_dim = true, true
    out.pairs[#out.pairs + 1] = { left = size, right = "attention_inner_dim",
      text = ('values.times_field(%s, "num_heads")'):format(source.text(heads)) }
  end
  if right.rotary_dim == head and left_field(head, "rotary_dim") ~= "rotary_dim" then
    used.right.rotary_dim, out.finish_right = true, "rotary.set_dim"
    out.used[#out.used + 1] = "rotary_dim"
  elseif type(right.rotary_dim) == "number" and left.rotary_dim ~= right.rotary_dim and heads then
    local share = left_field(right.rotary_dim / head, "rotary_pct", "partial_rotary_factor")
    if share then
      used.left[share], used.right.rotary_dim = true, true
      out.pairs[#out.pairs + 1] = { left = share, right = "rotary_dim", text = "rotary.share " .. source.text(heads) }
    end
  end
end

---@param left Dict
---@param right Dict
---@param is_zoo boolean   the right is of the Model Zoo, which has maps of parameters (`by_map`)
---@return InferredFields
function fields.infer(left, right, is_zoo)
  local used = { left = { model_type = true }, right = { model_type = true } } -- it names the class
  local nested = { left = left, right = right }
  left, right = flattened(left), is_zoo and right or flattened(right)
  local out = { pairs = {}, guesses = {}, left = {}, right = {}, used = {}, sections = {}, configs = {} }
  of_heads(left, right, used, out)
  by_value(left, right, used, out)
  by_rest(left, right, used, out)
  if is_zoo then by_map(left, right, used, out) end
  used.left.model_type, used.right.model_type = nil, nil
  for _, side in ipairs { "left", "right" } do
    local is_section
    out.sections[side], is_section = sections_of(out.pairs, side)
    out.configs[side] = without_sections(nested[side], function(section) return is_section[section] end)
    for name in cbk.items(out.configs[side]) do
      if not used[side][name] then table.insert(out[side], tostring(name)) end
    end
  end
  return out
end

return fields

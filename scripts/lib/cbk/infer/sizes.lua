-- Numbers of a model, such as the rows of a head, as expressions over its config; over both configs, because each direction reads one.
-- If several expressions give the number, they must agree when a converter runs.

local cbk = require "cbk"
local naming = require "cbk.naming"
local source = require "cbk.infer.source"

local sizes = {}

---@class SizeField
---@field path string     ".text_config.hidden_size", ".patch_size[1]"
---@field list? string      the path of a list of equal numbers, which is read as one
---@field section string  "text_config", or ""
---@field place string    of the section: ".text_config", or ""
---@field name string
---@field value number

local known_fields = setmetatable({}, { __mode = "k" }) -- by config: they are asked for again with each size of a head that is tried

---Whether a list has several members, which are all equal.
local function are_equal(list)
  for i = 2, #list do
    if list[i] ~= list[1] then return false end
  end
  return #list > 1
end

---The expression of a field.
---@param side Side
---@param field SizeField
---@return string
local function text_of(side, field)
  if field.list then return ("counts.same(at.%s%s)"):format(side, field.list) end
  return ("at.%s%s"):format(side, field.path)
end

---The numbers of a config and of its sections, and the first of each list.
---@param config Dict
---@return SizeField[]
local function fields_of(config)
  if known_fields[config] then return known_fields[config] end
  local out = {}
  known_fields[config] = out
  local function look(map, section, path, depth)
    for name, value in cbk.items(map) do
      if type(name) == "string" then
        local kind, own = cbk.kind(map, name), source.field(path, name)
        if type(value) == "number" then out[#out + 1] = { path = own, section = section, place = path, name = name, value = value } end
        if kind == "list" and type(value[1]) == "number" then
          out[#out + 1] = { path = own .. "[1]", section = section, place = path, name = name, value = value[1],
            list = are_equal(value) and own or nil }
        end
        if kind == "dict" and depth < 2 then look(value, name, own, depth + 1) end
      end
    end
  end
  look(config, "", "", 1)
  return out
end

local set = naming.set

local WIDTHS = set [[n_embd hidden_size d_model embed_dim width attention_inner_dim dim hidden_dim model_dim hidden emb_dim embedding_dim
  embedding_size emb_size d_hidden]]
local HEADS = set [[n_head num_attention_heads num_heads n_heads attention_heads heads encoder_attention_heads nhead nheads num_head
  num_attn_heads n_attn_heads attn_heads]]
local KEY_HEADS = set [[num_key_value_heads num_kv_heads n_head_kv n_kv_heads num_kv_groups kv_heads num_query_groups
  multi_query_group_num kv kv_groups n_kv num_kv n_kv_groups num_groups n_groups groups query_groups num_key_heads key_value_heads]]
local HEAD_SIZES = set [[head_dim d_kv head_size d_head dim_head size_per_head kv_channels attention_head_size head_width dim_per_head
  attention_head_dim attn_head_dim head_channels]]
local ROTARY, NOT_ROWS = { "rot", "rope" }, { "theta", "base", "scal", "freq", "len", "pos" } -- "rope_dims", "rotary_pct"
local BASES = set "rope_theta rotary_emb_base rotary_base rope_base theta rope_local_base_freq"
local KERNELS = { "patch", "kernel", "channel", "head", "group", "tile" } -- of equal numbers, the first word counts
local POSITIONS = { "position", "ctx", "seq" }
local LENGTHS = { "label", "class", "position", "ctx", "seq", "vocab", "hidden_size", "embd", "d_model", "inner", "filter", "intermediate" }

-- Numbers that no tensor of one layer depends on.
local APART = { "vocab", "label", "position", "dropout", "pdrop", "eps", "token", "_id", "seed", "range", "version", "length", "seq",
  "ctx" }
local MOST_LEVELS, MOST_ITEMS = 6, 64 -- of sections in sections, and of a list

local LAYERS, NOT_LAYERS = { "layer", "depth", "block" }, { "head", "group", "kv", "per_" }

local function has_word(name, words)
  for _, word in ipairs(words) do
    if name:find(word, 1, true) then return true end
  end
  return false
end

---Whether a field gives the rotated rows of a head, or their share of its rows, by its name.
local function is_rotary(name) return has_word(name, ROTARY) and not has_word(name, NOT_ROWS) end

---Whether a field gives the number of layers of the pair.
---@param depths table<integer, true>   numbers of layers in the pair's keys
local function counts_layers(name, value, depths)
  return depths[value] and has_word(name, LAYERS) and not has_word(name, NOT_LAYERS)
end

local VOCABULARY = { "vocab", "words" }
local CONTEXT, INNER = { "position", "ctx", "seq_len", "context" }, { "inner", "intermediate", "filter", "ffn", "d_ff", "mlp" }
local SHARES = { "factor", "pct", "percent", "share", "fraction" }
local STACKS = set "depth layers blocks n_layer n_layers num_layers num_hidden_layers num_blocks"

---@alias SizeRole "width"|"heads"|"key_heads"|"head_size"|"rotary"|"layers"|"vocabulary"|"context"|"inner"

---What a whole number of a config counts, by the name of its field; nil if the name does not show it.
---@param name string
---@return SizeRole|nil
function sizes.role(name)
  if HEADS[name] then return "heads" elseif KEY_HEADS[name] then return "key_heads" elseif HEAD_SIZES[name] then return "head_size" end
  if STACKS[name] or name:find "num_.*_layers$" then return "layers" end
  if is_rotary(name) then return not has_word(name, SHARES) and "rotary" or nil end
  if has_word(name, VOCABULARY) and not name:find "type" then return "vocabulary" elseif has_word(name, CONTEXT) then return "context" end
  return has_word(name, INNER) and name ~= "attention_inner_dim" and "inner" or WIDTHS[name] and "width" or nil
end

-- Strings and booleans on which no order of elements depends.
local WITHOUT_ORDER = { "type", "dtype", "name", "path", "version", "cache", "output", "return", "commit", "token", "file", "dir", "url",
  "hash", "problem", "tie", "share", "activation", "nonlinearity", "_act", "checkpointing", "init", "loss", "dropout", "id", "is_" }

---The values of a config and its sections that count, as the source text of a table.
---@param config Dict
---@param apart string[]   words in the names of fields that do not count
---@param counts fun(name: any, value: any): boolean   whether a plain value does
---@return string
local function table_of(config, apart, counts)
  local function text(map, level)
    local out = {}
    for name, value in cbk.items(map) do
      local kind, own, is_apart = cbk.kind(map, name), nil, type(name) == "string" and has_word(name, apart) and not is_rotary(name)
      if (kind == "dict" or kind == "list" and not is_apart and #value <= MOST_ITEMS) and level < MOST_LEVELS then
        own = text(value, level + 1) -- a section may have any name
      elseif not is_apart and counts(name, value) then
        own = source.plain(value)
      end
      if own and own ~= "{  }" then out[#out + 1] = ("%s = %s"):format(source.key(name), own) end
    end
    return "{ " .. table.concat(out, ", ") .. " }"
  end
  return text(config, 1)
end

local function is_number(value) return type(value) == "number" or type(value) == "string" and tonumber(value) ~= nil end

---The numbers of a config on which tensors of one shape may depend, as the source text of a table.
---@param config Dict
---@param depths table<integer, true>   numbers of layers in the pair's keys
---@param of_layers boolean   only those that count layers, or only the others
---@return string
function sizes.numbers(config, depths, of_layers)
  return table_of(config, APART, function(name, value)
    if not is_number(value) then return false end
    local is_of_layers = type(name) == "string" and counts_layers(name, tonumber(value), depths) or false
    return is_of_layers == of_layers
  end)
end

-- Numbers that no size of a config follows from.
local WITHOUT_SIZE = { "dropout", "pdrop", "eps", "seed", "version", "token", "_id", "range", "coef", "temperature" }

---All numbers of a config from which another size may follow, as the source text of a table.
---@param config Dict
---@param depths table<integer, true>   numbers of layers in the pair's keys
---@return string
function sizes.all_numbers(config, depths)
  return table_of(config, WITHOUT_SIZE, function(name, value)
    return type(value) == "number" and not (type(name) == "string" and counts_layers(name, value, depths))
  end)
end

---The strings and booleans of a config on which the order of elements may depend, as the source text of a table.
---@param config Dict
---@return string
function sizes.flags(config)
  return table_of(config, WITHOUT_ORDER, function(name, value)
    return type(name) == "string" and (type(value) == "boolean" or type(value) == "string" and not is_number(value))
  end)
end

---The expressions of the section that a key names, if there are any.
---@param list { text: string, section: string }[]
---@param key string
local function near(list, key)
  local out = {}
  for _, one in ipairs(list) do
    for word in one.section:gmatch "%a+" do
      if #word > 3 and word ~= "model" and word ~= "config" and key:find(word, 1, true) then
        out[#out + 1] = one
        break
      end
    end
  end
  return #out > 0 and out or list
end

local MOST_AGREED = 16 -- fields of one number; which of more of them is meant is unknown

---One expression for all of them, which must agree.
---@param list { text: string, section: string }[]
---@return string|nil
local function agreed(list)
  if #list > MOST_AGREED then return nil end
  if #list < 2 then return list[1] and list[1].text end
  local out = {}
  for i, one in ipairs(list) do out[i] = one.text end
  return ("counts.agreed(%s)"):format(table.concat(out, ", "))
end

---@class SizedHeads   The fields of a config that give the rows of a head.
---@field sizes SizeField[]
---@field pairs { width: SizeField, count: SizeField }[]   of one section, or a width at the top and heads of a section

local known_heads = setmetatable({}, { __mode = "k" }) -- by config, as above

---@param config Dict
---@return SizedHeads
local function heads_of(config)
  if known_heads[config] then return known_heads[config] end
  local out, widths = { sizes = {}, pairs = {} }, {}
  for _, field in ipairs(fields_of(config)) do
    if HEAD_SIZES[field.name] then table.insert(out.sizes, field) end
    widths[field.section] = widths[field.section] or {}
    if WIDTHS[field.name] then table.insert(widths[field.section], field) end
  end
  for _, count in ipairs(fields_of(config)) do
    for _, section in ipairs(HEADS[count.name] and { count.section, count.section ~= "" and "" or nil } or {}) do
      for _, width in ipairs(widths[section] or {}) do table.insert(out.pairs, { width = width, count = count }) end
    end
  end
  known_heads[config] = out
  return out
end

---Expressions for the rows of a head.
---@param config Dict
---@param side Side
---@param size integer
---@param key string   of a tensor that has such heads
---@return string|nil
local function head_size(config, side, size, key)
  local list, apart, at = {}, {}, "at." .. side -- apart: a width beside a section with the heads
  for _, field in ipairs(heads_of(config).sizes) do
    if field.value == size then list[#list + 1] = { text = text_of(side, field), section = field.section } end
  end
  if #list > 0 then return agreed(near(list, key)) end
  for _, pair in ipairs(heads_of(config).pairs) do
    local width, count = pair.width, pair.count
    if width.value == size * count.value then
      local into = count.section == width.section and list or apart
      into[#into + 1] = { text = ("counts.rows_agreed(%s%s, %s, %s)"):format(at, count.place, text_of(side, width), text_of(side, count)),
        section = count.section }
    end
  end
  if #list == 0 then list = apart end
  return agreed(near(list, key))
end

---Expressions for the rotated rows of a head: by the fields that say them, also where these say that all rows are.
local function rotated_rows(config, side, size, dim, key)
  local whole, list = head_size(config, side, size, key), {}
  if not whole then return nil end
  for _, field in ipairs(fields_of(config)) do
    local is_share = is_rotary(field.name) and field.value * size == dim
    local is_rows = is_rotary(field.name) and field.value == dim
    local text = is_share and ("(%s) * %s"):format(whole, text_of(side, field)) or is_rows and text_of(side, field)
    if text then list[#list + 1] = { text = text, section = field.section } end
  end
  if #list == 0 and dim == size then return whole end
  return agreed(near(list, key))
end

---An expression for the rotated rows of a head of any size; nil if the config does not have them.
---@param config Dict
---@param side Side
---@param dim integer
---@param key string
---@return string|nil
function sizes.rotary_dim(config, side, dim, key)
  local list, shares = {}, {}
  for _, field in ipairs(fields_of(config)) do
    local is_rows = is_rotary(field.name) and field.value == dim
    if is_rows then list[#list + 1] = { text = text_of(side, field), section = field.section } end
    if is_rotary(field.name) and field.value > 0 and field.value < 1 then shares[#shares + 1] = field end
  end
  if #list > 0 then return agreed(near(list, key)) end
  for _, field in ipairs(shares) do
    local whole = head_size(config, side, math.floor(dim / field.value + 0.5), key)
    if whole then return ("(%s) * %s"):format(whole, text_of(side, field)) end
  end
  return #shares == 0 and head_size(config, side, dim, key) or nil
end

---The values of the fields that may be the base of rotary frequencies.
---@param config Dict
---@return number[]
function sizes.rotary_bases(config)
  local out = {}
  for _, field in ipairs(fields_of(config)) do out[#out + 1] = BASES[field.name] and field.value or nil end
  return out
end

---An expression for the base of rotary frequencies; nil if no field has it.
---@param base number
---@return string|nil
function sizes.rotary_base(config, side, base, key)
  local list = {}
  for _, field in ipairs(fields_of(config)) do
    local is_base = BASES[field.name] and field.value == base
    if is_base then list[#list + 1] = { text = text_of(side, field), section = field.section } end
  end
  return agreed(near(list, key))
end

---@param find fun(config: Dict, side: Side): string|nil
---@param configs { left: Dict|nil, right: Dict|nil }
---@return string|nil   a function of `at`, from the config that is read
local function of_both(find, configs)
  if not (configs.left and configs.right) then return nil end
  local left, right = find(configs.left, "left"), find(configs.right, "right")
  return left and right and ("counts.by_side(function(at) return %s end, function(at) return %s end)"):format(left, right)
end

---The rows of a head and its rotated rows, as functions of `at`; nil if the configs do not have them.
---@param configs { left: Dict|nil, right: Dict|nil }
---@param size integer
---@param dim integer
---@param key string
---@return string|nil size, string|nil dim
function sizes.heads(configs, size, dim, key)
  local whole = of_both(function(config, side) return head_size(config, side, size, key) end, configs)
  local part = whole and of_both(function(config, side) return rotated_rows(config, side, size, dim, key) end, configs)
  if part then return whole, part end
end

---The rows of a head and its rotated rows as one function, which returns a table of both.
---@return string|nil
function sizes.rotation(configs, size, dim, key)
  return of_both(function(config, side)
    local whole, part = head_size(config, side, size, key), rotated_rows(config, side, size, dim, key)
    return whole and part and ("{ %s, %s }"):format(whole, part)
  end, configs)
end

---An expression for a number of heads.
---@param of_keys boolean
---@return string|nil
local function head_count(config, side, count, of_keys, key)
  local all, list, has_keys = fields_of(config), {}, false
  for _, field in ipairs(all) do has_keys = has_keys or KEY_HEADS[field.name] end
  local wanted = of_keys and has_keys and KEY_HEADS or HEADS
  for _, field in ipairs(all) do
    if wanted[field.name] and field.value == count then
      list[#list + 1] = { text = text_of(side, field), section = field.section }
    end
  end
  return agreed(near(list, key))
end

---Expressions for the numbers of heads of some parts.
---@param counts integer[]
---@param is_keys boolean[]   for each part, whether it has key heads
---@return string|nil   a table
local function head_counts(config, side, counts, is_keys, key)
  local out = {}
  for i, count in ipairs(counts) do
    out[i] = head_count(config, side, count, is_keys[i], key)
    if not out[i] then return nil end
  end
  return "{ " .. table.concat(out, ", ") .. " }"
end

---The numbers of heads of some parts, as a function of `at`; nil if the configs do not have them.
---@param configs { left: Dict|nil, right: Dict|nil }
---@param counts integer[]
---@param is_keys boolean[]
---@param key string
---@return string|nil
function sizes.counts(configs, counts, is_keys, key)
  return of_both(function(config, side) return head_counts(config, side, counts, is_keys, key) end, configs)
end

---An expression for the number of query heads.
---@param config Dict
---@param side Side
---@param count integer
---@param key string
---@return string|nil
function sizes.query_heads(config, side, count, key) return head_count(config, side, count, false, key) end

---The number of key heads, as a function of `at`; nil if the configs do not have it.
---@return string|nil
function sizes.key_heads(configs, count, key)
  return of_both(function(config, side) return head_count(config, side, count, true, key) end, configs)
end

---Expressions for a number, from fields that have it and a name with one of these words.
---@param words string[]
local function by_words(config, side, n, key, words)
  local list, best = {}, #words + 1
  for _, field in ipairs(fields_of(config)) do
    for i, word in ipairs(field.value == n and words or {}) do
      if field.name:find(word, 1, true) and i <= best then
        if i < best then list, best = {}, i end
        list[#list + 1] = { text = text_of(side, field), section = field.section, path = field.path }
      end
    end
  end
  return list, agreed(near(list, key))
end

---An expression for an extent such as that of a patch; nil if no field with such a name has the number.
---@param config Dict
---@param side Side
---@param n integer
---@param key string
---@return string|nil
function sizes.extent(config, side, n, key) return (select(2, by_words(config, side, n, key, KERNELS))) end

---An expression for the length of a vector or a table.
function sizes.length(config, side, n, key) return (select(2, by_words(config, side, n, key, LENGTHS))) end

---An expression for the number of positions.
function sizes.span(config, side, n, key) return (select(2, by_words(config, side, n, key, POSITIONS))) end

---The field of a config that has the number of positions.
---@return string|nil
function sizes.positions(config, n)
  local list = by_words(config, "left", n, "", POSITIONS)
  return list[1] and list[1].path:match "^%.([%w_]+)$"
end

return sizes

-- Writes the file of an inferred converter.

local cbk = require "cbk"
local expression = require "cbk.infer.expression"
local pretrained = require "converters.engine.pretrained"
local sizes = require "cbk.infer.sizes"
local source = require "cbk.infer.source"

local write = {}

local quoted = source.text

---@param list string[]
local function literal(list)
  if #list == 1 then return quoted(list[1]) end
  for stem, rest in list[1]:gmatch "()q()" do -- the same name for q, k and v
    local before, after = list[1]:sub(1, stem - 1), list[1]:sub(rest)
    local is_same = #list == 3 and not list[1]:find "%%"
    for i, letter in ipairs { "q", "k", "v" } do is_same = is_same and list[i] == before .. letter .. after end
    if is_same then return "actions.qkv.keys " .. quoted(before .. "%s" .. after) end
  end
  local out = {}
  for i, one in ipairs(list) do out[i] = quoted(one) end
  return "{ " .. table.concat(out, ", ") .. " }"
end

-- --- rules as rows

---@class Row   One rule as written.
---@field left string[]
---@field right string[]
---@field each? { side: Side, letter: string, text: string }
---@field action? string
---@field also table<Side, AlsoName[]>   further keys of a side
---@field options string[]   `number = …`
---@field note? string
---@field order number

---@class AlsoName
---@field pattern string
---@field make? string   an expression: a function of `at` and the tensor of the rule; nil is a copy

local function is_simple(row)
  return #row.left == 1 and #row.right == 1 and not row.each and #row.options + #row.also.left + #row.also.right == 0
end

---What a rule shares with that of the other part of a linear or norm, and which part it is. Nil for other rules.
---@return string|nil id, string|nil part
local function joined_by(row)
  if not is_simple(row) then return nil end
  local left, part = row.left[1]:match "^(.*%.)(%a+)$"
  local right, same = row.right[1]:match "^(.*%.)(%a+)$"
  if not left or not right or part ~= same or part ~= "weight" and part ~= "bias" then return nil end
  return ("%s\0%s\0%s"):format(left, right, row.action or ""), part
end

---Merges the rules of weights and their biases.
local function merged(rows)
  local by_id, out, is_gone = {}, {}, {}
  for _, row in ipairs(rows) do
    local id, part = joined_by(row)
    if id then
      by_id[id] = by_id[id] or {}
      by_id[id][part] = by_id[id][part] or row
    end
  end
  for _, both in pairs(by_id) do
    if both.weight and both.bias then is_gone[both.bias], both.weight.with_bias = true, both.bias end
  end
  for _, row in ipairs(rows) do
    local bias = row.with_bias
    if bias then
      local function stem(pattern) return (pattern:gsub("weight$", "{weight,bias}")) end
      out[#out + 1] = { left = { stem(row.left[1]) }, right = { stem(row.right[1]) }, action = row.action, options = {}, also = row.also,
        note = row.note or bias.note, order = row.order }
    elseif not is_gone[row] then
      out[#out + 1] = row
    end
  end
  return out
end

---The common prefix of all patterns of a side, up to the first letter.
local function place_of(patterns)
  local place
  for _, pattern in ipairs(patterns) do
    if pattern:find("'", 1, true) then return nil end -- a letter in quotes is not a number
    local plain = pattern:match "^(.-%f[^.%z]%u%f[.%z])%."
    local own = pattern:match "^([^{}]*{%u[^.]*)%."
    if plain and (not own or #plain < #own) then own = plain end
    if not own or place and own ~= place then return nil end
    place = own
  end
  return place
end

---The last letter of a place.
local function letter_of(place) return place:match "(%u)$" or place:match "^.*{(%u)" end

local function cut(patterns, place)
  local out = {}
  for i, pattern in ipairs(patterns) do out[i] = pattern:sub(#place + 2) end
  return out
end

---Whether the further keys of a rule are below a place, too.
---@param row Row
---@param places table<Side, string>
local function is_below(row, places)
  for side, place in pairs(places) do
    for _, one in ipairs(row.also[side]) do
      if one.pattern:sub(1, #place + 1) ~= place .. "." then return false end
    end
  end
  return true
end

---The further keys of a side, as an option of the rule.
---@param list AlsoName[]
---@param side Side
---@param place string|nil   the prefix of the rule
local function also_option(list, side, place)
  local entries = {}
  for i, one in ipairs(list) do
    local pattern = quoted(place and one.pattern:sub(#place + 2) or one.pattern)
    entries[i] = one.make and ("{ %s, %s }"):format(pattern, one.make) or pattern
  end
  local is_one_name = #list == 1 and not list[1].make
  return ("also_%s = %s"):format(side, is_one_name and entries[1] or "{ " .. table.concat(entries, ", ") .. " }")
end

local function row_lines(rows, indent, places)
  local out, texts, width = {}, {}, 0
  for i, row in ipairs(rows) do
    local text = {}
    for _, side in ipairs { "left", "right" } do
      local own = places and cut(row[side], places[side]) or row[side]
      text[side] = row.each and row.each.side == side
        and ("rules.each(%s, %q, %s)"):format(literal(own), row.each.letter, row.each.text) or literal(own)
    end
    texts[i] = text
    if #text.left <= 48 then width = math.max(width, #text.left) end
  end
  for i, row in ipairs(rows) do
    local text = texts[i]
    if row.note then out[#out + 1] = ("%s-- %s"):format(indent, row.note) end
    local parts = { ("%s,%s"):format(text.left, (" "):rep(width - #text.left)), text.right .. (row.action and "," or "") }
    if text.left == text.right and not row.action then parts = { text.left } end
    if row.action then parts[#parts + 1] = row.action end
    local options = {}
    for _, side in ipairs { "left", "right" } do
      if #row.also[side] > 0 then options[#options + 1] = ", " .. also_option(row.also[side], side, places and places[side]) end
    end
    for _, option in ipairs(row.options) do options[#options + 1] = ", " .. option end
    out[#out + 1] = ("%s{ %s%s },"):format(indent, table.concat(parts, " "), table.concat(options))
  end
  return out
end

---The tables of keys, with a separate one for each kind of layers.
---@param part WrittenPart
---@param suffix string   of the names of local tables
---@return string[] before, string[] keys
local function key_lines(part, suffix)
  local rows = merged(part.rows)
  local groups, order = {}, {}
  for _, row in ipairs(rows) do
    local left, right = place_of(row.left), place_of(row.right)
    if left and right and letter_of(left) == letter_of(right) and is_below(row, { left = left, right = right }) then
      local id = left .. "\0" .. right
      if not groups[id] then
        groups[id] = { left = left, right = right }
        order[#order + 1] = groups[id]
      end
      table.insert(groups[id], row)
    end
  end
  local before, keys, is_inside, count = {}, {}, {}, 0
  for _, group in ipairs(order) do
    if #group > 1 then
      count = count + 1
      group.name = (count == 1 and "layer" or "layer_" .. count) .. suffix
      before[#before + 1] = ("local %s = rules.keys { -- left, right"):format(group.name)
      for _, line in ipairs(row_lines(group, "  ", group)) do before[#before + 1] = line end
      before[#before + 1] = "}\n"
      for _, row in ipairs(group) do is_inside[row] = group end
    end
  end
  local outside, said = {}, {}
  for _, line in ipairs(part.checks) do keys[#keys + 1] = "  " .. line end
  for _, row in ipairs(rows) do
    if not is_inside[row] then outside[#outside + 1] = row end
  end
  for _, line in ipairs(row_lines(outside, "  ")) do keys[#keys + 1] = line end
  for _, group in ipairs(order) do
    if group.name and not said[group] then
      said[group] = true
      keys[#keys + 1] = ('  { %s, %s, %s },'):format(quoted(group.left), quoted(group.right), group.name)
    end
  end
  for _, line in ipairs(part.one_sided) do keys[#keys + 1] = "  " .. line end
  return before, keys
end

-- --- config

---A string, a boolean, or a small map of numbers and the like as Lua; nil for others.
local function shown(value, is_inner)
  if is_inner or type(value) ~= "number" then
    local text = source.plain(value)
    if text then return text end
  end
  if is_inner or type(value) ~= "userdata" or cbk.kind(value) ~= "dict" or cbk.count(value) > 4 then return nil end
  local entries = {}
  for name, inner in cbk.items(value) do
    local text = type(name) == "string" and shown(inner, true)
    if not text then return nil end
    entries[#entries + 1] = ("%s = %s"):format(source.key(name), text)
  end
  return #entries > 0 and ("cbk.dict { %s }"):format(table.concat(entries, ", ")) or nil
end

local function float(number)
  local text = source.number(number)
  return number % 1 == 0 and ("cbk.float(%s)"):format(text) or text
end

-- Words in the names of fields whose value changes nothing that a conversion writes.
local IDLE = { "dropout", "pdrop", "init", "dtype", "version", "name", "path", "cache", "token", "checkpoint", "loss", "label", "output",
  "return", "file", "url", "hash", "commit", "summary", "mixed", "fp16", "compression", "batch", "seed" }
-- Words in those of whole numbers that a model computes with, beside those that shapes show.
local COMPUTED = { "theta", "base", "factor", "window", "scal", "alpha", "beta", "cap" }

---@param name any
---@param words string[]
local function has_word(name, words)
  for _, word in ipairs(type(name) == "string" and words or {}) do
    if name:find(word, 1, true) then return true end
  end
  return false
end

---A size: a whole number, or a list of these; nil for others.
local function size_text(config, name)
  local value = config[name]
  if cbk.kind(config, name) == "int" then return source.plain(value) end
  if cbk.kind(config, name) ~= "list" or #value == 0 or #value > 4 then return nil end
  local items = {}
  for i = 1, #value do
    if cbk.kind(value, i) ~= "int" then return nil end
    items[i] = source.plain(value[i])
  end
  return ("{ %s }"):format(table.concat(items, ", "))
end

---Fields of one side. What a model may compute with is written as a constant, and another value is refused: the pair does not show what it
---would mean. Other constants are written, and the rest is left out with a warning.
---@return string[] lines, string[] sizes   entries of evidence.sizes
local function one_sided_fields(side, list, config)
  local fixed, must, written, dropped, sizes_of, out = {}, {}, {}, {}, {}, {}
  for _, name in ipairs(list) do
    local own = name:match "[^.]+$" or name
    local is_idle = pretrained.is_common(own) or has_word(own, IDLE)
    local value = shown(config[name])
    if not value and cbk.kind(config, name) == "float" then value = float(config[name]) end
    local is_computed = not is_idle and cbk.kind(config, name) == "int" and has_word(own, COMPUTED)
    if is_computed then value = source.plain(config[name]) end
    if name == "model_type" and value then
      table.insert(fixed, 1, ("model_type = %s"):format(value))
    elseif config[name] == cbk.null and not is_idle then
      must[#must + 1] = ("%s = cbk.null"):format(source.key(name))
    elseif value then
      local is_derived = side == "right" and cbk.kind(config, name) == "float" -- the Model Zoo has products of other fields
      local list_of = (is_idle or is_derived) and written or fixed
      list_of[#list_of + 1] = ("%s = %s"):format(source.key(name), value)
    else
      dropped[#dropped + 1] = quoted(name)
      local size = not is_idle and size_text(config, name)
      if size then sizes_of[#sizes_of + 1] = ("%s = %s"):format(source.key(name), size) end
    end
  end
  local function add(kind, entries)
    local line = ("  fields.%s.%s { "):format(kind, side)
    for i, entry in ipairs(entries) do
      if #line + #entry > 120 then
        out[#out + 1], line = line:gsub("%s+$", ""), "    "
      end
      line = line .. entry .. (i < #entries and ", " or " },")
    end
    if #entries > 0 then out[#out + 1] = line end
  end
  add("fixed", fixed)
  add("must", must)
  add("written", written)
  add("drop", dropped)
  return out, sizes_of
end

---@param inferred InferredFields
---@param configs { left: Dict, right: Dict }
---@return string[] lines, { left: string[], right: string[] } sizes   of each side that nothing of the other one gives
local function config_lines(inferred, configs)
  local out, sizes_of = {}, {}
  for _, pair in ipairs(inferred.pairs) do
    local names = pair.left == pair.right and quoted(pair.left) or quoted(pair.left) .. ", " .. quoted(pair.right)
    if pair.text and pair.left == pair.right then names = names .. ", nil" end
    out[#out + 1] = ("  { %s%s },"):format(names, pair.text and ", " .. pair.text or "")
  end
  if #inferred.used > 0 then
    local list = {}
    for i, name in ipairs(inferred.used) do list[i] = quoted(name) end
    out[#out + 1] = ("  fields.used.right { %s },"):format(table.concat(list, ", "))
  end
  if #inferred.guesses > 0 then
    out[#out + 1] = "  -- other fields have the same values; check: " .. source.comment(table.concat(inferred.guesses, "; "))
  end
  for _, side in ipairs { "left", "right" } do
    local lines
    lines, sizes_of[side] = one_sided_fields(side, inferred[side], configs[side])
    if #lines > 0 then out[#out + 1] = ("  -- of the %s only"):format(side) end
    for _, line in ipairs(lines) do out[#out + 1] = line end
  end
  return out, sizes_of
end

---The option that finishes a config: what sets a field of the right, and sizes that nothing gives.
---@param part WrittenPart
---@param sizes_of { left: string[], right: string[] }
---@return string|nil
local function finish_text(part, sizes_of)
  local out = {}
  for side, read in pairs { left = "right", right = "left" } do
    local own = side == "right" and part.fields.finish_right or nil
    if #sizes_of[side] > 0 then
      out[#out + 1] = ("%s = evidence.sizes(%s, { %s }%s)"):format(side, sizes.all_numbers(part.fields.configs[read], part.depths[read]),
        table.concat(sizes_of[side], ", "), own and ", " .. own or "")
    elseif own then
      out[#out + 1] = ("%s = %s"):format(side, own)
    end
  end
  table.sort(out)
  return #out > 0 and ("finish = { %s }"):format(table.concat(out, ", ")) or nil
end

-- --- the file

---@class WrittenPart   The whole model, or one of several.
---@field name? string            the folder of a part on the left
---@field section? string         its section of the right config; nil if it has none
---@field rows Row[]
---@field checks string[]         entries of the table of keys that come first
---@field one_sided string[]      entries of the table of keys that come last
---@field made { left: string[], right: string[] }   entries of `fill`
---@field fields? InferredFields
---@field configs { left: Dict|nil, right: Dict|nil }
---@field numbers? string         the name of the table with the numbers of the pair's configs
---@field depths table<Side, table<integer, true>>   how many numbers keys have: those of layers are among them

---@class Written
---@field model string
---@field formats { left: string, right: string }
---@field parts WrittenPart[]
---@field files string[]          entries of `files`
---@field right_only? string[]    fields of the right config beside the sections of parts
---@field right_config? Dict
---@field unexplained string[]    lines
---@field sources { left: string, right: string }   the files
---@field has_same_sizes? boolean   other checkpoints have the same numbers as the pair

---What the names of a part's tables end with.
---@param part { name: string|nil }
---@return string
function write.suffix(part) return part.name and "_" .. part.name:gsub("%W", "_") or "" end

---Adds the flags of the pair's configs, if weights are more than renamed.
---@param part WrittenPart
---@param suffix string
---@param add fun(line: string)
---@return string|nil option   that checks them
local function add_flags(part, suffix, add)
  local has_actions, lines, checks = false, {}, {}
  for _, row in ipairs(part.rows) do has_actions = has_actions or row.action ~= nil end
  for _, side in ipairs(has_actions and part.fields and { "left", "right" } or {}) do
    local text = sizes.flags(part.fields.configs[side])
    if text ~= "{  }" then
      lines[#lines + 1] = ("  %s = %s,"):format(side, text)
      checks[#checks + 1] = ("%s = in_pair.flags(flags%s.%s)"):format(side, suffix, side)
    end
  end
  if #lines == 0 then return nil end
  add(("local flags%s = { -- of the pair's configs"):format(suffix))
  for _, line in ipairs(lines) do add(line) end
  add "}\n"
  return ("prepare = { %s }"):format(table.concat(checks, ", "))
end

---Adds the tables of a part, and returns the converter's options that name them.
---@param part WrittenPart
---@param add fun(line: string)
---@return string[] options
local function add_part(part, add)
  local suffix = write.suffix(part)
  local before, keys = key_lines(part, suffix)
  local entries = table.concat(before, "\n") .. table.concat(keys, "\n") .. table.concat(part.made.left) .. table.concat(part.made.right)
  if part.numbers and entries:find("in_pair.", 1, true) then
    add(("local %s = { -- of the pair's configs"):format(part.numbers))
    local layers = {}
    for _, side in ipairs { "left", "right" } do
      local config, depths = part.configs[side], part.depths[side]
      add(("  %s = %s,"):format(side, sizes.numbers(config, depths, false)))
      layers[#layers + 1] = ("%s = %s"):format(side, sizes.numbers(config, depths, true))
    end
    add(("  layers = { %s },"):format(table.concat(layers, ", ")))
    add "}\n"
  end
  local flags = add_flags(part, suffix, add)
  for _, line in ipairs(before) do add(line) end
  add(("local keys%s = rules.keys { -- left, right"):format(suffix))
  for _, line in ipairs(keys) do add(line) end
  add "}\n"
  local finish
  if part.fields then
    add(("local config%s = fields.config { -- left, right"):format(suffix))
    local lines, sizes_of = config_lines(part.fields, part.fields.configs)
    for _, line in ipairs(lines) do add(line) end
    add "}\n"
    finish = finish_text(part, sizes_of)
  end
  local options = { "keys = keys" .. suffix, part.fields and "config = config" .. suffix or "config = fields.config {}" }
  if flags then options[#options + 1] = flags end
  local nested = {}
  for _, side in ipairs(part.fields and { "left", "right" } or {}) do
    local names = {}
    for i, name in ipairs(part.fields.sections[side]) do names[i] = quoted(name) end
    if #names > 0 then nested[#nested + 1] = ("%s = { %s }"):format(side, table.concat(names, ", ")) end
  end
  if #nested > 0 then options[#options + 1] = ("nested = { %s }"):format(table.concat(nested, ", ")) end
  if finish then options[#options + 1] = finish end
  if #part.made.left + #part.made.right > 0 then
    add(("local fill%s = { -- what is made where no rule writes the key"):format(suffix))
    for _, side in ipairs { "left", "right" } do
      if #part.made[side] > 0 then add(("  %s = {"):format(side)) end
      for _, entry in ipairs(part.made[side]) do add(("    %s,"):format(entry)) end
      if #part.made[side] > 0 then add "  }," end
    end
    add "}\n"
    options[#options + 1] = "fill = fill" .. suffix
  end
  return options
end

---A converter of several parts. A part without a section of the config gets an empty one.
---@param what Written
---@param options string[][]   of each part
---@param add fun(line: string)
local function add_components(what, options, add)
  local made = {}
  add "  {"
  add(("    %s, %s,"):format(quoted(what.formats.left), quoted(what.formats.right)))
  add "    components = {"
  for i, part in ipairs(what.parts) do
    local section = part.section or part.name
    if not part.section then made[#made + 1] = quoted(section) end
    add(("      { left = %s, right = %s, %s },"):format(quoted(part.name), quoted(section), table.concat(options[i], ", ")))
  end
  add "    },"
  add "    config = fields.config {"
  for _, line in ipairs(one_sided_fields("right", what.right_only, what.right_config)) do add("    " .. line) end
  add "    },"
  if #made > 0 then
    add(("    layout = { right = values.in_no_section { %s } },"):format(table.concat(made, ", ")))
  end
  add "  },"
end

---@param what Written
---@return string
function write.text(what)
  local tables, options, body = {}, {}, {}
  for i, part in ipairs(what.parts) do
    options[i] = add_part(part, function(line) tables[#tables + 1] = line end)
  end
  local function add(line) body[#body + 1] = line end
  if #what.unexplained > 0 then
    add "-- Not explained. `cbk convert` refuses those that it reads until a rule has them; --drop-unmatched-keys leaves them out."
    add "-- What it writes lacks those of the other side, with a warning."
    for _, line in ipairs(what.unexplained) do add("--   " .. source.comment(line)) end
    add ""
  end
  for _, line in ipairs(tables) do add(line) end
  add "return { {"
  add(('  model = %s,'):format(quoted(what.model)))
  local first = what.parts[1]
  if first.name then
    add_components(what, options, add)
  else
    if not first.fields then table.insert(options[1], "without_config = true") end
    if #what.files > 0 then table.insert(options[1], ("files = { %s }"):format(table.concat(what.files, ", "))) end
    add(("  { %s, %s, %s },"):format(quoted(what.formats.left), quoted(what.formats.right), table.concat(options[1], ", ")))
  end
  add "} }"
  return ("-- Inferred from '%s' (left) and '%s' (right) by `cbk infer`.\n\n%s"):format(cbk.shown(what.sources.left),
    cbk.shown(what.sources.right), expression.file(table.concat(body, "\n") .. "\n", what.has_same_sizes or false))
end

return write

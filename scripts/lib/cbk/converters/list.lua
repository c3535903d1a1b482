-- The rows of `cbk list`, and the known names nearest to a mistyped one.

local cbk = require "cbk"
local naming = require "cbk.naming"
local catalogue = require "converters.engine.catalogue"

local list = {}

-- --- formats as text

---Formats in the notation of tables: "cs-1.6 .. cs-2.9, cs-2.4-backbone".
---@param formats string[]   releases in their order, kind by kind
local function text_of(formats)
  local out, first = {}, 1
  for i, format in ipairs(formats) do
    local place, kind = catalogue.place_of(format)
    local next_place, next_kind
    if formats[i + 1] then next_place, next_kind = catalogue.place_of(formats[i + 1]) end
    if not (place and next_place == place + 1 and next_kind == kind) then
      out[#out + 1] = i - first < 2 and table.concat(formats, ", ", first, i) or ("%s .. %s"):format(formats[first], format)
      first = i + 1
    end
  end
  return table.concat(out, ", ")
end

local function shorten(text) return (text:gsub("cs%-[%w.]+", catalogue.resolve):gsub("%s*%.%.%s*", " … ")) end

---The groups of formats that a model converts between: Hugging Face's, then those of releases and layouts of the user's own, each once.
---@param model Model
---@return string[][]
local function groups_of(model)
  local out, seen = {}, {}
  for _, format in ipairs(catalogue.formats_of(model)) do
    if format == "hf" then out[1] = { "hf" } end
  end
  for _, group in ipairs(catalogue.groups(model)) do
    local own = {}
    for _, format in ipairs(group) do
      if not seen[format] then own[#own + 1], seen[format] = format, true end
    end
    out[#out + 1] = own
  end
  return out
end

---Every format that a model converts from or to, also by several tables.
---@param model Model
---@return string[]
function list.formats_of(model)
  local out = {}
  for _, group in ipairs(groups_of(model)) do
    for _, format in ipairs(group) do out[#out + 1] = format end
  end
  return out
end

---@param model Model
---@param is_wanted? fun(format: string): boolean
---@return string   "hf, cs-1.6 … cs-2.9"
function list.formats_text(model, is_wanted)
  local out = {}
  for _, group in ipairs(groups_of(model)) do
    local wanted = {}
    for _, format in ipairs(group) do
      if not is_wanted or is_wanted(format) then wanted[#wanted + 1] = format end
    end
    if #wanted > 0 then out[#out + 1] = shorten(text_of(wanted)) end
  end
  return table.concat(out, ", ")
end

-- --- rows

local in_one_pass = "release by release, in one pass"

---Adds the pairs of formats that need several tables, within a group and with Hugging Face. No path goes through layouts of the user's own.
---@param model Model
---@param add fun(src: string, tgt: string, note: string)
local function add_ways(model, add)
  for _, all in ipairs(catalogue.groups(model)) do
    local group = {}
    for _, format in ipairs(all) do group[#group + 1] = catalogue.release(format) and format or nil end
    local beyond, is_joined = {}, false
    for _, format in ipairs(group) do
      local has_table = catalogue.direct(model, "hf", format) ~= nil
      is_joined = is_joined or has_table
      if not has_table then beyond[#beyond + 1] = format end
    end
    local text = text_of(group)
    if #group > 2 or group[2] and not catalogue.direct(model, group[1], group[2]) then add(text, text, in_one_pass) end
    if is_joined and #beyond > 0 then
      add("hf", text_of(beyond), in_one_pass)
      add(text_of(beyond), "hf", in_one_pass)
    end
  end
end

---@class ListFilter
---@field model? string
---@field src? string   the source format
---@field tgt? string   the target format

---Rows of `cbk list`: one for each table and direction, and one for each conversion through several tables.
---@param filter? ListFilter
---@return { model: string, src: string, tgt: string, note: string, src_formats: string[], tgt_formats: string[] }[]
function list.rows(filter)
  filter = filter or {}
  local out = {}
  for _, name in ipairs(filter.model and { filter.model } or catalogue.names()) do
    local model = catalogue.find(name)
    local src_wanted = filter.src and catalogue.resolve(filter.src, model)
    local tgt_wanted = filter.tgt and catalogue.resolve(filter.tgt, model)
    local function fits(wanted, text) return not wanted or catalogue.names_format(text, wanted) end
    local function add(src, tgt, note)
      local is_none = src == tgt and src_wanted and src_wanted == tgt_wanted
      if is_none or not (fits(src_wanted, src) and fits(tgt_wanted, tgt)) then return end
      out[#out + 1] = {
        model = name, src = shorten(src), tgt = shorten(tgt), note = note,
        src_formats = (catalogue.formats(src)), tgt_formats = (catalogue.formats(tgt)),
      }
    end
    for _, converter in ipairs(model) do
      local note = converter.note or model.note or ""
      add(converter[1], converter[2], note)
      add(converter[2], converter[1], note)
    end
    add_ways(model, add)
  end
  return out
end

---The message if there are no rows.
---@param filter ListFilter
---@return string
function list.why_none(filter)
  local model = filter.model and catalogue.find(filter.model)
  local is_copy = filter.src and filter.tgt and catalogue.resolve(filter.src, model) == catalogue.resolve(filter.tgt, model)
  if is_copy and filter.src ~= filter.tgt then return ("%s and %s are the same: nothing changes"):format(filter.src, filter.tgt) end
  return "no converter is like that" .. (model and ("; %s has %s"):format(filter.model, list.formats_text(model)) or "")
end

---One line for each model: its formats; if one side is given, the formats of the other side.
---@param rows table[]   of list.rows
---@param filter ListFilter
---@return string[]
function list.summary(rows, filter)
  local other = filter.src and not filter.tgt and "tgt_formats" or filter.tgt and not filter.src and "src_formats" or nil
  local order, reached, width = {}, {}, 0
  for _, row in ipairs(rows) do
    if not reached[row.model] then
      order[#order + 1], reached[row.model] = row.model, {}
      width = math.max(width, #row.model)
    end
    for _, format in ipairs(other and row[other] or {}) do reached[row.model][format] = true end
  end
  local lines = {}
  for i, name in ipairs(order) do
    local own, model = reached[name], catalogue.find(name)
    local asked = catalogue.resolve(filter.src or filter.tgt or "", model)
    local text = list.formats_text(model, other and function(format) return own[format] and format ~= asked end or nil)
    lines[i] = ("%s%s  %s"):format(name, (" "):rep(width - #name), text)
  end
  return lines
end

---Rows as the lines of a table.
function list.lines(rows, hide_notes)
  local head = { model = "model", src = "src-fmt", tgt = "tgt-fmt", note = "notes" }
  local columns = hide_notes and { "model", "src", "tgt" } or { "model", "src", "tgt", "note" }
  local width, lines = {}, {}
  local function each(f) f(head); for _, row in ipairs(rows) do f(row) end end
  local length = cbk.terminal.columns
  each(function(row)
    for _, column in ipairs(columns) do width[column] = math.max(width[column] or 0, length(row[column])) end
  end)
  each(function(row)
    local cells = {}
    for i, column in ipairs(columns) do cells[i] = row[column] .. (" "):rep(width[column] - length(row[column])) end
    lines[#lines + 1] = (table.concat(cells, "  "):gsub("%s+$", ""))
  end)
  return lines
end

-- --- names

---All formats of all models, sorted.
function list.formats()
  local out, seen = {}, {}
  for _, name in ipairs(catalogue.names()) do
    for _, format in ipairs(catalogue.formats_of(catalogue.find(name))) do
      if not seen[format] then out[#out + 1] = format end
      seen[format] = true
    end
  end
  table.sort(out)
  return out
end

---The names most similar to a mistyped one, best first: names that contain it, then names with similar spelling.
---@param name string
---@param names string[]
---@return string[]
function list.nearest(name, names)
  local out, seen = {}, {}
  for _, one in ipairs(names) do
    if one:lower():find(name:lower(), 1, true) then out[#out + 1], seen[one] = one, true end
  end
  table.sort(out, function(a, b) return #a < #b end)
  for _, one in ipairs(cbk.nearest(name, names)) do
    if not seen[one] then out[#out + 1] = one end
  end
  return { unpack(out, 1, 3) }
end

---The end of a message about an unknown model.
---@param name string
---@param names string[]
---@return string   "did you mean 'llama'?"
function list.advice(name, names)
  return naming.question(list.nearest(name, names)) or "`cbk list` lists the models"
end

local HUGGING_FACE = { hf = true, huggingface = true, huggingfacehub = true, transformers = true }

local HIGHEST_MINOR = 20 -- of a release that may come; a higher one is mistyped

---The format of the release with which a mistyped one begins: cs-2.5 of "2.55".
---@param release string
---@param kind string
---@param formats string[]
---@return string|nil
local function begun_by(release, kind, formats)
  for _, format in ipairs(formats) do
    local own, own_kind = format:match "^cs%-(%d+%.%d+)(.*)$"
    if own_kind == kind and release:sub(1, #own) == own then return format end
  end
end

---The formats of releases near to that of a mistyped format, those of the same kind first; else formats with similar spelling.
---@param asked string
---@param formats string[]
---@return string[]
function list.nearest_formats(asked, formats)
  if HUGGING_FACE[asked:lower():gsub("[^%a]", "")] and formats[1] == "hf" then return { "hf" } end
  local release, kind = asked:match "(%d+%.%d+)(.*)$"
  local has_releases = formats[1] and catalogue.release(formats[#formats]) ~= nil
  if not release then return list.nearest(asked, has_releases and { "cs-current", unpack(formats) } or formats) end
  local typed = tonumber(release:match "%d+$") > HIGHEST_MINOR and begun_by(release, kind, formats)
  if typed then return { typed } end
  local function number(text) return 100 * text:match "^%d+" + text:match "%d+$" end
  local out, distance = {}, {}
  for _, format in ipairs(formats) do
    local own, own_kind = format:match "^cs%-(%d+%.%d+)(.*)$"
    if own then
      out[#out + 1] = format
      distance[format] = math.abs(number(own) - number(release)) + (own_kind == kind and 0 or 1000)
    end
  end
  table.sort(out, function(a, b) return distance[a] < distance[b] or distance[a] == distance[b] and a < b end)
  return { unpack(out, 1, distance[out[1]] == 0 and 1 or 3) }
end

return list

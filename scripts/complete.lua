-- cbk complete: print what a shell can put in place of the last word

local cbk = require "cbk"
local cli = require "cbk.cli"
local commands = require "cbk.commands"
local extents = require "cbk.extents"
local natural = require "cbk.natural"
local overview = require "cbk.cli.overview"
local small_items = require "cbk.small_items"
local words = require "cbk.cli.words"

-- argparse would take apart what follows.
if arg[1] ~= "--" and arg[1] ~= "--quoted" then
  local parser = cli.parser("complete", "Print what a shell can put in place of the last word of a command line.", [[
The first line is 'words', 'files' or 'folders': which names the shell adds itself. Each other line
is a word and what it means, with a tab between. With --quoted, words have the shell's quotes.
The completions of bash, zsh and fish call it.

examples:
  cbk complete -- ls --so
  cbk complete -- show model.safetensors model.la]])
  parser:flag("--quoted", "remove quotes and backslashes from the words")
  parser:argument("word", "the words behind 'cbk'; comes after '--'"):args "*"
  parser:parse()
end

local line, is_quoted, is_behind = {}, false, false
for _, word in ipairs(arg) do
  if is_behind then
    line[#line + 1] = is_quoted and words.unquoted(word) or word
  elseif word == "--quoted" then
    is_quoted = true
  else
    is_behind = true
  end
end

-- --- what a value can be

---@class Answer
---@field kind "words"|"files"|"folders"
---@field [integer] { [1]: string, [2]: string|nil }   a word and what it means

local function answer_of(names)
  local out = { kind = "words" }
  for i, name in ipairs(names) do out[i] = { name } end
  return out
end

local function files() return { kind = "files" } end
local function folders() return { kind = "folders" } end
local function nothing() return { kind = "words" } end

--- The bundled converters; one of the user's own would have to run.
local function catalogue()
  local converters = require "cbk.converters"
  converters.load()
  return converters.catalogue
end

local function models() return answer_of(catalogue().names()) end

--- Those of --model if it is given, else those of all models.
local function formats(place)
  local name, list = place.values["--model"], require "cbk.converters.list"
  local model = catalogue().find(name and name[1] or place.values.arguments[1])
  return answer_of(model and list.formats_of(model) or list.formats())
end

local function dtypes()
  local out = {}
  for _, name in ipairs { "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
    "uint8", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2" } do
    if pcall(cbk.dtype, name) then out[#out + 1] = name end
  end
  return answer_of(out)
end

local function command_names()
  local out = { kind = "words" }
  for name in pairs(commands) do
    if not overview.HIDDEN[name] then out[#out + 1] = { name, overview.summary(name) } end
  end
  out[#out + 1] = { "run", "run a Lua script" }
  return out
end

local function topics()
  local out = command_names()
  for _, name in ipairs(overview.topics()) do
    if not commands[name] then out[#out + 1] = { name, overview.topic_summary(name) } end
  end
  return out
end

-- --- keys of a checkpoint, part by part as a shell completes paths

local function open_first(paths)
  for _, path in ipairs(paths) do
    local ok, checkpoint = pcall(cbk.open, (path:gsub("^~/", (os.getenv "HOME" or "~") .. "/")))
    if ok then return checkpoint end
  end
end

--- How many bytes two texts have in common at their beginning.
local function count_common(a, b)
  local same, other = 0, math.min(#a, #b) + 1
  while other - same > 1 do
    local middle = math.floor((same + other) / 2)
    if a:sub(same + 1, middle) == b:sub(same + 1, middle) then same = middle else other = middle end
  end
  return same
end

--- The longest beginning of all keys that begin with `start`, up to a "." or "/".
local function common_beginning(rows, start)
  local first, length
  for i = 1, #rows do
    local path = rows:path(i)
    if path:sub(1, #start) == start then
      first = first or path
      length = math.min(length or #path, count_common(first, path))
    end
  end
  return first:sub(1, length):match "^.*[./]"
end

--- The next parts behind `start`: whole keys, and beginnings of several keys, which end in "." or "/". Of one beginning alone, what
--- follows it.
local function next_parts(rows, start, is_longest)
  local parts, by_text = {}, {}
  for i = 1, #rows do
    local path = rows:path(i)
    if path:sub(1, #start) == start then
      local stop = path:find("[./]", #start + 1)
      local text = stop and path:sub(1, stop) or path
      local part = by_text[text]
      if not part then
        part = { text = text, row = i, count = 0, is_whole = not stop }
        parts[#parts + 1], by_text[text] = part, part
      end
      part.count = part.count + 1
    end
  end
  local is_alone = #parts == 1 and parts[1].count > 1 and not parts[1].is_whole and not is_longest
  return is_alone and next_parts(rows, common_beginning(rows, parts[1].text), true) or parts
end

local function keys(place)
  local checkpoint = open_first(place.values.arguments)
  if not checkpoint then return nothing() end
  local count = small_items.count { checkpoint }
  if not pcall(small_items.check, count, { checkpoint }, 1200, "complete them", "") then return nothing() end
  local rows = cbk.leaf_rows(checkpoint:raw_root())
  local out = { kind = "words" }
  for i, part in ipairs(next_parts(rows, place.value)) do
    if part.is_whole or part.count == 1 then
      local row = rows[part.row]
      out[i] = { row.path, row.shape and ("%s %s"):format(row.type, extents.shape(row.shape)) or row.type }
    else
      out[i] = { part.text, ("%d values"):format(part.count) }
    end
  end
  return out
end

-- --- which of them

local BY_OPTION = { ["--model"] = models, ["--src-fmt"] = formats, ["--tgt-fmt"] = formats, ["--to"] = formats, ["--from"] = formats,
  ["--for"] = dtypes }
local BY_ARGNAME = { GLOB = keys, KEY = keys, DTYPE = dtypes, DIR = folders, FILE = files, CHECKPOINT = files, CONFIG = files, PATH = files,
  OUT = files, MODEL = models, TOPIC = topics }

local function values_of(place)
  local element = place.element
  if not element then return nothing() end
  local list = element.candidates or element._choices
  if list then return answer_of(type(list) == "function" and list() or list) end
  for _, alias in ipairs(element._aliases or {}) do
    if BY_OPTION[alias] then return BY_OPTION[alias](place) end
  end
  local is_argument = element._aliases == nil
  local of_name = BY_ARGNAME[element:_get_argname(1)] or is_argument and files or nothing
  return of_name(place)
end

local function option_names(parser, place)
  local out = { kind = "words" }
  for _, option in ipairs(parser._options) do
    if not option._hidden and (not place.used[option] or option._maxcount > 1) then
      for _, alias in ipairs(option._public_aliases) do
        if alias:find "^%-%-" or place.value == "-" then out[#out + 1] = { alias, option:_get_description() } end
      end
    end
  end
  return out
end

local function answer()
  if #line <= 1 then
    local out = command_names()
    if (line[1] or ""):find "^%-" then
      out = { kind = "words", { "--help", "print the commands" }, { "--version", "print versions" },
        { "--traceback", "print where errors come from" }, { "-e", "evaluate Lua and print the result" } }
    end
    return out, { prefix = "", value = line[1] or "" }
  end
  if line[1] == "--traceback" then
    table.remove(line, 1)
    return answer()
  end
  local name = table.remove(line, 1)
  local parser = overview.parser((name:gsub("_", "-")))
  if not parser then return files(), { prefix = "", value = line[#line] } end
  local place = words.place(parser, line)
  if place.takes_options and place.value:find "^%-" then return option_names(parser, place), place end
  return values_of(place), place
end

local list, place = answer()
local out = {}
for _, entry in ipairs(list) do
  -- A key with control characters could do anything to a terminal.
  if entry[1]:sub(1, #place.value) == place.value and cbk.shown(entry[1]) == entry[1] then
    out[#out + 1] = place.prefix .. entry[1] .. (entry[2] and "\t" .. cbk.shown(entry[2]) or "")
  end
end
io.stdout:write(list.kind, "\n")
for _, text in ipairs(natural.sort(out)) do io.stdout:write(text, "\n") end

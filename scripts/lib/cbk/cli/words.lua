-- The position of the cursor in a command line: the option or argument that the last word belongs to.

local words = {}

---@param parser table
---@param name string   "--to"
---@return table|nil option   of argparse
function words.option(parser, name)
  for _, option in ipairs(parser._options) do
    for _, alias in ipairs(option._aliases) do
      if alias == name then return option end
    end
  end
end

--- The positional argument that the `count`th word which is not an option belongs to.
local function argument_at(parser, count)
  for _, argument in ipairs(parser._arguments) do
    if count <= argument._maxargs then return argument end
    count = count - argument._maxargs
  end
end

---@class Place
---@field element table|nil     the option or argument (of argparse) that the last word is a value of
---@field prefix string         the part of the last word before that value: "--include=", or ""
---@field value string          the value so far
---@field takes_options boolean whether the last word can be the name of an option
---@field used table<table, true>           options before it
---@field values table<string, string[]>    values before it, by long option name; `arguments` has those without an option

---@param parser table
---@param line string[]   the words behind the command; the last one is completed
---@return Place
function words.place(parser, line)
  local used, values, arguments = {}, {}, {}
  local is_plain, pending, left = false, nil, 0
  local function add(option, value)
    for _, alias in ipairs(option._aliases) do
      values[alias] = values[alias] or {}
      table.insert(values[alias], value)
    end
  end
  for i = 1, #line - 1 do
    local word = line[i]
    local name, value = word:match "^(%-%-[^=]+)=(.*)$"
    local option = not is_plain and words.option(parser, name or word)
    if not is_plain and word == "--" then
      is_plain, pending = true, nil
    elseif option then
      used[option], pending = true, nil
      if value then
        add(option, value)
      elseif option._maxargs > 0 then
        pending, left = option, option._maxargs
      end
    elseif pending and left > 0 then
      add(pending, word)
      left = left - 1
      if left == 0 then pending = nil end
    elseif is_plain or not word:find "^%-." then
      arguments[#arguments + 1] = word
    end
  end
  values.arguments = arguments
  local last = line[#line]
  local place = { prefix = "", value = last, used = used, values = values, takes_options = false }
  local name, value = last:match "^(%-%-[^=]+)=(.*)$"
  if pending then
    place.element = pending
  elseif name and not is_plain then
    place.element, place.prefix, place.value = words.option(parser, name), name .. "=", value
  else
    place.takes_options = not is_plain
    if is_plain or last:sub(1, 1) ~= "-" then place.element = argument_at(parser, #arguments + 1) end
  end
  return place
end

---A word as the shell reads it: without quotes and backslashes. A quote may be open.
---@param word string
---@return string
function words.unquoted(word)
  local out, quote, i = {}, nil, 1
  while i <= #word do
    local c = word:sub(i, i)
    if quote and c == quote then
      quote = nil
    elseif not quote and (c == "'" or c == '"') then
      quote = c
    elseif c == "\\" and quote ~= "'" then
      i = i + 1
      out[#out + 1] = word:sub(i, i)
    else
      out[#out + 1] = c
    end
    i = i + 1
  end
  return table.concat(out)
end

return words

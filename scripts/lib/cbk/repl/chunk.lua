-- Turns input at the prompt into Lua that runs: a local would be lost with its line, and an expression must be printed.

local chunk = {}

-- --- words

--- The comment or string that begins at `start`: its kind, and its last byte; nil for anything else.
---@return "comment"|"string"|nil, integer|nil
local function literal_at(text, start)
  local dashes, level = text:match("^(%-?%-?)%[(=*)%[", start)
  if level and #dashes ~= 1 then
    local _, stop = text:find("]" .. level .. "]", start, true)
    return dashes == "" and "string" or "comment", stop or #text
  end
  if text:find("^%-%-", start) then return "comment", (text:find("\n", start, true) or #text + 1) - 1 end
  local quote = text:match("^[\"']", start)
  if not quote then return nil end
  local stop = start + 1
  while stop <= #text and text:sub(stop, stop) ~= quote do stop = stop + (text:sub(stop, stop) == "\\" and 2 or 1) end
  return "string", stop
end

--- The next token at or after `at`: its first byte, the byte after it, and the word if it is a name or keyword. Comments are
--- skipped; nil at the end.
local function next_token(text, at)
  while true do
    local start = text:find("%S", at)
    if not start then return nil end
    local kind, stop = literal_at(text, start)
    if kind == "string" then return start, stop + 1 end
    if not kind then
      local word = text:match("^[%a_][%w_]*", start) or text:match("^%d[%w_.]*", start)
      return start, start + (word and #word or 1), word
    end
    at = stop + 1
  end
end

local OPENS = { ["function"] = true, ["do"] = true, ["if"] = true, ["repeat"] = true }
local CLOSES = { ["end"] = true, ["until"] = true }

--- Skips a list of names at `at`: returns the byte after it, and whether "=" follows.
local function behind_names(text, at)
  local _, stop = text:find("^%s*[%a_][%w_]*", at)
  if not stop then return nil end
  while true do
    local _, more = text:find("^%s*,%s*[%a_][%w_]*", stop + 1)
    if not more then break end
    stop = more
  end
  local start = next_token(text, stop + 1)
  return stop + 1, start ~= nil and text:find("^=[^=]", start) ~= nil
end

---The text with its locals turned into globals, except for those inside blocks.
---@param text string
---@return string
function chunk.with_globals(text)
  local out, copied, depth, at = {}, 1, 0, 1
  while true do
    local start, stop, word = next_token(text, at)
    if not start then break end
    if OPENS[word] then depth = depth + 1 elseif CLOSES[word] then depth = depth - 1 end
    at = stop
    if word == "local" and depth == 0 then
      out[#out + 1] = text:sub(copied, start - 1)
      copied = select(2, text:find("^%s*", stop)) + 1
      local names_end, has_value = behind_names(text, stop)
      if text:find("^%s*function%f[^%w_]", stop) then
        names_end = nil -- the function has a name of its own
      elseif names_end and not has_value then
        out[#out + 1] = text:sub(copied, names_end - 1) .. " = nil"
        copied = names_end
      end
      at = names_end or at
    end
  end
  return table.concat(out) .. text:sub(copied)
end

---Statements with an expression behind the last ';', as in "t = x; t:stats()": what runs them, and returns its values. nil for other texts.
---@param text string
---@return string|nil
function chunk.with_return(text)
  local depth, at, last = 0, 1, nil
  while true do
    local start, stop, word = next_token(text, at)
    if not start then break end
    local mark = text:sub(start, start)
    if OPENS[word] or mark == "{" or mark == "(" then depth = depth + 1 end
    if CLOSES[word] or mark == "}" or mark == ")" then depth = depth - 1 end
    if mark == ";" and depth == 0 and next_token(text, stop) then last = start end
    at = stop
  end
  if not last then return nil end
  local out = ("%s; return %s"):format(chunk.with_globals(text:sub(1, last - 1)), text:sub(last + 1))
  return loadstring(out) and out or nil
end

-- --- scripts

---@class PromptEntry  an input and its result
---@field text string
---@field is_expression boolean
---@field values integer     the number of values
---@field muted boolean      the values were not printed

--- A call with all values of `text`: the first form that is valid Lua.
local function call_with(name, text)
  for _, form in ipairs { "%s(%s)", "%s(%s\n)", "%s((function() return %s\nend)())", "%s((function() %s\nend)())" } do
    local line = form:format(name, text:gsub("^%s*=%s*", ""))
    if loadstring(line) then return line end
  end
end

---The entry as a statement of a script. The functions that it uses are defined in the script's `header`.
---@param entry PromptEntry
---@return string
function chunk.statement(entry)
  local text = entry.is_expression and entry.text or chunk.with_globals(entry.text)
  if entry.values > 0 then return call_with(entry.muted and "_keep" or "_show", (text:gsub(";%s*$", ""))) end
  text = text:gsub("^%s*=%s*", "")
  return text:find "^%s*%(" and ";" .. text or text -- otherwise it would continue the line before it
end

---The beginning of a script of such statements.
chunk.header = [[
local cbk, cstorch = require "cbk", require "cstorch"

-- As at the prompt: _ is the first of the last values, _1, _2, … are all of them.
local function _keep(...)
  _ = ...
  for i = 1, select("#", ...) do _G["_" .. i] = select(i, ...) end
  return ...
end

local function _show(...) cbk.inspect.print(_keep(...)) end
]]

return chunk

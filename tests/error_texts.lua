-- Checks that no code looks into the text of an error, but at its code and parts: lua5.1 tests/error_texts.lua
-- Texts of libraries that raise nothing else may be read: the files below say which.

local error_texts = {}

error_texts.foreign = {
  ["scripts/lib/cbk/repl/init.lua"] = "LuaJIT's parser says in words alone that a text is unfinished",
  ["scripts/lib/cbk/mistakes.lua"] = "LuaJIT's own errors get better words",
  ["scripts/lib/cbk/typed_mistakes.lua"] = "LuaJIT's own errors get better words",
  ["scripts/lib/cbk/cli/init.lua"] = "argparse names arguments in its messages alone",
  ["host/value/json_read.cpp"] = "nlohmann's parser says in words alone what it expected",
  ["bindings/bind_variable.cpp"] = "names of bindings become those of cstorch",
  ["host/value/unreadable.cpp"] = "the reason why a value cannot be read may name the value already",
}

local LOOKS = { find = true, match = true, gmatch = true, gsub = true, sub = true, byte = true }

--- What is looked into on a line of Lua: "x.message:find", "errors.text(x):match", "string.find(x.message".
local function in_lua(line)
  for text, method in line:gmatch "([%w_.]*%f[%w]message)%)?:(%l+)" do
    if LOOKS[method] then return text end
  end
  for text, method in line:gmatch "([%w_.]*text%b()):(%l+)" do
    if LOOKS[method] and (text:find "^errors%.text" or text:find "problem_text") then return text end
  end
  return line:match "string%.%l+%([%w_.]*%f[%w]message%f[%W]" or line:match "tostring%(%s*problem%s*%):%l+"
    or line:match "tostring%(%s*err%w*%s*%):%l+"
end

--- The same on a line of C++: "error.what()).starts_with", "parts().problem.find".
local function in_cpp(line)
  return line:match "what%(%)%)?%.%l[%l_]*%(" or line:match "string_view %w+ = %w+%.what%(%)" or line:match "problem%.find%("
    or line:match "problem%.starts_with%("
end

--- The wrong lines of one file, as messages.
---@param path string
---@param text string
---@return string[]
function error_texts.problems(path, text)
  local out, number = {}, 0
  if error_texts.foreign[path] then return out end
  local look = path:find "%.lua$" and in_lua or in_cpp
  for line in text:gmatch "([^\n]*)\n?" do
    number = number + 1
    local found = look(line)
    if found then
      out[#out + 1] = ("%s:%d: looks into the text of an error (%s); decide by its code or parts (scripts/lib/cbk/errors.lua)"):format(
        path, number, found)
    end
  end
  return out
end

if ... then return error_texts end -- required by a test

dofile "tests/sources.lua"("'scripts/*.lua' 'converters/*.lua' 'host/*pp' 'bindings/*pp'", error_texts.problems)

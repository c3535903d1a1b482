-- Documents of text files and JSON lines, in pieces.

local cbk = require "cbk"

local documents = {}

local BLOCK = 64 * 1024 -- bytes of a text that are in memory

---@alias TakePiece fun(text: string, is_last: boolean)   of one document

--- Beginnings of files that are no text.
local PACKED = { ["\31\139"] = "gzip", ["BZh"] = "bzip2", ["\253" .. "7zXZ"] = "xz", ["\40\181\47\253"] = "zstd", ["PK\3\4"] = "zip" }

local function check_text(path, block)
  for magic, name in pairs(PACKED) do
    if block:sub(1, #magic) == magic then
      cbk.fail("unsupported", ("%s is packed by %s; unpack it first"):format(cbk.quote(path), name), { file = path })
    end
  end
  if block:find("\0", 1, true) then
    cbk.fail("format", ("%s is a binary file; expected a text"):format(cbk.quote(path)), { file = path })
  end
end

local function open(path)
  if cbk.fs.is_dir(path) then
    cbk.fail("usage", ("%s is a folder; name its files, such as %s/*.txt"):format(cbk.quote(path), path), { file = path })
  end
  local file, problem = io.open(path, "rb")
  if not file then
    local reason = problem:gsub("^.*: ", "")
    cbk.fail("io", ("cannot read the text %s: %s"):format(cbk.quote(path), reason), { file = path })
  end
  return file
end

--- A text file is one document.
local function read_text(path, file, take)
  local block = file:read(BLOCK)
  if not block then return end
  check_text(path, block)
  while block do
    local following = file:read(BLOCK)
    take(block, following == nil)
    block = following
  end
end

local function line_text(path, number, line, key)
  local where = ("%s, line %d"):format(cbk.quote(path), number)
  local fine, value = pcall(cbk.parse_json, line)
  if not fine then cbk.fail("format", ("%s: %s"):format(where, cbk.problem_text(value)), { file = path }) end
  local is_object = type(value) == "userdata" and cbk.kind(value) == "dict"
  if not is_object then cbk.fail("format", ("%s: expected an object such as {\"%s\": \"…\"}"):format(where, key), { file = path }) end
  local text = value[key]
  if type(text) == "string" then return text end
  local names = {}
  for _, name in ipairs(cbk.keys(value)) do names[#names + 1] = cbk.quote(name) end
  cbk.fail("key", ("%s: expected a text in '%s', found %s; name its field with --key"):format(where, key,
    text == nil and table.concat(names, ", ") or cbk.json(text, { shown = true })), { file = path })
end

--- Each line of JSON is a document.
local function read_lines(path, file, take, key)
  local number = 0
  for line in file:lines() do
    number = number + 1
    if number == 1 then check_text(path, line) end
    if line:find "%S" then
      local text = line_text(path, number, line, key)
      if text ~= "" then take(text, true) end
    end
  end
end

---Reads the documents of a file: of a `.jsonl` file one in each line, else the whole text. Empty ones are left out.
---@param path string
---@param key string        of the text in a line of JSON
---@param take TakePiece
function documents.read(path, key, take)
  local file = open(path)
  local fine, problem = pcall(path:lower():find "%.jsonl$" and read_lines or read_text, path, file, take, key)
  file:close()
  if fine then return end
  local is_value = type(problem) == "table" and problem.code == "value" and not problem.file -- of the tokenizer
  if not is_value then error(problem, 0) end
  cbk.fail("value", ("%s: %s"):format(cbk.quote(path), cbk.problem_text(problem)), { file = path })
end

return documents

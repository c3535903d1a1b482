-- Tokenizers: texts as ids.

local cbk = require "cbk"
local bytes = require "cbk.tokens.bytes"
local tokenizer_json = require "cbk.tokens.tokenizer_json"

local tokens = {}

---@class Tokenizer
---@field name string             "bytes", or the path of its file
---@field vocab_size integer      ids are below it
---@field end_of_text? integer    the id that ends a text; nil if none is known
---@field encode fun(self: Tokenizer, text: string): integer[]    without special tokens before or behind it
---@field encoder fun(self: Tokenizer): fun(text: string, is_last: boolean): integer[]   the same for a text in pieces
---@field token fun(self: Tokenizer, id: integer): string|nil      its name in the vocabulary
---@field decode fun(self: Tokenizer, ids: integer[]): string     without special tokens

---@param name string   "bytes", a tokenizer.json, or the folder of one
---@return Tokenizer
function tokens.open(name)
  if name == "bytes" then return bytes.new() end
  local path = cbk.fs.is_dir(name) and cbk.fs.join(name, "tokenizer.json") or name
  if not cbk.fs.exists(path) then
    cbk.fail("io", ("there is no tokenizer %s"):format(cbk.quote(path)), { file = path, advice = "name 'bytes' or a tokenizer.json" })
  end
  return tokenizer_json.open(path)
end

---The tokenizer.json beside a checkpoint, as a tokenizer; nil without one.
---@param path string   of the checkpoint, or its folder
---@return Tokenizer|nil
function tokens.beside(path)
  local file = cbk.fs.join(cbk.fs.folder_of(path), "tokenizer.json")
  return cbk.fs.exists(file) and tokens.open(file) or nil
end

return tokens

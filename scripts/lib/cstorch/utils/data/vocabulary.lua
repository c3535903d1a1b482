-- A vocabulary file of the Model Zoo: a token in each line, whose number from 0 is its id.

local cbk = require "cbk"
local lower_case = require "cbk.tokens.lower_case"

local vocabulary = {}

---@class Vocabulary
---@field path string
---@field size integer     of its lines
---@field ids table<string, integer>   of all texts: those that are not in it have the id of the unknown token

---@param path string
---@param options { field: string, unknown: string, is_lower: boolean }   the field that names the file, for messages
---@return Vocabulary
function vocabulary.open(path, options)
  if not cbk.fs.exists(path) or cbk.fs.is_dir(path) then
    cbk.fail("io", ("%s: there is no file %s"):format(options.field, cbk.quote(path)), { file = path })
  end
  local ids, size, unknown = {}, 0, nil
  for line in io.lines(path) do
    local word = line:match "^%s*(.-)%s*$"
    if options.is_lower then word = lower_case.of(word) end
    if word == options.unknown then unknown = unknown or size end
    ids[word], size = size, size + 1
  end
  if not unknown then
    cbk.fail("value", ("%s has no line '%s', the token for unknown words (oov_token)"):format(cbk.quote(path), options.unknown),
      { file = path })
  end
  setmetatable(ids, { __index = function() return unknown end })
  return { path = path, size = size, ids = ids }
end

---The id of a token that must be in the vocabulary.
---@param self Vocabulary
---@param token string
---@param field string   that names the token
---@return integer
function vocabulary.id(self, token, field)
  local id = rawget(self.ids, token)
  if not id then
    cbk.fail("value", ("%s has no line '%s' (%s)"):format(cbk.quote(self.path), token, field), { file = self.path })
  end
  return id
end

return vocabulary

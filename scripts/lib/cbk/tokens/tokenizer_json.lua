-- Tokenizers of Hugging Face's tokenizer.json with a BPE model: byte-level as of GPT-2 and LLaMA 3, or with byte fallback as of LLaMA 2.

local added_tokens = require "cbk.tokens.added_tokens"
local bpe = require "cbk.tokens.bpe"
local byte_letters = require "cbk.tokens.byte_letters"
local cbk = require "cbk"
local decoders = require "cbk.tokens.decoders"
local known = require "cbk.tokens.known"
local normalizers = require "cbk.tokens.normalizers"
local pre_tokenizers = require "cbk.tokens.pre_tokenizers"
local unicode = require "cbk.tokens.unicode"

local tokenizer_json = {}

---@class JsonTokenizer : Tokenizer
---@field vocab table<string, integer>
---@field tokens table<integer, string>     by id
---@field special table<integer, boolean>
---@field raw_added table<string, integer>         added tokens that are found in the text itself
---@field normalized_added table<string, integer>  and those that are found after its normalization
local Json = {}
Json.__index = Json

-- --- reading the file

local MARK = "▁" -- a space, in vocabularies of SentencePiece

--- Token files have int32.
local function check_id(token, id)
  local is_id = type(id) == "number" and id == math.floor(id) and id >= 0 and id < 2 ^ 31
  if is_id then return end
  cbk.fail("format", ("the token %s: expected a whole number from 0, below 2^31, as its id, found %s"):format(cbk.quote(token),
    id == nil and "none" or cbk.json(id)))
end

local function read_vocab(self, vocab)
  for token, id in cbk.items(vocab) do
    check_id(token, id)
    self.vocab[token], self.tokens[id] = id, token
  end
end

local function read_added(self, list)
  for _, token in cbk.items(list) do
    local what = ("added token %s"):format(cbk.quote(token.content))
    check_id(token.content, token.id)
    known.fields(what, token, { "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special" })
    for _, field in ipairs { "single_word", "lstrip", "rstrip" } do known.one_of(what, token, field, false) end
    local is_normalized = token.normalized and self.normalize ~= nil
    local content = is_normalized and self.normalize(token.content, true) or token.content
    local into = is_normalized and self.normalized_added or self.raw_added
    into[content], self.tokens[token.id], self.special[token.id] = token.id, token.content, token.special or nil
  end
end

--- Whether no token has a space behind another character, so that words can be joined one by one.
local function has_separate_words(vocab)
  for token in pairs(vocab) do
    local after = token
    while after:sub(1, #MARK) == MARK do after = after:sub(#MARK + 1) end
    if after:find(MARK, 1, true) then return false end
  end
  return true
end

local function read_model(self, model)
  known.one_of("tokenizer.json", model, "type", "BPE")
  known.fields("model 'BPE'", model, { "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
    "byte_fallback", "ignore_merges", "vocab", "merges" })
  known.one_of("model 'BPE'", model, "dropout", 0)
  known.one_of("model 'BPE'", model, "continuing_subword_prefix", "")
  known.one_of("model 'BPE'", model, "end_of_word_suffix", "")
  if not known.get(model, "vocab") or not known.get(model, "merges") then
    cbk.fail("format", "the model in a tokenizer.json has 'vocab' and 'merges'; this one lacks one")
  end
  read_vocab(self, model.vocab)
  self.bpe = bpe.new(model.merges, self.vocab)
  self.unknown = self.vocab[known.get(model, "unk_token")]
  self.joins_unknown = known.get(model, "fuse_unk") or false
  self.has_byte_tokens = known.get(model, "byte_fallback") or false
  self.prefers_whole = known.get(model, "ignore_merges") or false
end

local POST_PROCESSORS = { TemplateProcessing = true, ByteLevel = true, Sequence = true } -- add special tokens only, which we do not add

local function check_rest(root)
  known.fields("tokenizer.json", root, { "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
    "post_processor", "decoder", "model" })
  known.one_of("tokenizer.json", root, "truncation")
  known.one_of("tokenizer.json", root, "padding")
  local processor = known.get(root, "post_processor")
  if processor and not POST_PROCESSORS[processor.type] then known.refuse("tokenizer.json", "post_processor", processor.type) end
end

local function read(root)
  local self = setmetatable({ vocab = {}, tokens = {}, special = {}, raw_added = {}, normalized_added = {} }, Json)
  self.words, self.word_count = {}, 0 -- the ids of words that were seen
  check_rest(root)
  self.normalize = normalizers.make(known.get(root, "normalizer"))
  read_model(self, root.model)
  self.pre_tokenizer = pre_tokenizers.make(known.get(root, "pre_tokenizer"))
  self.is_byte_level = self.pre_tokenizer.is_byte_level
  if not known.get(root, "pre_tokenizer") and has_separate_words(self.vocab) then
    self.pre_tokenizer.split = pre_tokenizers.before_mark(MARK, false)
  end
  read_added(self, known.get(root, "added_tokens") or cbk.list())
  self.decoder = decoders.make(known.get(root, "decoder"))
  local last = 0
  for id in pairs(self.tokens) do last = math.max(last, id) end
  self.vocab_size = last + 1
  return self
end

-- --- the end of a text

local ENDS = { "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>" }

function Json:_id_of(token)
  if type(token) ~= "string" then token = token and token ~= cbk.null and token.content or "" end
  return self.raw_added[token] or self.normalized_added[token] or self.vocab[token]
end

--- The token of tokenizer_config.json beside the file, or one of the usual names.
local function end_of_text(self, path)
  local config = cbk.fs.join(cbk.fs.dirname(path), "tokenizer_config.json")
  local named = cbk.fs.exists(config) and cbk.parse_json(cbk.fs.read(config)).eos_token
  local id = self:_id_of(named)
  for _, token in ipairs(ENDS) do id = id or self:_id_of(token) end
  return id
end

-- --- encoding

local function symbol_ids(self, word, ids)
  for char in word:gmatch(byte_letters.ANY_LETTER) do
    local id = self.vocab[char]
    if id then
      ids[#ids + 1] = id
    elseif not (self.has_byte_tokens and self:_byte_ids(char, ids)) then
      if not self.unknown then
        cbk.fail("value", ("the tokenizer has no token for the character %s, and none for unknown characters"):format(cbk.quote(char)))
      end
      local is_joined = self.joins_unknown and ids[#ids] == self.unknown
      if not is_joined then ids[#ids + 1] = self.unknown end
    end
  end
  return ids
end

--- Adds the tokens of a character's bytes, such as <0xE2>; false if one is missing.
function Json:_byte_ids(char, ids)
  local added = {}
  for i = 1, #char do
    added[i] = self.vocab[("<0x%02X>"):format(char:byte(i))]
    if not added[i] then return false end
  end
  for _, id in ipairs(added) do ids[#ids + 1] = id end
  return true
end

local MOST_WORDS, LONGEST_WORD = 50000, 64 -- that are remembered, and bytes of one

function Json:_word(word)
  local found = self.words[word]
  if found then return found end
  local letters = self.is_byte_level and byte_letters.write(word) or word
  local whole = self.prefers_whole and self.vocab[letters]
  local ids = whole and { whole } or self.bpe:join(symbol_ids(self, letters, {}))
  if #word <= LONGEST_WORD then
    if self.word_count == MOST_WORDS then self.words, self.word_count = {}, 0 end
    self.words[word], self.word_count = ids, self.word_count + 1
  end
  return ids
end

---@class WordSink : TokenSink   The last step: splits texts into words, and gathers the ids.
local Words = {}
Words.__index = Words

function Words:_split(text, is_whole)
  local words, rest = self.of.pre_tokenizer.split(text, is_whole)
  for _, word in ipairs(words) do
    for _, id in ipairs(self.of:_word(word)) do self.ids[#self.ids + 1] = id end
  end
  self.rest = rest
end

function Words:feed(text)
  if text == "" then return end
  local prefix = not self.has_begun and self.of.pre_tokenizer.prefix
  if prefix then text = prefix(text, self.is_first) end
  self.has_begun, self.is_first = true, false
  self:_split(self.rest .. text, false)
end

function Words:stop()
  if self.rest ~= "" then self:_split(self.rest, true) end
  self.has_begun = false
end

function Words:token(id)
  self.ids[#self.ids + 1], self.is_first = id, false
end

---@class NormalizerSink : TokenSink
local Normalized = {}
Normalized.__index = Normalized

function Normalized:feed(text)
  if text == "" then return end
  self.sink:feed(self.normalize(text, not self.has_begun))
  self.has_begun = true
end

function Normalized:stop()
  self.has_begun = false
  self.sink:stop()
end

function Normalized:token(id) self.sink:token(id) end

---Encodes a text that comes in pieces: the ids that are certain; the rest come with the last piece.
---@return fun(text: string, is_last: boolean): integer[]
function Json:encoder()
  local words = setmetatable({ of = self, ids = {}, rest = "", is_first = true }, Words)
  local sink = added_tokens.finder(self.normalized_added, words)
  if self.normalize then sink = setmetatable({ sink = sink, normalize = self.normalize }, Normalized) end
  sink = added_tokens.finder(self.raw_added, sink)
  local kept = "" -- the beginning of a character
  return function(text, is_last)
    text = kept .. text
    local length = is_last and #text or unicode.whole_length(text)
    kept = text:sub(length + 1)
    sink:feed(text:sub(1, length))
    if is_last then sink:stop() end
    local ids = words.ids
    words.ids = {}
    return ids
  end
end

---The ids of a text, without special tokens before or behind it.
---@param text string
---@return integer[]
function Json:encode(text) return self:encoder()(text, true) end

-- --- decoding

---The name of an id in the vocabulary; nil if it has none.
---@param id integer
---@return string|nil
function Json:token(id) return self.tokens[id] end

---The text of ids, without special tokens. Bytes that are no UTF-8 stay as they are.
---@param ids integer[]
---@return string
function Json:decode(ids)
  local tokens = {}
  for _, id in ipairs(ids) do
    local token = self.tokens[id]
    if not token then cbk.fail("value", ("the tokenizer has no token %d; it has %d"):format(id, self.vocab_size)) end
    if not self.special[id] then tokens[#tokens + 1] = token end
  end
  return table.concat(self.decoder(tokens))
end

---@param path string
---@return JsonTokenizer
function tokenizer_json.open(path)
  local fine, result = pcall(function()
    local root = cbk.parse_json(cbk.fs.read(path))
    local is_tokenizer = type(root) == "userdata" and cbk.kind(root) == "dict" and known.get(root, "model") ~= nil
    if not is_tokenizer then cbk.fail("format", "it has no 'model'; expected a tokenizer.json of Hugging Face's tokenizers") end
    local self = read(root)
    self.end_of_text = end_of_text(self, path)
    self.name = path
    return self
  end)
  if fine then return result end
  if type(result) ~= "table" or not result.code or result.code == "io" then error(result, 0) end
  cbk.fail(result.code, ("cannot use the tokenizer %s: %s"):format(cbk.quote(path), cbk.problem_text(result)), { file = path })
end

return tokenizer_json

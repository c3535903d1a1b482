-- Texts as tokens in text files, for processors of the Model Zoo that make samples while they read: lines for T5, CSV with pairs of
-- sentences for BERT. meta.dat lists the files, and vocab.txt has the tokens.

local byte_letters = require "cbk.tokens.byte_letters"
local cbk = require "cbk"
local documents = require "cbk.tokens.documents"
local draws = require "cbk.draws"

local token_texts = {}

---@class TokenTextOptions
---@field key string                 of the text in a line of JSON
---@field max_seq_length integer     tokens of a sample of BERT
---@field samples_per_file integer   records
---@field seed integer               of the pairs of sentences
---@field progress fun(path?: string, bytes?: integer)

---@class TokenTextCounts
---@field documents integer
---@field records integer
---@field tokens integer
---@field files integer
---@field vocab_size integer   lines of vocab.txt

-- --- the folder

---@class TokenTexts
---@field private folder string   a temporary one, which gets its name at the end
---@field counts TokenTextCounts
local Texts = {}
Texts.__index = Texts

local function write(self, file, text)
  local fine, problem = file:write(text)
  if not fine then cbk.fail("no_space", ("cannot write into %s: %s"):format(cbk.quote(self.target), problem), { file = self.target }) end
end

local function end_file(self)
  if not self.file then return end
  local fine, problem = self.file:close()
  self.file = nil
  if not fine then cbk.fail("no_space", ("cannot write into %s: %s"):format(cbk.quote(self.target), problem), { file = self.target }) end
end

local function open(self, name)
  local file, problem = io.open(cbk.fs.join(self.folder, name), "wb")
  if not file then cbk.fail("io", ("cannot write %s: %s"):format(cbk.quote(self.target), problem), { file = self.target }) end
  return file
end

---Begins a record; another file follows after so many.
local function begin_record(self)
  local last = self.meta[#self.meta]
  if not self.file or last.count == self.options.samples_per_file then
    end_file(self)
    last = { name = self.kind.name:format(#self.meta), count = 0 }
    self.meta[#self.meta + 1] = last
    self.file = open(self, last.name)
    write(self, self.file, self.kind.header)
  end
  last.count = last.count + 1
  self.counts.records = self.counts.records + 1
end

-- --- the vocabulary

--- White space ends a token of a text file, so its bytes are shown as letters.
local SPACES = { "[%s\28-\31]", "\194[\133\160]", "\225\154\128", "\226\128[\128-\138\168\169\175]", "\226\129\159", "\227\128\128" }

local function visible(token)
  for _, pattern in ipairs(SPACES) do token = token:gsub(pattern, byte_letters.write) end
  return token
end

---Writes vocab.txt: the special tokens, then those of the tokenizer.
---@return table<integer, string>   the names of ids
local function write_vocabulary(self, tokenizer)
  local names, line_of, lines = {}, {}, { unpack(self.kind.special) }
  for i, token in ipairs(lines) do line_of[token] = i end
  for id = 0, tokenizer.vocab_size - 1 do
    local token = tokenizer:token(id)
    local name = token and visible(token)
    if name and line_of[name] and line_of[name] > #self.kind.special then
      cbk.fail("value", ("%s: its tokens %d and %d have one text, '%s', in a vocabulary with a token in each line")
        :format(cbk.quote(tokenizer.name), line_of[name] - #self.kind.special - 1, id, cbk.shown(name)), { file = tokenizer.name })
    end
    lines[#lines + 1] = name and not line_of[name] and name or ("<unused %d>"):format(id):gsub(" ", "_")
    if name and not line_of[name] then line_of[name] = #lines end
    names[id] = name
  end
  local file = open(self, "vocab.txt")
  write(self, file, table.concat(lines, "\n") .. "\n")
  file:close()
  self.counts.vocab_size = #lines
  return names
end

-- --- T5

local function named(names, ids)
  local out = {}
  for i, id in ipairs(ids) do out[i] = names[id] end
  return out
end

local LONGEST = 65536 -- tokens of a line: the Model Zoo takes no more of one in an epoch

--- A document in each line, or several lines if it is long.
local function write_lines(self, paths, tokenizer, names)
  local encode, length
  for _, path in ipairs(paths) do
    documents.read(path, self.options.key, function(text, is_last)
      local is_first = encode == nil
      encode = encode or tokenizer:encoder()
      local words = named(names, encode(text, is_last))
      if is_first or length + #words > LONGEST then
        if not is_first then write(self, self.file, "\n") end
        begin_record(self)
        length = 0
      end
      if words[1] then write(self, self.file, (length > 0 and " " or "") .. table.concat(words, " ")) end
      length, self.counts.tokens = length + #words, self.counts.tokens + #words
      self.options.progress(path, #text)
      if not is_last then return end
      write(self, self.file, "\n")
      encode, self.counts.documents = nil, self.counts.documents + 1
    end)
  end
end

-- --- BERT

local BLOCK = 2 ^ 20 -- bytes of texts, among which the other sentence of a pair is chosen

--- The sentences of a text: they end with a line, or with a mark and white space after it.
local function sentences_of(text)
  local out = {}
  for line in text:gmatch "[^\r\n]+" do
    for sentence in (line:gsub("([.!?][\"')]*)%s+", "%1\n")):gmatch "[^\n]+" do
      if sentence:find "%S" then out[#out + 1] = sentence end
    end
  end
  return out
end

local function joined(list, first, last)
  local out = {}
  for i = first, last do
    for _, word in ipairs(list[i]) do out[#out + 1] = word end
  end
  return out
end

---Takes words from the longer one of two lists, at its beginning or its end, until both have at most so many.
---@return string[], string[]
local function shortened(a, b, most, random)
  local parts = { { list = a, first = 1, last = #a }, { list = b, first = 1, last = #b } }
  local function length(part) return part.last - part.first + 1 end
  while length(parts[1]) + length(parts[2]) > most do
    local longer = length(parts[1]) > length(parts[2]) and parts[1] or parts[2]
    if random:unit() < 0.5 then longer.first = longer.first + 1 else longer.last = longer.last - 1 end
  end
  local out = {}
  for i, part in ipairs(parts) do
    out[i] = {}
    for k = part.first, part.last do table.insert(out[i], part.list[k]) end
  end
  return out[1], out[2]
end

local ESCAPED = { ["'"] = "\\'", ["\\"] = "\\\\", ['"'] = '""' }

---@param a string[]
---@param b string[]
---@param is_random boolean
local function write_pair(self, a, b, is_random)
  a, b = shortened(a, b, self.options.max_seq_length - 3, self.random)
  local words, segments = { "'[CLS]'" }, { "0" }
  local function add(list, segment)
    list[#list + 1] = "[SEP]"
    for _, word in ipairs(list) do
      words[#words + 1], segments[#segments + 1] = "'" .. word:gsub("['\\\"]", ESCAPED) .. "'", segment
    end
  end
  add(a, "0")
  add(b, "1")
  begin_record(self)
  self.counts.tokens = self.counts.tokens + #words
  write(self, self.file, ('"[%s]","[%s]",%d\r\n'):format(table.concat(words, ", "), table.concat(segments, ", "), is_random and 1 or 0))
end

---Sentences of another document, or of the same if there is only one.
local function other_sentences(self, block, own, count)
  local document
  for _ = 1, 10 do
    document = block[self.random:below(#block) + 1]
    if document ~= own then break end
  end
  local first, length, last = self.random:below(#document) + 1, 0, nil
  for i = first, #document do
    length, last = length + #document[i], i
    if length >= count then break end
  end
  return joined(document, first, last)
end

---Pairs of a document: what is before and after some place in as many sentences as fit, or with other sentences after it. Those that
---were replaced come again.
local function write_pairs(self, block, document)
  local most, first = self.options.max_seq_length - 3, 1
  while first <= #document do
    local last, length = first, #document[first]
    while last < #document and length < most do
      last = last + 1
      length = length + #document[last]
    end
    local middle = last > first and first + self.random:below(last - first) or first
    local a, is_random = joined(document, first, middle), last == first or self.random:unit() < 0.5
    if is_random then
      write_pair(self, a, other_sentences(self, block, document, math.max(1, most - #a)), true)
      first = middle + 1
    else
      write_pair(self, a, joined(document, middle + 1, last), false)
      first = last + 1
    end
  end
end

local function write_sentences(self, paths, tokenizer, names)
  local block, size, parts = {}, 0, {}
  local function end_block()
    for _, document in ipairs(block) do write_pairs(self, block, document) end
    block, size = {}, 0
  end
  local function end_part()
    local document = {}
    for _, sentence in ipairs(sentences_of(table.concat(parts))) do
      local words = named(names, tokenizer:encode(sentence))
      if words[1] then document[#document + 1] = words end
    end
    parts = {}
    if document[1] then block[#block + 1] = document end
    if size >= BLOCK then end_block() end
  end
  for _, path in ipairs(paths) do
    documents.read(path, self.options.key, function(text, is_last)
      parts[#parts + 1], size = text, size + #text
      self.options.progress(path, #text)
      if is_last then self.counts.documents = self.counts.documents + 1 end
      -- A long document is cut at the end of a line.
      local rest = not is_last and size >= BLOCK and text:match "\n([^\n]*)$"
      if rest then parts[#parts] = text:sub(1, #text - #rest) end
      if is_last or rest then end_part() end
      if rest then parts, size = { rest }, #rest end
    end)
  end
  end_block()
end

-- --- folders

---@class TokenTextKind
---@field name string        of files
---@field header string      their first line
---@field special string[]   tokens before those of the tokenizer
---@field write function

---@type table<string, TokenTextKind>
local KINDS = {
  t5 = { name = "text-%05d.txt", header = "", special = { "<pad>", "</s>", "<unk>", "<s>" }, write = write_lines },
  bert = { name = "pairs-%05d.csv", header = "tokens,segment_ids,is_random_next\r\n",
    special = { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]" }, write = write_sentences },
}

---Writes a folder: whole, or not at all.
---@param kind "bert"|"t5"
---@param folder string
---@param paths string[]
---@param tokenizer Tokenizer
---@param options TokenTextOptions
---@return TokenTextCounts
function token_texts.write(kind, folder, paths, tokenizer, options)
  local target = cbk.fs.absolute(folder)
  local self = setmetatable({ kind = KINDS[kind], target = folder, folder = cbk.fs.temporary(target) .. ".folder", options = options,
    random = draws.of(options.seed), meta = {}, counts = { documents = 0, records = 0, tokens = 0 } }, Texts)
  cbk.fs.mkdir(self.folder)
  local fine, problem = pcall(function()
    self.kind.write(self, paths, tokenizer, write_vocabulary(self, tokenizer))
    options.progress()
    end_file(self)
    if self.counts.tokens == 0 then cbk.fail("value", "the texts are empty: there is nothing to write") end
    local lines = {}
    for i, file in ipairs(self.meta) do lines[i] = ("%s %d\n"):format(file.name, file.count) end
    cbk.fs.write(cbk.fs.join(self.folder, "meta.dat"), table.concat(lines))
    self.counts.files = #self.meta
    local renamed, why = os.rename(self.folder, target)
    if not renamed then cbk.fail("io", ("cannot write %s: %s"):format(cbk.quote(folder), why), { file = folder }) end
  end)
  if fine then return self.counts end
  if self.file then self.file:close() end
  cbk.fs.remove(self.folder, { recursive = true })
  error(problem, 0)
end

return token_texts

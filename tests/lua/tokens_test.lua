-- Tokenizers: the ids of Hugging Face's own library, for small tokenizers of each kind (tests/tokens/make.py).

local cbk = require "cbk"
local harness = require "harness"
local tokens = require "cbk.tokens"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises

local FOLDER = cbk.fs.join(cbk.fs.dirname(cbk.fs.dirname(debug.getinfo(1, "S").source:sub(2))), "tokens")
local expected = cbk.totable(cbk.parse_json(cbk.fs.read(cbk.fs.join(FOLDER, "expected.json"))))

local function open(name) return tokens.open(cbk.fs.join(FOLDER, name .. ".json")) end

--- The ids of a text that comes in pieces of `size` bytes.
local function in_pieces(tokenizer, text, size)
  local encode, ids = tokenizer:encoder(), {}
  for first = 1, math.max(#text, 1), size do
    for _, id in ipairs(encode(text:sub(first, first + size - 1), first + size > #text)) do ids[#ids + 1] = id end
  end
  return ids
end

describe("tokens: tokenizer.json", function()
  for name in pairs(expected.ids) do
    it("gives the ids and texts of the original library: " .. name, function()
      local tokenizer = open(name)
      for i, text in ipairs(expected.texts) do
        equal(tokenizer:encode(text), expected.ids[name][i], ("ids of text %d"):format(i))
        equal(tokenizer:decode(expected.ids[name][i]), expected.decoded[name][i], ("text %d"):format(i))
      end
    end)

    it("gives the same ids to a text in pieces: " .. name, function()
      local tokenizer, all = open(name), table.concat(expected.texts, "\n")
      local whole = tokenizer:encode(all)
      for _, size in ipairs { 1, 2, 7, 64 } do equal(in_pieces(tokenizer, all, size), whole, ("pieces of %d"):format(size)) end
    end)
  end

  it("knows its size and the token that ends a text", function()
    equal(open("gpt2").end_of_text, nil)
    local folder = harness.temp_dir()
    cbk.fs.write(cbk.fs.join(folder, "tokenizer.json"), cbk.fs.read(cbk.fs.join(FOLDER, "gpt2.json")))
    cbk.fs.write(cbk.fs.join(folder, "tokenizer_config.json"), '{"eos_token": {"content": "<|end|>"}}')
    local tokenizer = tokens.open(folder)
    equal({ tokenizer.end_of_text, tokenizer.vocab_size }, { 256 + 250, 256 + 250 + 1 })
  end)

  it("joins long words in good time", function()
    local tokenizer = open "llama2"
    local text = ("ab"):rep(50000)
    equal(tokenizer:decode(tokenizer:encode(text)), text)
  end)

  it("refuses texts that are not UTF-8", function()
    raises("the text is not UTF-8 at its byte 0xff", function() open("gpt2"):encode "ab\255" end)
  end)
end)

describe("tokens: what a tokenizer.json has that is not known", function()
  local function with(name, change)
    local root = cbk.parse_json(cbk.fs.read(cbk.fs.join(FOLDER, name .. ".json")))
    change(root)
    local path = cbk.fs.join(harness.temp_dir(), "tokenizer.json")
    cbk.fs.write(path, cbk.json(root))
    return path
  end
  for problem, change in pairs {
    ["tokenizer.json: type = \"Unigram\" is not known"] = function(root) root.model.type = "Unigram" end,
    ["model 'BPE': dropout = 0.1 is not known"] = function(root) root.model.dropout = 0.1 end,
    ["model 'BPE': end_of_word_suffix = \"</w>\" is not known"] = function(root) root.model.end_of_word_suffix = "</w>" end,
    ["tokenizer.json: normalizer = \"NFKC\" is not known"] = function(root) root.normalizer = cbk.dict { { "type", "NFKC" } } end,
    ["tokenizer.json: pre_tokenizer = \"BertPreTokenizer\" is not known"] =
      function(root) root.pre_tokenizer = cbk.dict { { "type", "BertPreTokenizer" } } end,
    ["pre_tokenizer 'Split': behavior = \"Removed\" is not known"] =
      function(root) root.pre_tokenizer.pretokenizers[1].behavior = "Removed" end,
    ["has \\b, which is not known"] =
      function(root) root.pre_tokenizer.pretokenizers[1].pattern.Regex = "\\bx" end,
    ["has \\p{Han}, which is not known"] =
      function(root) root.pre_tokenizer.pretokenizers[1].pattern.Regex = "\\p{Han}+" end,
    ["added token '<|end|>': lstrip = true is not known"] = function(root) root.added_tokens[1].lstrip = true end,
    ["tokenizer.json: decoder = \"WordPiece\" is not known"] = function(root) root.decoder = cbk.dict { { "type", "WordPiece" } } end,
    ["tokenizer.json: extra = 1 is not known"] = function(root) root.extra = 1 end,
    ["the token 'a': expected a whole number from 0, below 2^31, as its id, found 1099511627776"] =
      function(root) root.model.vocab.a = 2 ^ 40 end,
    ["the token 'a': expected a whole number from 0, below 2^31, as its id, found 2147483648"] =
      function(root) root.model.vocab.a = 2 ^ 31 end,
    ["the token 'a': expected a whole number from 0, below 2^31, as its id, found -4"] = function(root) root.model.vocab.a = -4 end,
    ["the token 'a': expected a whole number from 0, below 2^31, as its id, found 1.5"] = function(root) root.model.vocab.a = 1.5 end,
    ["the token '<|end|>': expected a whole number from 0, below 2^31, as its id, found -1"] =
      function(root) root.added_tokens[1].id = -1 end,
    ["has the id 67108864; expected one below 67108864"] = function(root)
      root.model.vocab.a, root.model.merges[1] = 2 ^ 26, "a b"
      root.model.vocab.ab = root.model.vocab.ab or 5
    end,
    ["normalizer 'Replace': content has 10000000 bytes; expected at most 1024"] = function(root)
      root.normalizer = cbk.dict { { "type", "Replace" }, { "pattern", cbk.dict { { "String", "a" } } }, { "content", ("x"):rep(1e7) } }
    end,
    ["has more than 64 groups within one another"] =
      function(root) root.pre_tokenizer.pretokenizers[1].pattern.Regex = ("("):rep(100) .. "a" .. (")"):rep(100) end,
    ["((((((((((' … has 200001 characters; expected at most 4096"] =
      function(root) root.pre_tokenizer.pretokenizers[1].pattern.Regex = ("("):rep(1e5) .. "a" .. (")"):rep(1e5) end,
    ["pre_tokenizer 'Metaspace': replacement = \"xx\" is not known"] =
      function(root) root.pre_tokenizer = cbk.dict { { "type", "Metaspace" }, { "replacement", "xx" } } end,
    ["needs the token 'zq', which the vocabulary lacks"] = function(root) root.model.merges[1] = "z q" end,
  } do
    it("is refused by name: " .. problem, function()
      local path = with("llama3", change)
      raises(("cannot use the tokenizer '%s': "):format(path), function() tokens.open(path) end)
      raises(problem, function() tokens.open(path) end)
    end)
  end

  it("is refused: a text that grows", function()
    local path = with("llama3", function(root)
      local part = cbk.dict { { "type", "Replace" }, { "pattern", cbk.dict { { "String", "a" } } }, { "content", "aaaaaaaa" } }
      root.normalizer = cbk.dict { { "type", "Sequence" }, { "normalizers", cbk.list { part, part, part, part } } }
    end)
    local tokenizer = tokens.open(path)
    raises("normalizer 'Sequence': it makes 64000 bytes of 1000; expected at most 16 times as many",
      function() tokenizer:encode(("a"):rep(1000)) end)
  end)

  it("is refused: other files", function()
    local path = cbk.fs.join(harness.temp_dir(), "x.json")
    raises("there is no tokenizer", function() tokens.open(path) end)
    cbk.fs.write(path, "[1]")
    raises("it has no 'model'; expected a tokenizer.json", function() tokens.open(path) end)
    cbk.fs.write(path, "{", { overwrite = true })
    raises("cannot use the tokenizer", function() tokens.open(path) end)
  end)
end)

describe("tokens: NFC", function()
  it("leaves texts that are in it, and refuses others", function()
    local root = cbk.parse_json(cbk.fs.read(cbk.fs.join(FOLDER, "gpt2.json")))
    root.normalizer = cbk.dict { { "type", "NFC" } }
    local path = cbk.fs.join(harness.temp_dir(), "tokenizer.json")
    cbk.fs.write(path, cbk.json(root))
    local tokenizer, plain = tokens.open(path), open "gpt2"
    local text = "été 你好 한국 😀 fin"
    equal(tokenizer:encode(text), plain:encode(text))
    raises("the text has the character U+0301, which NFC may join with others", function() tokenizer:encode "e\204\129" end)
    raises("the text has the character U+212B", function() tokenizer:encode "\226\132\171" end) -- the sign of the unit
  end)
end)

describe("tokens: bytes", function()
  it("are their own ids", function()
    local tokenizer = tokens.open "bytes"
    local text = "a\0ü\255" .. ("x"):rep(10000)
    local ids = tokenizer:encode(text)
    equal({ ids[1], ids[2], ids[3], ids[4], ids[5], #ids }, { 97, 0, 195, 188, 255, #text })
    equal({ tokenizer:decode(ids) == text, tokenizer.end_of_text, tokenizer.vocab_size }, { true, 256, 257 })
    is_true(cbk.equal(cbk.list(in_pieces(tokenizer, text, 3000)), cbk.list(ids)))
  end)
end)

-- cbk make-data: token files of texts.

local cbk = require "cbk"
local harness = require "harness"
local token_files = require "cstorch.utils.data.token_files"
local tokens = require "cbk.tokens"
local describe, it, equal, has, is_true = harness.describe, harness.it, harness.equal, harness.has, harness.is_true

local TOKENIZERS = cbk.fs.join(cbk.fs.absolute(cbk.fs.dirname(cbk.fs.dirname(debug.getinfo(1, "S").source:sub(2)))), "tokens")

local function folder_with(texts)
  local dir = harness.temp_dir()
  for name, text in pairs(texts) do cbk.fs.write(cbk.fs.join(dir, name), text) end
  return dir
end

local function make(dir, ...)
  local code, out, err = harness.cbk(dir, "make-data", ...)
  equal({ code, err }, { 0, "" })
  return out
end

local function samples(dir)
  local list = {}
  for batch in token_files.open({ data_dir = dir, batch_size = 1, drop_last = false }):iter() do
    list[#list + 1] = { batch.input_ids:tolist()[1], batch.attention_mask:tolist()[1], batch.labels:tolist()[1] }
  end
  return list
end

describe("make-data", function()
  it("packs documents one after another; labels are the next ids", function()
    local dir = folder_with { ["a.txt"] = "abcd", ["b.txt"] = "xyz" }
    local out = make(dir, "a.txt", "b.txt", "-o", "data", "--max-seq-length", "3", "-q")
    has(out, "3 samples of 3 tokens in 1 file (9 tokens of 2 documents")
    equal(samples(dir .. "/data"), {
      { { 97, 98, 99 }, { 1, 1, 1 }, { 98, 99, 100 } },
      { { 100, 256, 120 }, { 1, 1, 1 }, { 256, 120, 121 } },
      { { 121, 122, 256 }, { 1, 1, 0 }, { 122, 256, 256 } },
    })
    equal(cbk.h5.inspect(dir .. "/data/output_chunk_0_00000.h5").attributes.n_examples, 3)
    local params = cbk.config.load(dir .. "/data/data_params.json")
    equal({ params["post-process"].vocab_size, params["post-process"].num_pad_tokens, params.processing.eos_id }, { 257, 1, 256 })
  end)

  it("takes documents of JSON lines, and leaves out empty ones", function()
    local dir = folder_with { ["a.jsonl"] = '{"body": "ab"}\n\n{"body": ""}\n{"x": 1, "body": "\\u00fc"}\n' }
    make(dir, "a.jsonl", "-o", "data", "--key", "body", "--max-seq-length", "5", "-q")
    equal(samples(dir .. "/data"), { { { 97, 98, 256, 195, 188 }, { 1, 1, 1, 1, 1 }, { 98, 256, 195, 188, 256 } } })
  end)

  it("gives the ids of a tokenizer.json, whatever the size of the text", function()
    local text = cbk.fs.read(cbk.fs.join(cbk.fs.dirname(TOKENIZERS), "..", "CHANGELOG.md"))
    text = text:rep(math.ceil(200000 / #text))
    local dir = folder_with { ["a.txt"] = text }
    local path = cbk.fs.join(TOKENIZERS, "llama3.json")
    make(dir, "a.txt", "-o", "data", "--tokenizer", path, "--eos-token", "<|end|>", "--max-seq-length", "1000", "-q")
    local tokenizer, found = tokens.open(path), {}
    for _, sample in ipairs(samples(dir .. "/data")) do
      for i, id in ipairs(sample[1]) do
        if sample[2][i] == 1 then found[#found + 1] = id end
      end
    end
    is_true(cbk.equal(cbk.list(found), cbk.list(tokenizer:encode(text))))
  end)

  it("writes the same bytes each time, in files of a given size", function()
    local dir = folder_with { ["a.txt"] = ("the same text\n"):rep(50) }
    for _, name in ipairs { "one", "two" } do make(dir, "a.txt", "-o", name, "--max-seq-length", "16", "--samples-per-file", "20", "-q") end
    local names = { "data_params.json", "output_chunk_0_00000.h5", "output_chunk_0_00001.h5", "output_chunk_0_00002.h5" }
    equal({ cbk.fs.list(dir .. "/one"), cbk.fs.list(dir), #samples(dir .. "/one") }, { names, { "a.txt", "one", "two" }, 44 })
    for _, name in ipairs(names) do
      is_true(cbk.fs.read(dir .. "/one/" .. name) == cbk.fs.read(dir .. "/two/" .. name), name)
    end
  end)

  it("reads the text that comes with cbk", function()
    local dir = harness.temp_dir()
    has(make(dir, "-o", "data", "-q"), "samples of 256 tokens in 1 file (317,")
  end)

  local JSON = cbk.fs.join(TOKENIZERS, "gpt2.json")
  for problem, call in pairs {
    ["cannot read the text 'none.txt': No such file"] = { "none.txt" },
    ["'.' is a folder; name its files, such as ./*.txt"] = { "." },
    ["the texts are empty: there is nothing to write"] = { "empty.txt" },
    ["'x.txt' is packed by gzip; unpack it first"] = { "x.txt" },
    ["'binary.txt' is a binary file; expected a text"] = { "binary.txt" },
    ["'bad.jsonl', line 2: "] = { "bad.jsonl" },
    ["'UPPER.JSONL', line 1: "] = { "UPPER.JSONL" },
    ["--max-seq-length '16777216': expected a whole number below 2^24"] = { "a.txt", "--max-seq-length", "16777216" },
    ["'list.jsonl', line 1: expected an object such as {\"text\": "] = { "list.jsonl" },
    ["'key.jsonl', line 1: expected a text in 'text', found 'body', 'n'; name its field with --key"] = { "key.jsonl" },
    ["'key.jsonl', line 1: expected a text in 'n', found 3; name its field with --key"] = { "key.jsonl", "--key", "n" },
    ["'latin.txt': the text is not UTF-8 at its byte 0xfc"] = { "latin.txt", "--tokenizer", JSON, "--eos-token", "<|end|>" },
    ["it is unknown which token ends a text; name it with --eos-token"] = { "a.txt", "--tokenizer", JSON },
    ["--eos-token 'two words': it is not one token"] = { "a.txt", "--tokenizer", JSON, "--eos-token", "two words" },
    ["there is no tokenizer 'none.json'"] = { "a.txt", "--tokenizer", "none.json" },
    ["'old' exists already; remove it or choose another name"] = { "a.txt", "-o", "old" },
  } do
    it("fails with nothing written: " .. problem, function()
      local dir = folder_with { ["a.txt"] = "text", ["empty.txt"] = "", ["x.txt"] = "\31\139\8", ["binary.txt"] = "a\0b",
        ["bad.jsonl"] = '{"text": "x"}\n{"text"\n', ["list.jsonl"] = "[1]\n",
        ["UPPER.JSONL"] = "text\n", ["key.jsonl"] = '{"body": "x", "n": 3}\n',
        ["latin.txt"] = "\252", ["old/x"] = "" }
      local before = cbk.fs.list(dir)
      local words = { "make-data", unpack(call) }
      if call[2] ~= "-o" then words[#words + 1], words[#words + 2] = "-o", "data" end
      local code, _, err = harness.cbk(dir, unpack(words))
      is_true(code ~= 0, err)
      has(err, problem)
      equal(cbk.fs.list(dir), before)
    end)
  end
end)

-- cbk make-data --for bert and t5: texts as tokens, and runs that read them.

local cbk = require "cbk"
local csv = require "cstorch.utils.data.csv"
local python_lists = require "cstorch.utils.data.python_lists"
local harness = require "harness"
local tokens = require "cbk.tokens"

local describe, it, equal, has = harness.describe, harness.it, harness.equal, harness.has

local TOKENIZERS = cbk.fs.join(cbk.fs.absolute(cbk.fs.dirname(cbk.fs.dirname(debug.getinfo(1, "S").source:sub(2)))), "tokens")

local function call(dir, ...)
  local status, out, err = harness.cbk(dir, ...)
  equal({ status, err }, { 0, "" })
  return out
end

local function folder_with(texts)
  local dir = harness.temp_dir()
  for name, text in pairs(texts) do cbk.fs.write(cbk.fs.join(dir, name), text) end
  return dir
end

local function lines_of(path)
  local out = {}
  for line in io.lines(path) do out[#out + 1] = (line:gsub("\r$", "")) end
  return out
end

describe("make-data --for t5", function()
  it("writes a document in each line, in files of so many", function()
    local dir = folder_with { ["a.jsonl"] = '{"text": "ab c"}\n{"text": "d\\u00e9"}\n{"text": "x"}\n' }
    has(call(dir, "make-data", "a.jsonl", "-o", "data", "--for", "t5", "--samples-per-file", "2"), "3 records in 2 files (8 tokens of 3")
    equal(lines_of(dir .. "/data/text-00000.txt"), { "a b Ġ c", "d Ã ©" })
    equal(lines_of(dir .. "/data/meta.dat"), { "text-00000.txt 2", "text-00001.txt 1" })
    local words = lines_of(dir .. "/data/vocab.txt")
    equal({ #words, words[1], words[2], words[3], words[4], words[5 + 97] }, { 261, "<pad>", "</s>", "<unk>", "<s>", "a" })
  end)

  it("gives the tokens of a tokenizer.json, whatever the size of the text", function()
    local path = cbk.fs.join(TOKENIZERS, "gpt2.json")
    local tokenizer, sentence = tokens.open(path), "The king's son, and\194\160all."
    local dir = folder_with { ["a.txt"] = sentence:rep(9000, "\n") }
    call(dir, "make-data", "a.txt", "-o", "data", "--for", "t5", "--tokenizer", path, "-q")
    local id_of, found = {}, {}
    for i, word in ipairs(lines_of(dir .. "/data/vocab.txt")) do id_of[word] = i - 5 end
    local lines = lines_of(dir .. "/data/text-00000.txt")
    for _, line in ipairs(lines) do
      local count = 0
      for word in line:gmatch "%S+" do found[#found + 1], count = id_of[word], count + 1 end
      assert(count <= 65536)
    end
    assert(#lines > 1)
    equal(tokenizer:decode(found), sentence:rep(9000, "\n"))
  end)
end)

describe("make-data --for bert", function()
  it("writes pairs of sentences; half of them have another one behind the first", function()
    local text = {}
    for i = 1, 400 do text[i] = ('s%d is "%s" here.'):format(i, ("\\'"):rep(i % 3)) .. (i % 7 == 0 and "\n" or " ") end
    text = table.concat(text)
    local dir = folder_with { ["a.txt"] = text, ["b.txt"] = text:gsub("s", "t") }
    local args = { "make-data", "a.txt", "b.txt", "--for", "bert", "--max-seq-length", "60" }
    call(dir, args[1], "-o", "data", unpack(args, 2))
    local counts, plain = { [0] = 0, 0 }, text:gsub("%s+", " ")
    local lines = lines_of(dir .. "/data/pairs-00000.csv")
    equal(lines[1], "tokens,segment_ids,is_random_next")
    for i = 2, #lines do
      local fields = csv.fields(lines[i])
      local words, segments = python_lists.texts(fields[1]), python_lists.numbers(fields[2])
      assert(#words <= 60 and #words == #segments)
      local first = table.concat(words, ""):match "^%[CLS%](.+)%[SEP%].+%[SEP%]$"
      local split = 0
      for t = 1, #words do split = split + (segments[t] == 0 and 1 or 0) end
      equal(words[split], "[SEP]")
      local label = tonumber(fields[3])
      counts[label] = counts[label] + 1
      first = first:gsub("Ġ", " ")
      local own = first:find "[t]%d" and plain:gsub("s", "t") or plain
      assert(own:gsub(" ", ""):find((first:gsub(" ", "")), 1, true), first)
    end
    assert(counts[0] > 0.3 * (#lines - 1) and counts[1] > 0.4 * (#lines - 1), ("%d, %d"):format(counts[0], counts[1]))
    call(dir, args[1], "-o", "same", unpack(args, 2))
    equal(cbk.fs.read(dir .. "/same/pairs-00000.csv"), cbk.fs.read(dir .. "/data/pairs-00000.csv"))
    call(dir, args[1], "-o", "other", "--seed", "1", unpack(args, 2))
    assert(cbk.fs.read(dir .. "/other/pairs-00000.csv") ~= cbk.fs.read(dir .. "/data/pairs-00000.csv"))
  end)

  it("is data for a run", function()
    local dir = harness.temp_dir()
    call(dir, "make-data", "-o", "data", "--for", "bert", "--max-seq-length", "32", "-q")
    cbk.fs.write(dir .. "/params.yaml", [[
trainer:
  init:
    model_dir: run
    model: {name: bert, vocab_size: 262, hidden_size: 16, num_hidden_layers: 1, num_heads: 2, filter_size: 16, max_position_embeddings: 32,
      pooler_nonlinearity: tanh}
    optimizer: {SGD: {learning_rate: 0.01}}
    loop: {max_steps: 2}
  fit:
    train_dataloader: {data_processor: BertCSVDynamicMaskDataProcessor, data_dir: data, vocab_file: data/vocab.txt, batch_size: 4,
      max_sequence_length: 32, max_predictions_per_seq: 5}
]])
    local status, _, err = harness.cbk(dir, "train", "params.yaml")
    assert(status == 0, err)
  end)

  it("leaves nothing of what fails, and refuses options without a meaning", function()
    local dir = folder_with { ["a.txt"] = "Some text.", ["b.jsonl"] = '{"text": "a"}\n{"x": 1}\n', ["empty.txt"] = "\n" }
    local function refused(code, text, ...)
      local status, _, err = harness.cbk(dir, "make-data", "-o", "data", ...)
      equal(status, code)
      has((err:gsub("%s+", " ")), text)
      equal(#cbk.fs.list(dir), 3)
    end
    refused(1, "b.jsonl', line 2: expected a text in 'text'", "a.txt", "b.jsonl", "--for", "bert")
    refused(1, "the texts are empty", "empty.txt", "--for", "bert")
    refused(2, "--eos-token has no meaning with --for t5", "a.txt", "--for", "t5", "--eos-token", "a")
    refused(2, "--seed has no meaning with --for gpt", "a.txt", "--seed", "1")
    refused(2, "--max-seq-length of a pair of sentences is at least 5", "a.txt", "--for", "bert", "--max-seq-length", "4")
  end)
end)

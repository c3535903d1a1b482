-- cbk make-data: make token files for training from texts

local cbk = require "cbk"
local cli = require "cbk.cli"
local numbers = require "cbk.numbers"
local progress = require "cbk.progress"
local sample_files = require "cbk.tokens.sample_files"
local token_texts = require "cbk.tokens.token_texts"
local tokens = require "cbk.tokens"

local parser = cli.parser("make-data", "Make token files for training from texts, as the Model Zoo's preprocessing does.", [[
A .jsonl file has a document in each line, {"text": "…"}; another file is one document. The tokens of
all documents follow one another, each with the token that ends a text behind it, and are cut into
samples. DIR gets output_chunk_0_00000.h5 and so on: a dataset 'data', int32 [samples, 3, tokens], of
input ids, mask and labels. Labels are the tokens that come next. The mask is 0 where the last sample
is filled up. data_params.json says how they were made.

The tokenizer 'bytes' has 257 tokens: the bytes of a text, and one that ends it. A tokenizer.json of
Hugging Face can have byte pair encoding (BPE), byte-level or with byte fallback. The token that ends a
text is eos_token of the tokenizer_config.json beside it, or one of the usual names.

--for writes text files for the processors that make samples while they read: for bert pairs of sentences
(BertCSVDynamicMaskDataProcessor), for t5 a document in each line (T5DynamicDataProcessor). meta.dat lists
them, and vocab.txt is the vocabulary: special tokens, then those of the tokenizer. A sentence ends with a line,
or with a mark such as '.'; half of the pairs have another sentence of the texts behind the first one.

The same texts give the same bytes. DIR must not exist, or be empty. For a while, the tokens are in a
temporary file beside it, with 4 bytes each.

Without TEXT, it is a text that comes with cbk: two plays by Shakespeare, 317 KB.

examples:
  cbk make-data -o data --max-seq-length 128
  cbk make-data one.jsonl two.jsonl -o data --key content --tokenizer tokenizer.json
  cbk make-data text.txt -o data --for bert --max-seq-length 128]])
parser:argument("text", "a text, or a .jsonl file; may be repeated (default: two plays by Shakespeare)"):argname "TEXT":args "*"
parser:option("-o --output", "the folder to write"):argname("DIR"):count(1)
parser:option("--max-seq-length", "tokens of a sample (default: 256)"):hidden_name("--max_seq_length"):argname("N")
  :convert(cli.whole_number("--max-seq-length", 1, 24))
parser:option("--for", "the model that is trained: gpt, bert or t5 (default: gpt)"):argname("MODEL"):choices { "gpt", "bert", "t5" }
parser:option("--seed", "random seed for the pairs of --for bert (default: 0)"):argname("N"):convert(cli.whole_number("--seed", 0))
parser:option("--tokenizer", "bytes, a tokenizer.json, or its folder (default: bytes)"):argname "NAME"
parser:option("--eos-token", "the token that ends a text (default: as the tokenizer says)"):argname "TOKEN"
parser:option("--key", "the field of a .jsonl file that has the text (default: text)"):argname "KEY"
parser:option("--samples-per-file", "begin another file after N samples, or records of text files (default: 10000)"):argname("N")
  :convert(cli.whole_number("--samples-per-file", 1))
cli.options(parser, "threads", "memory", "sync", "no-progress-bar", "quiet", "json")
local args = parser:parse()

if not args.text[1] then
  args.text = { cbk.fs.join(cbk.fs.dirname(debug.getinfo(1, "S").source:sub(2)), "examples", "data", "shakespeare.txt") }
end

local tokenizer = tokens.open(args.tokenizer or "bytes")
if args.eos_token then
  local ids = tokenizer:encode(args.eos_token)
  if #ids ~= 1 then
    cli.usage_error("make-data", ("--eos-token %s: it is not one token, but %d"):format(cbk.quote(args.eos_token), #ids))
  end
  tokenizer.end_of_text = ids[1]
end
local model = args["for"] or "gpt"
if not tokenizer.end_of_text and model == "gpt" then
  cbk.fail("value", ("%s: it is unknown which token ends a text; name it with --eos-token"):format(cbk.quote(tokenizer.name)),
    { file = tokenizer.name })
end
if cbk.fs.exists(args.output) and not (cbk.fs.is_dir(args.output) and #cbk.fs.list(args.output) == 0) then
  cbk.fail("exists", ("%s exists already"):format(cbk.quote(args.output)), { file = args.output })
end

--- Of all texts, as far as they are files.
local function total_size()
  local total = 0
  for _, path in ipairs(args.text) do
    if cbk.fs.exists(path) and not cbk.fs.is_dir(path) then total = total + cbk.fs.size(path) end
  end
  return total
end

local options = { key = args.key or "text", max_seq_length = args.max_seq_length or 256,
  samples_per_file = args.samples_per_file or 10000, seed = args.seed or 0,
  progress = cli.has_progress(args) and progress.reading(total_size()) or function() end }

for name, models in pairs { eos_token = { gpt = true }, max_seq_length = { gpt = true, bert = true }, seed = { bert = true } } do
  if args[name] and not models[model] then
    cli.usage_error("make-data", ("--%s has no meaning with --for %s"):format((name:gsub("_", "-")), model))
  end
end

if model ~= "gpt" then
  if model == "bert" and options.max_seq_length < 5 then
    cli.usage_error("make-data", "--max-seq-length of a pair of sentences is at least 5: two tokens, [CLS] and two [SEP]")
  end
  local counts = token_texts.write(model, args.output, args.text, tokenizer, options)
  cli.say(args, ("%s: %s in %s (%s of %s, vocabulary of %s)"):format(cbk.shown(args.output), numbers.counted(counts.records, "record"),
    numbers.counted(counts.files, "file"), numbers.counted(counts.tokens, "token"), numbers.counted(counts.documents, "document"),
    numbers.grouped(counts.vocab_size)))
  cli.print_result(args, true, {
    { "data", args.output }, { "files", counts.files }, { "records", counts.records }, { "documents", counts.documents },
    { "tokens", counts.tokens }, { "vocab_size", counts.vocab_size },
  })
  return
end

local files = sample_files.plan(args.output, args.text, tokenizer, options)
local fine, written = pcall(cli.commit, files.outputs, args)
files:close()
if not fine then error(written, 0) end
local counts = files.counts
cli.say(args, ("%s: %s of %d tokens in %s (%s of %s, vocabulary of %s)"):format(cbk.shown(args.output),
  numbers.counted(counts.samples, "sample"), options.max_seq_length, numbers.counted(#files.outputs, "file"),
  numbers.counted(counts.tokens, "token"), numbers.counted(counts.documents, "document"), numbers.grouped(tokenizer.vocab_size)))
cli.print_result(args, written, {
  { "data", args.output }, { "files", #files.outputs }, { "samples", counts.samples }, { "max_seq_length", options.max_seq_length },
  { "documents", counts.documents }, { "tokens", counts.tokens }, { "padding", counts.padding }, { "vocab_size", tokenizer.vocab_size },
  { "eos_id", tokenizer.end_of_text },
})

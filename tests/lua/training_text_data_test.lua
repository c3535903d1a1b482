-- Data that the Model Zoo's processors make of text files while they read: BERT from CSV files, T5 from lines.

local cbk = require "cbk"
local harness = require "harness"
local masked_records = require "cstorch.utils.data.masked_records"
local masked_texts = require "cstorch.utils.data.masked_texts"
local span_texts = require "cstorch.utils.data.span_texts"
local token_files = require "cstorch.utils.data.token_files"
local training_data = require "training_data"

local describe, it, equal, has, near, raises = harness.describe, harness.it, harness.equal, harness.has, harness.near, harness.raises

local WORDS = 40 -- of the vocabularies, with five special ones

local function write_vocabulary(path, special)
  local lines = { unpack(special) }
  for i = #lines, WORDS - 1 do lines[#lines + 1] = i % 4 == 3 and "##w" .. i or "w" .. i end
  cbk.fs.write(path, table.concat(lines, "\n") .. "\n")
end

local function quoted(words) return "['" .. table.concat(words, "', '") .. "']" end

---Two files of rows; each text is w5, w6, … with another beginning.
local function write_bert(dir, rows, more)
  cbk.fs.mkdir(dir .. "/data")
  write_vocabulary(dir .. "/vocab.txt", { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]" })
  local meta = {}
  for k = 1, 2 do
    local lines = { "tokens,segment_ids,is_random_next" }
    for i = 1, rows do
      local words, segments = { "[CLS]" }, { 0 }
      for t = 1, 4 + i % 6 do
        local id = 5 + (i * 3 + k + t) % (WORDS - 5)
        words[#words + 1] = id % 4 == 3 and "##w" .. id or "W" .. id
        segments[#segments + 1] = t > 3 and 1 or 0
      end
      words[#words + 1], segments[#segments + 1] = "[SEP]", 1
      lines[#lines + 1] = ('"%s","[%s]",%d'):format(quoted(words), table.concat(segments, ", "), i % 2)
    end
    cbk.fs.write(dir .. ("/data/part-%d.csv"):format(k), table.concat(lines, "\r\n") .. "\r\n")
    meta[k] = ("part-%d.csv %d"):format(k, rows)
  end
  cbk.fs.write(dir .. "/data/meta.dat", table.concat(meta, "\n") .. "\n" .. (more or ""))
end

local function bert_source(dir, own)
  local options = { vocab_file = dir .. "/vocab.txt", max_sequence_length = 12, max_predictions_per_seq = 3, masked_lm_prob = 0.25,
    has_next_sentence = true, gather_mlm_labels = true, mask_whole_word = false, do_lower = true, oov_token = "[UNK]",
    mask_token = "[MASK]", exclude_from_masking = { "[CLS]", "[SEP]", "[PAD]", "[MASK]" }, labels_pad_id = 0, input_pad_id = 0,
    attn_mask_pad_id = 0, segment_pad_id = 0 }
  for name, value in pairs(own or {}) do options[name] = value end
  return masked_texts.source(options)
end

local function write_t5(dir, lines)
  cbk.fs.mkdir(dir .. "/data")
  write_vocabulary(dir .. "/vocab.txt", { "<pad>", "</s>", "<unk>" })
  local out = {}
  for i = 1, lines do
    local words = {}
    for t = 1, i * 7 % 40 do words[t] = "w" .. 4 * ((i + t) % 8 + 1) end
    out[i] = table.concat(words, i == 3 and "\194\160" or " ")
  end
  cbk.fs.write(dir .. "/data/text.txt", table.concat(out, "\n") .. "\n")
  cbk.fs.write(dir .. "/data/meta.dat", ("text.txt %d\n"):format(lines))
end

local function t5_source(dir, own)
  local options = { src_vocab_file = dir .. "/vocab.txt", extra_ids = 10, src_max_sequence_length = 16, tgt_max_sequence_length = 12,
    oov_token = "<unk>", sos_token = "<s>", eos_token = "</s>", pad_token = "<pad>" }
  for name, value in pairs(own or {}) do options[name] = value end
  return span_texts.source(options)
end

local function open(dir, source, more)
  local options = { data_dir = dir .. "/data", batch_size = 4, source = source }
  for name, value in pairs(more or {}) do options[name] = value end
  return token_files.open(options)
end

local function sample(files, index, epoch) return (files.samples:sample(index, epoch or 0)) end

-- --- runs

local BERT = [[
      name: bert
      vocab_size: 40
      hidden_size: 16
      num_hidden_layers: 1
      num_heads: 4
      filter_size: 24
      max_position_embeddings: 12
      pooler_nonlinearity: tanh
      dropout_rate: 0.1
]]
local T5 = [[
      name: t5
      src_vocab_size: 40
      extra_ids: 10
      d_model: 16
      d_kv: 4
      d_ff: 24
      num_heads: 4
      encoder_num_hidden_layers: 1
      relative_attention_num_buckets: 8
      src_max_position_embeddings: 16
      tgt_max_position_embeddings: 12
      dropout_rate: 0.1
]]
local DYNAMIC = [[
      data_dir: data
      vocab_file: vocab.txt
      max_sequence_length: 12
      max_predictions_per_seq: 3
      do_lower: true
      num_workers: 8
]]
local SPANS = [[
      src_data_dir: data
      src_vocab_file: vocab.txt
      extra_ids: 10
      src_max_sequence_length: 16
      tgt_max_sequence_length: 12
]]

local function write_params(dir, model, processor, loader, change)
  local text = training_data.TRAINER
  local first, last = text:find "    model:\n.-    optimizer:"
  text = text:sub(1, first - 1) .. "    model:\n" .. model .. "    optimizer:" .. text:sub(last + 1)
  text = text:gsub("GptHDF5MapDataProcessor", processor):gsub("      data_dir: data\n", loader):gsub("log_steps: 3", "log_steps: 1")
  cbk.fs.write(dir .. "/params.yaml", change and change(text) or text, { overwrite = true })
end

local function train(dir, ...)
  local status, out, err = harness.cbk(dir, "train", "params.yaml", ...)
  assert(status == 0, err)
  return out
end

---Masked rows as the Model Zoo's static preprocessing writes them.
local function write_masked(dir)
  cbk.fs.mkdir(dir .. "/data")
  local lines = { "input_ids,attention_mask,token_type_ids,masked_lm_positions,masked_lm_weights,labels,next_sentence_label" }
  for i = 1, 14 do
    local ids = {}
    for t = 1, 12 do ids[t] = (i * t) % 40 end
    lines[i + 1] = ('"[%s]","[1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]","[0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0]","[1, %d, 0]","[1.0, 1.0, 0.0]",'
      .. '"[7, %d, 0]",%d'):format(table.concat(ids, ", "), 2 + i % 5, i, i % 2)
  end
  cbk.fs.write(dir .. "/data/train.csv", table.concat(lines, "\n"))
  cbk.fs.write(dir .. "/data/meta.dat", "train.csv 14\n")
end

local RUNS = {
  { "BertCSVDynamicMaskDataProcessor", BERT, DYNAMIC, function(dir) write_bert(dir, 9) end },
  { "BertCSVDataProcessor", BERT, "      data_dir: data\n      max_sequence_length: 12\n", write_masked },
  { "T5DynamicDataProcessor", T5, SPANS, function(dir) write_t5(dir, 11) end },
}

describe("Text files as data", function()
  for _, case in ipairs(RUNS) do
    local processor, model, loader, write = unpack(case)
    it("continues bit for bit, over several epochs: " .. processor, function()
      local dir = harness.temp_dir()
      write(dir)
      write_params(dir, model, processor, loader)
      train(dir)
      local last = cbk.fs.read(dir .. "/run/checkpoint_12.mdl")
      cbk.fs.remove(dir .. "/run/checkpoint_12.mdl")
      train(dir)
      assert(cbk.fs.read(dir .. "/run/checkpoint_12.mdl") == last)
      local first, second = select(2, harness.cbk(dir, "eval", "params.yaml")), select(2, harness.cbk(dir, "eval", "params.yaml"))
      equal(first:match "Avg Eval Loss: [%d.]+", assert(second:match "Avg Eval Loss: [%d.]+"))
    end)
  end

  it("finds records of any size, in any order, with their lines", function()
    local dir = harness.temp_dir()
    cbk.fs.mkdir(dir .. "/data")
    write_vocabulary(dir .. "/vocab.txt", { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]" })
    local lines, at = { "is_random_next,more,tokens,segment_ids" }, 1
    local places = {}
    for i = 1, 60 do -- a field with an end of line, an empty line, and texts longer than what lies between places of the index
      places[i] = at + 1
      lines[#lines + 1] = ('%d,"a ""b""\n%s","[\'w%d\']",[0]'):format(i % 2, ("x"):rep(i * 100), 5 + i % 30)
      lines[#lines + 1] = ""
      at = at + 3
    end
    cbk.fs.write(dir .. "/data/a.csv", table.concat(lines, "\n"))
    cbk.fs.write(dir .. "/data/meta.dat", "a.csv 60\n")
    local files = open(dir, bert_source(dir, { max_predictions_per_seq = 1 }))
    for _, i in ipairs { 60, 1, 31, 30, 59, 2 } do
      local parts, record = files.samples:sample(i - 1, 0)
      local id = 5 + i % 30
      equal({ parts.labels[1], parts.next_sentence_label, record.line }, { id % 4 == 3 and 1 or id, i % 2, places[i] })
    end
  end)

  it("gives the same samples to any number of systems", function()
    local function losses(systems)
      local dir = harness.temp_dir()
      write_bert(dir, 9)
      write_params(dir, BERT:gsub("dropout_rate: 0.1", "dropout_rate: 0.0"), "BertCSVDynamicMaskDataProcessor", DYNAMIC, function(text)
        return training_data.changed(text, "backend_type: CSX", "backend_type: CSX\n      cluster_config: {num_csx: " .. systems .. "}")
      end)
      local out = {}
      for loss in train(dir):gmatch "Step=%d+, Loss=([%d.]+)" do out[#out + 1] = tonumber(loss) end
      return out
    end
    local one, two = losses(1), losses(2)
    equal(#one, 12)
    for i, loss in ipairs(one) do near(two[i], loss, 1e-3) end
  end)
end)

describe("BertCSVDynamicMaskDataProcessor", function()
  it("masks 80 %, replaces 10 % and leaves 10 % of the chosen words, others in each epoch", function()
    local dir = harness.temp_dir()
    write_bert(dir, 30)
    local files = open(dir, bert_source(dir))
    local counts, places, epochs, all = { masked = 0, kept = 0, other = 0 }, {}, {}, 0
    for epoch = 0, 99 do
      for index = 0, 59 do
        local parts = sample(files, index, epoch)
        local length = 0
        for _, one in ipairs(parts.attention_mask) do length = length + one end
        local wanted = math.max(1, math.floor(length * 0.25 + 0.5))
        if length == 10 then wanted = 2 end -- 2.5 is rounded to the even number
        local chosen = 0
        for i, is_chosen in ipairs(parts.masked_lm_mask) do
          if is_chosen == 1 then
            local at = parts.masked_lm_positions[i]
            local id, label = parts.input_ids[at + 1], parts.labels[i]
            assert(label >= 5 and at > 0 and at < length - 1 and (i == 1 or at > parts.masked_lm_positions[i - 1]))
            local kind = id == 4 and "masked" or id == label and "kept" or "other"
            assert(kind == "masked" or id == 1 or id >= 5)
            counts[kind], chosen, all = counts[kind] + 1, chosen + 1, all + 1
            if index == 0 then places[at] = (places[at] or 0) + 1 end
          end
        end
        equal(chosen, math.min(3, wanted))
        if index == 0 then epochs[table.concat(parts.input_ids, " ")] = true end
      end
    end
    near(counts.masked / all, 0.8, 0.015)
    near(counts.other / all, 0.1 * 35 / 36, 0.012)
    near(counts.kept / all, 0.1 + 0.1 / 36, 0.012)
    for at = 1, 5 do assert(places[at] > 15, "position " .. at) end
    local found = 0
    for _ in pairs(epochs) do found = found + 1 end
    assert(found > 5)
    equal(sample(files, 7, 3), sample(open(dir, bert_source(dir)), 7, 3))
    local seeded, is_other = open(dir, bert_source(dir), { shuffle_seed = 1 }), false
    for i = 0, 9 do
      is_other = is_other or table.concat(sample(seeded, i).input_ids, " ") ~= table.concat(sample(files, i).input_ids, " ")
    end
    assert(is_other)
  end)

  it("masks whole words, and labels all positions if asked to", function()
    local dir = harness.temp_dir()
    write_bert(dir, 30)
    local source = bert_source(dir,
      { mask_whole_word = true, gather_mlm_labels = false, labels_pad_id = -100, max_predictions_per_seq = 5 })
    local plain = bert_source(dir, { max_predictions_per_seq = 12, masked_lm_prob = 1.0, gather_mlm_labels = false })
    local files, whole = open(dir, source), open(dir, plain)
    for index = 0, 59 do
      local parts, ids = sample(files, index), sample(whole, index).labels
      for t = 2, 12 do
        local is_inner = ids[t] > 4 and ids[t] % 4 == 3 and ids[t - 1] > 4
        equal(parts.labels[t] ~= -100, parts.masked_lm_mask[t] == 1)
        if is_inner then equal(parts.masked_lm_mask[t], parts.masked_lm_mask[t - 1]) end
      end
    end
  end)

  it("names the file and the line of what is wrong", function()
    local function refused(text, row, own, options)
      local dir = harness.temp_dir()
      write_bert(dir, 3)
      cbk.fs.write(dir .. "/data/part-1.csv", "tokens,segment_ids,is_random_next\n\"['w5']\",[0],1\n" .. row, { overwrite = true })
      cbk.fs.write(dir .. "/data/meta.dat", "part-1.csv 2\n", { overwrite = true })
      raises(text, function()
        local files = open(dir, bert_source(dir, own), { batch_size = 2, limits = options })
        files:iter()()
      end)
    end
    refused("part-1.csv', line 3: 'tokens' is not a list of texts", '"[w5]",[0],1\n')
    refused("part-1.csv', line 3: 'segment_ids' is not a list of at most 12 numbers", "\"['w5']\",[x],1\n")
    refused("part-1.csv', line 3: 'is_random_next' is not a number", "\"['w5']\",[0],yes\n")
    refused("part-1.csv', line 3: expected 3 fields, as in the file's first line, found 2", "\"['w5']\",[0]\n")
    refused("part-1.csv', line 3: a quote is not closed", "\"['w5'],[0],1\n")
    refused("part-1.csv' has 1 records, but", "")
    refused("part-1.csv', line 3: it has 4 tokens, more than max_sequence_length, 3", "\"['a', 'b', 'c', 'd']\",[0],1\n",
      { max_sequence_length = 3 })
    refused("part-1.csv', line 3: 9 in token_type_ids, expected a number from 0 to 1", "\"['w5']\",[9],1\n", nil, { token_type_ids = 2 })
    refused("vocab.txt' has no line '[nothing]' (mask_token)", "", { mask_token = "[NOTHING]" })
    refused("vocab.txt' has no line '[nothing]', the token for unknown words", "", { oov_token = "[NOTHING]" })
    local dir = harness.temp_dir()
    write_bert(dir, 3, "part-3.csv 4\n")
    raises("meta.dat', line 3: there is no file", function() open(dir, bert_source(dir)) end)
    local listed = cbk.fs.read(dir .. "/data/meta.dat")
    for _, name in ipairs { "../vocab.txt", "/etc/passwd", "a/../../vocab.txt" } do
      cbk.fs.write(dir .. "/data/meta.dat", "\n" .. name .. " 1\n", { overwrite = true })
      raises("meta.dat', line 2: the file '" .. name .. "' is not in the folder", function() open(dir, bert_source(dir)) end)
    end
    cbk.fs.write(dir .. "/data/meta.dat", listed, { overwrite = true })
    local all = {}
    for word in io.lines(dir .. "/vocab.txt") do all[#all + 1] = word end
    raises("exclude_from_masking has all 40 tokens of", function() bert_source(dir, { exclude_from_masking = all }) end)
    write_params(dir, BERT, "BertCSVDynamicMaskDataProcessor", DYNAMIC)
    local _, _, err = harness.cbk(dir, "train", "params.yaml")
    has(err, "'params.yaml', line ")
    cbk.fs.write(dir .. "/data/meta.dat", "part-1.csv 1\n", { overwrite = true })
    cbk.fs.write(dir .. "/data/part-1.csv", ("\128\19wz,\0"):rep(40), { overwrite = true })
    raises("part-1.csv', line 1: expected the names of columns, with 'tokens', 'segment_ids', 'is_random_next'; found ", function()
      open(dir, bert_source(dir))
    end)
    raises("data_dir: there is no folder", function() open(dir, bert_source(dir), { data_dir = dir .. "/none" }) end)
    write_params(dir, BERT:gsub("vocab_size: 40", "vocab_size: 39"), "BertCSVDynamicMaskDataProcessor", DYNAMIC)
    _, _, err = harness.cbk(dir, "train", "params.yaml")
    has(err, "train_dataloader.vocab_file: the vocabulary has 40 ids, more than that of the model, 39")
    equal(select(2, err:gsub("params.yaml'", "")), 1, err) -- the file is named once
    equal(cbk.fs.exists(dir .. "/run"), false)
    cbk.fs.remove(dir .. "/data/meta.dat")
    raises("has no meta.dat", function() open(dir, bert_source(dir)) end)
    write_params(dir, BERT, "BertCSVDynamicMaskDataProcessor", DYNAMIC .. "      max_predictions_per_sequence: 2\n")
    _, _, err = harness.cbk(dir, "train", "params.yaml")
    has(err, "did you mean 'max_predictions_per_seq'?")
    write_params(dir, BERT, "BertCSVDynamicMaskDataProcessor", (DYNAMIC:gsub("      vocab_file: vocab.txt\n", "")))
    _, _, err = harness.cbk(dir, "train", "params.yaml")
    has(err, "it has no 'vocab_file'")
  end)
end)

describe("BertCSVDataProcessor", function()
  it("reads what the files say", function()
    local dir = harness.temp_dir()
    write_masked(dir)
    local batch = open(dir, masked_records.source { has_next_sentence = true }, { batch_size = 14 }):iter()()
    equal(batch.input_ids:shape(), { 14, 12 })
    equal(batch.masked_lm_positions:select(0, 2):tolist(), { 1, 5, 0 })
    equal(batch.masked_lm_mask:select(0, 2):tolist(), { 1, 1, 0 })
    equal(batch.labels:select(0, 2):tolist(), { 7, 3, 0 })
    equal(batch.next_sentence_label:tolist(), { 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0 })
    equal(open(dir, masked_records.source { has_next_sentence = false }):iter()().token_type_ids, nil)
    local text = cbk.fs.read(dir .. "/data/train.csv")
    cbk.fs.write(dir .. "/data/train.csv", (text:gsub('"%[7, 3, 0%]"', '"[7, 3]"')), { overwrite = true })
    raises("train.csv', line 4: labels has 2 numbers, but 3 in an earlier record", function()
      open(dir, masked_records.source { has_next_sentence = true }):iter()()
    end)
  end)
end)

describe("BertCSVDataProcessor and HDF5IterableDataProcessor", function()
  it("train the same model on the same samples", function()
    local weights = {}
    for i, processor in ipairs { "BertCSVDataProcessor", "HDF5IterableDataProcessor" } do
      local dir = harness.temp_dir()
      write_masked(dir)
      local batch = open(dir, masked_records.source { has_next_sentence = true }, { batch_size = 14 }):iter()()
      local root = {}
      for part, tensor in pairs(batch) do root[part] = cbk.tensor(tensor:tolist(), { dtype = "int32" }) end
      cbk.create(dir .. "/data/data.h5", { h5_version = "flat", root = root }):commit()
      write_params(dir, BERT, processor, "      data_dir: data\n")
      train(dir)
      weights[i] = dir .. "/run/checkpoint_12.mdl"
    end
    local status, out = harness.cbk(harness.temp_dir(), "diff", weights[1], weights[2], "--key", "model.*")
    assert(status == 0, out)
  end)
end)

describe("T5DynamicDataProcessor", function()
  it("cuts texts to the lengths of T5", function()
    equal({ span_texts.lengths(512) }, { 568, 114 })
    equal({ span_texts.lengths(16) }, { 16, 4 })
  end)

  it("puts what is in the gaps into the target, with a mark for each", function()
    local dir = harness.temp_dir()
    write_t5(dir, 30)
    local files, plain = open(dir, t5_source(dir)), {}
    local length = span_texts.lengths(16)
    for line in io.lines(dir .. "/data/text.txt") do
      line = line:gsub("\194\160", " ")
      local words = {}
      for word in line:gmatch "%S+" do
        words[#words + 1] = tonumber(word:sub(2))
        if #words == length then
          plain[#plain + 1] = table.concat(words, " ")
          words = {}
        end
      end
      if words[1] then plain[#plain + 1] = table.concat(words, " ") end
    end
    equal(files.samples.count, #plain)
    local starts = {}
    for index, text in ipairs(plain) do
      local parts = sample(files, index - 1, index % 3)
      equal({ #parts.input_ids, #parts.labels, #parts.decoder_input_ids, parts.decoder_input_ids[1] }, { 16, 12, 12, 2 })
      local out, at, inner = {}, 1, {} -- inner: what follows each mark of the target
      for i, id in ipairs(parts.labels) do
        local is_next = parts.decoder_attention_mask[i + 1] == 1
        if is_next then equal(parts.decoder_input_ids[i + 1], id) end
        if is_next and id >= 40 then
          inner[#inner + 1] = {}
          equal(id, 50 - #inner)
        elseif is_next then
          table.insert(inner[#inner], id)
        elseif parts.decoder_attention_mask[i] == 1 then
          equal(id, 1)
        end
      end
      for i, id in ipairs(parts.input_ids) do
        if parts.attention_mask[i] == 1 and id >= 40 then
          equal(id, 50 - at)
          for _, one in ipairs(inner[at] or {}) do out[#out + 1] = one end
          at = at + 1
          starts[i] = true
        elseif parts.attention_mask[i] == 1 then
          out[#out + 1] = id
        end
      end
      equal(table.concat(out, " "), text)
    end
    assert(starts[2] and starts[5] and starts[9])
  end)

  it("takes a part of a long document, and other parts in other epochs", function()
    local dir = harness.temp_dir()
    write_t5(dir, 1)
    local words = {}
    for i = 1, 65536 * 2 + 100 do words[i] = i <= 65536 and "w4" or "w8" end
    cbk.fs.write(dir .. "/data/text.txt", table.concat(words, " ") .. "\n\nw4 w8\n", { overwrite = true })
    cbk.fs.write(dir .. "/data/meta.dat", "text.txt 3\n", { overwrite = true })
    local length = span_texts.lengths(16)
    local files = open(dir, t5_source(dir))
    equal(files.samples.count, math.ceil(65536 / length) + 1)
    local found = {}
    for epoch = 0, 9 do found[sample(files, 5, epoch).input_ids[1]] = true end
    equal(found, { [4] = true, [8] = true })
  end)

  it("names fields that do not fit the model", function()
    local dir = harness.temp_dir()
    write_t5(dir, 11)
    local function refused(old, new, text)
      write_params(dir, T5, "T5DynamicDataProcessor", (SPANS:gsub(old, new)))
      local _, _, err = harness.cbk(dir, "train", "params.yaml")
      has(err, text)
    end
    refused("src_max_sequence_length: 16", "src_max_sequence_length: 20",
      "src_max_sequence_length: 20, but the model has src_max_position_embeddings=16")
    refused("extra_ids: 10", "extra_ids: 30", "src_vocab_file: the vocabulary has 70 ids, more than that of the model, 50")
    refused("extra_ids: 10", "extra_ids: 10\n      pack_sequences: true", "pack_sequences: expected false, found true")
    refused("src_data_dir: data", "data_dir: data", "unknown field; known: batch_size, ")
  end)
end)

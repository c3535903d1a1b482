-- What `cbk help json` says of the results is what the commands print.

local cbk = require "cbk"
local commands = require "cbk.commands"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"
local training_data = require "training_data"

local describe, it, equal = harness.describe, harness.it, harness.equal
local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""

---@class Documented
---@field is_list boolean
---@field fields table<string, true|table<string, true>>   with the fields of the objects in a list

---The fields of a line: "as copy, and config, steps (title, lines). More words"
local function fields_of(line, known)
  local like = known[line:match "^as ([%w-]+)" or ""] or { fields = {} }
  local out = { is_list = like.is_list or line:find "^a list of " ~= nil, fields = {} }
  for name, value in pairs(like.fields) do out.fields[name] = value end
  line = line:gsub("^as [%w-]+", ""):gsub("^, and ", ""):gsub("^a list of ", ""):match "^[^.]*"
  for name, parts in line:gmatch "([%w_]+)%s*(%b())" do
    out.fields[name] = {}
    for part in parts:gmatch "[%w_]+" do out.fields[name][part] = true end
  end
  for name in line:gsub("%b()", ""):gmatch "[%w_]+" do out.fields[name] = out.fields[name] or true end
  return out
end

---@return table<string, Documented>
local function documented()
  local out, section = {}, nil
  for line in cbk.fs.read(here .. "scripts/help/json.md"):gmatch "[^\n]+" do
    section = line:match "^Commands that (%a+)" or not line:find "^examples" and section or nil
    local name, rest = line:match "^  (%S[%S ]-)  +(.*)$"
    if section and name then
      out[name] = fields_of(rest, out)
      local is_dry = (name:find "%-%-dry%-run$" or name:find "%-only$") and not rest:find "^as "
      if section == "write" and not (out[name].is_list or is_dry) then out[name].fields.written = true end
    end
  end
  return out
end

---Fails for fields that are not documented; returns those that were printed.
local function printed(name, doc, result)
  local seen = {}
  for _, object in ipairs(doc.is_list and result or { result }) do
    for field, value in pairs(object) do
      local parts = doc.fields[field] or error(("%s prints '%s', which is not documented"):format(name, field))
      seen[field] = true
      local objects = type(parts) == "table" and (value[1] and value or { value }) or {}
      for _, inner in ipairs(objects) do
        for part in pairs(inner) do assert(parts[part], ("%s prints '%s.%s', which is not documented"):format(name, field, part)) end
      end
    end
  end
  return seen
end

---A folder with inputs of every command.
local function make_inputs()
  local dir = harness.temp_dir()
  local function create(name, root, options)
    options = options or {}
    options.root = cbk.dict(root)
    cbk.create(cbk.fs.join(dir, name), options):commit()
  end
  local tied, other = cbk.tensor { 1e10, 2 }, cbk.tensor { 1, 2 }
  create("a.pt", { { "w", tied }, { "v", tied }, { "n", other }, { "note", "text" }, { "lr", 0.5 } })
  create("b.pt", { { "w", other }, { "v", tied:slice(0, 0, 1) }, { "more", other } })
  for step = 1, 2 do
    create(("run/step_%d.pt"):format(step), { { "model", cbk.dict { w = cbk.full({ 2, step }, 1), v = cbk.full({ 2 }, step) } },
      { "grad_scaler", cbk.dict { scale = cbk.float(2) } } })
  end
  cbk.fs.write(cbk.fs.join(dir, "run/step_3.pt"), "no checkpoint")
  create("m.ckpt", { w = tied }, { format = "tensorflow" })
  create("m.h5", { w = tied })
  create("zero.pt", { { "w", cbk.full({ 2, 2 }, 0) } })
  create("old.mdl", { model = cbk.dict { w = tied }, global_step = 5 }, { h5_version = "0.4" })
  local linear = "model.transformer_decoder.layers.0.ffn.ffn.1.linear_layer."
  create("lora.mdl", { model = cbk.dict { [linear .. "weight"] = cbk.full({ 2, 3 }, 1), [linear .. "lora_A"] = cbk.full({ 1, 3 }, 1),
    [linear .. "lora_B"] = cbk.full({ 2, 1 }, 1) } })
  cbk.config.save(cbk.dict { model = cbk.dict { hidden_size = 2, lora_params = cbk.dict { r = 1 } } }, dir .. "/lora.yaml")
  cbk.config.save(cbk.dict { model = cbk.dict { hidden_size = 512, num_hidden_layers = 2, num_heads = 8, vocab_size = 16,
    max_position_embeddings = 8, filter_size = 2048, dropout_rate = cbk.float(0), share_embedding_weights = true },
    optimizer = cbk.dict { optimizer_type = "AdamW", learning_rate = cbk.list { cbk.dict { scheduler = "Linear",
    initial_learning_rate = cbk.float(0), end_learning_rate = 0.01, total_iters = 10 } } } }, dir .. "/gpt2.yaml")
  training_data.write(dir .. "/data", 12, training_data.LENGTH, training_data.WORDS)
  cbk.fs.write(dir .. "/train.yaml", training_data.changed(training_data.TRAINER, "model_dir: run", "model_dir: trained"))
  cbk.fs.write(dir .. "/merge.yml", "merge_method: linear\nmodels: [{model: hf.safetensors, parameters: {weight: 1}}]\n")
  cbk.fs.write(dir .. "/data_iter_checkpoint_state_file_global", "1")
  local config, root = tiny.model(tiny.newest_ways().llama)
  cbk.config.save(config, dir .. "/config.json")
  create("hf.safetensors", root)
  local tuned = cbk.copy(root)
  tuned["model.layers.0.mlp.up_proj.weight"] = root["model.layers.0.mlp.up_proj.weight"] + 1
  create("tuned.safetensors", tuned)
  conversion.warnings(function() config, root = conversion.run("gpt2", "hf", "cs-2.1", tiny.model(tiny.newest_ways().gpt2)) end)
  cbk.config.save(config, dir .. "/old.yaml")
  create("gpt2.mdl", root)
  equal((harness.cbk(dir, "copy", "a.pt", "proven.mdl", "--provenance")), 0)
  equal((harness.cbk(dir, "copy", "a.pt", "planned.pt", "--plan", "job")), 0)
  equal((harness.cbk(dir, "work", "job", "--part", "1/2")), 0)
  return dir
end

local convert = { "convert", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", "config.json", "hf.safetensors" }
local function with(words, ...)
  local out = { unpack(words) }
  for _, word in ipairs { ... } do out[#out + 1] = word end
  return out
end

-- By the documented name, in an order in which each finds what it reads.
local calls = {
  { "copy", { "copy", "a.pt", "half.pt", "--to-dtype", "float16", "--allow-overflow" } },
  { "export", { "export", "a.pt", "w", "-o", "w.npy" } },
  { "import", { "import", "w.npy", "-o", "w.pt" } },
  { "convert --dry-run", with(convert, "--dry-run") },
  { "convert --explain", with(convert, "--explain", "lm_head.weight") },
  { "convert", convert },
  { "upgrade", { "upgrade", "--model", "gpt2", "--config", "old.yaml", "gpt2.mdl", "--to", "cs-2.4", "--yes" } },
  { "merge", { "merge", "merge.yml", "-o", "merged" } },
  { "extract-lora", { "extract-lora", "hf.safetensors", "tuned.safetensors", "-o", "adapter", "--rank", "1" } },
  { "fold-lora-checkpoint", { "fold-lora-checkpoint", "--model", "gpt2", "-p", "lora.yaml", "--checkpoint_path", "lora.mdl" } },
  { "tensorflow-to-h5", { "tensorflow-to-h5", "m.ckpt", "new.h5" } },
  { "h5-to-tensorflow", { "h5-to-tensorflow", "m.h5", "new.ckpt" } },
  { "data-iter-state-conversion", { "data-iter-state-conversion", "-c", "b.pt", "-w", ".", "-o", "map.mdl", "-s", "5" } },
  { "make-data", { "make-data", "merge.yml", "-o", "token_files" } },
  { "train", { "train", "train.yaml", "--max-steps", "5" } },
  { "train --validate-only", { "train", "train.yaml", "--validate-only" } },
  { "train --dry-run", { "train", "train.yaml", "--dry-run" } },
  { "eval", { "eval", "train.yaml", "--steps", "1" } },
  { "generate", { "generate", "trained/checkpoint_5.mdl", "--ids", "1,2", "--max-tokens", "3" } },
  { "schedule", { "schedule", "train.yaml" } },
  { "fix-checkpoint-spec", { "fix-checkpoint-spec", "old.mdl" } },
  { "convert-config", { "convert-config", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "config.json", "-o", "configs" } },
  { "convert-config-to-mup", { "convert-config-to-mup", "-i", "gpt2.yaml" } },
  { "ls", { "ls", "proven.mdl" } },
  { "show", { "show", "a.pt", "*" } },
  { "stats", { "stats", "a.pt" } },
  { "report", { "report", "a.pt" } },
  { "plot", { "plot", "a.pt", "w" } },
  { "plot --heat-map", { "plot", "a.pt", "w", "--heat-map" } },
  { "plot --by-layer", { "plot", "hf.safetensors", "*", "--by-layer" } },
  { "check", { "check", "hf.safetensors", "zero.pt" }, 1 },
  { "show --dataloader", { "show", "--dataloader", "map.mdl" } },
  { "diff", { "diff", "a.pt", "b.pt" }, 1 },
  { "diff --logits", { "diff", "hf.safetensors", "hf.safetensors", "--logits" } },
  { "watch", { "watch", "run", "--once", "--interval", "0.05" }, 1 },
  { "new", { "new", "config.json", "-o", "new.safetensors" } },
  { "identify", { "identify", "new.safetensors" } },
  { "params", { "params", "config.json" } },
  { "list", { "list", "gpt2" } }, { "list-converters", { "list-converters", "gpt2" } },
  { "infer", { "infer", "a.pt", "b.pt", "-o", "mine.lua" }, 1 },
  { "rules", { "rules", "llama", "hf.safetensors", "--config", "config.json", "--logits" } },
  { "status", { "status", "job" } },
  { "verify", { "verify", "proven.mdl" } },
  { "help", { "help" } },
}
-- Where a command reads, a field may be absent: of these there is none here.
local absent = {
  ls = { "encoding", "quantised", "method", "weights", "has_scales", "weight", "name" },
  check = { "quantised" }, -- of GGUF and FP8
  stats = { "encoding" },
  show = { "encoding", "problem", "text", "codes", "method", "tied_to_count", "shares_storage_with_count" },
  ["show --dataloader"] = { "tasks" },
  ["convert --dry-run"] = { "lost" }, diff = { "through", "config", "not_compared" }, new = { "lost" }, params = { "tied_to", "optional" },
}

local has_no_json = { complete = true, demo = true, repl = true, work = true, finish = true, serve = true }
-- work and finish print what was planned; serve has replies

describe("cbk help json", function()
  it("names every command with --json, and every field that it prints", function()
    local dir, known, called = make_inputs(), documented(), { dump = true }
    for _, call in ipairs(calls) do
      local name, words, status = unpack(call)
      local code, out, err = harness.cbk(dir, unpack(with(words, "--json")))
      equal(code, status or 0, name .. ": " .. err)
      local doc = known[name] or error(name .. " is not documented")
      if name == "watch" or name == "train" then out = ("[%s]"):format((out:gsub("\n$", ""):gsub("\n", ","))) end -- an object a line
      local seen = printed(name, doc, cbk.totable(cbk.config.parse(out, "json")))
      for _, field in ipairs(absent[name] or {}) do seen[field] = true end
      for field in pairs(doc.fields) do assert(seen[field], ("%s does not print '%s'"):format(name, field)) end
      called[name], called[words[1]] = true, true
    end
    for name in pairs(known) do assert(called[name], name .. " is documented, but not checked here") end
    for name in pairs(commands) do
      assert(called[name] or has_no_json[name], name .. " is not checked here")
    end
  end)
end)

-- What `cbk identify` finds, what `cbk convert` finds by itself, and what `cbk new` and `cbk params` take a config for.

local cbk = require "cbk"
local classes = require "cbk.classes"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local tiny = require "tiny"

local catalogue = converters.catalogue
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local has = harness.has

---Runs `cbk` in a folder, which must succeed; its output.
local function runs(dir, ...)
  local code, out, err = harness.cbk(dir, ...)
  if code ~= 0 then error(("cbk %s: %d\n%s%s"):format(table.concat({ ... }, " "), code, out, err), 2) end
  return out, err
end

---Runs `cbk` in a folder, which must fail with a message.
local function refuses(dir, message, ...)
  harness.checked()
  local code, out, err = harness.cbk(dir, ...)
  if code == 0 then error(("cbk %s succeeded\n%s"):format(table.concat({ ... }, " "), out), 2) end
  if not err:find(message, 1, true) then error(("no %q in\n%s"):format(message, err), 2) end
end

local function identified(dir, ...)
  local _, out, err = harness.cbk(dir, "identify", "--json", ...)
  if out == "" then error(err, 2) end
  return cbk.totable(cbk.config.parse(out, "json"))
end

---Runs the command that identify gives.
local function follow(dir, found)
  local words = {}
  is_true(type(found.command) == "string", "command")
  for word in found.command:gsub("^cbk ", ""):gmatch "%S+" do words[#words + 1] = word end
  return runs(dir, unpack(words))
end

local function why(found) return table.concat(found.why, "\n") end

local gpt2 = cbk.dict { { "model_type", "gpt2" }, { "vocab_size", 50 }, { "n_embd", 8 }, { "n_head", 2 }, { "n_layer", 1 },
  { "n_positions", 16 } }
local llama = cbk.dict { { "model_type", "llama" }, { "vocab_size", 50 }, { "hidden_size", 8 }, { "num_attention_heads", 2 },
  { "num_hidden_layers", 1 }, { "intermediate_size", 16 } }

---A folder with the checkpoint `m.safetensors` of a config and `config.json`.
local function hf_folder(config, said)
  local dir = harness.temp_dir()
  cbk.create(dir .. "/m.safetensors", { root = classes.new(config, config.model_type, "hf") }):commit { progress = false }
  cbk.config.save(said or config, dir .. "/config.json")
  return dir
end

---A folder with `a.mdl` and `a.yaml` of a release.
---@param change? fun(config: Dict, root: Dict)
local function zoo_folder(config, model, format, change)
  local dir = harness.temp_dir()
  local zoo, root
  conversion.warnings(function() zoo, root = conversion.run(model, "hf", format, config, classes.new(config, model, "hf")) end)
  if change then change(zoo, root) end
  cbk.config.save(zoo, dir .. "/a.yaml")
  local version = converters.h5_version(format:sub(4))
  cbk.create(dir .. "/a.mdl", { root = root, h5_version = version, framework_version = format:sub(4) .. ".0" })
    :commit { progress = false }
  return dir
end

local function rename(dir, from, to) assert(os.rename(dir .. "/" .. from, dir .. "/" .. to)) end

local function nameless(config)
  local model = config.model or config.trainer.init.model
  model.name = nil
end

---Removes the model's name, and the metadata with the release.
local function bare(config, root)
  nameless(config)
  root.__metadata__ = nil
end

describe("cbk identify: models of one class", function()
  it("the one whose table takes the config", function()
    local roberta = cbk.dict { { "model_type", "roberta" }, { "vocab_size", 50 }, { "hidden_size", 8 }, { "num_hidden_layers", 1 },
      { "num_attention_heads", 2 }, { "intermediate_size", 16 }, { "max_position_embeddings", 18 }, { "type_vocab_size", 1 },
      { "pad_token_id", 1 } }
    local dir = zoo_folder(roberta, "roberta", "cs-2.5", function(_, root) root.__metadata__ = nil end)
    local found = identified(dir, "a.mdl")
    equal(found.model, "roberta", why(found))
    local code, stdout, stderr = harness.cbk(dir, "convert", "a.mdl", "--src-fmt", "cs-2.5", "--to", "hf")
    equal(code, 0, stderr .. stdout)
  end)

  it("all that fit, where neither tensors nor config tell them apart", function()
    local head = cbk.dict { { "model_type", "bert" }, { "vocab_size", 50 }, { "hidden_size", 8 }, { "num_hidden_layers", 1 },
      { "num_attention_heads", 2 }, { "intermediate_size", 16 }, { "num_labels", 2 } }
    local sequences = cbk.copy(head)
    sequences.problem_type = "single_label_classification"
    local gptj = cbk.dict { { "model_type", "gptj" }, { "vocab_size", 50 }, { "n_embd", 16 }, { "n_head", 4 }, { "n_layer", 1 },
      { "rotary_dim", 4 }, { "n_positions", 16 } }
    local function as_in_1_6(config, root) -- its steps leave a pooler that Hugging Face does not have
      bare(config, root)
      config.model.pooler_nonlinearity = "gelu"
    end
    for _, case in ipairs {
      { sequences, "bert-sequence-classifier", {}, bare }, { sequences, "bert-sequence-classifier", {}, as_in_1_6 },
      { head, "bert-token-classifier", {}, bare }, { head, "bert-qa", { "bert-summarization" }, bare },
      { gptj, "gptj", { "codegen" }, bare },
    } do
      local config, model, others, change = unpack(case)
      local dir = zoo_folder(config, model, "cs-2.0", change)
      local found = identified(dir, "a.mdl")
      equal({ found.model, found.others or {} }, { model, others }, why(found))
      if #others > 0 then
        local message = ("%s or %s fit; name it with --model"):format(model, others[1])
        refuses(dir, message, "convert", "a.mdl", "--src-fmt", "cs-2.0", "--to", "hf")
      end
    end
  end)

  it("the plain one before variants of its class, where there is no config", function()
    local hf, zoo = hf_folder(gpt2), zoo_folder(gpt2, "gpt2", "cs-2.5", bare)
    os.remove(hf .. "/config.json")
    os.remove(zoo .. "/a.yaml")
    for _, case in ipairs { { hf, "m.safetensors", "btlm" }, { zoo, "a.mdl", "mpt" } } do
      local dir, file, variant = unpack(case)
      local found = identified(dir, file)
      equal(found.model, "gpt2", why(found))
      has(table.concat(found.others, " "), variant)
    end
  end)
end)

describe("cbk identify without a config", function()
  it("looks into each dict that holds the weights", function()
    for _, place in ipairs { "model", "state_dict", "module", "model.module", "state.model" } do
      local dir, root = harness.temp_dir(), classes.new(llama, "llama", "hf")
      for name in place:gmatch("[^.]+") do root = cbk.dict { { name, root } } end
      if place == "model" then root.step = 3 end
      cbk.create(dir .. "/m.pt", { root = root }):commit { progress = false }
      local found = identified(dir, "m.pt")
      equal({ found.model, found.format }, { "llama", "hf" }, place .. why(found))
      is_true(not why(found):find "at the top level", why(found))
    end
  end)

  it("reads no YAML of another name for a dict 'model' with Hugging Face's names", function()
    local dir = zoo_folder(llama, "llama", "cs-2.2")
    local root = cbk.dict { { "model", classes.new(llama, "llama", "hf") } }
    cbk.create(dir .. "/m.pt", { root = root }):commit { progress = false }
    os.remove(dir .. "/a.mdl")
    local found = identified(dir, "m.pt")
    equal({ found.model, found.format, found.config }, { "llama", "hf", cbk.null }, why(found))
    has(why(found), "a.yaml' is not read, as the tensors have the names of Hugging Face's files; --config reads it")
    local out = select(2, harness.cbk(dir, "identify", "m.pt", "--config", "a.yaml"))
    is_true(not out:find("(or", 1, true), out) -- releases are no layouts of one's own
  end)

  it("does not ask for a YAML config where nothing says that a file is one of the Model Zoo", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/m.pt", { root = cbk.dict { { "model", cbk.dict { { "a.b", cbk.tensor { 1 } } } } } }):commit { progress = false }
    local found = identified(dir, "m.pt")
    equal({ found.model, why(found) }, { cbk.null, "no model has these tensor names and there is no config beside it" })
  end)

  it("names all releases that fit, or says why it is one", function()
    local dir = zoo_folder(llama, "llama", "cs-2.5", bare)
    os.remove(dir .. "/a.yaml")
    local root = cbk.open(dir .. "/a.mdl").root
    cbk.create(dir .. "/m.pt", { root = cbk.dict { { "model", root.model } } }):commit { progress = false }
    local found = identified(dir, "m.pt")
    equal({ found.format, found.last_format, found.release }, { "cs-2.0", "cs-2.9", cbk.null }, why(found))
    has(why(found), "the releases 2.0 to 2.9 have these tensor names, and nothing says which one wrote them")
    has(runs(dir, "identify", "m.pt"), "format   cs-2.0 … cs-2.9\n")
    cbk.create(dir .. "/old.mdl", { root = cbk.dict { { "model", root.model } }, h5_version = "0.4" }):commit { progress = false }
    found = identified(dir, "old.mdl")
    equal({ found.format, found.last_format }, { "cs-2.0", cbk.null }, why(found))
    has(why(found), "H5 format 0.4 without a release: up to 2.0 (usually)")
    has(why(found), "of the releases that are possible, 2.0 alone has these tensor names")
  end)
end)

describe("cbk new and cbk params", function()
  it("the dtype of transformers 4 and 5", function()
    for _, field in ipairs { "torch_dtype", "dtype" } do
      local config = cbk.copy(llama)
      config[field] = "bfloat16"
      equal(classes.new(config, "llama", "hf")["model.norm.weight"].dtype, "bfloat16", field)
    end
  end)

  it("not the body alone, where the config names the class with a head of its own", function()
    for name, base in pairs { gpt2 = gpt2, llama = llama } do
      for _, is_tied in ipairs { true, false } do
        local dir, config = harness.temp_dir(), cbk.copy(base)
        config.tie_word_embeddings = is_tied
        config.architectures = cbk.list { name == "gpt2" and "GPT2LMHeadModel" or "LlamaForCausalLM" }
        cbk.create(dir .. "/m.safetensors", { root = classes.new(config, name .. "-headless", "hf") }):commit { progress = false }
        cbk.config.save(config, dir .. "/config.json")
        if is_tied then
          equal(identified(dir, dir).model, name .. "-headless")
          runs(dir, "convert", "m.safetensors", "--to", "cs-2.5", "-o", "out")
        else
          refuses(dir, "lm_head.weight is missing; use a complete checkpoint; --model " .. name .. "-headless begins a new head",
            "convert", "m.safetensors", "--to", "cs-2.5", "-o", "out")
          equal(harness.cbk(dir, "check", "."), 1)
          runs(dir, "convert", "m.safetensors", "--to", "cs-2.5", "-o", "out", "--model", name .. "-headless")
        end
      end
    end
  end)

  it("takes a folder that was written by a conversion", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/config.json", [[{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 9, "hidden_size": 8,
      "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}]])
    local function run(...)
      local code, stdout, stderr = harness.cbk(dir, ...)
      equal(code, 0, stderr .. stdout)
    end
    run("new", "config.json", "-o", "model.safetensors")
    run("convert", ".", "--to", "cs-2.4", "-o", "out")
    run("identify", "out")
    run("convert", "out", "--to", "hf", "-o", "back")
  end)

  it("refuse a format or a model that the config contradicts", function()
    local dir = harness.temp_dir()
    cbk.config.save(gpt2, dir .. "/config.json")
    cbk.config.save(cbk.dict { model = cbk.dict { name = "gpt2", hidden_size = 8, num_heads = 2 } }, dir .. "/p.yaml")
    for _, command in ipairs { { "params" }, { "new", "-o", "x.mdl" } } do
      local function refused(message, ...)
        local words = { unpack(command) }
        for _, word in ipairs { ... } do words[#words + 1] = word end
        refuses(dir, message, unpack(words))
      end
      refused("this is a config of Hugging Face, but --src-fmt is cs-2.4; use --src-fmt hf", "config.json", "--format", "cs-2.4")
      refused("this is a config of the Model Zoo, but --src-fmt is hf; use --src-fmt cs-X.Y",
        "p.yaml", "--format", "hf", "--model", "llama")
      refused("this config is for gpt2 (model_type='gpt2'), not for bloom; use --model gpt2", "config.json", "--model", "bloom")
      refused("this config is for gpt2 (name='gpt2'), not for gptj; use --model gpt2", "p.yaml", "--model", "gptj", "--format",
        "cs-2.4")
    end
    cbk.config.save(conversion.with(gpt2, { vocab_size = 2 ^ 50 }), dir .. "/wide.json")
    refuses(dir, "the config describes 9.01e+15 parameters, more than any file can hold; check its sizes", "params", "wide.json")
    runs(dir, "params", "config.json", "--model", "gpt2-headless")
    runs(dir, "params", "p.yaml", "--model", "llama")
  end)

  it("say what a config that is a list should be", function()
    local dir = hf_folder(llama)
    cbk.fs.write(dir .. "/list.json", "[1,2]")
    local message = "expected a map of fields, found a list"
    refuses(dir, message, "params", "list.json")
    refuses(dir, message, "new", "list.json", "-o", "x.mdl")
    refuses(dir, message, "identify", "m.safetensors", "--config", "list.json")
    refuses(dir, message, "convert", "m.safetensors", "--to", "cs-2.4", "--config", "list.json")
    cbk.fs.remove(dir .. "/config.json")
    cbk.fs.write(dir .. "/config.json", "[1,2]")
    refuses(dir, message, "convert", "m.safetensors", "--to", "cs-2.4")
  end)

  it("take a model of one's own that has classes, and say what one without them lacks", function()
    local dir = harness.temp_dir()
    local own = [[
      local rules, fields, class = require "converters.engine.rules", require "converters.engine.fields", require "converters.engine.class"
      local mine = class.new "MyModel" {
        fields = { width = class.kinds.size(8), layers = class.kinds.depth(2) },
        tensors = function() return { class.each("layers", "layers", class.linear("lin", "width", "width", true)) } end,
      }
      return { {
        model = "mine", CLASSES
        { "hf", "cs-2.4", keys = rules.keys { { "layers.N.lin.{weight,bias}", "layers.N.lin.{weight,bias}" } },
          config = fields.config { { "width" }, { "layers", "num_hidden_layers" } } },
      } }]]
    cbk.fs.write(dir .. "/own.lua", (own:gsub("CLASSES", "classes = { left = mine, right = mine },")))
    cbk.fs.write(dir .. "/poor.lua", (own:gsub("CLASSES", "")))
    cbk.fs.write(dir .. "/config.json", '{"model_type":"mine","width":4,"layers":1}')
    for _, more in ipairs { {}, { "--sandbox" } } do
      has(runs(dir, "params", "config.json", "--converter", "own.lua", unpack(more)), "2 tensors, 20 parameters")
      runs(dir, "new", "config.json", "-o", "m.safetensors", "--converter", "own.lua", "--overwrite", unpack(more))
      local found = identified(dir, "m.safetensors", "--converter", "own.lua", unpack(more))
      equal(found.model, "mine")
      equal(harness.cbk(dir, "convert", "m.safetensors", "--to", "cs-2.4", "--converter", "own.lua", "--overwrite", unpack(more)), 0)
    end
    local lacks = "the model mine in 'poor.lua' has no class for hf, so its tensors are unknown; add `classes = { left = … }`"
    refuses(dir, lacks, "params", "config.json", "--converter", "poor.lua")
    refuses(dir, lacks, "params", "config.json", "--converter", "poor.lua", "--model", "mine")
    refuses(dir, lacks, "new", "config.json", "-o", "x.safetensors", "--converter", "poor.lua")
    has(why(identified(dir, "m.safetensors", "--converter", "poor.lua")), lacks)
  end)

  it("write the H5 version that the release reads", function()
    local dir = harness.temp_dir()
    cbk.config.save(cbk.dict { model = cbk.dict { name = "gpt2", vocab_size = 9, hidden_size = 8, num_heads = 2, num_hidden_layers = 1,
      filter_size = 8 } }, dir .. "/p.yaml")
    for release, version in pairs { ["2.4"] = "0.4", ["2.5"] = "0.5" } do
      runs(dir, "new", "p.yaml", "--format", "cs-" .. release, "-o", release .. ".mdl")
      equal(cbk.open(dir .. "/" .. release .. ".mdl").version, version)
    end
    has(runs(dir, "new", "p.yaml", "--format", "cs-2.4", "-o", "a.pt"), "Checkpoint of gpt2 (cs-2.4) saved to a.pt\n")
    has(runs(dir, "new", "p.yaml", "-o", "b.pt"), "Checkpoint of gpt2 (cs-2.9, the newest release; --from names another) saved to b.pt\n")
    runs(dir, "new", "p.yaml", "--format", "cs-2.4", "-o", "a.hdf")
    equal(cbk.open(dir .. "/a.hdf").version, "0.4")
  end)
end)

describe("identify", function()
  it("finds headless models of a release again", function()
    local dir, names = harness.temp_dir(), {}
    for name, way in pairs(tiny.newest_ways()) do
      if name:find "%-headless$" then
        local config, root = tiny.model(way)
        config.architectures = cbk.list { catalogue.find(name).classes.left.name }
        conversion.warnings(function() config, root = conversion.run(name, "hf", way.format, config, root) end)
        cbk.config.save(config, ("%s/%s.yaml"):format(dir, name))
        cbk.create(("%s/%s.mdl"):format(dir, name), { root = root }):commit { progress = false }
        names[#names + 1] = name
      end
    end
    table.sort(names)
    local files = {}
    for i, name in ipairs(names) do files[i] = name .. ".mdl" end
    local found = identified(dir, unpack(files))
    for i, name in ipairs(names) do
      equal(found[i].model, name)
      has(why(found[i]), "the Hugging Face config that the checkpoint keeps says architectures=")
      follow(dir, found[i])
    end
    local config = cbk.config.load(dir .. "/llama-headless_to_hf/config.json")
    equal(config.architectures, { "LlamaModel" })
  end)

  it("finds a model of a release by the config in its metadata", function()
    local dir = zoo_folder(llama, "llama", "cs-2.4")
    cbk.fs.remove(dir .. "/a.yaml")
    local found = identified(dir, "a.mdl")
    equal(found.model, "llama")
    has(why(found), "the config is read from its __metadata__")
    equal(found.command, "cbk convert a.mdl --to hf")
  end)

  it("finds a model by its names where nothing else is known", function()
    local dir = zoo_folder(llama, "llama", "cs-2.1", function(_, root) root.__metadata__ = nil end)
    cbk.fs.remove(dir .. "/a.yaml")
    local found = identified(dir, "a.mdl")
    equal({ found.model, found.command }, { "llama", cbk.null })
  end)

  it("finds none in a file without tensors", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.safetensors"):commit { progress = false }
    cbk.create(dir .. "/b.pt", { root = cbk.dict() }):commit { progress = false }
    for _, name in ipairs { "a.safetensors", "b.pt" } do
      local found = identified(dir, name)
      equal({ found.model, found.command }, { cbk.null, cbk.null })
      is_true(why(found):find("it has no tensors", 1, true), why(found))
    end
  end)

  it("does not take a missing config for evidence", function()
    local dir = zoo_folder(llama, "llama", "cs-2.4", function(_, root) root.__metadata__ = nil end)
    cbk.fs.remove(dir .. "/a.yaml")
    local text = why(identified(dir, "a.mdl"))
    is_true(not text:find("trainer section", 1, true), text)
  end)

  it("finds the release by what a config can say there, and looks inside of a release's files, too", function()
    local function change(config, root)
      config.model.rope_theta, root.__metadata__ = 500000, nil
      root.model = (function()
        local out = cbk.dict()
        for key, tensor in cbk.items(root.model) do out["module." .. key] = tensor end
        return out
      end)()
    end
    local dir = zoo_folder(llama, "llama", "cs-2.1", change)
    local found = identified(dir, "a.mdl")
    equal(found.model, "llama", why(found))
    has(why(found), "the names are those without 'module.'")
    local code, _, err = harness.cbk(dir, "convert", "a.mdl", "--model", "llama", "--src-fmt", "cs-auto", "--to", "hf", "-o", "back")
    has(code == 0 and "fine" or err, code == 0 and "fine" or "name the release with --src-fmt")
  end)

  it("names all models that have the names, where nothing else is known", function()
    local dir = zoo_folder(gpt2, "gpt2", "cs-2.4", function(_, root) root.__metadata__ = nil end)
    cbk.fs.remove(dir .. "/a.yaml")
    local _, out = harness.cbk(dir, "identify", "a.mdl")
    has(out, "gpt2")
    has(out, " (or ")
  end)

  it("gives a command that works", function()
    local cases = {
      { gpt2, "gpt2", "cs-1.9" }, { llama, "llama", "cs-1.9" }, { gpt2, "gpt2", "cs-2.0" }, { gpt2, "gpt2", "cs-2.2" },
      { gpt2, "gpt2", "cs-2.4" }, { llama, "llama", "cs-2.4" }, { llama, "llama", "cs-2.9" },
    }
    for _, case in ipairs(cases) do
      for _, change in ipairs { function() end, nameless, bare } do
        local dir = zoo_folder(case[1], case[2], case[3], change)
        local found = identified(dir, "a.mdl")
        equal(found.model, case[2], case[3] .. ": " .. why(found))
        if change ~= bare or found.command ~= cbk.null then
          follow(dir, found)
          is_true(not found.command:find("--model", 1, true), found.command)
        end
      end
    end
    local dir = hf_folder(gpt2)
    follow(dir, identified(dir, "m.safetensors"))
  end)

  it("goes on after a file that cannot be read", function()
    local dir = hf_folder(llama)
    local code, out = harness.cbk(dir, "identify", "m.safetensors", "nope", "m.safetensors", "--json")
    equal(code, 1)
    local found = cbk.totable(cbk.config.parse(out, "json"))
    equal({ found[1].model, found[3].model }, { "llama", "llama" })
    has(found[2].error, "nope")
    code, out = harness.cbk(dir, "identify", "nope", "m.safetensors")
    equal(code, 1)
    has(out, "error    ")
    has(out, "model    llama")
  end)
end)

describe("cbk identify: a dict 'model' alone", function()
  it("is no sign of a release, but anything else of one is", function()
    local dir = harness.temp_dir()
    local function found(path, more)
      local root = cbk.dict { { "model", cbk.dict { { "net.weight", cbk.full({ 2, 2 }, 1) } } }, { "epoch", 3 } }
      for key, value in pairs(more or {}) do root[key] = value end
      cbk.create(dir .. "/" .. path, { root = root }):commit { progress = false }
      local _, out = harness.cbk(dir, "identify", path)
      return out:match "format   ([^\n]*)", identified(dir, path).format
    end
    equal({ found "a.pt" }, { "torch-zip 3, with the weights in a dict 'model'", cbk.null })
    equal({ found("b.pt", { dataloader = cbk.dict() }) }, { "cs-1.8", "cs-1.8" })
    equal({ found("c.pt", { __metadata__ = cbk.list { cbk.dict { { "version", "2.4.0" } } } }) }, { "cs-2.4", "cs-2.4" })
  end)
end)

---Removes the checkpoint's own config.
local function make_bare(path)
  local root = cbk.deep_copy(cbk.open(path).root)
  root.__metadata__ = nil
  cbk.create(path, { root = root, overwrite = true }):commit { progress = false }
end

describe("the config beside a checkpoint", function()
  it("is that of its own conversion", function()
    local dir = zoo_folder(llama, "llama", "cs-2.4")
    rename(dir, "a.yaml", "params.yaml")
    rename(dir, "a.mdl", "checkpoint_1000.mdl")
    make_bare(dir .. "/checkpoint_1000.mdl")
    runs(dir, "convert", "checkpoint_1000.mdl", "--from", "cs-2.4", "--to", "cs-2.5")
    equal(identified(dir, "checkpoint_1000.mdl").config, "./params.yaml")
    equal(identified(dir, "checkpoint_1000_to_cs-2.5.mdl").config, "./params_to_cs-2.5.yaml")
    runs(dir, "convert", "checkpoint_1000.mdl", "--from", "cs-2.4", "--to", "cs-2.6")
    runs(dir, "convert", "checkpoint_1000_to_cs-2.5.mdl", "--to", "cs-2.6")
    equal(identified(dir, "checkpoint_1000_to_cs-2.6.mdl").config, "./params_to_cs-2.6.yaml")
    equal(identified(dir, "checkpoint_1000_to_cs-2.5_to_cs-2.6.mdl").config, "./params_to_cs-2.5_to_cs-2.6.yaml")
    runs(dir, "convert", "checkpoint_1000.mdl", "--from", "cs-2.4", "--to", "hf")
    cbk.fs.write(dir .. "/other.yaml", cbk.fs.read(dir .. "/params.yaml"))
    local message = "there are several configs beside it: other.yaml, params.yaml; name one with --config"
    refuses(dir, message, "convert", "checkpoint_1000.mdl", "--to", "cs-2.3")
    has(why(identified(dir, "checkpoint_1000.mdl")), message)
  end)

  it("is found where folders are converted again and again", function()
    local dir = hf_folder(llama)
    runs(dir, "convert", ".", "--to", "cs-2.3", "-o", "first")
    runs(dir, "convert", "first", "--to", "cs-2.4", "-o", "second")
    cbk.fs.write(dir .. "/second/params.yaml", cbk.fs.read(dir .. "/second/config_to_cs-2.3_to_cs-2.4.yaml"))
    equal(identified(dir, "second").config, "second/config_to_cs-2.3_to_cs-2.4.yaml")
    runs(dir, "convert", "second", "--to", "hf", "-o", "back")
  end)

  it("is that of a conversion whose checkpoint was renamed, if that one has none of its own", function()
    local dir = zoo_folder(llama, "llama", "cs-2.4")
    rename(dir, "a.yaml", "config_to_cs-2.4.yaml")
    cbk.fs.mkdir(dir .. "/x_to_cs-2.4")
    local function is_of_checkpoint()
      local found = identified(dir, "a.mdl")
      equal(found.config, cbk.null)
      has(why(found), "the config is read from its __metadata__")
      return why(found)
    end
    harness.lacks(is_of_checkpoint(), "config_to_cs-2.4.yaml")
    cbk.fs.write(dir .. "/b_to_cs-2.4.mdl", cbk.fs.read(dir .. "/a.mdl"))
    equal(identified(dir, "b_to_cs-2.4.mdl").config, "./config_to_cs-2.4.yaml")
    is_of_checkpoint()
    cbk.fs.remove(dir .. "/b_to_cs-2.4.mdl")
    make_bare(dir .. "/a.mdl")
    local found = identified(dir, "a.mdl")
    equal(found.config, "./config_to_cs-2.4.yaml")
    harness.lacks(why(found), "the config is read from its __metadata__")
    runs(dir, "convert", "a.mdl", "--from", "cs-2.4", "--to", "hf", "-o", "out")
  end)

  it("is not read with another name where the checkpoint keeps its config; with its name it wins, with a warning", function()
    local dir = zoo_folder(llama, "llama", "cs-2.4")
    local config = cbk.config.load(dir .. "/a.yaml")
    local section = (config.trainer and config.trainer.init or config).model
    section.layer_norm_epsilon = 0.25
    cbk.config.save(config, dir .. "/a.yaml", { overwrite = true })
    local function warnings_of()
      local code, _, err = harness.cbk(dir, "convert", "a.mdl", "--to", "hf", "-o", "out", "--overwrite")
      equal(code, 0, err)
      return err, cbk.config.load(dir .. "/out/a_to_hf/config.json").rms_norm_eps
    end
    local err, epsilon = warnings_of()
    has(err, "the config differs from the one in the checkpoint's __metadata__, which is not used: layer_norm_epsilon=0.25 (there ")
    equal(epsilon, 0.25)
    has(why(identified(dir, "a.mdl")), "which is not used: layer_norm_epsilon=0.25 (there ")
    for _, name in ipairs { "config_to_cs-2.4.yaml", "params.yaml", "config_to_cs-2.1.yaml" } do
      cbk.fs.remove(dir .. "/a.yaml")
      cbk.config.save(config, dir .. "/" .. name)
      err, epsilon = warnings_of()
      has(err, ("warning: './%s' is not read, as it does not have the checkpoint's name, and it contradicts the config in __metadata__: "
        .. "layer_norm_epsilon=0.25 (there "):format(name))
      harness.is_true(epsilon < 0.01)
      rename(dir, name, "a.yaml")
    end
  end)

  it("is not that of another release", function()
    local dir = zoo_folder(llama, "llama", "cs-2.4")
    local root = cbk.deep_copy(cbk.open(dir .. "/a.mdl").root)
    root.__metadata__[#root.__metadata__].params = nil
    cbk.create(dir .. "/a.mdl", { root = root, overwrite = true }):commit { progress = false }
    rename(dir, "a.yaml", "config_to_cs-2.3.yaml")
    has(why(identified(dir, "a.mdl")), "'./config_to_cs-2.3.yaml' is not read, as the checkpoint is of release 2.4; --config reads it")
    rename(dir, "config_to_cs-2.3.yaml", "config_to_cs-2.4.yaml")
    equal(identified(dir, "a.mdl").config, "./config_to_cs-2.4.yaml")
  end)

  it("is not passed over where it is damaged and has the checkpoint's name", function()
    local dir = zoo_folder(llama, "llama", "cs-2.4")
    cbk.fs.write(dir .. "/a.yaml", "model:\n  name: [llama\n  x: }\n", { overwrite = true })
    refuses(dir, "a.yaml' beside the checkpoint: ", "convert", "a.mdl", "--to", "hf")
    has(why(identified(dir, "a.mdl")), "cannot read the config '")
    has(why(identified(dir, "a.mdl")), "to convert it, correct the config or name another with --config")
    local code, out = harness.cbk(dir, "identify", "a.mdl")
    equal(code, 1)
    has(out, "config   none that can be used\n")
  end)

  it("is no file of another program, whatever it is", function()
    local dir = zoo_folder(llama, "llama", "cs-2.4")
    rename(dir, "a.yaml", "params.yaml")
    cbk.fs.write(dir .. "/chart.yaml", "{{- if .Values.x }}\nkind: [\n{{- end }}\n")
    cbk.fs.write(dir .. "/two.yaml", "a: 1\n---\nb: 2\n")
    cbk.fs.write(dir .. "/cloud.yaml", "x: !Ref y\n")
    cbk.fs.mkdir(dir .. "/folder.yaml")
    assert(os.execute(("mkfifo '%s/pipe.yaml' && ln -s /etc/hostname '%s/link.yaml'"):format(dir, dir)) == 0)
    equal(identified(dir, "a.mdl").model, "llama")
    runs(dir, "convert", "a.mdl", "--to", "hf", "-o", "out")
    make_bare(dir .. "/a.mdl")
    equal(identified(dir, "a.mdl").config, "./params.yaml")
    runs(dir, "convert", "a.mdl", "--from", "cs-2.4", "--to", "hf", "-o", "bare")
    cbk.fs.remove(dir .. "/params.yaml")
    local found = identified(dir, "a.mdl")
    equal(found.config, cbk.null)
    has(why(found), "cannot read ")
  end)

  it("may be named by its folder, and is no checkpoint", function()
    local dir = hf_folder(llama)
    runs(dir, "params", ".")
    runs(dir, "convert", "m.safetensors", "--to", "cs-2.4", "--config", ".")
    refuses(dir, "cannot read 'm.safetensors': expected the config of a model, found a checkpoint; name './config.json'", "params",
      "m.safetensors")
    local other = harness.temp_dir()
    cbk.create(other .. "/m.h5", { root = cbk.dict {} }):commit { progress = false }
    refuses(other, "found a checkpoint; name its config; `cbk ls m.h5` lists what the checkpoint has", "params", "m.h5")
    cbk.fs.write(other .. "/params.yaml", "model: {}")
    refuses(other, "expected the config of a model, found a folder; name './params.yaml'", "params", ".")
    refuses(dir, "cbk: cannot open 'none.json': No such file", "params", "none.json")
  end)

  it("is of the other side", function()
    local dir, zoo = hf_folder(llama), zoo_folder(llama, "llama", "cs-2.4")
    refuses(dir, "expected a config of Hugging Face, as the checkpoint is, found one of the Model Zoo (it has a section 'model')",
      "convert", "m.safetensors", "--to", "cs-2.4", "--config", zoo .. "/a.yaml")
    local code, out = harness.cbk(dir, "check", "m.safetensors", "--config", zoo .. "/a.yaml")
    equal(code, 1)
    has(out, "(it has a section 'model'); try: correct the config, or name another one with --config [config]\n1 error: ")
    refuses(zoo, "expected a config of the Model Zoo, found one of Hugging Face (it has 'model_type'); its format is hf", "convert",
      "a.mdl", "--to", "hf", "--config", dir .. "/config.json")
    local wrapped = cbk.dict { { "model", cbk.dict { { "embed.w", cbk.tensor { 1 } } } }, { "step", 1 } }
    cbk.create(dir .. "/wrapped.pt", { root = wrapped }):commit { progress = false }
    refuses(dir, "the config says model_type=llama, but no tensor is one of LlamaForCausalLM or LlamaModel: embed.w", "convert",
      "wrapped.pt", "--from", "hf", "--to", "cs-2.4", "--config", "config.json")
    refuses(dir, "'m.safetensors' is a checkpoint of Hugging Face, but --src-fmt is cs-2.4; use --src-fmt hf", "convert", "m.safetensors",
      "--to", "hf", "--src-fmt", "cs-2.4")
    refuses(dir, "expected a Cerebras checkpoint, found no 'model' in 'm.safetensors'", "upgrade", "m.safetensors", "--to", "cs-2.5",
      "--model", "llama", "--config", zoo .. "/a.yaml")
  end)

  it("is converted alone, with what is detected", function()
    local dir, zoo = hf_folder(llama), zoo_folder(llama, "llama", "cs-2.4")
    has(runs(dir, "convert-config", "config.json", "--to", "cs-2.4"), "Found: --model llama --src-fmt hf\nConfig saved to ")
    refuses(zoo, "missing option '--from': the format of this config cannot be detected", "convert-config", "a.yaml", "--to", "hf")
    has(runs(zoo, "convert-config", "a.yaml", "--to", "hf", "--src-fmt", "cs-2.4"), "Found: --model llama --src-fmt cs-2.4\n")
  end)

  it("is not guessed where two models have one name, as GPT-J and CodeGen", function()
    local dir = zoo_folder((tiny.model(tiny.newest_ways().codegen)), "codegen", "cs-2.9")
    local command = { "convert-config", "a.yaml", "--to", "hf", "--src-fmt", "cs-2.9" }
    refuses(dir, "cannot detect the model of 'a.yaml': gptj or codegen fit; name it with --model", unpack(command))
    command[#command + 1], command[#command + 2] = "--model", "codegen"
    runs(dir, unpack(command))
    equal(cbk.config.load(dir .. "/a_to_hf.json").model_type, "codegen")
  end)

  it("does not name its model by a list", function()
    local dir = hf_folder(llama, conversion.with(llama, { model_type = cbk.list { "x" } }))
    local code, out = harness.cbk(dir, "identify", "m.safetensors")
    equal(code, 1)
    has(out, 'the config says model_type=["x"]: expected a string')
    refuses(dir, 'the config says model_type=["x"]: expected a string; correct the config, or name another with --config', "convert",
      "m.safetensors", "--to", "cs-2.4")
    refuses(dir, 'the config says model_type=["x"]: expected a string', "params", "config.json")
  end)
end)

describe("a config that does not fit its tensors", function()
  local function said(change, ...)
    local config = conversion.with(llama, change)
    local dir = hf_folder(llama, config)
    local text = why(identified(dir, "m.safetensors"))
    for _, part in ipairs { ... } do
      has(text, part)
      refuses(dir, part, "convert", "m.safetensors", "--to", "cs-2.4")
    end
  end

  it("is named as the reason, of a release, too", function()
    for _, case in ipairs {
      { "hidden_size", 16, "expected [50, 16] (" }, { "num_heads", 0, "num_heads=0" }, { "name", "t5", "the config says name=t5, but" },
    } do
      local field, value, part = unpack(case)
      local dir = zoo_folder(llama, "llama", "cs-2.4", function(config) config.model[field] = value end)
      has(why(identified(dir, "a.mdl")), part)
      refuses(dir, part, "convert", "a.mdl", "--to", "hf")
    end
    local dir = zoo_folder(llama, "llama", "cs-2.4", function(config)
      config.model, config.trainer = nil, cbk.dict { fit = 1 }
    end)
    local part = "the config has a 'trainer' section without 'init'"
    has(why(identified(dir, "a.mdl")), part)
    refuses(dir, part, "convert", "a.mdl", "--to", "hf")
  end)

  it("is named as the reason", function()
    said({ hidden_size = "8" }, "hidden_size='8'")
    said({ num_attention_heads = 3 }, "num_attention_heads=3: only a divisor of hidden_size (8) is supported; correct one of them")
    said({ hidden_size = 16 }, "'lm_head.weight': expected [50, 16] (hidden_size=16), found [50, 8]")
    said({ model_type = "bloom" }, "the config says model_type=bloom, but", "the tensor names are those of llama")
    said({ model_type = "deepseek_v3" }, "the Model Zoo has no counterpart of deepseek_v3",
      "`cbk list` lists the models that can be converted")
    said({ model_type = "nobody" }, "the config says model_type=nobody, which is not a known model; the tensor names are those of llama",
      "if it is one of these, name it with --model, and a config of that model with --config")
  end)
end)

describe("a mistake in the config", function()
  it("is the same error, whether the model can be detected or not", function()
    for field, whole in pairs { num_attention_heads = "hidden_size (8)", num_key_value_heads = "num_attention_heads (2)" } do
      local dir = hf_folder(llama, conversion.with(llama, { [field] = 3 }))
      local code, _, err = harness.cbk(dir, "convert", "m.safetensors", "--to", "cs-2.4")
      equal({ code, err }, { 1, ("cbk: cannot convert the config with %s=3: only a divisor of %s is supported; correct one of them\n")
        :format(field, whole) })
    end
  end)
end)

describe("a class that cbk does not know", function()
  local bert = cbk.dict { { "model_type", "bert" }, { "vocab_size", 20 }, { "hidden_size", 8 }, { "num_attention_heads", 2 },
    { "num_hidden_layers", 1 }, { "intermediate_size", 16 }, { "max_position_embeddings", 8 } }

  ---A folder with a model, whose config names another class.
  local function named(config, model, class, change)
    local dir, root = harness.temp_dir(), classes.new(config, model, "hf")
    if change then root = change(root) end
    cbk.create(dir .. "/model.safetensors", { root = root }):commit { progress = false }
    cbk.config.save(conversion.with(config, { architectures = class and cbk.list { class } or nil }), dir .. "/config.json")
    return dir
  end

  it("is named where its tensors are those of one class", function()
    local dir = named(llama, "llama-headless", "LlamaBidirectionalModel")
    has(why(identified(dir, ".")), "the config says architectures=LlamaBidirectionalModel, which is not supported (LlamaModel is)")
    local _, err = runs(dir, "convert", ".", "--to", "cs-2.5", "-o", "out")
    has(err, "architectures=LlamaBidirectionalModel, which is not supported: its tensors are converted as those of LlamaModel")
    has((runs(dir, "check", ".")), "architectures=LlamaBidirectionalModel, which is not supported; the tensors are those of LlamaModel")
  end)

  it("is refused where its tensors have the names of several, or other shapes", function()
    local labels = conversion.with(bert, { num_labels = 1, id2label = cbk.dict { ["0"] = "a" } })
    for shape, config in pairs { same = labels, other = bert } do
      local dir = named(labels, "bert-token-classifier", "BertForMultipleChoice")
      cbk.config.save(conversion.with(config, { architectures = cbk.list { "BertForMultipleChoice" } }), dir .. "/config.json",
        { overwrite = true })
      refuses(dir, "the config says architectures=BertForMultipleChoice, which is not supported", "convert", ".", "--to", "cs-2.5")
      local _, out = harness.cbk(dir, "check", ".")
      has(out, "architectures=BertForMultipleChoice, which is not supported")
      is_true(not out:find "wrong%-shape" and not out:find("--model", 1, true), shape .. out)
      equal(identified(dir, ".").command, cbk.null)
    end
  end)

  it("is compared with the class that has most of its tensors", function()
    local dir = named(bert, "bert", "BertForNextSentencePrediction", function(root)
      local out = cbk.dict()
      for key, value in cbk.items(root) do
        if not key:find "^cls%.predictions" then out[key] = value end
      end
      return out
    end)
    refuses(dir, "BertForPreTraining also has cls.predictions.", "convert", ".", "--to", "cs-2.5")
  end)

  it("may be unnamed, and then a body is not said to be another model", function()
    local dir = named(bert, "bert", nil, function(root)
      local out = cbk.dict()
      for key, value in cbk.items(root) do
        if key:find "^bert%." then out[key:sub(6)] = value end
      end
      return out
    end)
    local text = "the config says model_type=bert without architectures, and the tensors are those of BertForPreTraining with the prefix"
    refuses(dir, text, "convert", ".", "--to", "cs-2.5")
    has((runs(dir, "check", ".")), text)
  end)

  it("is not looked for in a GGUF file", function()
    local dir = harness.temp_dir()
    local function text(s) return ("\0\0\0\0\0\0\0\0"):gsub("^.", string.char(#s)) .. s end
    cbk.fs.write(dir .. "/m.gguf", "GGUF\3\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" .. text "blk.0.w" .. "\1\0\0\0\4\0\0\0\0\0\0\0\0\0\0\0"
      .. ("\0"):rep(8) .. ("\0"):rep(64))
    cbk.config.save(llama, dir .. "/config.json")
    refuses(dir, "a GGUF file has llama.cpp's names and orders, which no model of cbk has", "convert", ".", "--to", "cs-2.5")
    local _, out = harness.cbk(dir, "check", ".")
    has(out, "a GGUF file has llama.cpp's names")
  end)
end)

-- `cbk convert` as a command: formats of one meaning, outputs that are there already, seeds.

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"

local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local has = harness.has

---A folder with a tiny model, as `p.yaml` and `a.mdl` of a release, or as `config.json` and `a.safetensors`.
local function folder_with(name, format, more)
  local dir = harness.temp_dir()
  local config, root = tiny.model(tiny.newest_ways()[name])
  for field, value in pairs(more or {}) do config[field] = value end
  local suffix = format == "hf" and { "config.json", "a.safetensors" } or { "p.yaml", "a.mdl" }
  if format ~= "hf" then
    conversion.warnings(function() config, root = conversion.run(name, "hf", format, config, root) end)
  end
  cbk.config.save(config, dir .. "/" .. suffix[1])
  cbk.create(dir .. "/" .. suffix[2], { root = root }):commit { progress = false }
  return dir
end

local function convert(dir, src, tgt, ...)
  local files = src == "hf" and { "config.json", "a.safetensors" } or { "p.yaml", "a.mdl" }
  return harness.cbk(dir, "convert", "--src-fmt", src, "--tgt-fmt", tgt, "--config", files[1], files[2], ...)
end

describe("what convert may have been meant to do", function()
  local function refused(dir, model, src, tgt, message)
    local code, stdout, stderr = convert(dir, src, tgt, "--model", model)
    equal({ code, stdout, stderr }, { 1, "", "cbk: " .. message .. "\n" })
  end

  it("is `cbk copy` for the formats of files", function()
    local dir = harness.temp_dir()
    for name, advice in pairs { safetensors = "`cbk copy a.bin NEW.safetensors` writes such a file", pt = "`cbk copy a.bin NEW.pt`",
      bin = "`cbk copy a.bin NEW.bin`", gguf = "cbk reads such files and writes none" } do
      local code, _, err = harness.cbk(dir, "convert", "a.bin", "--to", name)
      equal(code, 2)
      has(err, ("--to %s: expected the format of a model, such as cs-2.5 or hf, found one of files; %s"):format(name, advice))
    end
  end)

  it("is said in one line", function()
    local dir = harness.temp_dir()
    refused(dir, "llama", "huggingface", "cs-2.4",
      "cannot convert llama from huggingface to cs-2.4: "
      .. "'huggingface' is not a format of llama; did you mean 'hf'? llama has hf, cs-1.9 … cs-2.9")
    refused(dir, "llama", "hf", "hf",
      "cannot convert llama from hf to hf: the checkpoint is in hf already; choose --to cs-1.9 … cs-2.9")
    refused(dir, "llama", "hf", "cs-2.55",
      "cannot convert llama from hf to cs-2.55: 'cs-2.55' is not a format of llama; did you mean 'cs-2.5'? llama has hf, cs-1.9 … cs-2.9")
    local code, _, said = harness.cbk(dir, "convert-config", "c.json", "--model", "llama", "--src-fmt", "hf", "--to", "hf")
    equal({ code, said }, { 1, "cbk: cannot convert llama from hf to hf: the config is in hf already; choose --to cs-1.9 … cs-2.9\n" })
    for _, format in ipairs { "2.4", "cs2.4" } do
      refused(dir, "llama", "hf", format,
        ("cannot convert llama from hf to %s: '%s' is not a format of llama; did you mean 'cs-2.4'? llama has hf, cs-1.9 … cs-2.9")
        :format(format, format))
    end
    refused(dir, "falcn", "hf", "cs-2.4", "cannot convert falcn from hf to cs-2.4: there is no model 'falcn'; did you mean 'falcon'?")
  end)

  it("names the model that the config is for", function()
    local dir = folder_with("llama", "hf")
    refused(dir, "gpt2", "hf", "cs-2.4", "this config is for llama (model_type='llama'), not for gpt2; use --model llama")
    local own = cbk.config.load(dir .. "/config.json")
    cbk.config.save(cbk.dict { model_type = "gpt2", n_embd = 4 }, dir .. "/config.json", { overwrite = true })
    refused(dir, "gptj", "hf", "cs-2.4", "the config has no 'n_head', and the default 16 belongs to a n_embd of 4096 (not 4); add it; "
      .. "this config is for gpt2 (model_type='gpt2'), not for gptj; use --model gpt2")
    own.model_type = "unheard-of"
    cbk.config.save(own, dir .. "/config.json", { overwrite = true })
    local _, _, stderr = convert(dir, "hf", "cs-2.4", "--model", "gpt2")
    has(stderr, "model_type='unheard-of'")
  end)
end)

describe("cbk convert", function()
  it("writes both outputs of a folder into it", function()
    local dir = harness.temp_dir()
    local made = folder_with("llama", "hf")
    os.execute(("mv '%s' '%s/llama'"):format(made, dir))
    local code, stdout, stderr = harness.cbk(dir, "convert", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config",
      "llama/config.json", "llama")
    equal(code, 0, stderr)
    has(stdout, "Checkpoint saved to llama/llama_to_cs-2.4.mdl\nConfig saved to llama/config_to_cs-2.4.yaml\n")
    equal(cbk.fs.list(dir), { "llama" })
  end)

  it("writes another dtype, with ties, and the config says so", function()
    local dir = folder_with("gpt2", "hf")
    local function dtypes_of(path)
      local out, ties = {}, 0
      local rows = cbk.leaf_rows(cbk.open(dir .. "/" .. path):raw_root())
      for i = 1, #rows do
        if rows[i].shape then out[rows[i].type] = true end
        ties = ties + (rows[i].tied_to and 1 or 0)
      end
      return out, ties
    end
    equal((convert(dir, "hf", "cs-2.5", "--to-dtype", "bfloat16", "-o", "zoo", "--model", "gpt2")), 0)
    local dtypes, ties = dtypes_of "zoo/a_to_cs-2.5.mdl"
    equal(dtypes, { bfloat16 = true })
    is_true(ties > 0)
    local code, _, err = harness.cbk(dir, "convert", "zoo/a_to_cs-2.5.mdl", "--to", "hf", "--to-dtype", "float16", "-o", "back")
    equal(code, 0, err)
    equal(dtypes_of("back/a_to_cs-2.5_to_hf").float16, true)
    equal(dtypes_of("back/a_to_cs-2.5_to_hf").bfloat16, nil)
    equal(cbk.config.load(dir .. "/back/a_to_cs-2.5_to_hf/config.json").torch_dtype, "float16")
    code, _, err = harness.cbk(dir, "convert", "zoo/a_to_cs-2.5.mdl", "--to", "hf", "--to-dtype", "bfloat16", "-o", "again")
    equal(code, 0)
    has(err, "bfloat16 cannot hold whole numbers of the checkpoint: transformer.h.0.attn.masked_bias: -10000 becomes -9984; ")
    has(err, "leave out --to-dtype")
    equal((convert(dir, "hf", "cs-2.5", "--to-dtype", "int8", "-o", "no", "--model", "gpt2")), 2)
  end)

  it("takes the config in the checkpoint where there is no file", function()
    local dir = folder_with("gpt2", "hf")
    equal((convert(dir, "hf", "cs-2.5", "-o", "zoo", "--model", "gpt2", "-q")), 0)
    cbk.fs.remove(dir .. "/zoo/config_to_cs-2.5.yaml")
    local code, out, err = harness.cbk(dir, "convert", "zoo/a_to_cs-2.5.mdl", "--to", "hf", "-o", "back")
    equal(code, 0, err)
    has(out, "Found: --model gpt2 --src-fmt cs-2.5 and the config in the checkpoint\n")
    equal((harness.cbk(dir, "diff", "a.safetensors", "back/a_to_cs-2.5_to_hf", "--key", "*.c_*")), 0)
    equal((harness.cbk(dir, "convert", "zoo/a_to_cs-2.5.mdl", "--to", "cs-2.3", "-o", "old")), 0)
    equal(cbk.fs.exists(dir .. "/old/config_to_cs-2.3.yaml"), true)
    local _, identified = harness.cbk(dir, "identify", "zoo/a_to_cs-2.5.mdl")
    has(identified, "config   in the checkpoint's __metadata__\n")
    has(identified, "convert  cbk convert zoo/a_to_cs-2.5.mdl --to hf\n")
  end)

  it("refuses a checkpoint that is no dict, in words", function()
    local dir = folder_with("llama", "hf")
    cbk.create(dir .. "/list.pt", { root = cbk.list { 1, 2 } }):commit { progress = false }
    for _, words in ipairs { { "identify", "list.pt" }, { "convert", "list.pt", "--to", "cs-2.4" },
      { "convert", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", "config.json", "list.pt" } } do
      local code, _, stderr = harness.cbk(dir, unpack(words))
      equal(code, 1, stderr)
      has(stderr, "expected a checkpoint with a dict of tensors, found a root of the kind 'list'")
    end
  end)

  it("warns where the checkpoint says another release", function()
    local dir = folder_with("llama", "cs-2.4")
    for format, is_other in pairs { ["cs-2.3"] = true, ["cs-2.4"] = false, ["cs-auto"] = false } do
      local code, _, stderr = convert(dir, format, "hf", "--model", "llama", "-o", format)
      equal(code, 0, stderr)
      local warning = "warning: the checkpoint's __metadata__ says release 2.4.0, but --src-fmt is %s: it is read as %s; "
        .. "if __metadata__ is right, use --src-fmt cs-auto\n"
      equal(stderr:find(warning:format(format, format), 1, true) ~= nil, is_other, format)
    end
  end)

  it("prints its result as JSON", function()
    local dir = folder_with("llama", "hf")
    local code, stdout, stderr = convert(dir, "hf", "cs-2.4", "--model", "llama", "-o", "o", "--json")
    equal(code, 0, stderr)
    local result = cbk.config.parse(stdout, "json")
    equal({ result.written, result.checkpoint, result.config, result.keys }, { true, "o/a_to_cs-2.4.mdl", "o/config_to_cs-2.4.yaml" })
    assert(result.bytes_written > 0 and cbk.fs.exists(dir .. "/" .. result.checkpoint))
    code, stdout = convert(dir, "hf", "cs-2.4", "--model", "llama", "-o", "o", "--json", "--explain", "lm_head.weight")
    equal({ code, cbk.config.parse(stdout, "json")[1].key }, { 0, "lm_head.weight" })
  end)

  it("copies between two names of one format, and reports it", function()
    local dir = folder_with("llama", "cs-2.9")
    for i, pair in ipairs { { "cs-2.9", "cs-2.10" }, { "cs-2.9", "cs-current" }, { "cs-2.10", "cs-2.9" }, { "cs-2.10", "cs-current" } } do
      local out = "o" .. i
      local code, stdout, stderr = convert(dir, pair[1], pair[2], "--model", "llama", "-o", out)
      equal(code, 0, stderr)
      has(stdout, ("%s and %s are the same: nothing changes\n"):format(pair[1], pair[2]))
      local old, new = cbk.open(dir .. "/a.mdl").root, cbk.open(("%s/%s/a_to_cs-2.9.mdl"):format(dir, out)).root
      equal(cbk.keys(new), cbk.keys(old))
      conversion.equal_tensors(old.model, new.model)
      assert(cbk.equal(cbk.config.load(dir .. "/p.yaml"), cbk.config.load(("%s/%s/p_to_cs-2.9.yaml"):format(dir, out))))
    end
    local code, _, stderr = convert(dir, "cs-2.9", "cs-2.9", "--model", "llama")
    equal(code, 1)
    has(stderr, "from cs-2.9 to cs-2.9: the checkpoint is in cs-2.9 already; choose --to hf, cs-1.9 … cs-2.8")
  end)

  it("reports existing outputs in a dry run", function()
    local dir = folder_with("llama", "cs-2.9")
    for _, one in ipairs { { "cs-2.8", "o/a_to_cs-2.8.mdl", "o/p_to_cs-2.8.yaml" }, { "hf", "o/a_to_hf", "o/a_to_hf/config.json" } } do
      local function run(...) return convert(dir, "cs-2.9", one[1], "--model", "llama", "-o", "o", ...) end
      local _, _, stderr = run "--dry-run"
      assert(not stderr:find("exists already", 1, true), stderr)
      equal((run()), 0)
      local code
      code, _, stderr = run "--dry-run"
      equal(code, 0)
      for i = 2, 3 do has(stderr, ("warning: '%s' exists already: without --dry-run this is an error"):format(one[i])) end
      code, _, stderr = run()
      equal(code, 1)
      has(stderr, ("'%s' exists already"):format(one[2]))
      for _, option in ipairs { "--overwrite", "--explain=lm_head.weight" } do
        _, _, stderr = run("--dry-run", option)
        assert(not stderr:find("exists already", 1, true), stderr)
      end
    end
  end)

  it("takes seeds below 2^53, all different", function()
    local dir, made = folder_with("gpt2-headless", "hf", { tie_word_embeddings = false }), {}
    for _, seed in ipairs { "0", "1", "2147483648", "4294967296", "9007199254740991" } do
      local code, _, stderr = convert(dir, "hf", "cs-2.4", "--model", "gpt2-headless", "--seed", seed, "-o", "o" .. seed)
      equal(code, 0, stderr)
      has(stderr, ("of seed %s are written"):format(seed))
      local head = cbk.open(("%s/o%s/a_to_cs-2.4.mdl"):format(dir, seed)).root.model["lm_head.weight"]
      for _, other in ipairs(made) do assert(head:compare(other).different > 0, "seed " .. seed) end
      made[#made + 1] = head
    end
    for seed, why in pairs { ["9007199254740992"] = "expected a whole number below 2^53", ["18446744073709551616"] = "below 2^53",
      ["-1"] = "expected a whole number of at least 0", ["1.5"] = "expected a whole number of at least 0" } do
      local code, _, stderr = convert(dir, "hf", "cs-2.4", "--model", "gpt2-headless", "--seed=" .. seed)
      equal(code, 2)
      has(stderr, why)
    end
  end)

  it("names options that have no effect, and releases that cannot read the version of H5", function()
    local one_file = "--%s is ignored: a Cerebras checkpoint is one file"
    local dirs = { hf = folder_with("gpt2", "hf"), cs = folder_with("gpt2", "cs-2.4") }
    for i, case in ipairs {
      { "hf", "cs-2.4", { "--single-file" }, one_file:format "single-file" },
      { "hf", "cs-2.4", { "--hf-shard-size", "10GB" }, one_file:format "hf-shard-size" },
      { "hf", "cs-2.4", { "--export-safetensors" }, "--export-safetensors is ignored" },
      { "cs", "hf", { "--h5-version", "0.4" }, "--h5-version is ignored" },
      { "cs", "hf", { "--single-file", "--hf-shard-size", "1MB" }, "--hf-shard-size is ignored: --single-file writes no shards" },
      { "cs", "hf", { "--hf-shard-size", "1MB" } }, { "cs", "hf", { "--single-file" } }, { "cs", "hf", {} },
      { "hf", "cs-2.0", { "--h5-version", "0.5" }, "release 2.0 cannot read H5 0.5, which came with 2.5" },
      { "hf", "cs-2.4", { "--h5-version", "0.5" }, "release 2.4 cannot read H5 0.5, which came with 2.5" },
      { "hf", "cs-2.4", { "--h5-version", "0.4" } }, { "hf", "cs-2.5", { "--h5-version", "0.5" } },
      { "hf", "cs-2.5", { "--h5-version", "0.4" } }, { "hf", "cs-2.4", {} },
      { "hf", "cs-1.9", {}, "release 1.9 cannot read H5 0.4: it reads versions up to 0.3" },
    } do
      local src, tgt, options, warning = unpack(case, 1, 4)
      local code, _, stderr = convert(dirs[src], src == "cs" and "cs-2.4" or src, tgt, "--model", "gpt2", "-o", "o" .. i, unpack(options))
      equal(code, 0, stderr)
      local about = stderr:match "warning: ([^\n]*is ignored[^\n]*)" or stderr:match "warning: ([^\n]*H5[^\n]*)"
      equal(about and about:sub(1, #(warning or "")), warning, table.concat(options, " "))
    end
    local dir = dirs.cs
    local code, _, stderr = harness.cbk(dir, "upgrade", "--model", "gpt2", "--config", "p.yaml", "a.mdl", "--to", "cs-2.4", "--from",
      "cs-2.3", "--h5-version", "0.5", "--dry-run")
    equal(code, 0, stderr)
    has(stderr, "warning: release 2.4 cannot read H5 0.5")
  end)

  it("names options that have no effect on a user's own layout", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", [[
      local rules = require "converters.engine.rules"
      return { { model = "own", { "a", "b", keys = rules.keys { { "x", "y" } }, without_config = true } } }]])
    cbk.create(dir .. "/m.pt", { root = cbk.dict { x = cbk.full({ 2 }, 1) } }):commit { progress = false }
    for _, option in ipairs { "--single-file", "--hf-shard-size=1MB", "--h5-version=0.4", "--export-safetensors" } do
      local code, _, stderr = harness.cbk(dir, "convert", "m.pt", "--converter", "own.lua", "--to", "b", "--overwrite", option)
      equal(code, 0, stderr)
      local is_said = stderr:find(option:match "^[^=]*" .. " is ignored: the output is one file", 1, true) ~= nil
      equal(is_said, option ~= "--export-safetensors", option)
    end
  end)

  it("names what is beside the model in a user's own layout", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", [[
      local rules = require "converters.engine.rules"
      return { { model = "own", { "a", "b", keys = rules.keys { { "x", "y" } }, without_config = true } } }]])
    local weights = cbk.dict { x = cbk.full({ 2 }, 1) }
    cbk.create(dir .. "/m.pt", { root = cbk.dict { model = weights, model_ema = weights, epoch = 3 } }):commit { progress = false }
    for _, command in ipairs { { "convert", "m.pt", "--converter", "own.lua", "--to", "b" }, { "rules", "own.lua", "m.pt" } } do
      local code, stdout, stderr = harness.cbk(dir, unpack(command))
      equal(code, 0, stdout .. stderr)
      has(stderr, "the tensors are those of 'model'; beside it, and not read: epoch, model_ema")
    end
  end)

  it("reads the config beside a checkpoint of a user's own layout", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", [[
      local rules, fields = require "converters.engine.rules", require "converters.engine.fields"
      return { { model = "own", { "a", "b", keys = rules.keys { { "x", "y" } },
        config = fields.config { { "width", "dim" }, fields.must.left { use_alibi = false } } } } }]])
    cbk.create(dir .. "/m.pt", { root = cbk.dict { x = cbk.full({ 2 }, 1) } }):commit()
    local function converts() return harness.cbk(dir, "convert", "m.pt", "--converter", "own.lua", "--to", "b", "--overwrite") end
    local code, _, stderr = converts()
    equal(code, 0)
    has(stderr, "there is no config.json beside the checkpoint")
    cbk.fs.write(dir .. "/config.json", '{"width": 2, "use_alibi": true}')
    code, _, stderr = converts()
    equal(code, 1)
    has(stderr, "cannot convert the config with use_alibi=true")
    cbk.fs.write(dir .. "/config.json", '{"width": 2, "use_alibi": false}', { overwrite = true })
    equal(converts(), 0)
    equal(cbk.config.load(dir .. "/m_to_b.json").dim, 2)
    cbk.create(dir .. "/whole/m_to_a.safetensors", { root = cbk.dict { x = cbk.full({ 2 }, 1) } }):commit() -- a folder with the names of
    cbk.fs.write(dir .. "/whole/m_to_a.json", '{"width": 3, "use_alibi": false}')                             -- a conversion
    local out
    code, out, stderr = harness.cbk(dir, "convert", "whole", "--converter", "own.lua", "--to", "b", "-o", "new")
    equal(code, 0, stderr)
    has(out, "--config whole/m_to_a.json\n")
    equal(cbk.config.load(dir .. "/new/whole_to_b.json").dim, 3)
  end)
end)

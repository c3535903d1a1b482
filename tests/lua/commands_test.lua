-- The commands one looks with, run as a user runs them: output, messages and exit codes.

local cbk = require "cbk"
local harness = require "harness"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local run = harness.cbk

local has, lacks = harness.has, harness.lacks

--- One line on stderr, with `part` in it.
local function failed(code, expected_code, stderr, part)
  equal(code, expected_code, "exit code")
  equal(select(2, stderr:gsub("\n", "\n")), 1, "lines on stderr")
  has(stderr, part)
end

describe("many values", function()
  it("are listed, shown and compared in the order of the tree, also keys that occur twice", function()
    local dir = harness.temp_dir()
    local root = cbk.dict { { "a.b", 1 }, { "a", cbk.dict { { "b", 2 } } }, { "", cbk.tensor { 1 } } }
    cbk.create(dir .. "/x.pt", { root = root }):commit()
    root["a.b"] = 3
    cbk.create(dir .. "/y.pt", { root = root }):commit()
    local _, shown = run(dir, "show", "x.pt", "a.b", "")
    has(shown, "a.b  int\n  1\n\na.b  int\n  2\n\n\"\"\n  float32 [1]")
    local code, text = run(dir, "diff", "x.pt", "y.pt")
    equal(code, 1)
    has(text, "different values (1):\n  key  A  B\n  a.b  1  3\n2 values the same")
    local _, json = run(dir, "ls", "--json", "x.pt")
    equal(select(2, json:gsub('"key": "a.b"', "")), 2)
    local _, plan = run(dir, "copy", "x.pt", "z.pt", "--dry-run")
    has(plan, "(1 stored tensor)")
  end)

  it("of a tree that is not of tensors only: what to leave out", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/x.pt", { root = cbk.dict { { "w", cbk.tensor { 1 } }, { "step", 1 } } }):commit()
    local code, _, stderr = run(dir, "copy", "x.pt", "x.safetensors")
    failed(code, 1, stderr, "'step' (int); copy the weights alone (cbk copy --weights), "
      .. "or leave out what is not a tensor (cbk copy --exclude")
    local state = cbk.dict { { 0, cbk.dict { { "exp_avg", cbk.tensor { 1 } } } } }
    cbk.create(dir .. "/optimizer.pt", { root = cbk.dict { { "state", state }, { "param_groups", cbk.list {} } } }):commit()
    code, _, stderr = run(dir, "copy", "optimizer.pt", "o.safetensors")
    failed(code, 1, stderr, "'param_groups' (list); write H5 (.h5) or a PyTorch file (.pt), which have all")
  end)
end)

describe("list", function()
  local function rows(...)
    local code, stdout, stderr = run(harness.temp_dir(), "list", ...)
    equal(code, 0, stderr)
    return stdout
  end

  it("one line for each model, in 80 columns", function()
    local text, seen = rows(), {}
    for line in text:gmatch "[^\n]+" do
      is_true(#line - select(2, line:gsub("[\128-\191]", "")) <= 80, line)
      local name = line:match "^(%S+)  +%S"
      is_true(name and not seen[name], line)
      seen[name] = true
    end
    has(text, "\nllama                     hf, cs-1.9 … cs-2.9\n")
    equal(rows "gpt2", "gpt2  hf, cs-1.7 … cs-2.9, cs-2.4-backbone\n")
    equal(rows("bloom", "--src-fmt", "hf"), "bloom  cs-1.9 … cs-2.9\n")
    equal(rows("bloom", "--tgt-fmt", "cs-2.9"), "bloom  hf, cs-1.9 … cs-2.8\n")
  end)

  it("by model, by format, for machines", function()
    has(rows "--all", "flan-ul2")
    lacks(rows("gpt2", "--all"), "llama")
    local text = rows("llama", "--src-fmt", "hf", "--tgt-fmt", "cs-current", "--all")
    has(text, "cs-2.1 … cs-2.9")
    lacks(text, "cs-2.0")
    has(rows("gpt2", "--src-fmt", "cs-1.8", "--tgt-fmt", "cs-2.10", "--all", "--hide-notes"), "cs-1.7 … cs-2.9, cs-2.4-backbone")
    has(rows("dpo", "--src-fmt", "hf", "--tgt-fmt", "cs-2.8-dpo", "--all"), "cs-2.1-dpo … cs-2.9-dpo")
    local list = cbk.config.parse(rows("falcon", "--src-fmt", "cs-2.4", "--tgt-fmt", "hf", "--json"), "json")
    equal({ #list, list[1].model, list[1].tgt_formats, list[1].src_formats[9] }, { 1, "falcon", { "hf" }, "cs-2.9" })
  end)

  it("nearest formats are named once each, the nearest first", function()
    local _, _, err = run(harness.temp_dir(), "convert-config", "--model", "mpt", "--src-fmt", "cs-2.9", "--tgt-fmt", "cs-2.0", "p.yaml")
    has(err, "'cs-2.0' is not a format of mpt; did you mean 'cs-2.1' or 'cs-2.2' or 'cs-2.3'? mpt has hf, cs-2.1 … cs-2.9\n")
  end)

  it("a config may be given as its folder; a field that a release lacks belongs in its model section", function()
    local dir = harness.temp_dir()
    cbk.fs.mkdir(dir .. "/m")
    cbk.fs.write(dir .. "/m/config.json", '{"n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 5}')
    local code, out, err = run(dir, "convert-config", "--model", "gpt2", "--src-fmt", "hf", "--tgt-fmt", "cs-2.9", "m")
    equal(code, 0, err)
    has(out, "Config saved to m/config_to_cs-2.9.yaml")
    cbk.fs.write(dir .. "/p.yaml", "model: {hidden_size: 4, dropout_rate: 0.0}\ntrain_input: {vocab_size: 5}\n")
    local bad, _, why = run(dir, "convert-config", "--model", "gpt2", "--src-fmt", "cs-2.1", "--tgt-fmt", "hf", "p.yaml")
    equal(bad, 1)
    has(why, "model.vocab_size, which gpt2 needs; add them")
  end)

  it("of several steps, those that change tensors are named", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/p.yaml", "model: {hidden_size: 4}\n")
    local code, out, err = run(dir, "convert-config", "--model", "gpt2", "--src-fmt", "cs-2.1", "--tgt-fmt", "cs-2.3", "p.yaml")
    equal({ code, err }, { 0, "" })
    has(out, "Config saved to ./p_to_cs-2.3.yaml\nTensors change at most in cs-2.2 -> cs-2.3\n")
  end)

  it("steps that change no tensor are said in a plain line", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/p.yaml", "model: {hidden_size: 4}\n")
    local code, out, err = run(dir, "convert-config", "--model", "gpt2", "--src-fmt", "cs-2.1", "--tgt-fmt", "cs-2.2", "p.yaml")
    equal({ code, err }, { 0, "" })
    has(out, "Config saved to ./p_to_cs-2.2.yaml\nOnly metadata and config change; tensors are copied\n")
  end)

  it("what does not exist", function()
    local dir = harness.temp_dir()
    local code, _, stderr = run(dir, "list", "falcn")
    failed(code, 1, stderr, "did you mean 'falcon'?")
    code, _, stderr = run(dir, "list", "--src-fmt", "cs-9.9")
    failed(code, 1, stderr, "there is no format 'cs-9.9'; did you mean")
    code, _, stderr = run(dir, "list", "falcon", "--tgt-fmt", "cs-1.7")
    failed(code, 1, stderr, "no converter is like that; falcon has hf, cs-1.9 … cs-2.9")
    code, _, stderr = run(dir, "list", "--src-fmt", "cs-2.9", "--tgt-fmt", "cs-2.10")
    failed(code, 1, stderr, "cs-2.9 and cs-2.10 are the same: nothing changes")
    code, _, stderr = run(dir, "list", "--src-fmt", "cs-auto")
    failed(code, 1, stderr, "cs-auto needs a checkpoint; name a format such as cs-2.4")
  end)
end)

describe("command lines", function()
  it("refuse numbers and names that cannot be meant", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = cbk.dict { w = cbk.tensor { 1 } } }):commit()
    local cases = {
      { "--threads '0'", "b.pt", "--threads", "0" }, { "--threads '-1'", "b.pt", "--threads", "-1" },
      { "--shard-size '-5'", "b.pt", "--shard-size", "-5" },
      { "'1.5KB': expected a whole number with a unit", "b.pt", "--shard-size", "1.5KB" }, { "DST '-'", "-" },
      { "--to-dtype 'bfloat15': expected a floating dtype; did you mean 'bfloat16' or 'float16'?", "b.pt", "--to-dtype", "bfloat15" },
      { "--to-dtype 'fp8': expected a floating dtype; known are float64, float32, bfloat16, float16, float8_e4m3fn, float8_e5m2, "
        .. "float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu; see", "b.pt", "--to-dtype", "fp8" },
      { "a floating dtype; known are", "b.pt", "--to-dtype", "int8" }, { "a floating dtype", "b.pt", "--to-dtype", "complex64" },
      { "'0.4', '0.5', 'flat'", "b.mdl", "--h5-version", "0.9" },
      { "would be of the format torch", "b.pt", "--h5-version", "0.4" },
    }
    for _, case in ipairs(cases) do
      local code, _, stderr = run(dir, "copy", "a.pt", unpack(case, 2))
      failed(code, 2, stderr, case[1])
    end
    equal(cbk.fs.list(dir), { "a.pt" })
  end)

  it("never write text that programs cannot read", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = cbk.dict { { "w", cbk.tensor { 1, 2 } }, { "epoch", 3 } } }):commit()
    for name, text in pairs { ["b.pt"] = "is not Unicode, and a pickle has no other", ["b.npz"] = "is not Unicode text without NUL",
      ["b.mdl"] = "is not Unicode text", ["b.safetensors"] = "is not Unicode text" } do
      local code, _, err = harness.cbk(dir, "copy", "a.pt", name, "--include", "w", "--rename", "w=w\255")
      equal({ code, cbk.fs.exists(dir .. "/" .. name) }, { 1, false }, name)
      harness.has(err, text)
    end
    local before = cbk.fs.read(dir .. "/a.pt")
    equal((harness.cbk(dir, "copy", "a.pt", "a.pt", "--rename", "epoch=ep\255", "--overwrite")), 1)
    equal(cbk.fs.read(dir .. "/a.pt"), before)
    local out = cbk.create(dir .. "/c.npz")
    out["k\0z"] = cbk.tensor { 1 }
    harness.raises("is not Unicode text without NUL", function() out:commit() end)
    out = cbk.create(dir .. "/c.pt")
    out.note = "caf\233"
    harness.raises("is not Unicode, and a pickle has no other", function() out:commit() end)
  end)

  it("never write over what they read", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = cbk.dict { w = cbk.tensor { 1, 2, 3 } } }):commit()
    cbk.fs.write(dir .. "/a.png", cbk.fs.read(dir .. "/a.pt"))
    local before = cbk.fs.read(dir .. "/a.pt")
    for _, words in ipairs {
      { "report", "a.pt", "-o", "./a.pt" }, { "infer", "a.pt", "a.png", "-o", dir .. "/a.png" }, { "plot", "a.png", "w", "-o", "a.png" },
      { "export", "a.pt", "w", "--format", "raw", "-o", "a.pt" },
    } do
      local code, _, err = run(dir, words[1], "--overwrite", unpack(words, 2))
      failed(code, 2, err, "it is also an input; choose another name")
    end
    equal({ cbk.fs.read(dir .. "/a.pt"), cbk.fs.read(dir .. "/a.png") }, { before, before })
    local code, _, err = run(dir, "report", "a.pt", "-o", "a.png")
    failed(code, 1, err, "'a.png' exists already; remove it, choose another name or add --overwrite\n")
  end)

  it("say which option takes a key, and which model does not exist", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = cbk.dict { w = cbk.tensor { 1, 2, 3 } } }):commit()
    local code, _, err = run(dir, "stats", "a.pt", "w")
    failed(code, 2, err, "there is no file 'w'; a key is chosen with --key 'w'")
    code, _, err = run(dir, "diff", "a.pt", "a.pt", "--model", "lama")
    failed(code, 2, err, "there is no model 'lama'; did you mean 'llama'")
  end)

  it("print options and page, where a page has the name of a command", function()
    for _, name in ipairs { "infer", "upgrade" } do
      local code, out = run(".", "help", name)
      equal(code, 0)
      has(out, "Usage: cbk " .. name)
      has(out, "\n# ")
      is_true(out:find("Usage", 1, true) < out:find("\n# ", 1, true))
    end
  end)

  it("name a file once where it cannot be opened", function()
    local code, _, err = run(harness.temp_dir(), "show", "--dataloader", "nope.pt")
    equal({ code, err }, { 1, "cbk: cannot open 'nope.pt': No such file or directory\n" })
  end)

  it("say first that a file does not exist", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/report.html", "")
    for command, message in pairs { report = "cannot open 'nix': No such file", verify = "cannot verify 'nix': no such file or folder",
      work = "'nix' does not exist, but should be a job" } do
      local code, _, err = run(dir, command, "nix")
      is_true(code ~= 0, command)
      has(err, message)
    end
  end)

  it("say once what is wrong with a config that is read twice", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/m.mdl", { root = cbk.dict { { "model", cbk.dict { { "w", cbk.tensor { 1 } } } } } }):commit()
    cbk.fs.write(dir .. "/params.yaml", "model:\n  hidden_size: 1\n  hidden_size: 1\n")
    local _, _, err = run(dir, "convert", "m.mdl", "--model", "gpt2", "--to", "cs-2.5", "--dry-run")
    equal(select(2, err:gsub("is repeated in one map", "")), 1, err)
    cbk.fs.write(dir .. "/config.json", "{")
    cbk.create(dir .. "/model.safetensors", { root = cbk.dict { { "w", cbk.tensor { 1 } } } }):commit()
    err = select(3, run(dir, "convert", "model.safetensors", "--to", "cs-2.5"))
    equal(select(2, err:gsub("cannot read the config", "")), 1, err)
  end)

  it("refuse options of another work", function()
    for _, option in ipairs { "--workers", "--batch-size", "--seed" } do
      local code, _, err = run(harness.temp_dir(), "show", "a.pt", "w", option, "3")
      failed(code, 2, err, option .. " needs --dataloader")
    end
  end)

  it("take options as Python's argparse does", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = cbk.dict { w = cbk.tensor { 1 }, b = cbk.tensor { 2 } } }):commit()
    local function fine(...)
      local code, stdout, stderr = run(dir, ...)
      equal(code, 0, stderr)
      return stdout
    end
    fine("copy", "a.pt", "b.pt", "--to-dtype=float16", "--no-progress-bar")
    has(fine("ls", "b.pt"), "float16")
    cbk.fs.write(dir .. "/data_iter_checkpoint_state_file_global", "1")
    fine("data-iter-state-conversion", "--old_checkpoint=a.pt", "-w=.", "--output", "o.mdl", "-s=-3", "-d=map", "-q")
    has(fine("show", "--dataloader", "o.mdl"), "seed -3")
    local code, _, stderr = run(dir, "data-iter-state-conversion", "-c", "a.pt", "-w", ".", "-o", "p.mdl", "-s=")
    failed(code, 2, stderr, "--shuffle_seed '' is not a whole number")
    code, _, stderr = run(dir, "copy", "a.pt", "c.pt", "--none")
    failed(code, 2, stderr, "unknown option '--none'")
    code, _, stderr = run(dir, "copy", "a.pt", "-o", "c.pt")
    failed(code, 2, stderr, "unknown option '-o'; see 'cbk copy --help'")
    code, _, stderr = run(dir, "copy", "a.pt", "c.pt", "--overwite")
    failed(code, 2, stderr, "unknown option '--overwite'; did you mean '--overwrite'?")
    equal(cbk.fs.exists(dir .. "/p.mdl"), false)
  end)

  it("take no beginnings of options, and name those that may be meant", function()
    for _, case in ipairs {
      { "'--model-d'; did you mean '--model-dir'? See", "train", "x.yaml", "--model-d", "gpt2" },
      { "'--dtype'; did you mean '--to-dtype'? See", "copy", "a.pt", "b.pt", "--dtype", "float16" },
      { "'--over'; did you mean '--overwrite'? See", "copy", "a.pt", "b.pt", "--over=1" },
      { "'--tgt_f'; did you mean '--tgt-fmt'? See", "convert", "a.pt", "--tgt_f", "hf" },
      { "'--xyzzy'; see", "copy", "a.pt", "b.pt", "--xyzzy" },
    } do
      local code, _, stderr = run(harness.temp_dir(), unpack(case, 2))
      failed(code, 2, stderr, "unknown option " .. case[1])
    end
  end)

  it("name the first argument that is too many, and the option that it may be a value of", function()
    for _, case in ipairs {
      { "'y' is one too many; see", "ls", "a.pt", "x", "y", "z" },
      { "'c' is one too many; see", "copy", "--to-dtype", "float16", "a.pt", "-q", "b.pt", "c" },
      { "'b' is one too many; see", "ls", "--", "a.pt", "--all", "b" },
      { "'cs-2.5' is one too many; did you mean '--to cs-2.5'? See", "convert", "a.pt", "--from", "hf", "cs-2.5" },
      { "'bfloat16' is one too many; did you mean '--to-dtype bfloat16' or '--dequantize bfloat16'? See", "copy", "a.pt", "b.pt",
        "bfloat16" },
      { "'llama' is one too many; did you mean '--model llama'? See", "convert", "a.pt", "llama" },
      { "'h5' is one too many; did you mean '--format h5'? See", "copy", "a.pt", "b", "h5" },
    } do
      local code, _, stderr = run(harness.temp_dir(), unpack(case, 2))
      failed(code, 2, stderr, "too many arguments: " .. case[1])
    end
  end)

  it("list keys of one text, long keys and control characters", function()
    local dir = harness.temp_dir()
    local one, two = cbk.full({ 6 }, 1), cbk.full({ 2 }, 0)
    local root = cbk.dict { { 1, one }, { "1", two }, { 2, two }, { ("x"):rep(300), two }, { "a\27[31m.1\1\2", two } }
    cbk.create(dir .. "/a.pt", { root = root }):commit()
    for _, option in ipairs { "--all", "--flat", "--json" } do
      local code, stdout = run(dir, "ls", "a.pt", option)
      equal(code, 0)
      lacks(stdout, "\27")
    end
    local code, stdout, stderr = run(dir, "ls", "a.pt")
    equal({ code, stderr }, { 0, "" })
    has(stdout, "a\\x1b[31m.1\\x01\\x02")
    for line in stdout:gmatch "[^\n]+" do is_true(#line < 100 or line:find "^xxx", line) end
    equal(select(2, stdout:gsub("\n1 ", "")), 2)
  end)
end)

describe("keys that are not what they seem", function()
  local function folder(name, root)
    local dir = harness.temp_dir()
    cbk.create(dir .. "/" .. name, { root = root }):commit()
    return dir
  end

  it("are all shown where they have one path", function()
    local inner, outer = cbk.tensor { 1 }, cbk.tensor { 2, 3 }
    local dir = folder("a.pt", cbk.dict { { "a", cbk.dict { { "b", inner } } }, { "a.b", outer } })
    local code, stdout = run(dir, "show", "a.pt", "a.b")
    equal(code, 0)
    has(stdout, "float32 [1]")
    has(stdout, "float32 [2]")
    equal(#cbk.config.parse(select(2, run(dir, "show", "--json", "a.pt", "a.b")), "json"), 2)
  end)

  it("may hold '=', which --rename escapes", function()
    local dir = folder("a.pt", cbk.dict { { "x=y.w", cbk.tensor { 1 } }, { "z", cbk.tensor { 2 } } })
    for i, rule in ipairs { "x\\=y=k", "^x\\=y=k", "x\\=y.*=k.*" } do
      local code, _, stderr = run(dir, "copy", "a.pt", i .. ".pt", "--rename", rule)
      equal({ code, stderr }, { 0, "" })
      equal(cbk.open(dir .. "/" .. i .. ".pt")["k.w"]:item(), 1, rule)
    end
    run(dir, "copy", "a.pt", "e.pt", "--rename", "z=a=b")
    equal(cbk.open(dir .. "/e.pt")["a=b"]:item(), 2)
  end)

  it("change in lists that lose items, with a warning", function()
    local dir = folder("a.pt", cbk.list { cbk.tensor { 1 }, cbk.tensor { 2 } })
    local code, _, stderr = run(dir, "copy", "a.pt", "b.pt", "--include", "1")
    equal(code, 0)
    has(stderr, "warning: list items were renumbered because some were excluded: '1' has another number")
    local _, _, quiet = run(dir, "copy", "a.pt", "c.pt", "--include", "0")
    equal(quiet, "")
  end)

  it("name what a format cannot hold", function()
    local dir = folder("a.pt", cbk.dict { { "i", cbk.tensor({ 1 }, { dtype = "int32" }):reshape({}):as { role = "np_scalar" } } })
    local code, _, stderr = run(dir, "copy", "a.pt", "b.safetensors")
    failed(code, 1, stderr, "'i' (numpy scalar)")
  end)

  it("stay with the permissions of what is replaced", function()
    local dir = folder("a.pt", cbk.dict { w = cbk.tensor { 1 } })
    local function mode() return (io.popen("stat -c %a " .. dir .. "/b.pt"):read "*a":gsub("%s", "")) end
    run(dir, "copy", "a.pt", "b.pt")
    for _, wanted in ipairs { "640", "600", "444" } do
      os.execute(("chmod %s %s/b.pt"):format(wanted, dir))
      equal((run(dir, "copy", "a.pt", "b.pt", "--overwrite")), 0)
      equal(mode(), wanted)
    end
  end)
end)

describe("output that cannot be written", function()
  it("is a failure", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = cbk.dict { w = cbk.tensor { 1 } } }):commit()
    local cases = { { 1, "list" }, { 1, "--help" }, { 1, "ls --help" }, { 1, "ls a.pt" }, { 2, "diff a.pt a.pt" }, { 1, "-e 1" },
      { 7, "-e 'print(1) os.exit(7)'" } }
    for _, case in ipairs(cases) do
      local status = os.execute(("cd %s && '%s' %s >/dev/full 2>err"):format(dir, arg[-1], case[2]))
      equal(math.floor(status / 256), case[1], case[2])
      failed(1, 1, cbk.fs.read(dir .. "/err"), "cannot write to standard output")
    end
  end)
end)

local weight = { { 1, 2, 3 }, { 4, 5, 6 } }

--- model.pt: four layers, a tied head, a nested optimizer.
local function make_model(folder, name, change)
  local embedding = cbk.tensor(weight)
  local model = cbk.dict { { "embedding.weight", embedding } }
  for layer = 0, 3 do
    model[("layers.%d.norm.gamma"):format(layer)] = cbk.tensor { layer, layer + 1 }
    model[("layers.%d.attention.weight"):format(layer)] = cbk.randn({ 8, 4 }, { seed = layer })
  end
  model["head.weight"] = embedding
  local root = cbk.dict { { "model", model }, { "optimizer", cbk.dict { { "lr", 0.5 }, { "betas", cbk.tuple { 0.9, 0.999 } } } },
    { "step", 7 } }
  if change then change(root) end
  cbk.create(folder .. "/" .. name, { root = root }):commit()
end

local function weights_only(root) root.optimizer, root.step = nil, nil end

describe("cbk ls", function()
  it("folds layers, shows ties and totals", function()
    local dir = harness.temp_dir()
    make_model(dir, "model.pt")
    local code, out, err = run(dir, "ls", "model.pt")
    equal(code, 0)
    equal(err, "")
    has(out, "layers.{0..3}")
    has(out, "4 ×  float32")
    has(out, "= model.embedding.weight")
    has(out, "10 tensors")
    has(out, "1 tied")
    has(out, "4 other values")
    lacks(out, "layers.2")
  end)

  it("folds TensorFlow's names, and numbers with leading zeros", function()
    local dir = harness.temp_dir()
    local root = cbk.dict { { "global_step", cbk.full({}, 5, { dtype = "int64" }) } }
    for layer = 0, 11 do
      local kernel = ("bert/encoder/layer_%d/kernel"):format(layer)
      root[kernel], root[kernel .. "/Adam_1"] = cbk.randn({ 4, 2 }), cbk.randn({ 4, 2 })
      root[("block_%03d/scale"):format(layer)] = cbk.randn({ 4 })
    end
    cbk.create(dir .. "/model.ckpt-5", { root = root, format = "tensorflow" }):commit()
    for _, name in ipairs { "model.ckpt-5", "model.ckpt-5.index", "." } do
      local code, out = run(dir, "ls", name)
      equal(code, 0)
      has(out, "tensorflow V2 in 2 files")
      has(out, "bert/encoder/layer_{0..11}/")
      has(out, "kernel/Adam_1              12 ×  float32")
      has(out, "block_{000..011}/scale")
    end
    local graph = cbk.dict()
    for layer = 0, 99 do
      for index = 0, 2 do
        graph[("model/layer_with_weights-%d/_w%d/.ATTRIBUTES/VARIABLE_VALUE"):format(layer, index)] = cbk.randn({ 2 })
      end
    end
    cbk.create(dir .. "/graph", { root = graph, format = "tensorflow" }):commit()
    local _, listed = run(dir, "ls", "graph")
    has(listed, "model/layer_with_weights-{0..99}/_w{0..2}/.ATTRIBUTES/VARIABLE_VALUE  300 ×  float32  [2]  2.3 KiB\n300 tensors")
    local _, out = run(dir, "ls", "model.ckpt-5", "bert/encoder/layer_1", "--flat")
    has(out, "2 tensors, 16 elements")
  end)

  it("orders the items of a list by number, folded or not", function()
    local dir = harness.temp_dir()
    local odd = cbk.tensor({ 1, 2 }, { dtype = "int64" })
    cbk.create(dir .. "/l.pt", { root = cbk.list { cbk.tensor { 1 }, cbk.tensor { 2 }, odd } }):commit()
    has(select(2, run(dir, "ls", "l.pt")), "\n{0,1}  2 ×  float32  [1]   8 B\n2           int64    [2]  16 B\n")
  end)

  it("filters by globs and by plain names, flat and unfolded", function()
    local dir = harness.temp_dir()
    make_model(dir, "model.pt")
    local _, out = run(dir, "ls", "model.pt", "model.layers.1", "--flat")
    has(out, "model.layers.1.norm.gamma ")
    lacks(out, "layers.0")
    _, out = run(dir, "ls", "model.pt", "*.gamma", "--all")
    has(out, "layers")
    has(out, "4 tensors, 8 elements")
    local code, err
    code, _, err = run(dir, "ls", "model.pt", "nothing*")
    failed(code, 1, err, "no key of 'model.pt' matches 'nothing*'")
  end)

  it("speaks JSON", function()
    local dir = harness.temp_dir()
    make_model(dir, "model.pt")
    local _, out = run(dir, "ls", "model.pt", "--json")
    local listing = cbk.config.parse(out, "json")
    equal(listing.format, "torch-zip")
    equal(listing.totals.tensors, 10)
    local head = listing.entries[10]
    equal(head.key, "model.head.weight")
    equal(head.shape, { 2, 3 })
    equal(head.tied_to, "model.embedding.weight")
  end)
end)

describe("cbk show", function()
  it("shows the header, the place, ties, statistics and elements", function()
    local dir = harness.temp_dir()
    make_model(dir, "model.pt")
    local code, out = run(dir, "show", "model.pt", "model.head.weight", "optimizer.lr")
    equal(code, 0)
    has(out, "float32 [2, 3]")
    has(out, "in model.pt at byte")
    has(out, "tied to model.embedding.weight")
    has(out, "min 1, max 6, mean 3.5")
    has(out, "[4, 5, 6]")
    has(out, "0.5")
    out = select(2, run(dir, "show", "model.pt", "model.head.weight", "--no-stats"))
    lacks(out, "mean")
  end)

  it("takes globs, and names the nearest keys of a wrong one", function()
    local dir = harness.temp_dir()
    make_model(dir, "model.pt")
    local _, out = run(dir, "show", "model.pt", "*.gamma")
    has(out, "model.layers.3.norm.gamma")
    local code, err, json
    code, _, err = run(dir, "show", "model.pt", "model.hed.weight")
    failed(code, 1, err, "model.head.weight")
    _, json = run(dir, "show", "model.pt", "model.head.weight", "--json")
    equal(cbk.config.parse(json, "json")[1].stats.max, 6)
  end)
end)

describe("cbk diff", function()
  it("is 0 for the same content in other formats", function()
    local dir = harness.temp_dir()
    make_model(dir, "a.pt", weights_only)
    equal(run(dir, "copy", "a.pt", "b.safetensors"), 0)
    local code, out = run(dir, "diff", "a.pt", "b.safetensors")
    equal(code, 0)
    has(out, "the same: 10 values")
  end)

  it("is 1 and lists keys, shapes, dtypes and values that differ", function()
    local dir = harness.temp_dir()
    make_model(dir, "a.pt")
    make_model(dir, "b.pt", function(root)
      local model = root.model
      model["head.weight"] = cbk.tensor { { 1, 2, 3 }, { 4, 5, 6.5 } }
      model["layers.0.norm.gamma"] = cbk.tensor({ 0, 1 }, { dtype = "float64" })
      model["layers.1.norm.gamma"] = cbk.tensor { 1 }
      model["layers.2.norm.gamma"] = nil
      model.extra = cbk.tensor { 1 }
      root.step = 8
    end)
    local code, out = run(dir, "diff", "a.pt", "b.pt")
    equal(code, 1)
    has(out, "only in a.pt (1):\n  model.layers.2.norm.gamma\n")
    has(out, "only in b.pt (1):\n  model.extra\n")
    is_true(out:find "\n  model.layers.0.norm.gamma +dtype float32, float64\n", out)
    is_true(out:find "\n  model.layers.1.norm.gamma +shape %[2%], %[1%]\n", out)
    is_true(out:find "\n  model.head.weight .* 0.5  16.7 %% ", out)
    has(out, "\n  largest in model.head.weight[1, 2]: ")
    has(out, "different values (1):\n  key   A  B\n  step  7  8\n")
    local every = select(2, run(dir, "diff", "a.pt", "b.pt", "--all"))
    has(every, "model.head.weight: 1 of 6 elements differ (16.7 %), max abs 0.5")
    has(every, "first at [1, 2]")
    has(every, "model.layers.0.norm.gamma: dtype float32, float64")
    has(every, "step: 7, 8")
    local json
    code, json = run(dir, "diff", "a.pt", "b.pt", "--json")
    equal(code, 1)
    local result = cbk.config.parse(json, "json")
    equal(result.equal, false)
    equal(result.only_b, { "model.extra" })
  end)

  it("rounds no share to 0 or 100 %", function()
    local dir = harness.temp_dir()
    local function save(name, root) cbk.create(dir .. "/" .. name, { root = root }):commit() end
    local changed = cbk.cat({ cbk.full({ 16382 }, 1), cbk.full({ 2 }, 0) }, 0)
    save("a.pt", cbk.dict { w = cbk.full({ 16384 }, 0), x = cbk.full({ 4 }, 0) })
    save("b.pt", cbk.dict { w = changed, x = cbk.full({ 4 }, 1) })
    local out = select(2, run(dir, "diff", "a.pt", "b.pt", "--all"))
    has(out, "w: 16,382 of 16,384 elements differ (99.99 %)")
    has(out, "x: 4 of 4 elements differ (100 %)")
    has(select(2, run(dir, "show", "b.pt", "w")), "zeros 2 (0.01 %)")
    has(select(2, run(dir, "show", "a.pt", "w")), "zeros 16,384 (100 %)")
  end)

  it("obeys tolerances, --ignore-dtype and --keys-only", function()
    local dir = harness.temp_dir()
    make_model(dir, "a.pt", weights_only)
    equal(run(dir, "copy", "a.pt", "half.pt", "--to-dtype", "bfloat16"), 0)
    equal(run(dir, "diff", "a.pt", "half.pt"), 1)
    equal(run(dir, "diff", "a.pt", "half.pt", "--ignore-dtype"), 1)
    equal(run(dir, "diff", "a.pt", "half.pt", "--ignore-dtype", "--rtol", "0.01"), 0)
    equal(run(dir, "diff", "a.pt", "half.pt", "--ignore-dtype", "--atol", "0.05"), 0)
    equal(run(dir, "diff", "a.pt", "half.pt", "--ignore-dtype", "--keys-only"), 0)
  end)

  it("is 2 when something is wrong", function()
    local dir = harness.temp_dir()
    make_model(dir, "a.pt")
    local code, _, err = run(dir, "diff", "a.pt", "missing.pt")
    failed(code, 2, err, "missing.pt")
    equal(run(dir, "diff", "a.pt"), 2)
    equal(run(dir, "diff", "a.pt", "a.pt", "--rtol", "-1"), 2)
  end)
end)

---A file of safetensors with one tensor of 4-bit elements.
local function make_sub_byte(path, bytes)
  local header = ('{"__metadata__":{"note":"ü","format":"pt"},"q":{"dtype":"F4","shape":[%d],"data_offsets":[0,%d]}}'):format(
    2 * #bytes, #bytes)
  cbk.fs.write(path, string.char(#header, 0, 0, 0, 0, 0, 0, 0) .. header .. bytes)
end

describe("cbk diff and copy of elements smaller than a byte", function()
  it("call nothing equal that was not read, and refuse to copy it", function()
    local dir = harness.temp_dir()
    make_sub_byte(dir .. "/a.safetensors", "\18\52")
    make_sub_byte(dir .. "/b.safetensors", "\255\255")
    local code, out = run(dir, "diff", "a.safetensors", "b.safetensors")
    equal(code, 1)
    is_true(out:find("  q    F4 [4] (4 bits each): elements smaller than a byte are not compared", 1, true), out)
    for _, target in ipairs { "x.pt", "x.mdl", "x.safetensors" } do
      equal(run(dir, "copy", "a.safetensors", target), 1)
      is_true(not cbk.fs.exists(dir .. "/" .. target), target)
    end
  end)
end)

describe("cbk copy", function()
  it("keeps the metadata of safetensors, and an empty key", function()
    local dir = harness.temp_dir()
    local out = cbk.create(dir .. "/a.safetensors", { metadata = { note = "ü" } })
    out[""], out.b = cbk.tensor { 1, 2 }, cbk.tensor { 3 }
    out:commit()
    equal(run(dir, "copy", "a.safetensors", "b.safetensors", "--exclude", "b"), 0)
    local copy = cbk.open(dir .. "/b.safetensors")
    equal(copy.metadata, { note = "ü" })
    for key, tensor in copy:tensors() do
      equal(key, "")
      equal(tensor:tolist(), { 1, 2 })
    end
    equal(run(dir, "copy", "a.safetensors", "c.pt"), 0)
    equal(run(dir, "copy", "c.pt", "d.safetensors"), 0)
    equal(cbk.open(dir .. "/d.safetensors").metadata, { format = "pt" })
  end)

  it("filters, renames and casts", function()
    local dir = harness.temp_dir()
    make_model(dir, "a.pt")
    local code, _, err = run(dir, "copy", "a.pt", "b.safetensors", "--include", "model", "--exclude", "*.attention.*", "--rename",
      "model.*=*", "--rename", "gamma=weight", "--rename", "^layers%.(%d+)=h.%1", "--to-dtype", "float16")
    equal(code, 0)
    equal(err, "warning: 1 tied tensor is written as a copy: safetensors has no ties\n")
    local copy = cbk.open(dir .. "/b.safetensors")
    local keys = {}
    for key, tensor in copy:tensors() do
      keys[#keys + 1] = key
      equal(tensor.dtype, "float16")
    end
    table.sort(keys)
    equal(keys, { "embedding.weight", "h.0.norm.weight", "h.1.norm.weight", "h.2.norm.weight", "h.3.norm.weight", "head.weight" })
    equal(copy["head.weight"]:tolist(), weight)
  end)

  it("keeps trees, ties and other values, also where it casts", function()
    local dir = harness.temp_dir()
    make_model(dir, "a.pt")
    equal(run(dir, "copy", "a.pt", "b.pt", "--to-dtype", "float64", "--exclude", "optimizer.betas"), 0)
    local copy = cbk.open(dir .. "/b.pt")
    is_true(copy["model.embedding.weight"]:same(copy["model.head.weight"]), "tied")
    equal(copy.root.model["head.weight"].dtype, "float64")
    equal(copy.root.step, 7)
    equal(copy.root.optimizer.lr, 0.5)
    equal(copy.root.optimizer.betas, nil)
  end)

  it("counts ties in whole words", function()
    local dir = harness.temp_dir()
    make_model(dir, "a.pt", weights_only)
    for i, more in ipairs { {}, { "--format", "safetensors", "--shard-size", "1MB" } } do
      local _, _, err = run(dir, "copy", "a.pt", i == 1 and "b.safetensors" or "shards", unpack(more))
      equal(err, "warning: 1 tied tensor is written as a copy: safetensors has no ties\n")
    end
  end)

  it("writes shards, and only a plan with --dry-run", function()
    local dir = harness.temp_dir()
    make_model(dir, "a.pt", weights_only)
    local code, out = run(dir, "copy", "a.pt", "b.safetensors", "--dry-run")
    equal(code, 0)
    has(out, "writes")
    is_true(not cbk.fs.exists(dir .. "/b.safetensors"))
    equal(run(dir, "copy", "a.pt", "shards", "--format", "safetensors", "--shard-size", "200B"), 0)
    is_true(cbk.fs.exists(dir .. "/shards/model.safetensors.index.json"))
    equal(run(dir, "diff", "a.pt", "shards"), 0)
  end)

  it("names counters that the dtype rounds", function()
    local dir = harness.temp_dir()
    local function scalar(value) return cbk.full({}, value) end
    local state = cbk.dict { { 0, cbk.dict { step = scalar(1001) } }, { 1, cbk.dict { step = scalar(256), decay = scalar(0.1) } } }
    cbk.create(dir .. "/a.pt", { root = cbk.dict { w = cbk.full({ 2 }, 0.1), state = state } }):commit()
    local code, _, err = run(dir, "copy", "a.pt", "b.pt", "--to-dtype", "bfloat16")
    failed(code, 0, err, "warning: bfloat16 cannot hold whole numbers of the checkpoint: state.0.step: 1001 becomes 1000; --include copies "
      .. "the weights alone")
  end)

  it("refuses values that the dtype cannot hold, unless they are allowed", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/large.pt", { root = cbk.dict { w = cbk.tensor { 1e5, 1 } } }):commit()
    local code, _, err = run(dir, "copy", "large.pt", "b.pt", "--to-dtype", "float16")
    failed(code, 1, err, "'w' (1 of 2 values overflow float16)")
    is_true(not cbk.fs.exists(dir .. "/b.pt"))
    code, _, err = run(dir, "copy", "large.pt", "half.pt", "--to-dtype", "float16", "--allow-overflow")
    failed(code, 0, err, "warning: 1 tensor cannot keep all values: 'w' (1 of 2 values overflow float16)")
    local _, json = run(dir, "copy", "large.pt", "half.pt", "--to-dtype", "float16", "--allow-overflow", "--overwrite", "--json", "-q")
    equal(cbk.totable(cbk.config.parse(json, "json").lost),
      { { key = "w", dtype = "float16", numel = 2, overflowed = 1, changed = 0, vanished = 0 } })
  end)

  it("refuses what cannot be, and leaves nothing behind", function()
    local dir = harness.temp_dir()
    make_model(dir, "a.pt")
    local code, _, err = run(dir, "copy", "a.pt", "b.safetensors")
    failed(code, 1, err, "safetensors")
    code, _, err = run(dir, "copy", "a.pt", "a.pt")
    failed(code, 1, err, "--overwrite")
    code, _, err = run(dir, "copy", "a.pt", "b.xyz")
    equal(code ~= 0, true)
    has(err, "b.xyz")
    code, _, err = run(dir, "copy", "a.pt", "b.pt", "--rename", "model.layers.?.norm.gamma=same")
    failed(code, 1, err, "two values would be named 'same'")
    code, _, err = run(dir, "copy", "a.pt", "b.pt", "--to-dtype", "float23")
    equal(code ~= 0, true)
    has(err, "float23")
    code, _, err = run(dir, "copy", "a.pt", "b.pt", "--rename", "nonsense")
    failed(code, 2, err, "OLD=NEW")
    code, _, err = run(dir, "copy", "a.pt", "b.pt", "--include", "nope")
    failed(code, 1, err, "no key of 'a.pt' matches --include 'nope'")
    code, _, err = run(dir, "copy", "a.pt", "b.pt", "--include", "model.embeding.weight")
    failed(code, 1, err, "; did you mean 'model.embedding.weight'")
    code, _, err = run(dir, "copy", "a.pt", "b.pt", "--include", "model.layer.1")
    failed(code, 1, err, "; did you mean 'model.layers.1' or 'model.layers.0'")
    code, _, err = run(dir, "copy", "a.pt", "b.pt", "--include", ("x."):rep(1000))
    failed(code, 1, err, "matches --include")
    code, _, err = run(dir, "copy", "a.pt", "b.pt", "--exclude", "*")
    failed(code, 1, err, "no key of 'a.pt' is left: --exclude leaves out all of them")
    equal(cbk.fs.list(dir), { "a.pt" })
  end)

  it("limits what repeated elements may become", function()
    local dir = harness.temp_dir()
    local w = cbk.tensor { 1, 2 }
    cbk.create(dir .. "/tied.pt", { root = cbk.dict { a = w, b = w } }):commit()
    local code, _, err = run(dir, "copy", "tied.pt", "copy.safetensors", "--max-expansion", "7")
    failed(code, 1, err, "--max-expansion SIZE")
    equal(cbk.fs.list(dir), { "tied.pt" })
    equal(run(dir, "copy", "tied.pt", "copy.safetensors", "--max-expansion", "8"), 0)
    code, _, err = run(dir, "upgrade", "tied.pt", "--max-expansion", "none")
    failed(code, 2, err, "--max-expansion 'none'")
  end)

  it("warns of options that do nothing", function()
    local dir = harness.temp_dir()
    make_model(dir, "a.pt")
    local code, _, err = run(dir, "copy", "a.pt", "b.pt", "--exclude", "nothing", "--rename", "foo=bar")
    equal(code, 0)
    has(err, "no key matches 'nothing'")
    has(err, "--rename 'foo=bar' changes no key")
  end)
end)

describe("every command", function()
  local commands = { ls = {}, show = { "key" }, dump = {}, plot = { "key" }, report = {}, copy = { "out.pt" }, repl = {} }

  it("says in one line what is wrong with its file", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/empty.pt", "")
    cbk.fs.write(dir .. "/text.pt", "just a text\n")
    cbk.fs.mkdir(dir .. "/folder")
    for command, rest in pairs(commands) do
      for _, file in ipairs { "missing.pt", "empty.pt", "text.pt", "folder" } do
        local code, _, err = run(dir, command, file, unpack(rest))
        failed(code, 1, err, file)
      end
    end
  end)

  it("has help, and reports wrong options with exit code 2", function()
    local dir = harness.temp_dir()
    for _, command in ipairs {
      "ls", "show", "stats", "check", "plot", "report", "dump", "diff", "copy", "repl", "demo", "fix-checkpoint-spec",
      "data-iter-state-conversion",
    } do
      local code, out, err = run(dir, command, "--help")
      equal(code, 0)
      equal(err, "")
      has(out, "Usage: cbk " .. command)
      for line in out:gmatch "[^\n]+" do
        local _, continuation = line:gsub("[\128-\191]", "")
        is_true(#line - continuation <= 100, ("'cbk %s --help' fits 100 columns"):format(command))
      end
      code, _, err = run(dir, command, "--nosuch")
      failed(code, 2, err, "--nosuch")
    end
  end)
end)

-- Other names of tensors that a safetensors file notes in its metadata: they are ties of the tree, whatever command reads it.

local cbk = require "cbk"
local conversion = require "conversion"
local t = require "harness"
local describe, it = t.describe, t.it

local HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"

---A file of a head, a norm, and an embedding that is the head (as safetensors.torch.save_model writes it).
local function alias_file(dir, name)
  local path = cbk.fs.join(dir, name or "alias.safetensors")
  cbk.create(path, { root = cbk.dict { { HEAD, cbk.tensor { { 1, 2 }, { 3, 4 } } }, { "model.norm.weight", cbk.tensor { 5, 6 } } },
    metadata = cbk.dict { { "format", "pt" }, { EMBED, HEAD } } }):commit()
  return path
end

local function run(dir, ...)
  local code, out, err = t.cbk(dir, ...)
  t.equal(code, 0, err)
  return out, err
end

local function keys_of(path)
  local keys = {}
  for key in cbk.open(path):tensors() do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

describe("aliases of safetensors", function()
  it("are tied tensors of the tree, and no metadata", function()
    local ckpt = cbk.open(alias_file(t.temp_dir()))
    t.equal(cbk.keys(ckpt.root), { HEAD, "model.norm.weight", EMBED })
    t.is_true(ckpt.root[EMBED]:same(ckpt.root[HEAD]))
    t.equal(cbk.keys(ckpt.metadata), { "format" })
    local rows = cbk.leaf_rows(ckpt:raw_root())
    t.equal({ rows:totals().tensors, rows:totals().tied, rows[3].tied_to }, { 3, 1, HEAD })
  end)

  it("count only where they name a tensor, and are none themselves", function()
    local dir = t.temp_dir()
    local tensors = cbk.dict { { "a", cbk.tensor { 1 } }, { "pt", cbk.tensor { 2 } }, { "b", cbk.tensor { 3 } } }
    local cases = {
      { "a chain", { y = "a", z = "y" }, { "a", "b", "pt", "y" } },
      { "a cycle", { y = "z", z = "y" }, { "a", "b", "pt" } },
      { "itself", { y = "y" }, { "a", "b", "pt" } },
      { "a name that the file has", { a = "b" }, { "a", "b", "pt" } },
      { "the framework", { format = "pt" }, { "a", "b", "pt" } },
      { "nothing", { y = "gone", [""] = "a" }, { "a", "b", "pt" } },
      { "two names", { y = "a", z = "a" }, { "a", "b", "pt", "y", "z" } },
    }
    for i, case in ipairs(cases) do
      local path = ("%s/%d.safetensors"):format(dir, i)
      cbk.create(path, { root = tensors, metadata = cbk.dict(case[2]) }):commit()
      t.equal(keys_of(path), case[3], case[1])
      t.equal(cbk.open(path).root.a:item(), 1, case[1])
    end
    local many = cbk.dict { { "format", "pt" } }
    for i = 1, 1000 do many["alias" .. i] = "a" end
    cbk.create(dir .. "/many.safetensors", { root = tensors, metadata = many }):commit()
    t.equal(cbk.leaf_rows(cbk.open(dir .. "/many.safetensors"):raw_root()):totals().tied, 1000)
    for i = 1, 2000 do many["alias" .. i] = "a" end
    cbk.create(dir .. "/more.safetensors", { root = tensors, metadata = many }):commit()
    t.raises("2000 further names for 3 tensors: at most 1024 are read", function() cbk.open(dir .. "/more.safetensors") end, "format")
  end)

  it("may be noted by shards or by their index, for tensors of any shard", function()
    local dir = t.temp_dir()
    local function shard(file, root, metadata) cbk.create(dir .. "/" .. file, { root = cbk.dict(root), metadata = metadata }):commit() end
    local index = dir .. "/model.safetensors.index.json"
    shard("model-1.safetensors", { a = cbk.tensor { 1 } }, cbk.dict { c = "b", b = "a" })
    shard("model-2.safetensors", { b = cbk.tensor { 2 } }, cbk.dict { format = "pt" })
    cbk.fs.write(index, '{"metadata": {"total_size": 8, "d": "a", "e": "nothing"}, "weight_map": {'
      .. '"a": "model-1.safetensors", "b": "model-2.safetensors"}}')
    for _, path in ipairs { index, dir } do
      local ckpt = cbk.open(path)
      t.equal(cbk.count(ckpt.root), 4)
      t.is_true(ckpt.root.c:same(ckpt.root.b) and ckpt.root.d:same(ckpt.root.a) and ckpt.root.b:item() == 2)
      t.equal(cbk.keys(ckpt.metadata), { "total_size", "e" })
    end
    t.equal((t.cbk(dir, "check", dir, "--no-values")), 0)
  end)

  it("are copied as ties where the format has them, else as tensors; nothing dangles", function()
    local dir = t.temp_dir()
    local source = alias_file(dir)
    local cases = {
      { {}, "x.safetensors", { HEAD, EMBED, "model.norm.weight" }, 0 },
      { {}, "x.bin", { HEAD, EMBED, "model.norm.weight" }, 1 },
      { {}, "x.mdl", { HEAD, EMBED, "model.norm.weight" }, 1 },
      { {}, "x.npz", { HEAD, EMBED, "model.norm.weight" }, 0 },
      { { "--exclude", HEAD }, "head.safetensors", { EMBED, "model.norm.weight" }, 0 },
      { { "--exclude", EMBED }, "embed.safetensors", { HEAD, "model.norm.weight" }, 0 },
      { { "--rename", "lm_head=head" }, "rename.safetensors", { "head.weight", EMBED, "model.norm.weight" }, 0 },
      { { "--rename", "embed_tokens=wte" }, "rename.bin", { HEAD, "model.norm.weight", "model.wte.weight" }, 1 },
      { { "--to-dtype", "bfloat16" }, "cast.bin", { HEAD, EMBED, "model.norm.weight" }, 1 },
    }
    for _, case in ipairs(cases) do
      local options, name, keys, tied = unpack(case)
      run(dir, "copy", source, name, "-q", unpack(options))
      local path = cbk.fs.join(dir, name)
      t.equal(keys_of(path), keys, name)
      local copy = cbk.open(path)
      t.equal(cbk.leaf_rows(copy:raw_root()):totals().tied, tied, name)
      for key, tensor in copy:tensors() do
        t.equal(tensor:to("float32"):tolist(), key:find "norm" and { 5, 6 } or { { 1, 2 }, { 3, 4 } }, name .. " " .. key)
      end
      if copy.format == "safetensors" then t.equal(cbk.keys(copy.metadata), { "format" }, name) end
    end
  end)

  it("are the same to every command", function()
    local dir = t.temp_dir()
    local source = alias_file(dir)
    run(dir, "copy", source, "both.safetensors", "-q")
    t.is_true(run(dir, "diff", source, "both.safetensors"):find("the same: 3 values", 1, true))
    t.is_true(run(dir, "ls", source):find("3 tensors, 10 elements, 40 B (float32), 1 tied (24 B without them)", 1, true))
    t.is_true(run(dir, "check", source):find("clean: 3 tensors", 1, true))
    t.is_true(run(dir, "show", source, EMBED):find("[[1, 2]", 1, true))
    t.is_true(run(dir, "stats", source):find(EMBED, 1, true))
    run(dir, "export", source, EMBED, "-o", "embed.npy")
    t.equal(select(2, next { cbk.open(dir .. "/embed.npy").root.embed:tolist() }), { { 1, 2 }, { 3, 4 } })
  end)
end)

describe("the last norm, which the Model Zoo has under two names", function()
  it("is read under either of them", function()
    local config = cbk.dict { { "model_type", "llama" }, { "architectures", cbk.list { "LlamaForCausalLM" } }, { "vocab_size", 8 },
      { "hidden_size", 4 }, { "num_attention_heads", 2 }, { "num_hidden_layers", 1 }, { "intermediate_size", 8 },
      { "tie_word_embeddings", false } }
    local root = require("cbk.classes").new(config, "llama", "hf")
    root["model.norm.weight"] = conversion.counted({ 4 }, 3)
    local zoo_config, zoo = conversion.run("llama", "hf", "cs-2.4", config, root)
    for _, gone in ipairs { "ln_f.weight", "transformer_decoder.norm.weight" } do
      local less = cbk.dict { model = cbk.copy(zoo.model) }
      less.model[gone] = nil
      local _, back = conversion.run("llama", "cs-2.4", "hf", zoo_config, less)
      t.equal(back["model.norm.weight"]:tolist(), root["model.norm.weight"]:tolist(), gone)
      t.equal(cbk.count(back), cbk.count(root))
    end
  end)
end)

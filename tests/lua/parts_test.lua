-- Files that are a part of a checkpoint are never taken for the whole.

local cbk = require "cbk"
local parts = require "cbk.parts"
local t = require "harness"
local describe, it = t.describe, t.it

local function write(path, root)
  cbk.fs.mkdir(cbk.fs.dirname(path))
  cbk.create(path, { root = root or cbk.dict { { "w", cbk.tensor { 1, 2 } } } }):commit()
  return path
end

---Bytes of a torch archive of one tensor.
local function archive(dir, number)
  return cbk.fs.read(write(("%s/piece%d.pt"):format(dir, number), cbk.dict { { "w", cbk.tensor { number } } }))
end

local function text_of(path)
  local part = parts.of(cbk.open(path))
  return part and parts.text(part)
end

local folder = "; open their folder, in which they are joined"

describe("parts of checkpoints", function()
  it("are known by their names and by what is beside them", function()
    local dir = t.temp_dir()
    local shards, fsdp = "shards; open their index or folder", "each rank's part of the tensors (FSDP)" .. folder
    local cases = {
      { { "a/model-00002-of-00003.safetensors" }, "part 2 of 3: " .. shards },
      { { "b/model-00001-of-00001.safetensors" } },
      { { "c/model_world_size_4_rank_1.pt" }, "part 2 of 4: " .. fsdp },
      { { "d/model_world_size_1_rank_0.pt" } },
      { { "e/consolidated.01.pth", "e/consolidated.00.pth" }, "part 2 of 2: tensor-parallel parts (Meta)" .. folder },
      { { "f/consolidated.00.pth" } },
      { { "g/zero_pp_rank_10_mp_rank_00_model_states.pt", "g/zero_pp_rank_2_mp_rank_00_model_states.pt" },
        "part 2 of 2: partitions of DeepSpeed ZeRO" .. folder },
      { { "h/mp_rank_00_model_states.pt" } },
      { { "h2/mp_rank_00_model_states.pt", "h2/mp_rank_01_model_states.pt" }, "part 1 of 2: tensor-parallel parts (DeepSpeed)" },
      { { "i/mp_rank_01/model_optim_rng.pt", "i/mp_rank_00/model_optim_rng.pt" },
        "part 2 of 2: tensor- and pipeline-parallel parts (Megatron)" .. folder },
      { { "j/layer_01-model_00-model_states.pt", "j/layer_02-model_00-model_states.pt" },
        "part 1 of 2: a file for each layer (DeepSpeed)" },
      { { "k/x-model_part-1.pt", "k/x-model_part-0.pt" }, "part 2 of 2: model-parallel parts (fairscale)" },
      { { "l/model.pt", "l/other.pt" } },
    }
    for _, case in ipairs(cases) do
      for _, name in ipairs(case[1]) do write(cbk.fs.join(dir, name)) end
      t.equal(text_of(cbk.fs.join(dir, case[1][1])), case[2], case[1][1])
    end
    for _, command in ipairs { "ls", "stats" } do
      local code, _, err = t.cbk(dir, command, "e/consolidated.01.pth")
      t.equal(code, 0, err)
      t.is_true(err:find("'e/consolidated.01.pth' is not a whole checkpoint, but part 2 of 2", 1, true), err)
    end
    local code, out = t.cbk(dir, "check", "e/consolidated.01.pth")
    t.equal(code, 1)
    t.is_true(out:find("[part]", 1, true) and not out:find("clean", 1, true), out)
    local _, joined = t.cbk(dir, "ls", "e")
    t.is_true(joined:find("in 2 files", 1, true), joined)
    local _, _, err = t.cbk(dir, "ls", "k")
    t.is_true(err:find("the 2 parts of one checkpoint, model-parallel parts (fairscale), which are not joined", 1, true), err)
    t.equal(cbk.config.parse((select(2, t.cbk(dir, "ls", "--json", "a/model-00002-of-00003.safetensors"))), "json").part,
      "part 2 of 3: " .. shards)
  end)

  it("are looked for once in a folder that is known", function()
    local dir, known = t.temp_dir(), {}
    for i = 0, 2 do write(("%s/consolidated.%02d.pth"):format(dir, i)) end
    t.equal(parts.named(dir .. "/consolidated.00.pth", known).number, 1)
    cbk.fs.remove(dir .. "/consolidated.01.pth")
    local part = parts.named(dir .. "/consolidated.02.pth", known)
    t.equal({ part.number, part.count }, { 3, 3 })
    part = parts.named(dir .. "/consolidated.02.pth")
    t.equal({ part.number, part.count }, { 2, 2 })
  end)

  it("are known by what they say", function()
    local dir = t.temp_dir()
    local w, none = cbk.tensor { 1, 2 }, cbk.randn({ 0 }, { seed = 1 })
    local cases = {
      { { args = cbk.dict { tensor_model_parallel_size = 2, pipeline_model_parallel_size = 2 }, model = cbk.dict { w = w } },
        "one of 4 parts: tensor- and pipeline-parallel parts (Megatron)" .. folder },
      { { args = cbk.dict { tensor_model_parallel_size = 1 }, model = cbk.dict { w = w } } },
      { { ds_version = "0.16", mp_world_size = 2, module = cbk.dict { w = w } }, "one of 2 parts: tensor-parallel parts (DeepSpeed)" },
      { { ds_version = "0.16", mp_world_size = 1, module = cbk.dict { w = w } } },
      { { ds_version = "0.16", module = cbk.dict { w = none } },
        "a part: DeepSpeed ZeRO stage 3: the weights here are placeholders without elements" .. folder },
      { { optimizer_state_dict = cbk.dict { partition_count = cbk.list { 2 }, x = w } },
        "one of 2 parts: partitions of DeepSpeed ZeRO" .. folder },
      { { optimizer_state_dict = cbk.dict { partition_count = 1, x = w } } },
    }
    for i, case in ipairs(cases) do
      t.equal(text_of(write(("%s/%d.pt"):format(dir, i), cbk.dict(case[1]))), case[2], "case " .. i)
    end
  end)

  it("of torch.distributed.checkpoint alone are refused, and their folder is named", function()
    local dir = t.temp_dir()
    cbk.fs.mkdir(dir .. "/dcp")
    local one, two = archive(dir, 1), archive(dir, 2)
    cbk.fs.write(dir .. "/dcp/__0_0.distcp", one .. two)
    cbk.fs.write(dir .. "/dcp/__1_0.distcp", one)
    cbk.fs.write(dir .. "/renamed.pt", one .. two)
    for _, name in ipairs { "__0_0.distcp", "__1_0.distcp" } do
      t.raises(("it has pieces of the tensors of the torch.distributed.checkpoint folder '%s/dcp'"):format(dir), function()
        cbk.open(cbk.fs.join(dir, "dcp", name))
      end, "usage")
    end
    t.raises("but not the file '.metadata'", function() cbk.open(dir .. "/dcp") end, "missing")
    t.raises("begins at byte", function() cbk.open(dir .. "/renamed.pt") end, "format")
    cbk.fs.write(dir .. "/model.bin.index.json", '{"weight_map": {"w": "dcp/__1_0.distcp"}}')
    t.raises("torch.distributed.checkpoint folder", function() cbk.open(dir .. "/model.bin.index.json") end, "usage")
    cbk.fs.mkdir(dir .. "/st")
    local class = "\128\2ctorch.distributed.checkpoint.metadata\nMetadata\n."
    cbk.fs.write(dir .. "/st/.metadata", class)
    t.raises("not the metadata of a folder", function() cbk.open(dir .. "/st/.metadata") end, "format")
    write(dir .. "/st/shard-1.safetensors")
    t.raises("not the metadata of a folder", function() cbk.open(dir .. "/st") end, "format")
    local info = { [0] = '{"w": {"saved_offsets": [0]}}', [1] = '{"w": {"saved_offsets": [2]}}' }
    for offset, text in pairs(info) do
      cbk.create(("%s/p%d.safetensors"):format(dir, offset), { root = cbk.dict { w = cbk.tensor { 1, 2 } },
        metadata = cbk.dict { DCP_SHARDING_INFO = text } }):commit()
    end
    t.is_true(text_of(dir .. "/p0.safetensors"):find("may be the first pieces of larger ones", 1, true))
    t.raises("its tensor 'w' is a piece of a larger one", function() cbk.open(dir .. "/p1.safetensors") end, "unsupported")
  end)

  it("archives are the whole file", function()
    local dir = t.temp_dir()
    local one, two = archive(dir, 1), archive(dir, 2)
    local cases = {
      { "two archives", one .. two, ("begins at byte %d of the file"):format(#one) },
      { "data before", "\0\1\2\3" .. one, nil },
      { "a local header before", "PK\3\4" .. ("x"):rep(60) .. one, "begins at byte 64 of the file" },
      { "data behind", one .. "more", ("the zip archive ends at byte %d of %d"):format(#one, #one + 4) },
      { "a cut archive behind", one .. two:sub(1, 300), ("the zip archive ends at byte %d of %d"):format(#one, #one + 300) },
    }
    for i, case in ipairs(cases) do
      local path = ("%s/%d.pt"):format(dir, i)
      cbk.fs.write(path, case[2])
      t.raises(case[3] or "", function() cbk.open(path) end, "format")
    end
    cbk.fs.write(dir .. "/whole.pt", one)
    t.equal(cbk.open(dir .. "/whole.pt").root.w:item(), 1)
    t.equal(cbk.open(dir .. "/4.pt", { salvage = true }).root.w:item(), 1)
    t.raises("begins at byte", function() cbk.open(dir .. "/1.pt", { salvage = true }) end, "format")
    local npz = cbk.fs.read(write(dir .. "/a.npz"))
    cbk.fs.write(dir .. "/b.npz", npz .. npz)
    t.raises("begins at byte", function() cbk.open(dir .. "/b.npz") end, "format")
  end)
end)

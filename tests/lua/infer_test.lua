-- `cbk infer`: of a tiny pair of every family it makes a converter that converts a larger model of the family, bit for bit, in both
-- directions.

local cbk = require "cbk"
local harness = require "harness"
local inferred = require "inferred"
local tiny = require "tiny"

local describe, it, is_true = harness.describe, harness.it, harness.is_true
local small, large, alike = inferred.sizes.small, inferred.sizes.large, inferred.sizes.alike
local pair, run, check_same = inferred.pair, inferred.run, inferred.check_same

---Tensors that nothing tells of: the head that a model without one gets is random.
local unexplained = {}
for _, name in ipairs { "codegen", "gptj", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3-moe", "gpt-neox" } do
  unexplained[name .. "-headless"] = { "right lm_head.weight" }
end
for _, name in ipairs { "dinov2", "vit" } do
  unexplained[name .. "-headless"] = { "right classifier.classifier.ffn.0.linear_layer.weight" }
end

---@param is_new? boolean   the tiny pair has constants
local function check(way, is_new)
  local seen, other = pair(way, small, is_new), pair(way, large)
  local found = inferred.with_configs(way, seen)
  local fine, why = pcall(function()
    local model = inferred.model_of(found.text)
    local excused, missing = inferred.unexplained(found)
    harness.equal(missing, unexplained[way.name] or {}, "unexplained")
    local options = { drop_unmatched = #missing > 0 }
    local right = run(model, "hf", way.format, other.left_config, other.left, options)
    check_same(other.right, right.model, excused.right, "to the right")
    local left = run(model, way.format, "hf", other.right_config, other.whole, options)
    check_same(other.left, left, excused.left, "to the left")
  end)
  if not fine then error(("%s\n%s"):format(tostring(why), os.getenv "INFER_SHOW" and found.text or ""), 0) end
end

local slopes = "right embedding_layer.position_embed_helper.slopes" -- made from the number of heads

---Without configs, rows of four devices are heads of a size, and one key head is a share of the heads.
local needs_configs = { codegen = true, starcoder = true }

local function check_plainly(way)
  local seen, other = pair(way, small), pair(way, alike)
  local found = inferred.plainly(seen.left, seen.right, { has_same_sizes = true })
  local fine, why = pcall(function()
    local model = inferred.model_of(found.text)
    local excused, missing = inferred.unexplained(found)
    harness.equal(missing, inferred.family_of(way.name) == "bloom" and { slopes } or unexplained[way.name] or {}, "unexplained")
    check_same(other.right, inferred.run_plainly(model, "left", other.left), excused.right, "to the right")
    check_same(other.left, inferred.run_plainly(model, "right", other.right), excused.left, "to the left")
  end)
  if not fine then error(("%s\n%s"):format(tostring(why), os.getenv "INFER_SHOW" and found.text or ""), 0) end
end

describe("cbk infer", function()
  for _, name in ipairs { "llava", "mmsimple-llava", "dpr" } do
    it("writes a converter for the parts of " .. name, function() check(tiny.composite(name)) end)
  end

  it("knows every layout of a family, and experts in one tensor", function()
    for _, way in ipairs(tiny.ways()) do
      local is_newest = way.layout and way.format == "cs-2.9"
      if is_newest or inferred.family_of(way.name) == "mixtral" and way.format == "cs-2.8" then check(way) end
    end
  end)

  local ways, names = tiny.newest_ways(), {}
  for name in pairs(ways) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    it("writes a converter for " .. name, function() check(ways[name]) end)
    it("writes one of a new model of " .. name, function() check(ways[name], true) end)
    if not needs_configs[inferred.family_of(name)] then
      it("writes one without configs for " .. name, function() check_plainly(ways[name]) end)
    end
  end
end)

-- --- the command

local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""

---The command lines of the first example of a help page: `cbk` and its words.
local function first_example(page)
  local out = {}
  for line in cbk.fs.read(here .. "scripts/help/" .. page):gmatch "[^\n]+" do
    local words = line:match "^  cbk (.*)$"
    if words then
      local list = {}
      for word in words:gmatch "%S+" do list[#list + 1] = word end
      out[#out + 1] = list
    elseif #out > 0 then
      return out
    end
  end
end

---A checkpoint in a layout, and in another one with the same values: two layers with rotary rows, in bfloat16 on the right.
local function write_two(dir, names, width, layers)
  local left, right = cbk.dict(), cbk.dict()
  local function add(a, b, shape, change)
    local seed = cbk.count(left)
    left[a] = cbk.randn(shape, { seed = seed, dtype = "float32" }):to "bfloat16":to "float32"
    right[b] = (change and change(left[a]) or left[a]):to "bfloat16"
  end
  local function pairs_of_rows(t) return t:reshape({ width / 8, 2, 4, -1 }):permute({ 0, 2, 1, 3 }):reshape(t:shape()) end
  add("embed", "words.weight", { 11, width })
  for i = 0, layers - 1 do
    local a, b = ("blocks.%d."):format(i), ("decoder.layers.%d."):format(i + 0)
    add(a .. "q", b .. "attention.query", { width, width }, pairs_of_rows)
    add(a .. "up", b .. "ffn.0.weight", { width, 3 * width }, function(t) return t:transpose(0, 1) end)
    left[a .. "norm"], right[b .. "norm.weight"] = cbk.full({ width }, 1), cbk.full({ width }, 1, { dtype = "bfloat16" })
  end
  for name, root in pairs { [names[1]] = left, [names[2]] = right } do cbk.create(dir .. "/" .. name, { root = root }):commit() end
end

describe("cbk infer, the command", function()
  it("does what its help page shows", function()
    local dir = harness.temp_dir()
    write_two(dir, { "old.safetensors", "new.pt" }, 16, 2)
    write_two(dir, { "other.safetensors", "wanted.pt" }, 32, 4)
    local lines = first_example "infer.md"
    harness.equal(#lines, 4)
    for _, words in ipairs(lines) do
      local code, out, err = harness.cbk(dir, unpack(words))
      harness.equal(code, 0, out .. err)
    end
    harness.equal((harness.cbk(dir, "diff", "other_to_b.pt", "wanted.pt")), 0)
    harness.equal((harness.cbk(dir, "rules", "mine.lua", "old.safetensors")), 0)
  end)

  it("says that arithmetic of constants is a guess", function()
    local dir = harness.temp_dir()
    local left, right = cbk.dict(), cbk.dict()
    for i = 0, 2 do
      left[("h.%d.w"):format(i)] = cbk.randn({ 6, 6 }, { seed = i, dtype = "float32" })
      right[("l.%d.w"):format(i)] = left[("h.%d.w"):format(i)]
      left[("h.%d.norm"):format(i)], right[("l.%d.norm"):format(i)] = cbk.full({ 6 }, 1), cbk.full({ 6 }, 2)
    end
    cbk.create(dir .. "/a.pt", { root = left }):commit()
    cbk.create(dir .. "/b.pt", { root = right }):commit()
    local code, out = harness.cbk(dir, "infer", "a.pt", "b.pt", "-o", "new.lua")
    harness.equal(code, 0)
    harness.has(out, "1 rule is matched by name only")
    harness.has(cbk.fs.read(dir .. "/new.lua"), "so what is computed is a guess; trained weights tell it")
  end)

  it("finds heads in another order, other numbers, stacked and joined tensors", function()
    local dir = harness.temp_dir()
    local function random(seed, ...) return cbk.randn({ ... }, { seed = seed, dtype = "float32" }) end
    local left, right = cbk.dict(), cbk.dict()
    left["a.w"] = random(1, 24, 5)
    right["heads.w"] = left["a.w"]:reshape({ 4, 6, 5 }):permute({ 1, 0, 2 }):reshape { 24, 5 }
    left["b.w"], left["c.w"] = random(2, 8, 5), random(3, 4, 5)
    right["joined.w"] = cbk.cat({ left["b.w"], left["c.w"] }, 0)
    left["d.w"] = random(4, 7)
    right["norm.w"] = left["d.w"] + 1
    left["e.w"] = random(5, 7, 6)
    right["scaled.w"] = left["e.w"] * 0.5
    for i = 0, 2 do left[("experts.%d.w"):format(i)] = random(10 + i, 4, 3) end
    right["experts.w"] = cbk.stack({ left["experts.0.w"], left["experts.1.w"], left["experts.2.w"] }, 0)
    left["f.w"] = random(6, 3, 10)
    right["one.w"], right["two.w"] = left["f.w"]:slice(1, 4, 10), left["f.w"]:slice(1, 0, 4)
    cbk.create(dir .. "/a.pt", { root = left }):commit()
    cbk.create(dir .. "/b.pt", { root = right }):commit()
    for _, words in ipairs {
      { "infer", "a.pt", "b.pt", "-o", "mine.lua" }, { "convert", "a.pt", "--converter", "mine.lua", "--to", "b" },
      { "diff", "a_to_b.pt", "b.pt" }, { "convert", "b.pt", "--converter", "mine.lua", "--to", "a" },
      { "diff", "b_to_a.pt", "a.pt", "--atol", "1e-6" },
    } do
      local code, out, err = harness.cbk(dir, unpack(words))
      harness.equal(code, 0, table.concat(words, " ") .. out .. err)
    end
  end)

  it("finds stacks that are joined, whatever is first, and also transposed", function()
    local dir = harness.temp_dir()
    local function write(name, layers, experts, inner, is_turned)
      local left, right = cbk.dict(), cbk.dict()
      local function random(...) return cbk.randn({ ... }, { seed = 1000 * layers + cbk.count(left), dtype = "float32" }) end
      left["embed"] = random(11, 6)
      right["tok"] = left["embed"]
      for i = 0, layers - 1 do
        local stacks = { {}, {}, {} }
        for e = 0, experts - 1 do
          for k, one in ipairs { { "gate", inner, 6 }, { "up", inner, 6 }, { "down", 6, inner } } do
            local tensor = random(one[2], one[3])
            left[("blocks.%d.experts.%d.%s.weight"):format(i, e, one[1])] = tensor
            stacks[k][e + 1] = is_turned and tensor:transpose(0, 1) or tensor
          end
        end
        local gate, up, down = cbk.stack(stacks[1], 0), cbk.stack(stacks[2], 0), cbk.stack(stacks[3], 0)
        right[("layers.%d.moe.gate_up_proj"):format(i)] = is_turned and cbk.cat({ gate, up }, 2) or cbk.cat({ up, gate }, 1)
        right[("layers.%d.moe.down_proj"):format(i)] = down
      end
      cbk.create(dir .. "/" .. name .. "_a.pt", { root = left }):commit()
      cbk.create(dir .. "/" .. name .. "_b.pt", { root = right }):commit()
    end
    for _, is_turned in ipairs { false, true } do
      local little, big = is_turned and "small_t" or "small", is_turned and "large_t" or "large"
      write(little, 2, 3, 5, is_turned)
      write(big, 4, 7, 8, is_turned)
      for _, words in ipairs {
        { "infer", little .. "_a.pt", little .. "_b.pt", "-o", little .. ".lua" },
        { "convert", big .. "_a.pt", "--converter", little .. ".lua", "--to", "b" }, { "diff", big .. "_a_to_b.pt", big .. "_b.pt" },
        { "convert", big .. "_b.pt", "--converter", little .. ".lua", "--to", "a" }, { "diff", big .. "_b_to_a.pt", big .. "_a.pt" },
        { "infer", little .. "_b.pt", little .. "_a.pt", "-o", little .. "2.lua" },
        { "convert", big .. "_b.pt", "--converter", little .. "2.lua", "--to", "b", "-o", "x" },
        { "diff", "x/" .. big .. "_b_to_b.pt", big .. "_a.pt" },
      } do
        local code, out, err = harness.cbk(dir, unpack(words))
        harness.equal(code, 0, table.concat(words, " ") .. out .. err)
      end
      harness.has(cbk.fs.read(dir .. "/" .. little .. ".lua"), "layouts.joined_stacks(2, " .. (is_turned and "2, true)" or "1)"))
    end
  end)

  it("finds layers and experts that are numbered in another way", function()
    local dir = harness.temp_dir()
    local function write(name, layers, experts)
      local left, right = cbk.dict(), cbk.dict()
      local function add(a, b, ...)
        left[a] = cbk.randn({ ... }, { seed = cbk.count(left) + 100 * layers, dtype = "float32" })
        right[b] = left[a]
      end
      add("tok.weight", "embed/table (0)", 11, 6)
      for i = 0, layers - 1 do
        add(("blocks.%d.up"):format(i), ("m.blk_%02d.up"):format(i), 5, 6)
        add(("blocks.%d.mixer.D"):format(i), ("m.blk_%02d.skip"):format(i), 6)
        add(("blocks.%d.fc1"):format(i), ("seq.%d.fc1"):format(i + 2), 4, 6)
        add(("blocks.%d.fc2"):format(i), ("seq.%d.fc2"):format(i + 2), 6, 4)
        left[("blocks.%d.norm"):format(i)], right[("seq.%d.norm"):format(i + 2)] = cbk.full({ 6 }, 1), cbk.full({ 6 }, 1)
        local stack = {}
        for e = 0, experts - 1 do
          add(("blocks.%d.experts.%d.w"):format(i, e), ("layer_%d/expert%d/w"):format(i, e), 3, 6)
          stack[e + 1] = cbk.randn({ 2, 3 }, { seed = 1000 + 10 * i + e + layers, dtype = "float32" })
          right[("layer_%d/expert%d/v"):format(i, e)] = stack[e + 1]
        end
        left[("blocks.%d.v"):format(i)] = cbk.stack(stack, 0)
      end
      cbk.create(dir .. "/" .. name .. "_a.pt", { root = left }):commit()
      cbk.create(dir .. "/" .. name .. "_b.pt", { root = right }):commit()
    end
    write("small", 3, 4)
    write("large", 12, 4)
    for _, words in ipairs {
      { "infer", "small_a.pt", "small_b.pt", "-o", "mine.lua" },
      { "rules", "mine.lua", "small_a.pt" }, { "rules", "mine.lua", "small_b.pt" },
      { "convert", "large_a.pt", "--converter", "mine.lua", "--to", "b" }, { "diff", "large_a_to_b.pt", "large_b.pt" },
      { "convert", "large_b.pt", "--converter", "mine.lua", "--to", "a" }, { "diff", "large_b_to_a.pt", "large_a.pt" },
    } do
      local code, out, err = harness.cbk(dir, unpack(words))
      harness.equal(code, 0, table.concat(words, " ") .. out .. err)
    end
    local text = cbk.fs.read(dir .. "/mine.lua")
    for _, part in ipairs { "m.blk_{N:2}", "shifted(2)", "mixer.'D'", "layer_{N}/expert{E}/w", "'embed/table (0)'" } do
      is_true(text:find(part, 1, true), part .. text)
    end
  end)

  it("finds fused heads with rotary rows in pairs on either side", function()
    local dir = harness.temp_dir()
    local function pairs_of(t, heads) return t:reshape({ heads, 2, 4, -1 }):permute({ 0, 2, 1, 3 }):reshape(t:shape()) end
    local function partly(t) -- 6 of the 10 rows of each head
      local view = t:reshape { 4, 10, -1 }
      return cbk.cat({ view:slice(1, 0, 6):reshape({ 4, 2, 3, -1 }):permute({ 0, 2, 1, 3 }):reshape { 4, 6, -1 }, view:slice(1, 6, 10) },
        1):reshape(t:shape())
    end
    local function grouped(q, k, v) -- two queries, a key and a value in each of two groups
      return cbk.cat({ q:reshape { 2, 16, -1 }, k:reshape { 2, 8, -1 }, v:reshape { 2, 8, -1 } }, 1):reshape { 64, 12 }
    end
    local left, right = cbk.dict(), cbk.dict()
    local q, k = cbk.randn({ 32, 12 }, { seed = 1 }), cbk.randn({ 16, 12 }, { seed = 2 })
    left["l.0.q"], left["l.0.k"], left["l.0.v"] = q, k, cbk.randn({ 16, 12 }, { seed = 3 })
    right["l.0.qkv"] = grouped(pairs_of(q, 4), pairs_of(k, 2), left["l.0.v"])
    left["l.1.qkv"] = grouped(q * 2, k * 2, left["l.0.v"] * 2)
    left["partly"] = cbk.randn({ 40, 3 }, { seed = 4 })
    right["partly"] = partly(left["partly"])
    right["l.1.q"], right["l.1.k"], right["l.1.v"] = pairs_of(q * 2, 4), pairs_of(k * 2, 2), left["l.0.v"] * 2
    cbk.create(dir .. "/a.pt", { root = left }):commit()
    cbk.create(dir .. "/b.pt", { root = right }):commit()
    for _, words in ipairs {
      { "infer", "a.pt", "b.pt", "-o", "mine.lua" }, { "convert", "a.pt", "--converter", "mine.lua", "--to", "b" },
      { "diff", "a_to_b.pt", "b.pt" }, { "convert", "b.pt", "--converter", "mine.lua", "--to", "a" }, { "diff", "b_to_a.pt", "a.pt" },
    } do
      local code, out, err = harness.cbk(dir, unpack(words))
      harness.equal(code, 0, table.concat(words, " ") .. out .. err)
    end
  end)

  it("says what it cannot explain, and convert refuses that", function()
    local dir = harness.temp_dir()
    write_two(dir, { "a.pt", "b.pt" }, 16, 2)
    local root = cbk.copy(cbk.open(dir .. "/b.pt").root)
    root["more.weight"] = cbk.randn({ 3, 5 }, { seed = 99 })
    cbk.create(dir .. "/c.pt", { root = root }):commit()
    local code, out = harness.cbk(dir, "infer", "a.pt", "c.pt", "-o", "mine.lua")
    harness.equal(code, 1)
    is_true(out:find("7 of 7 tensors of 'a.pt', 7 of 8 of 'c.pt'", 1, true), out)
    is_true(out:find("without a rule, right: more.weight", 1, true), out)
    is_true(cbk.fs.read(dir .. "/mine.lua"):find("--   right: float32 [3, 5]  values that the other side lacks: more.weight", 1, true))
    local refused, _, err = harness.cbk(dir, "convert", "c.pt", "--converter", "mine.lua", "--to", "a")
    harness.equal(refused, 1)
    is_true(err:find("1 key was not matched: more.weight", 1, true), err)
    harness.equal((harness.cbk(dir, "convert", "c.pt", "--converter", "mine.lua", "--to", "a", "--drop-unmatched-keys")), 0)
    harness.equal((harness.cbk(dir, "diff", "a.pt", "c_to_a.pt")), 0)
  end)

  it("says where rules have the number of the only layer", function()
    local dir = harness.temp_dir()
    local q, up, embed = cbk.randn({ 8, 8 }, { seed = 1 }), cbk.randn({ 16, 8 }, { seed = 2 }), cbk.randn({ 20, 8 }, { seed = 3 })
    local function create(name, layer)
      local root = cbk.dict { { "embed", embed }, { layer .. "q", q }, { layer .. "up", up } }
      cbk.create(cbk.fs.join(dir, name), { root = root }):commit()
    end
    create("a.pt", "model.layers.0.")
    local more = "rules name model.layers.0 with its number, as the pair has one layer there: infer from a pair with several"
    for layer, is_fixed in pairs { ["h.0."] = false, ["h.00."] = true, ["block."] = true, ["h.0.x."] = false } do
      create("b.pt", layer)
      local code, out = harness.cbk(dir, "infer", "a.pt", "b.pt", "-o", "mine.lua", "--overwrite")
      harness.equal({ code, out:find(more, 1, true) ~= nil }, { 0, is_fixed }, layer .. "\n" .. out)
      os.remove(cbk.fs.join(dir, "b.pt"))
    end
  end)

  it("leaves out blocks that one side numbers within stages, and the other through all of them", function()
    local dir = harness.temp_dir()
    local left, right, n = cbk.dict(), cbk.dict(), 0
    for stage, depth in ipairs { 2, 3 } do
      for block = 0, depth - 1 do
        left[("stages.%d.blocks.%d.w"):format(stage - 1, block)] = cbk.randn({ 6, 8 }, { seed = n })
        right[("blocks.%d.w"):format(n)] = cbk.randn({ 6, 8 }, { seed = n })
        n = n + 1
      end
    end
    cbk.create(dir .. "/a.pt", { root = left }):commit()
    cbk.create(dir .. "/b.pt", { root = right }):commit()
    local code, out, err = harness.cbk(dir, "infer", "a.pt", "b.pt", "-o", "mine.lua")
    harness.equal({ code, err }, { 1, "" })
    is_true(out:find("without a rule, right: blocks.{0..4}.w", 1, true), out)
    is_true(not out:find("not the same weights", 1, true), out)
    is_true(cbk.fs.read(dir .. "/mine.lua"):find("[6, 8]  its number depends on those before it: blocks.{2..4}.w", 1, true))
  end)

  it("refuses another number of experts than that of the pair where nothing shows it", function()
    local dir = harness.temp_dir()
    local function write(count, names)
      local left, right = cbk.dict(), cbk.dict()
      for layer = 0, 1 do
        local parts = {}
        for e = 0, count - 1 do
          parts[e + 1] = cbk.randn({ 6, 8 }, { seed = 10 * layer + e })
          left[("l.%d.experts.%d.up.weight"):format(layer, e)] = parts[e + 1]
        end
        right[("h.%d.up"):format(layer)] = cbk.cat(parts, 0)
      end
      cbk.create(dir .. "/" .. names[1], { root = left }):commit()
      cbk.create(dir .. "/" .. names[2], { root = right }):commit()
    end
    write(2, { "a.pt", "b.pt" })
    write(4, { "c.pt", "d.pt" })
    harness.equal((harness.cbk(dir, "infer", "a.pt", "b.pt", "-o", "mine.lua")), 0)
    harness.equal((harness.cbk(dir, "convert", "b.pt", "--converter", "mine.lua", "--to", "a")), 0)
    harness.equal((harness.cbk(dir, "diff", "a.pt", "b_to_a.pt")), 0)
    for from, to in pairs { c = "b", d = "a" } do
      local code, _, err = harness.cbk(dir, "convert", from .. ".pt", "--converter", "mine.lua", "--to", to)
      harness.equal(code, 1)
      is_true(err:find("parts", 1, true) or err:find("not matched", 1, true), err)
    end
  end)

  it("keeps apart what a pair with as many key heads as heads, and with zero biases, does not show", function()
    local dir = harness.temp_dir()
    ---q, k and v are fused head by head; rotary rows are in pairs on the right.
    local function write(key_heads, has_values, names)
      local heads, size, width = 4, 6, 24
      local left, right, groups = cbk.dict(), cbk.dict(), {}
      local q, k, v = cbk.randn({ heads * size, width }, { seed = 1 }), cbk.randn({ key_heads * size, width }, { seed = 2 }),
        cbk.randn({ key_heads * size, width }, { seed = 3 })
      for g = 0, key_heads - 1 do
        local share = heads / key_heads * size
        for _, part in ipairs { q:slice(0, g * share, (g + 1) * share), k:slice(0, g * size, (g + 1) * size),
          v:slice(0, g * size, (g + 1) * size) } do groups[#groups + 1] = part end
      end
      left["l.0.q"], left["l.0.k"], left["l.0.v"], right["h.0.qkv"] = q, k, v, cbk.cat(groups, 0)
      local rows = cbk.randn({ heads * size, width }, { seed = 4 })
      left["l.0.rot.q_w"] = rows
      right["h.0.rot.q_w"] = rows:reshape({ heads, 2, size / 2, width }):transpose(1, 2):reshape { heads * size, width }
      left["l.0.rot.q_b"] = has_values and cbk.randn({ heads * size }, { seed = 5 }) or cbk.full({ heads * size }, 0)
      right["h.0.rot.q_b"] = left["l.0.rot.q_b"]
      local configs = { cbk.dict { n_head = heads, n_kv = key_heads, head_size = size, width = width },
        cbk.dict { { "attn", cbk.dict { { "kv_heads", key_heads }, { "heads", heads }, { "bias", true } } }, { "dim", width } } }
      for i, root in ipairs { left, right } do
        cbk.create(dir .. "/" .. names[i] .. ".pt", { root = root }):commit()
        cbk.fs.write(dir .. "/" .. names[i] .. ".json", cbk.json(configs[i]))
      end
    end
    write(4, false, { "a", "b" })
    write(2, false, { "c", "d" })
    write(4, true, { "e", "f" })
    local code, out, err = harness.cbk(dir, "infer", "a.pt", "b.pt", "-o", "mine.lua", "--src-config", "a.json", "--tgt-config", "b.json")
    harness.equal(code, 0, out .. err)
    local function convert(from, to)
      return harness.cbk(dir, "convert", from .. ".pt", "--config", from .. ".json", "--converter", "mine.lua", "--to", to, "-o", from)
    end
    for from, to in pairs { c = "b", d = "a" } do
      code, out, err = convert(from, to)
      harness.equal(code, 0, out .. err)
      harness.equal((harness.cbk(dir, "diff", ("%s/%s_to_%s.pt"):format(from, from, to), (from == "c" and "d" or "c") .. ".pt")), 0)
    end
    local made = cbk.config.load(dir .. "/c/c_to_b.json").attn
    harness.equal({ made.kv_heads, made.heads, made.bias, cbk.count(made) }, { 2, 4, true, 3 })
    for from, to in pairs { e = "b", f = "a" } do
      local refused, _, why = convert(from, to)
      harness.equal(refused, 1)
      is_true(why:find("all its elements were equal in the pair", 1, true), why)
    end
  end)

  it("names folders, and writes nothing after an error", function()
    local dir = harness.temp_dir()
    for _, name in ipairs { "old", "new" } do cbk.fs.mkdir(dir .. "/" .. name) end
    write_two(dir, { "old/a.pt", "new/b.pt" }, 16, 2)
    local code, out, err = harness.cbk(dir, "infer", "old/", "./new//", "-o", "mine.lua")
    harness.equal(code, 0, err)
    is_true(out:find("7 of 7 tensors of 'old', 7 of 7 of 'new'", 1, true), out)
    is_true(cbk.fs.read(dir .. "/mine.lua"):find("-- Inferred from 'old' (left) and 'new' (right)", 1, true))
    code, out, err = harness.cbk(dir, "infer", "old/", "missing", "-o", "other.lua")
    harness.equal({ code, out, err:sub(1, 4), cbk.fs.exists(dir .. "/other.lua") }, { 1, "", "cbk:", false })
  end)

  it("refuses wrong formats, and half of the configs", function()
    local dir = harness.temp_dir()
    for text, words in pairs {
      ["--src-fmt: 'old' is not a format"] = { "--src-fmt", "old" }, ["must differ"] = { "--src-fmt", "b" },
      ["belong together"] = { "--src-config", "x.json" },
    } do
      local code, _, err = harness.cbk(dir, "infer", "a.pt", "b.pt", "-o", "mine.lua", unpack(words))
      harness.equal(code, 2, err)
      is_true(err:find(text, 1, true), err)
    end
  end)
end)

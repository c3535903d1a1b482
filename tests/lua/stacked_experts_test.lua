-- Experts in one tensor: every form in which files have them is the same model, for each family that has experts and each command.

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"

local describe, it, equal, is_true, has = harness.describe, harness.it, harness.equal, harness.is_true, harness.has

local ways, families = tiny.newest_ways(), { "mixtral", "mixtral-headless", "qwen3-moe", "qwen3-moe-headless" }
local NAMES = { gate_proj = 1, up_proj = 2, down_proj = 3, w1 = 1, w3 = 2, w2 = 3 }

---The same model with the experts in other tensors: `write` gets a layer's place, its three stacks and the dict.
---@param root Dict
---@param write fun(place: string, stacks: Tensor[], out: Dict)
---@param rename? fun(key: string): string   of other keys
local function restacked(root, write, rename)
  local out, layers, order = cbk.dict(), {}, {}
  for key, value in cbk.items(root) do
    local place, e, name = key:match "^(.*%.)experts%.(%d+)%.(%w+_?%w*)%.weight$"
    if place and not layers[place] then
      layers[place] = { {}, {}, {} }
      order[#order + 1] = place
    end
    if place then layers[place][NAMES[name]][tonumber(e) + 1] = value else out[rename and rename(key) or key] = value end
  end
  for _, place in ipairs(order) do
    local stacks = {}
    for k, list in ipairs(layers[place]) do stacks[k] = cbk.stack(list, 0) end
    write(rename and rename(place) or place, stacks, out)
  end
  return out
end

local function joined(suffix, is_turned)
  return function(place, stacks, out)
    local both, down = cbk.cat({ stacks[1], stacks[2] }, 1), stacks[3]
    out[place .. "experts.gate_up_proj" .. suffix] = is_turned and both:transpose(1, 2) or both
    out[place .. "experts.down_proj" .. suffix] = is_turned and down:transpose(1, 2) or down
  end
end

local function stacked(set, names)
  return function(place, stacks, out)
    for k, name in ipairs(names) do out[place .. set .. name] = stacks[k] end
  end
end

local FORMS = {
  ["joined"] = { joined "" },
  ["joined, with the ending of a module"] = { joined ".weight" },
  ["joined and transposed"] = { joined("", true) },
  ["joined, under the other family's name"] = { joined "", function(key)
    local new = key:gsub("block_sparse_moe%.", "mlp.")
    return new ~= key and new or (key:gsub("mlp%.", "block_sparse_moe."))
  end },
  ["as MLX has them"] = { stacked("switch_mlp.", { "gate_proj.weight", "up_proj.weight", "down_proj.weight" }) },
  ["stacked"] = { stacked("experts.", { "w1", "w3", "w2" }) },
  ["in a wrapper"] = { joined "", function(key) return "module." .. key end },
}

---A folder of a model: config.json and model.safetensors.
local function saved(dir, name, config, root)
  cbk.fs.mkdir(dir .. "/" .. name)
  cbk.config.save(config, dir .. "/" .. name .. "/config.json")
  cbk.create(dir .. "/" .. name .. "/model.safetensors", { root = root }):commit { progress = false }
end

for _, family in ipairs(families) do
  describe("Experts in one tensor: " .. family, function()
    local config, root = tiny.model(ways[family], function(config) config.num_hidden_layers = 2 end)
    config.model_type = family:find "^mixtral" and "mixtral" or "qwen3_moe"
    local dir = harness.temp_dir()
    local function converted(name)
      local code, out, err = harness.cbk(dir, "convert", name, "--to", "cs-current", "-o", name .. ".out")
      equal(code, 0, err)
      for _, file in ipairs(cbk.fs.list(dir .. "/" .. name .. ".out")) do
        local path = dir .. "/" .. name .. ".out/" .. file
        if not file:find "%.yaml$" then return cbk.open(path).root.model, out end
      end
    end
    saved(dir, "single", config, root)
    local want = converted "single"
    for form, one in pairs(FORMS) do
      it(form, function()
        local name = form:gsub("%A", "_")
        saved(dir, name, config, restacked(root, one[1], one[2]))
        local got, out = converted(name)
        equal(cbk.count(got), cbk.count(want))
        conversion.equal_tensors(want, got)
        has(out, "experts are taken out of ")
        local code, text = harness.cbk(dir, "identify", name)
        equal(code, 0)
        has(text, (family:gsub("%-headless", "")))
        has(text, "experts are taken out of ")
        code, text = harness.cbk(dir, "check", name)
        equal(code, 0, text)
        has(text, form == "in a wrapper" and "cbk looks through it" or "cbk takes them apart")
      end)
    end
  end)
end

describe("Experts in one tensor", function()
  local config, root = tiny.model(ways["qwen3-moe"])
  config.model_type = "qwen3_moe"
  local function refusal(change)
    local dir = harness.temp_dir()
    local stacked_root = restacked(root, joined "")
    change(stacked_root, "model.layers.0.mlp.experts.")
    saved(dir, "m", config, stacked_root)
    local code, _, err = harness.cbk(dir, "convert", "m", "--to", "cs-current", "-o", "out")
    equal(code, 1)
    return err
  end

  it("of shapes that do not go together are no experts", function()
    has(refusal(function(tree, place) tree[place .. "down_proj"] = cbk.full({ 3, 8, 7 }, 0, { dtype = "float32" }) end), "gate_up_proj")
    has(refusal(function(tree, place) tree[place .. "down_proj"] = nil end), "gate_up_proj")
  end)

  it("fewer than the config says are missing", function()
    has(refusal(function(tree, place)
      for _, name in ipairs { "gate_up_proj", "down_proj" } do tree[place .. name] = tree[place .. name]:slice(0, 0, 2) end
    end), "experts.2.")
  end)

  it("are not made of a few bytes each, or of none, however many a file has", function()
    for number, size in pairs { [20000] = 1, [100000000] = 0 } do
      has(refusal(function(tree, place)
        tree[place .. "gate_up_proj"] = cbk.full({ number, 2 * size, size }, 0, { dtype = "float16" })
        tree[place .. "down_proj"] = cbk.full({ number, size, size }, 0, { dtype = "float16" })
      end), "has the experts in one tensor, in a form that is not known")
    end
  end)

  ---The joined form in FP8, with scales for blocks; those of 3 x 5 are no slices of the experts' rows.
  local function codes_of(is_turned, block)
    local codes = cbk.dict()
    for key, value in cbk.items(restacked(root, joined("", is_turned))) do
      if key:find "_proj$" and key:find "experts" then
        local shape = value:shape()
        codes[key] = cbk.randn(shape, { seed = #key }):to "float8_e4m3fn"
        for i, size in ipairs(block) do shape[i + 1] = math.ceil(shape[i + 1] / size) end
        codes[key .. "_scale_inv"] = cbk.rand(shape, { seed = #key })
      else
        codes[key] = value
      end
    end
    return codes
  end

  for name, block in pairs { ["whole experts"] = { 4, 4 }, ["parts of experts"] = { 3, 5 } } do
    for _, is_turned in ipairs { false, true } do
      it(("as codes with scales for blocks, %s%s"):format(name, is_turned and ", transposed" or ""), function()
        local dir = harness.temp_dir()
        local own = cbk.copy(config)
        own.torch_dtype = "float32"
        saved(dir, "plain", own, cbk.dict())
        own.quantization_config = cbk.dict { quant_method = "fp8", weight_block_size = cbk.list(block) }
        saved(dir, "m", own, codes_of(is_turned, block))
        equal(harness.cbk(dir, "copy", "m", "plain/model.safetensors", "--dequantize", "float32", "--overwrite"), 0)
        local results = {}
        for _, one in ipairs { "plain", "m" } do
          local code, out, err = harness.cbk(dir, "convert", one, "--to", "cs-current", "-o", one .. ".out")
          equal(code, 0, err)
          has(out, "experts are taken out of ")
          results[one] = { cbk.open(("%s/%s.out/%s_to_cs-2.9.mdl"):format(dir, one, one)).root.model, out }
        end
        has(results.m[2], "Dequantised: 2 weights (FP8, a scale per block) to float32")
        equal(cbk.count(results.m[1]), cbk.count(results.plain[1]))
        conversion.equal_tensors(results.plain[1], results.m[1])
        local code, text = harness.cbk(dir, "identify", "m")
        equal(code, 0)
        has(text, "qwen3-moe")
        has(text, "quantised: FP8, a scale per block (2 weights)")
        code, text = harness.cbk(dir, "check", "m")
        equal(code, 0, text)
        has(text, "cbk takes them apart")
        local err
        code, _, err = harness.cbk(dir, "diff", "m", "plain.out/plain_to_cs-2.9.mdl", "--model", "qwen3-moe")
        equal({ err, code }, { "", 0 })
      end)
    end
  end

  it("is what the file has for commands that look at the file", function()
    local dir = harness.temp_dir()
    saved(dir, "m", config, restacked(root, joined ""))
    local code, out = harness.cbk(dir, "ls", "m")
    equal(code, 0)
    has(out, "gate_up_proj")
    is_true(not out:find("up_proj.weight", 1, true))
  end)
end)

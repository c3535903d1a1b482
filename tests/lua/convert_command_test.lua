-- `cbk convert` as a command: formats of one meaning, outputs that are there already, seeds.

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"

local describe, it, equal = harness.describe, harness.it, harness.equal

local function has(text, part)
  if not text:find(part, 1, true) then error(("no %q in\n%s"):format(part, text), 2) end
end

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

describe("cbk convert", function()
  it("copies between two names of one format, and says so", function()
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
    has(stderr, "Cannot convert llama from cs-2.9 to cs-2.9")
  end)

  it("tells in a dry run of outputs that are there already", function()
    local dir = folder_with("llama", "cs-2.9")
    for _, one in ipairs { { "cs-2.8", "o/a_to_cs-2.8.mdl", "o/p_to_cs-2.8.yaml" }, { "hf", "o/a_to_hf", "o/a_to_hf/config.json" } } do
      local function run(...) return convert(dir, "cs-2.9", one[1], "--model", "llama", "-o", "o", ...) end
      local _, _, stderr = run "--dry-run"
      assert(not stderr:find("exists already", 1, true), stderr)
      equal((run()), 0)
      local code
      code, _, stderr = run "--dry-run"
      equal(code, 0)
      for i = 2, 3 do has(stderr, ("warning: '%s' exists already: without --dry-run this is refused"):format(one[i])) end
      code, _, stderr = run()
      equal(code, 1)
      has(stderr, ("'%s' exists already"):format(one[2]))
      for _, option in ipairs { "--overwrite", "--explain=lm_head.weight" } do
        _, _, stderr = run("--dry-run", option)
        assert(not stderr:find("exists already", 1, true), stderr)
      end
    end
  end)

  it("takes seeds below 2^53, each of which is another", function()
    local dir, made = folder_with("gpt2-headless", "hf", { tie_word_embeddings = false }), {}
    for _, seed in ipairs { "0", "1", "2147483648", "4294967296", "9007199254740991" } do
      local code, _, stderr = convert(dir, "hf", "cs-2.4", "--model", "gpt2-headless", "--seed", seed, "-o", "o" .. seed)
      equal(code, 0, stderr)
      has(stderr, ("of seed %s are written"):format(seed))
      local head = cbk.open(("%s/o%s/a_to_cs-2.4.mdl"):format(dir, seed)).root.model["lm_head.weight"]
      for _, other in ipairs(made) do assert(head:compare(other).different > 0, "seed " .. seed) end
      made[#made + 1] = head
    end
    for seed, why in pairs { ["9007199254740992"] = "is not a whole number below 2^53", ["18446744073709551616"] = "below 2^53",
      ["-1"] = "is not a whole number", ["1.5"] = "is not a whole number" } do
      local code, _, stderr = convert(dir, "hf", "cs-2.4", "--model", "gpt2-headless", "--seed=" .. seed)
      equal(code, 2)
      has(stderr, why)
    end
  end)
end)

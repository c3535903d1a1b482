-- The files beside a Hugging Face checkpoint, which go along to a new folder of weights.

local cbk = require "cbk"
local harness = require "harness"

local describe, it, equal, has = harness.describe, harness.it, harness.equal, harness.has

local FOLDER = "additional_chat_templates"

---A folder "base" with weights, a tokenizer, and chat templates with these names.
local function made(...)
  local dir = harness.temp_dir()
  cbk.fs.mkdir(dir .. "/base")
  cbk.create(dir .. "/base/model.safetensors", { root = { a = cbk.full({ 2, 2 }, 1) } }):commit { progress = false }
  cbk.fs.write(dir .. "/base/config.json", "{}")
  cbk.fs.write(dir .. "/base/tokenizer.json", "{}")
  cbk.fs.mkdir(dir .. "/base/" .. FOLDER)
  for _, name in ipairs { ... } do cbk.fs.write(("%s/base/%s/%s"):format(dir, FOLDER, name), name) end
  return dir
end

local WAYS = {
  ["copy --weights"] = { "copy", "base", "out", "--weights", "--format", "safetensors", "--shard-size", "1GB" },
  merge = { "merge", "merge.yaml", "-o", "out" },
}

describe("The folder of chat templates", function()
  for name, command in pairs(WAYS) do
    it("goes along with " .. name, function()
      local dir = made("rag.jinja", "tool_use.jinja", "notes.txt")
      cbk.fs.write(dir .. "/merge.yaml", "merge_method: linear\nbase_model: base\nmodels:\n- model: base\n  parameters: {weight: 1}\n")
      local code, _, err = harness.cbk(dir, unpack(command))
      equal({ code, err }, { 0, "" })
      equal(cbk.fs.list(dir .. "/out/" .. FOLDER), { "rag.jinja", "tool_use.jinja" })
      equal(cbk.fs.read(dir .. "/out/" .. FOLDER .. "/rag.jinja"), "rag.jinja")
      cbk.fs.write(dir .. "/out/" .. FOLDER .. "/own.jinja", "own")
      cbk.fs.write(dir .. "/base/" .. FOLDER .. "/rag.jinja", "new", { overwrite = true })
      local again = { unpack(command) }
      again[#again + 1] = "--overwrite"
      code, _, err = harness.cbk(dir, unpack(again))
      equal({ code, err }, { 0, "" })
      equal(cbk.fs.list(dir .. "/out/" .. FOLDER), { "own.jinja", "rag.jinja", "tool_use.jinja" })
      equal(cbk.fs.read(dir .. "/out/" .. FOLDER .. "/rag.jinja"), "new")
    end)
  end

  it("is named by convert", function()
    local dir = made("rag.jinja")
    local names = require("cbk.hugging_face_files").names(dir .. "/base")
    equal(names, { FOLDER .. "/rag.jinja", "tokenizer.json" })
  end)

  it("may not be, or have, a link out of the checkpoint's folder", function()
    for _, link in ipairs { FOLDER, FOLDER .. "/rag.jinja" } do
      local dir = made()
      local place = dir .. "/base/" .. link
      if link == FOLDER then
        cbk.fs.mkdir(dir .. "/secret")
        cbk.fs.write(dir .. "/secret/rag.jinja", "secret")
        cbk.fs.remove(place)
      else
        cbk.fs.write(dir .. "/secret", "secret")
      end
      equal(os.execute(("ln -s %s/secret %s"):format(dir, place)), 0)
      local code, _, err = harness.cbk(dir, unpack(WAYS["copy --weights"]))
      equal(code, 1)
      has(err, "a symbolic link out of its folder")
      equal(cbk.fs.exists(dir .. "/out"), false)
      local command = { unpack(WAYS["copy --weights"]) }
      command[#command + 1], command[#command + 2] = "--allow-external", link == FOLDER and "secret" or "."
      equal(harness.cbk(dir, unpack(command)), 0)
      equal(cbk.fs.read(dir .. "/out/" .. FOLDER .. "/rag.jinja"), "secret")
    end
  end)

  it("is written by companions with its name, and nothing deeper or outside", function()
    local function create(name)
      local path = harness.temp_dir() .. "/out"
      cbk.create(path, { root = { a = cbk.full({ 2 }, 1) }, format = "safetensors", shard_size = 100, companions = { [name] = "x" } })
        :commit { progress = false }
      return cbk.fs.read(path .. "/" .. name)
    end
    equal(create "a/b", "x")
    for _, name in ipairs { "a/b/c", "../b", "a/..", "a/", "a//b", "./b" } do
      harness.raises("expected the name of a file or folder in it", function() create(name) end)
    end
  end)
end)

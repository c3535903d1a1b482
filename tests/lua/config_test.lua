local cbk = require "cbk"
local t = require "harness"
local describe, it = t.describe, t.it

describe("config", function()
  it("keeps order, kinds and spelling of a YAML file", function()
    local folder = t.temp_dir()
    local path = cbk.fs.join(folder, "params.yaml")
    cbk.fs.write(path, "z: 1\na:\n  lr: 1e-5\n  hex: 0x1F\n  size: 1_000\n  one: 1.0\n  off: off\n  text: '12'\n")
    local config = cbk.config.load(path)
    t.equal(cbk.keys(config), { "z", "a" })
    t.equal({ cbk.kind(config.a, "one"), cbk.kind(config.a, "text"), config.a.hex }, { "float", "str", 31 })
    cbk.config.save(config, cbk.fs.join(folder, "again.yaml"))
    local again = cbk.config.load(cbk.fs.join(folder, "again.yaml"))
    t.is_true(cbk.equal(config, again))
    t.is_true(cbk.fs.read(cbk.fs.join(folder, "again.yaml")):find("0x1F", 1, true))
  end)

  it("goes from YAML to JSON and back", function()
    local config = cbk.config.parse("b: [1, 2.5, null, true]\na: {x: 'y'}\n", "yaml")
    local json = cbk.config.dump(config, "json", { indent = 2 })
    t.is_true(cbk.equal(config, cbk.config.parse(json, "json")))
    t.equal(cbk.config.dump(config, "yaml", { sort = true }):sub(1, 2), "a:")
  end)

  it("takes the format from the suffix, and refuses to guess", function()
    local folder = t.temp_dir()
    t.raises("cannot tell the format from the name", function() cbk.config.save(cbk.dict(), cbk.fs.join(folder, "x.txt")) end, "usage")
    t.raises("unknown option", function() cbk.config.save(cbk.dict(), cbk.fs.join(folder, "x.json"), { ident = 1 }) end, "usage")
    t.equal(cbk.fs.list(folder), {})
  end)

  it("does not overwrite without the option", function()
    local path = cbk.fs.join(t.temp_dir(), "x.json")
    cbk.config.save(cbk.dict { a = 1 }, path)
    t.raises("exists", function() cbk.config.save(cbk.dict { a = 2 }, path) end, "exists")
    cbk.config.save(cbk.dict { a = 2 }, path, { overwrite = true })
    t.equal(cbk.config.load(path).a, 2)
  end)

  it("says where a file is wrong", function()
    local path = cbk.fs.join(t.temp_dir(), "broken.yaml")
    cbk.fs.write(path, "a: [1, 2\nb: }\n")
    t.raises("broken.yaml", function() cbk.config.load(path) end, "format")
    t.raises("line 2", function() cbk.config.parse('{"a": 1,\n"b": }', "json") end, "format")
  end)

  it("names frequent mistakes of YAML in words", function()
    for text, message in pairs {
      ["a:\n\tb: 1\n"] = "line 2: indented with a tab; YAML needs spaces", ["\ta: 1\n"] = "line 1: indented with a tab; YAML needs spaces",
      ["a:\n  - 1\n \t- 2\n"] = "line 3: indented with a tab; YAML needs spaces",
      ["a:\n  b: 1\n c: 2\n"] = "line 3, column 2: the indentation fits no line above it",
      ["a: b: c\n"] = "line 1, column 5: a key cannot be here; check the indentation, and quote a value that has ': ' in it",
      ["a: {b: 1\n"] = "a '{' is never closed", ["a: [1\nb: 2\n"] = "a '[' is never closed",
      ["a: @b\n"] = "line 1, column 4: a value cannot begin like this; quote it",
    } do
      t.raises(message, function() cbk.config.parse(text, "yaml") end, "format")
    end
  end)

  it("refuses what a config cannot hold", function()
    t.raises("a.w", function() cbk.config.dump(cbk.dict { a = { w = cbk.full({ 2 }, 1) } }, "yaml") end, "value")
  end)
end)

describe("fs", function()
  it("arranges folders and files", function()
    local folder = t.temp_dir()
    local inner = cbk.fs.join(folder, "a", "b")
    cbk.fs.mkdir(inner)
    cbk.fs.mkdir(inner)
    cbk.fs.write(cbk.fs.join(inner, "x.txt"), "text\0with zero")
    t.equal(cbk.fs.read(cbk.fs.join(inner, "x.txt")), "text\0with zero")
    t.equal(cbk.fs.size(cbk.fs.join(inner, "x.txt")), 14)
    t.equal(cbk.fs.list(inner), { "x.txt" })
    t.equal({ cbk.fs.is_dir(inner), cbk.fs.exists(inner .. "/y"), cbk.fs.is_dir(inner .. "/x.txt") }, { true, false, false })
    t.equal({ cbk.fs.basename "/a/b.c", cbk.fs.dirname "/a/b.c", cbk.fs.dirname "b.c" }, { "b.c", "/a", "." })
    t.equal(cbk.fs.absolute "/a/./b/../c", "/a/c")
    cbk.fs.remove(cbk.fs.join(inner, "x.txt"))
    t.equal(cbk.fs.list(inner), {})
  end)

  it("names what is missing", function()
    t.raises("/no/such/file", function() cbk.fs.read "/no/such/file" end, "io")
    t.raises("/no/such/folder", function() cbk.fs.list "/no/such/folder" end, "io")
    t.raises("zero byte", function() cbk.fs.exists "a\0b" end)
  end)
end)

-- `cbk report`: what is in the page. tests/interop/report_interop.py opens it in a browser.

local cbk = require "cbk"
local harness = require "harness"
local page = require "cbk.page"
local tiny = require "tiny"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local run = harness.cbk

local has, lacks = harness.has, harness.lacks

local HOSTILE = "</script><b>&\27"

local function create(path, root, options)
  options = options or {}
  options.root = cbk.dict(root)
  cbk.create(path, options):commit()
end

local function make()
  local dir = harness.temp_dir()
  local weight = cbk.tensor({ 1, 2, 3, 4 }, { shape = { 2, 2 } })
  create(dir .. "/a.pt", { { "h.0.w", weight }, { "h.1.w", cbk.tensor { 0 / 0, 1 } }, { "tied", weight }, { "zero", cbk.full({ 3 }, 0) },
    { HOSTILE, cbk.full({ 2 }, 1) }, { "wave", cbk.full({ 2 }, 1, { dtype = "complex64" }) }, { "note", "text" } })
  create(dir .. "/b.pt", { { "h.0.w", weight * 2 }, { "h.1.w", cbk.tensor { 0 / 0, 1 } }, { "tied", weight:reshape { 4 } },
    { "zero", cbk.full({ 3 }, 0, { dtype = "int32" }) }, { "more", weight } })
  return dir
end

local function data_of(html)
  return cbk.totable(cbk.config.parse(html:match '<script type="application/json" id="data">(.-)</script>', "json"))
end

describe("cbk report", function()
  it("writes tensors, findings and differences", function()
    local dir = make()
    local code, out, err = run(dir, "report", "a.pt", "b.pt", "-o", "x.html", "--no-progress-bar")
    equal({ code, out }, { 0, "x.html\n" })
    has(err, "warning: the page shows errors, such as a.pt: h.1.w: 1 of 2 elements is NaN")
    local html = cbk.fs.read(dir .. "/x.html")
    has(html, "1 of 2 elements is NaN")
    has(html, "only in b.pt (1)")
    has(html, "different tensors (3)")
    has(html, "largest in h.0.w[1, 1]: 4 in A, 8 in B")
    has(html, "shape [2, 2], [4]")
    has(html, "dtype float32, int32")
    local tensors = data_of(html).tensors
    equal(#tensors, 6)
    equal({ tensors[1][1], tensors[1][2], tensors[1][3], tensors[1][4], tensors[1][6] }, { "h.0.w", "float32", { 2, 2 }, 16,
      { 1, 4, 2.5, 1.11803, 5.47723 } })
    equal(tensors[2][7], { 1, 0, 0, 0 })
    equal(tensors[3][5], "h.0.w")
    equal({ tensors[6][6], tensors[6][10] }, { cbk.null, "complex numbers have no statistics" })
  end)

  it("compares with OTHER through a converter", function()
    local dir = harness.temp_dir()
    local config, root = tiny.model(tiny.newest_ways().llama)
    cbk.config.save(config, dir .. "/config.json")
    cbk.create(dir .. "/model.safetensors", { root = root }):commit()
    equal((run(dir, "convert", "model.safetensors", "--to", "cs-2.4", "-o", "zoo", "-q")), 0)
    local zoo
    for _, name in ipairs(cbk.fs.list(dir .. "/zoo")) do zoo = name:find "%.mdl$" and "zoo/" .. name or zoo end
    local code, _, err = run(dir, "report", "model.safetensors", zoo, "--model", "llama", "--no-progress-bar")
    equal({ code, err }, { 0, "" })
    local html = cbk.fs.read(dir .. "/report.html")
    has(html, "<p>Compared ")
    has(html, "the same, 0 different, 0 renamed, 0 only here, 0 only in the other.")
    lacks(html, "<p>0 values the same")
    equal((run(dir, "report", "model.safetensors", "--model", "llama", "--overwrite")), 2)
    equal((run(dir, "report", "model.safetensors", zoo, "--src-fmt", "hf", "--overwrite")), 2)
  end)

  it("has a page about a damaged file, and reads only what --key chooses", function()
    local dir = harness.temp_dir()
    create(dir .. "/m.ckpt", { { "a", cbk.full({ 300 }, 1) * 2 }, { "h.1.w", cbk.tensor { 0 / 0, 1 } } }, { format = "tensorflow" })
    local file = assert(io.open(dir .. "/m.ckpt.data-00000-of-00001", "r+b"))
    file:seek("set", 100)
    file:write "\1"
    file:close()
    local code, _, err = run(dir, "report", "m.ckpt", "-o", "bad.html", "--no-progress-bar")
    equal(code, 0)
    has(err, "warning: the page shows errors, such as m.ckpt")
    has(err, "checksum")
    local html = cbk.fs.read(dir .. "/bad.html")
    has(html, "damaged")
    local first = data_of(html).tensors[1]
    equal({ first[1], first[6] }, { "a", cbk.null })
    is_true(first[10]:find "checksum", first[10])
    run(dir, "report", "m.ckpt", "-o", "one.html", "--key", "h.1.w", "--no-progress-bar")
    html = cbk.fs.read(dir .. "/one.html")
    lacks(html, "damaged")
    has(html, "1 of 2 elements is NaN")
  end)

  it("escapes keys, and allows its own script only", function()
    local dir = make()
    run(dir, "report", "a.pt", "-o", "x.html")
    local html = cbk.fs.read(dir .. "/x.html")
    equal(select(2, html:gsub("</script>", "")), 2)
    equal(data_of(html).tensors[5][1], "</script><b>&\\x1b")
    has(html, "default-src 'none'; script-src 'sha256-")
    lacks(html, "unsafe-inline")
    lacks(html, "http://www.w3.org/1999")
    for attribute in html:gmatch '[%s"](on%a+)="' do error("an inline handler: " .. attribute) end
    lacks(html:match "^(.-)<noscript>", 'style="')
  end)

  it("chooses tensors, replaces a page only if asked to, and refuses what has none", function()
    local dir = make()
    run(dir, "report", "a.pt", "-o", "x.html", "--key", "h", "--no-stats")
    equal(#data_of(cbk.fs.read(dir .. "/x.html")).tensors, 2)
    has(cbk.fs.read(dir .. "/x.html"), "values were not read.")
    local code, _, err = run(dir, "report", "a.pt", "-o", "x.html")
    equal(code, 1)
    has(err, "--overwrite")
    code, _, err = run(dir, "report", "a.pt", "--key", "nope")
    equal(code, 1)
    has(err, "'a.pt' has no tensor that matches --key")
    local json = cbk.config.parse(select(2, run(dir, "report", "a.pt", "--json", "--overwrite")), "json")
    equal(cbk.totable(json), { written = true, page = "report.html", tensors = 6, findings = 2 })
  end)
end)

describe("a report's page", function()
  it("folds long tables", function()
    local rows = {}
    for i = 1, 20 do rows[i] = { "k" .. i } end
    local html = page.table { titles = { "key" }, rows = rows, more = 3 }
    has(html, "<summary>8 more</summary>")
    has(html, "and 3 more")
  end)
end)

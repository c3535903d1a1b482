-- `cbk report` of a run's folder: what went wrong, numbers, and texts of the run that stay texts.

local cbk = require "cbk"
local harness = require "harness"
local record = require "cbk.training.record"
local describe, it, equal, has, is_true = harness.describe, harness.it, harness.equal, harness.has, harness.is_true
local run = harness.cbk

local FACTS = { model = "gpt2 (GPT2LMHeadModel)", parameters = 1234567, seed = 0, samples = 20,
  first_step = 0, last_step = 4, command = "cbk train p.yaml" }

--- A folder with a run of these numbers: { step, members } each.
local function make(rows, facts)
  local dir = harness.temp_dir()
  cbk.fs.write(dir .. "/p.yaml", "trainer: <b>\n  init: 1\n")
  local all = {}
  for name, value in pairs(FACTS) do all[name] = facts and facts[name] or value end
  local kept = record.begin(dir .. "/run", 0, { params = dir .. "/p.yaml", facts = all })
  for _, row in ipairs(rows) do kept:add(row[1], row[2]) end
  return dir
end

local function page_of(dir, ...)
  local code, out, err = run(dir, "report", "run", "-o", "page.html", "--overwrite", ...)
  equal({ code, err }, { 0, "" })
  return cbk.fs.read(dir .. "/page.html"), out
end

describe("cbk report of a run", function()
  it("says what went wrong", function()
    local html, out = page_of(make {
      { 1, { { "loss", 4.5 }, { "loss_scale", 1024 } } }, { 2, { { "loss", 3 }, { "loss_scale", 512 } } }, { 2, { { "eval_loss", 2 } } },
      { 3, { { "loss", 0 / 0 }, { "loss_scale", 512 } } }, { 3, { { "eval_loss", 2.5 } } },
    }, "--json")
    has(out, '"steps": 3')
    has(out, '"findings": 4')
    for _, text in ipairs { "the loss is not finite at step 3", "least at step 2 (2) and is 2.5 at step 3", "the loss scale fell 1 time",
      "the run is at step 3 of 4", "1,234,567", "trainer: &lt;b&gt;\n  init: 1" } do has(html, text) end
  end)

  it("has no findings where nothing is wrong, and names the checkpoints", function()
    local dir = make { { 4, { { "loss", 1.25 } } } }
    local out = cbk.create(dir .. "/run/checkpoint_4.mdl")
    out.w = cbk.full({ 2 }, 1)
    out:commit { progress = false }
    local html = page_of(dir)
    has(html, "<p>None.</p>")
    has(html, "4 of 4")
    has(html, "checkpoint_4.mdl")
    has(page_of(make {}), "the run is at step 0 of 4")
  end)

  it("has findings from where something is wrong, and none before", function()
    local function findings(evaluated, scale, last)
      local out = page_of(make {
        { 1, { { "loss", 4 }, { "loss_scale", 512 } } }, { 2, { { "eval_loss", 2 } } },
        { last, { { "loss", 9 }, { "loss_scale", scale } } }, { last, { { "eval_loss", evaluated } } },
      })
      local count = 0
      for _, severity in ipairs { "error", "warning", "info" } do
        count = count + select(2, out:gsub('<span class="key">' .. severity .. "</span>", ""))
      end
      equal(out:find("<p>None.</p>", 1, true) ~= nil, count == 0)
      return count
    end
    equal({ findings(2.09, 512, 4), findings(2.09, 1024, 4) }, { 0, 0 })
    equal({ findings(2.11, 512, 4), findings(2.09, 256, 4), findings(2.09, 512, 3), findings(2.11, 256, 3) }, { 1, 1, 1, 3 })
  end)

  it("keeps texts of the run texts", function()
    local html = page_of(make({}, { command = "<script>x()</script>", model = "<img src=x>" }))
    is_true(not html:find("<script", 1, true) and not html:find("<img", 1, true))
  end)

  for file, cases in pairs {
    ["run.json"] = { ['"last_step": 4'] = { '"last_step": "abc"', "expected a whole number from 0 in 'last_step', found \"abc\"" },
      ['"parameters": 1234567'] = { '"parameters": "y"', "expected a whole number from 0 in 'parameters', found \"y\"" },
      ['"first_step": 0'] = { '"first_step": -1', "in 'first_step', found -1" },
      ['"command": "cbk train p.yaml"'] = { '"command": [1]', "expected a text in 'command', found [1]" } },
    ["metrics.jsonl"] = { ['{"step": 2, "loss": 3}'] = { "5", "line 2: expected an object" },
      ['{"step": 2, "loss": 3}\n'] = { "null\n", "found null" },
      ['"step": 2, '] = { "", "line 2: it has no 'step'" }, ['"step": 2'] = { '"step": 2.5', "in 'step', found 2.5" },
      ['{"step": 2, '] = { "[1, {", "line 2: it is not JSON" }, ['"loss": 3'] = { '"loss": "low"', "a number in 'loss', found \"low\"" } },
  } do
    for old, case in pairs(cases) do
      it(("says what is wrong in %s: %s"):format(file, case[1]), function()
        local dir = make { { 1, { { "loss", 4 } } }, { 2, { { "loss", 3 } } } }
        local path = dir .. "/run/" .. file
        local text = cbk.fs.read(path)
        local first, last = text:find(old, 1, true)
        cbk.fs.write(path, text:sub(1, first - 1) .. case[1] .. text:sub(last + 1), { overwrite = true })
        local code, _, err = run(dir, "report", "run")
        equal(code, 1)
        has((err:gsub("%s+", " ")), "'run/" .. file .. "'")
        has((err:gsub("%s+", " ")), case[2])
        equal(cbk.fs.exists(dir .. "/report.html"), false)
      end)
    end
  end

  it("refuses what is for checkpoints, and files of other programs", function()
    local dir = make {}
    local code, _, err = run(dir, "report", "run", "--key", "w")
    equal(code, 2)
    has((err:gsub("%s+", " ")), "is the folder of a run, for which --key has no meaning; name one of its checkpoints")
    code, _, err = run(dir, "report", "run", "--ignore-dtype")
    equal(code, 2)
    has(err, "--ignore-dtype has no meaning")
    cbk.fs.write(dir .. "/run/run.json", '{"id": 1}\n', { overwrite = true })
    code, _, err = run(dir, "report", "run")
    equal(code, 1)
    has(err, "has no 'model'")
  end)
end)

-- A page about a training run, from what `cbk train` leaves in its folder.

local cbk = require "cbk"
local folder = require "cbk.watch.folder"
local numbers = require "cbk.numbers"
local page = require "cbk.page"
local record = require "cbk.training.record"
local scale = require "cbk.plot.scale"

local report = {}

---@class RunReport
---@field html string
---@field steps integer       with numbers
---@field findings integer

local MOST_ROWS = 500 -- of a table
local WIDTH, HEIGHT = 600, 150 -- units of a chart

---@param row Dict
---@param name string
---@return number|nil
local function number_of(row, name)
  if row[name] == nil then return nil end
  return tonumber(tostring(row[name])) or 0 / 0
end

local function is_finite(value) return value == value and math.abs(value) < math.huge end

local function shown(value) return value and (is_finite(value) and ("%.4g"):format(value) or "not finite") or "" end

-- --- charts

---@param curve Curve
---@return string
local function chart_html(curve)
  local low, high = scale.range(curve.values)
  local out = { ('<div class="chart"><span class="key">%s</span>'):format(page.text((curve.name:gsub("_", " ")))) }
  if not low then return out[1] .. '<span class="quiet">no finite value</span></div>' end
  local first, last = curve.steps[1], curve.steps[#curve.steps]
  local paths, points = {}, {}
  for i = 1, #curve.values + 1 do
    local value = curve.values[i]
    if value and is_finite(value) then
      points[#points + 1] = ("%.1f,%.1f"):format((curve.steps[i] - first) / math.max(1, last - first) * WIDTH,
        high > low and (high - value) / (high - low) * (HEIGHT - 10) + 5 or HEIGHT / 2)
    elseif points[1] then
      paths[#paths + 1] = ('<polyline class="curve" points="%s"/>'):format(table.concat(points, " "))
      points = {}
    end
  end
  out[2] = ('<svg viewBox="0 0 %d %d" preserveAspectRatio="none" role="img">%s</svg>'):format(WIDTH, HEIGHT, table.concat(paths))
  out[3] = ('<span class="quiet">%s to %s, steps %d to %d</span></div>'):format(scale.text(low), scale.text(high), first, last)
  return table.concat(out)
end

---@param list Curve[]
local function charts_html(list)
  local out = {}
  for i, curve in ipairs(list) do out[i] = chart_html(curve) end
  return '<div class="charts">' .. table.concat(out, "\n") .. "</div>"
end

-- --- findings

---@class RunFinding
---@field [1] string   severity
---@field [2] string   what
---@field [3] string   what to try

---@param list Curve[]
---@param name string
---@return Curve|nil
local function curve_of(list, name)
  for _, curve in ipairs(list) do
    if curve.name == name then return curve end
  end
end

---@param curve Curve|nil
---@return integer|nil place   of the least finite value
local function least(curve)
  local best
  for i, value in ipairs(curve and curve.values or {}) do
    if is_finite(value) and (not best or value < curve.values[best]) then best = i end
  end
  return best
end

---@param curve Curve|nil
local function not_finite(curve)
  for i, value in ipairs(curve and curve.values or {}) do
    if not is_finite(value) then return curve.steps[i] end
  end
end

---The curves of the losses of evaluations.
---@param list Curve[]
---@return Curve[]
local function evaluations_of(list)
  local out = {}
  for _, curve in ipairs(list) do
    if record.is_evaluation_loss(curve.name) then out[#out + 1] = curve end
  end
  return out
end

---@param curve Curve
local function evaluation_text(curve) return curve.name == "eval_loss" and "the evaluation's loss" or curve.name end

local OVERFITTED = 1.05 -- times the least evaluation loss

---@param list Curve[]
---@param last integer   step
---@param facts RunFacts
---@return RunFinding[]
local function findings_of(list, last, facts)
  local out = {}
  local function add(...) out[#out + 1] = { ... } end
  local broken = not_finite(curve_of(list, "loss"))
  if broken then
    add("error", ("the loss is not finite at step %d"):format(broken), "a smaller learning rate, or max_gradient_norm")
  end
  for _, evaluated in ipairs(evaluations_of(list)) do
    local best, final = least(evaluated), evaluated.values[#evaluated.values]
    if best and final > OVERFITTED * evaluated.values[best] then
      add("warning", ("%s was least at step %d (%s) and is %s at step %d"):format(evaluation_text(evaluated), evaluated.steps[best],
        shown(evaluated.values[best]), shown(final), evaluated.steps[#evaluated.steps]),
        "the checkpoint of that step, more data, or dropout")
    end
  end
  local scaled, lowered = curve_of(list, "loss_scale"), 0
  for i, value in ipairs(scaled and scaled.values or {}) do
    if i > 1 and value < scaled.values[i - 1] then lowered = lowered + 1 end
  end
  if lowered > 0 then add("info", ("the loss scale fell %s"):format(numbers.counted(lowered, "time")), "") end
  if facts.last_step and last < facts.last_step then
    add("info", ("the run is at step %d of %d"):format(last, facts.last_step), facts.command)
  end
  return out
end

-- --- tables

---@param rows Dict[]
---@param is_wanted fun(row: Dict): boolean
---@return string
local function rows_html(rows, is_wanted)
  local wanted = {}
  for _, row in ipairs(rows) do
    if is_wanted(row) then wanted[#wanted + 1] = row end
  end
  return page.records(wanted, MOST_ROWS, function(row, name)
    return name == "step" and tostring(row.step) or shown(number_of(row, name))
  end)
end

---@param dir string
---@param losses Curve|nil
---@return string, WatchedCheckpoint[]
local function checkpoints_html(dir, losses)
  local at, cells = {}, {}
  for i, step in ipairs(losses and losses.steps or {}) do at[step] = losses.values[i] end
  local list = folder.checkpoints(dir)
  for i, one in ipairs(list) do
    local size = not cbk.fs.is_dir(one.path) and cbk.format_size(cbk.fs.size(one.path)) or ""
    cells[i] = { one.name, ("%d"):format(one.step), size, os.date("%Y-%m-%d %H:%M:%S", one.time), shown(at[one.step]) }
  end
  local content = { titles = { "name", "step", "size", "written", "loss" }, right = { false, true, true, false, true }, rows = cells }
  return page.table(content), list
end

-- --- the page

---@param facts RunFacts
---@param rows Dict[]
---@param list Curve[]
---@param saved WatchedCheckpoint[]
local function cards_of(facts, rows, list, saved)
  local out = {}
  local function add(title, value)
    if value and value ~= "" then out[#out + 1] = { title, value } end
  end
  local last, losses = rows[#rows], curve_of(list, "loss")
  add("model", facts.model)
  add("parameters", facts.parameters and numbers.grouped(facts.parameters))
  add("steps", facts.last_step and last and ("%s of %d"):format(tostring(last.step), facts.last_step))
  add("loss", losses and ("%s to %s"):format(shown(losses.values[1]), shown(losses.values[#losses.values])))
  for _, evaluated in ipairs(evaluations_of(list)) do
    local best = least(evaluated)
    add(evaluated.name == "eval_loss" and "least evaluation loss" or "least " .. evaluated.name,
      best and ("%s, step %d"):format(shown(evaluated.values[best]), evaluated.steps[best]))
  end
  local speeds = curve_of(list, "samples_per_second")
  add("samples per second", speeds and shown(speeds.values[#speeds.values]))
  add("checkpoints", numbers.grouped(#saved))
  return out
end

---A page about the run in a folder.
---@param dir string
---@param facts RunFacts
---@return RunReport
function report.page(dir, facts)
  local rows, list = record.read(dir), record.curves(dir)
  local last = rows[#rows] and number_of(rows[#rows], "step") or facts.first_step
  local found = findings_of(list, last, facts)
  local checkpoints, saved = checkpoints_html(dir, curve_of(list, "loss"))
  local sections = {}
  local function add(title, html) sections[#sections + 1] = { title = title, html = html } end
  add("Findings", #found == 0 and "<p>None.</p>" or page.table { titles = { "severity", "finding", "what to try" }, rows = found })
  if list[1] then add("Curves", charts_html(list)) end
  local function is_evaluation(row)
    for name in cbk.items(row) do
      if record.is_evaluation_loss(name) then return true end
    end
    return false
  end
  for _, row in ipairs(rows) do
    if is_evaluation(row) then
      add("Evaluations", rows_html(rows, is_evaluation))
      break
    end
  end
  if saved[1] then add("Checkpoints", checkpoints) end
  if rows[1] then add("Steps", rows_html(rows, function(row) return not is_evaluation(row) end)) end
  add("Command", "<pre>" .. page.text(facts.command) .. "</pre>")
  local config = record.config(dir)
  if config then add("Configuration", "<pre>" .. page.lines(config) .. "</pre>") end
  local path = cbk.fs.absolute(dir)
  return { steps = last, findings = #found,
    html = page.html { title = cbk.fs.basename(path), subtitle = path .. ", a training run", cards = cards_of(facts, rows, list, saved),
      sections = sections } }
end

return report

-- What a report says of values that look wrong.

local cbk = require "cbk"
local numbers = require "cbk.numbers"

local findings = {}

---@class Finding
---@field severity "error"|"warning"
---@field key string
---@field text string

---What the statistics of a tensor say; nil where nothing looks wrong.
---@param key string
---@param stats table
---@return Finding|nil
function findings.of_statistics(key, stats)
  if stats.nan + stats.inf > 0 then
    local parts = {}
    if stats.nan > 0 then parts[1] = numbers.grouped(stats.nan) .. " NaN" end
    if stats.inf > 0 then parts[#parts + 1] = numbers.grouped(stats.inf) .. " infinite" end
    local text = ("%s of %s"):format(table.concat(parts, " and "), numbers.counted(stats.numel, "element"))
    return { severity = "error", key = key, text = text }
  end
  if stats.numel > 1 and stats.zeros == stats.numel then return { severity = "warning", key = key, text = "all elements are 0" } end
end

---Findings with like keys as one: "layers.{0..31}.bias". Errors come first.
---@param list Finding[]
---@return Finding[]
function findings.folded(list)
  local out = {}
  for _, severity in ipairs { "error", "warning" } do
    local keys, texts = {}, {}
    for _, finding in ipairs(list) do
      if finding.severity == severity then keys[#keys + 1], texts[#texts + 1] = finding.key, finding.text end
    end
    for _, group in ipairs(cbk.fold_keys(keys, texts)) do
      out[#out + 1] = { severity = severity, key = group.name, text = texts[group.members[1]] }
    end
  end
  return out
end

return findings

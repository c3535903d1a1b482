-- A page about a checkpoint or a run: HTML that contains everything, for a browser without a network. Texts of the checkpoint are
-- untrusted: they are escaped in HTML and in the page's data, and the page's policy allows only its own script and style.

local cbk = require "cbk"
local figure = require "cbk.plot.figure"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"

local page = {}

local escaped = figure.escaped

---Escapes untrusted text for HTML; control characters become visible.
---@param text string
function page.text(text) return escaped(cbk.shown(text)) end

---The same with its line ends kept, for a <pre>.
---@param text string
function page.lines(text) return escaped(cbk.shown(text, true)) end

-- --- the policy

local BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

--- Base64 of bytes in hex.
local function base64(hex)
  local bytes, out = {}, {}
  for byte in hex:gmatch "%x%x" do bytes[#bytes + 1] = tonumber(byte, 16) end
  for i = 1, #bytes, 3 do
    local a, b, c = bytes[i], bytes[i + 1], bytes[i + 2]
    local bits = a * 65536 + (b or 0) * 256 + (c or 0)
    for shift = 3, 0, -1 do
      local index = math.floor(bits / 64 ^ shift) % 64 + 1
      local is_filler = shift == 1 and not b or shift == 0 and not c
      out[#out + 1] = is_filler and "=" or BASE64:sub(index, index)
    end
  end
  return table.concat(out)
end

--- 'sha256-…' of a text, as a policy names an allowed script or style.
local function source_of(text)
  local bytes = {}
  for i = 1, #text do bytes[i] = text:byte(i) end
  return ("'sha256-%s'"):format(base64(cbk.tensor(bytes, { dtype = "uint8" }):sha256()))
end

local folder = debug.getinfo(1, "S").source:match "^@(.*/)"

local function part(name) return cbk.fs.read(folder .. name) end

-- --- the data

-- Characters that would end the script element, or that are line ends in old JavaScript.
local JSON_ESCAPES = { ["<"] = "\\u003c", [">"] = "\\u003e", ["&"] = "\\u0026" }

local function json_text(text)
  local out = cbk.json(cbk.shown(text)):gsub("[<>&]", JSON_ESCAPES)
  return out
end

local function json_number(number)
  if number == nil then return "null" end
  if type(number) ~= "number" then return '"' .. numbers.whole_text(number) .. '"' end
  if number ~= number or math.abs(number) == math.huge then return '"' .. tostring(number) .. '"' end
  return (("%.6g"):format(number))
end

local function json_numbers(list, pattern)
  local out = {}
  for i, number in ipairs(list) do out[i] = pattern:format(number) end
  return "[" .. table.concat(out, ",") .. "]"
end

local function json_list(texts)
  local out = {}
  for i, text in ipairs(texts) do out[i] = json_text(text) end
  return "[" .. table.concat(out, ",") .. "]"
end

---A list of pairs: an object's keys might mean something to JavaScript.
local function json_pairs(texts)
  local out = {}
  for key, text in pairs(texts) do out[#out + 1] = ("[%s,%s]"):format(json_text(key), json_text(text)) end
  table.sort(out)
  return "[" .. table.concat(out, ",\n") .. "]"
end

---One tensor of the page's data, as JSON.
---@param row LeafRow
---@param stats table|nil   of `Tensor:stats`
---@param note string|nil   why it has no statistics
---@return string
function page.row(row, stats, note)
  local shape = {}
  for i, extent in ipairs(row.shape) do shape[i] = numbers.whole_text(extent) end
  local dtype = row.encoding or row.type
  local parts = { json_text(fold.shown(row.path)), json_text(dtype), "[" .. table.concat(shape, ",") .. "]", ("%.0f"):format(row.bytes),
    row.tied_to and json_text(fold.shown(row.tied_to)) or "null" }
  if stats then
    local found, counts = {}, {}
    for i, name in ipairs { "min", "max", "mean", "std", "norm" } do found[i] = json_number(stats[name]) end
    for i, name in ipairs { "nan", "inf", "zeros", "subnormal" } do counts[i] = ("%.0f"):format(stats[name]) end
    local spread = stats.histogram
    parts[#parts + 1] = "[" .. table.concat(found, ",") .. "]"
    parts[#parts + 1] = "[" .. table.concat(counts, ",") .. "]"
    parts[#parts + 1] = spread and json_numbers(spread.edges, "%.4g") or "null"
    parts[#parts + 1] = spread and json_numbers(spread.counts, "%.0f") or "null"
  elseif note then
    for _ = 1, 4 do parts[#parts + 1] = "null" end
    parts[#parts + 1] = json_text(note)
  end
  return "[" .. table.concat(parts, ",") .. "]"
end

-- --- HTML

---@class PageTable
---@field titles string[]
---@field right? table<integer, boolean>   columns of numbers
---@field rows string[][]                  texts, not escaped yet
---@field more? integer                    rows that are left out

local SHOWN = 12 -- rows; the others are folded

---@param content PageTable
---@return string
function page.table(content)
  local has_texts = false -- beside the first column
  for i = 2, #content.titles do has_texts = has_texts or not (content.right and content.right[i]) end
  local opening = ('<div class="scroll"><table%s>'):format(has_texts and ' class="wide"' or "")
  local out = { opening .. "<thead><tr>" }
  local function class(column) return content.right and content.right[column] and ' class="number"' or "" end
  for i, title in ipairs(content.titles) do out[#out + 1] = ("<th%s>%s</th>"):format(class(i), page.text(title)) end
  out[#out + 1] = "</tr></thead><tbody>"
  local is_folded = #content.rows > SHOWN + 3
  for n, row in ipairs(content.rows) do
    if is_folded and n == SHOWN + 1 then
      out[#out + 1] = ('</tbody></table></div><details class="more"><summary>%s more</summary>%s<tbody>'):format(
        numbers.grouped(#content.rows - SHOWN), opening)
    end
    local cells = {}
    for i, cell in ipairs(row) do
      local text = page.text(cell)
      local severity = content.titles[i] == "severity" and (cell == "error" or cell == "warning") and (' class="%s"'):format(cell)
      cells[i] = ("<td%s>%s</td>"):format(severity or class(i), i == 1 and '<span class="key">' .. text .. "</span>" or text)
    end
    out[#out + 1] = "<tr>" .. table.concat(cells) .. "</tr>"
  end
  out[#out + 1] = "</tbody></table></div>" .. (is_folded and "</details>" or "")
  if (content.more or 0) > 0 then out[#out + 1] = ('<p class="quiet">and %s more</p>'):format(numbers.grouped(content.more)) end
  return table.concat(out, "\n")
end

---A table of records of numbers: a column for each name, in the order in which they appear. The first one is that of the key.
---@param records Dict[]
---@param most integer                                      rows
---@param shown fun(record: Dict, name: string): string     a cell
---@return string
function page.records(records, most, shown)
  local names, titles, right, rows = {}, {}, {}, {}
  for _, record in ipairs(records) do
    for name in cbk.items(record) do
      if not names[name] then
        local c = #titles + 1
        names[c], names[name], titles[c], right[c] = name, true, (name:gsub("_", " ")), c > 1
      end
    end
  end
  for i = 1, math.min(#records, most) do
    rows[i] = {}
    for c, name in ipairs(names) do rows[i][c] = shown(records[i], name) end
  end
  return page.table { titles = titles, right = right, rows = rows, more = math.max(0, #records - most) }
end

---@class PageContent
---@field title string
---@field subtitle string
---@field cards { [1]: string, [2]: string }[]     what, value
---@field sections { title: string, html: string }[]   before the charts and the tree
---@field tensors? PageTensors                     nil: no charts and no tree

---@class PageTensors
---@field rows string[]                            as JSON, see `page.row`
---@field states string[]                          where states of an optimizer are: "optimizer.state"
---@field names table<string, string>              of parameters, by the path of their states
---@field remark string|nil

--- Hidden until the script has run, because it needs the script.
local TENSORS = [[
<div data-script hidden>
<section id="layers">
<h2>By layer</h2>
<div class="tools"><label>number <select id="of" aria-label="number by layer"></select></label></div>
<div class="charts" id="charts"></div>
<p class="quiet" id="more-charts"></p>
</section>
<h2>Tensors</h2>
<div class="tools">
<input type="search" id="filter" placeholder="filter keys" aria-label="filter keys">
<label>dtype <select id="dtype"><option value="">all</option></select></label>
<label>sort by <select id="order"></select></label>
<label><input type="checkbox" id="bad"> not finite only</label>
</div>
<p class="quiet" id="count" role="status"></p>
<div id="tensors"></div>
<div id="found" hidden></div>
</div>
<noscript><p>The tree of tensors and the charts need JavaScript; the page loads nothing from elsewhere.</p></noscript>
]]

---Adds the tree and its charts, with their data and the script. The data is most of a page: it is copied once.
---@param out string[]
---@param tensors PageTensors
---@param script string
local function add_tensors(out, tensors, script)
  if tensors.remark then out[#out + 1] = ('<p class="quiet">%s</p>'):format(page.text(tensors.remark)) end
  out[#out + 1] = TENSORS
  out[#out + 1] = ('<script type="application/json" id="data">{"states":%s,"names":%s,"tensors":['):format(
    json_list(tensors.states), json_pairs(tensors.names))
  out[#out + 1] = table.concat(tensors.rows, ",\n")
  out[#out + 1] = "]}</script>"
  out[#out + 1] = "<script>" .. script .. "</script>"
end

---The whole page.
---@param content PageContent
---@return string
function page.html(content)
  local style, script = part "page.css", content.tensors and part "page.js"
  local policy = ("default-src 'none'; script-src %s; style-src %s; base-uri 'none'; form-action 'none'"):format(
    script and source_of(script) or "'none'", source_of(style))
  local out = { "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
    ('<meta http-equiv="Content-Security-Policy" content="%s">'):format(policy),
    '<meta name="viewport" content="width=device-width, initial-scale=1">', '<meta name="color-scheme" content="light dark">',
    ("<title>%s</title>"):format(page.text(content.title)),
    "<style>" .. style .. "</style>", "</head>", "<body>",
    ("<h1>%s</h1>"):format(page.text(content.title)),
    ('<p class="quiet">%s</p>'):format(page.text(content.subtitle)), '<div class="cards">' }
  for _, card in ipairs(content.cards) do
    out[#out + 1] = ('<div class="card"><b>%s</b><span>%s</span></div>'):format(page.text(card[2]), page.text(card[1]))
  end
  out[#out + 1] = "</div>"
  for _, section in ipairs(content.sections) do
    out[#out + 1] = ("<section><h2>%s</h2>\n%s</section>"):format(page.text(section.title), section.html)
  end
  if content.tensors then add_tensors(out, content.tensors, script) end
  out[#out + 1] = "</body>\n</html>\n"
  return table.concat(out, "\n")
end

return page

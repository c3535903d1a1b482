-- Choices for one tensor that is several on the other side: split by rows, by columns or group by group, with rotary rows.

local heads = require "cbk.infer.heads"
local sizes = require "cbk.infer.sizes"

local fused = {}

local divisors, each_rotation = heads.divisors, heads.each_rotation

local function greatest_common(list)
  local out = 0
  for _, n in ipairs(list) do
    while n ~= 0 do out, n = n, out % n end
  end
  return out
end

---The number of devices that CodeGen's models were trained on. It shows in the order of their rows, but in no config.
---@param trial Trial
local function devices_of(trial)
  local left, right = trial.configs.left, trial.configs.right
  return (left and left.model_type == "codegen" or right and right.model_type == "codegen") and 4 or nil
end

local TURNED = { "", ", transposed = true" }

---Calls `add` with the options for rotary rows in some of the parts.
---@param rotary string|nil|false   their size and rotated rows
---@param count integer             of parts
---@param add fun(options: string)
local function each_rotary(rotary, count, add)
  for _, rotated in ipairs { "", count == 2 and ", rotated = 1" or nil } do
    for _, pairs_of in ipairs { "", ", pairs_left = true" } do
      if rotary then add((", rotary = %s%s%s"):format(rotary, rotated, pairs_of)) end
    end
  end
end

---Queries, keys and values of one tensor, with the numbers of heads and their rows from configs of a layout of the user's own.
---@param trial Trial
---@param rows integer[]   of each part
---@param unit integer     a common divisor of all
---@param add fun(choice: Choice)
local function heads_of_configs(trial, rows, unit, add)
  local configs, key, is_keys = trial.configs, trial.left[1].key, {}
  for i, item in ipairs(trial.right) do
    if heads.has_word(item, "kv", "qk") then return end -- one part has the heads of two: no field has their number
    is_keys[i] = heads.has_word(item, "k", "v", "key", "value", "keys", "values") or i > 1 and not heads.in_keys(trial.right)
  end
  for _, size in ipairs(divisors(unit)) do
    local of_size = sizes.heads(configs, size, size, key)
    local counts, is_single = {}, false
    for i, n in ipairs(rows) do
      counts[i] = n / size
      is_single = is_single or counts[i] == 1
    end
    local of_counts = of_size and sizes.counts(configs, counts, is_keys, key)
    local assumes = is_single and "one head in a part, with which several layouts are the same" or nil
    local function add_fused(more)
      local text = ("layouts.fused { parts = %d, %s }"):format(#rows, more)
      add { text = text, assumes = assumes }
    end
    if of_counts then
      local each_one = ("1, "):rep(#rows - 1) .. "1"
      local is_equal = table.concat(counts, ", ") == (counts[1] .. ", "):rep(#rows - 1) .. counts[1]
      local layouts = { "per = " .. of_counts }
      if is_equal then layouts[2] = ("per = { %s }, size = %s"):format(each_one, of_size) end
      local groups = greatest_common(counts)
      local may_group = groups > 1 and (not is_equal or heads.in_keys(trial.right)) -- equality may hold only in the pair
      local of_groups = may_group and sizes.key_heads(configs, groups, key)
      if of_groups then layouts[2] = ("per = %s, groups = %s"):format(of_counts, of_groups) end -- the heads of a group together
      for _, one in ipairs(layouts) do
        for _, turned in ipairs(TURNED) do
          add_fused(one .. turned)
          each_rotation(size, function(own, dim)
            local rotary = own == size and dim ~= 4 and sizes.rotation(configs, size, dim, key)
            each_rotary(rotary, #rows, function(more) add_fused(one .. turned .. more) end)
          end)
        end
      end
    end
  end
end

---Whether keys differ only in their numbers, as those of experts. Then no other tensor shows how many there are.
---@param items Item[]
local function are_numbered(items)
  local has = {}
  for _, item in ipairs(items) do
    if has[item.template] then return true end
    has[item.template] = true
  end
  return false
end

---One key on the left, several on the right.
---@param trial Trial
---@param add fun(choice: Choice)
function fused.add(trial, add)
  local count, rows = #trial.right, {}
  for i, item in ipairs(trial.right) do rows[i] = item.shape[1] end
  if count == 3 and trial.has_config then
    for _, text in ipairs { "actions.qkv.stacked", "actions.qkv.conv1d", "actions.qkv.grouped(heads.keys)",
      "actions.qkv.grouped(heads.keys, { rotary = false })" } do add { text = text, has_config = true } end
    add { text = "layouts.stacked_rotary", has_config = true }
  end
  local unit = greatest_common(rows)
  local is_numbered = are_numbered(trial.right)
  if trial.configs.left and trial.configs.right and not is_numbered then heads_of_configs(trial, rows, unit, add) end
  local list = {}
  for i, n in ipairs(rows) do list[i] = ("%d"):format(n / unit) end
  local function shares_of(numbers, separator) return table.concat(numbers, separator) end
  ---What a choice assumes about shares. Halves are halves in every model; heads, parts of other sizes and experts depend on the config.
  local function ratio(numbers)
    local is_equal = shares_of(numbers, "") == ("1"):rep(count)
    local is_certain = is_equal and count ~= 3 and not is_numbered and (trial.has_config or not heads.in_keys(trial.right))
    return not is_certain and "parts in the ratio " .. shares_of(numbers, " : ") or nil
  end
  local shares = shares_of(list, ", ")
  if shares_of(list, "") == ("1"):rep(count) then
    add { text = ("actions.split(%d)"):format(count), assumes = ratio(list) }
  end
  local function add_fused(more, assumes)
    local text = ("layouts.fused { per = { %s }%s }"):format(shares, more)
    add { text = text, assumes = assumes ~= "" and (assumes or ratio(list)) or nil }
  end
  add_fused ""
  add_fused ", transposed = true"
  local columns = {}
  for i, item in ipairs(trial.right) do columns[i] = item.shape[2] end
  local width = #columns == count and greatest_common(columns)
  for i, n in ipairs(width and columns or {}) do columns[i] = ("%d"):format(n / width) end
  if width then
    add { text = ("layouts.fused { per = { %s }, columns = true }"):format(shares_of(columns, ", ")),
      assumes = ratio(columns) }
  end
  local rows_of_heads = divisors(unit)
  for _, groups in ipairs(rows_of_heads) do
    if trial.has_config or groups == devices_of(trial) then
      add_fused(", groups = " .. groups, groups ~= devices_of(trial) and ("%d groups"):format(groups) or "")
    end
  end
  for _, turned in ipairs(TURNED) do
    for _, size in ipairs(rows_of_heads) do add_fused(turned .. ", size = " .. size, ("heads of %d rows"):format(size)) end
    for _, is_grouped in ipairs { false, true } do
      each_rotation(unit, function(size, dim)
        local layout = is_grouped and turned .. ", size = " .. size or turned
        each_rotary(("{ %d, %d }"):format(size, dim), count, function(more) add_fused(layout .. more, heads.said(size, dim)) end)
      end)
    end
  end
end

return fused

-- How many classes a Hugging Face config has: `num_labels`, or the names in `id2label`.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"

---For `prepare.left`: sets `num_labels`, which a config may leave out.
---@param from Dict
return function(from)
  local names, count = from.id2label, 2
  if not kinds.absent(names) then
    if not kinds.is_dict(names) then fields.refuse("id2label", names, "a map from numbers to names") end
    count = #cbk.keys(names)
    if not kinds.absent(from.num_labels) and from.num_labels ~= count then
      fields.refuse("num_labels", from.num_labels, ("the number of names in id2label (%d)"):format(count))
    end
  end
  if kinds.absent(from.num_labels) then from.num_labels = count end
end

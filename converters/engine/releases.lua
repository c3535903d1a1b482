-- The releases of the Model Zoo, and their order.

local releases = {}

---Every CS release that formats are named after, oldest first.
releases.known = { "1.6", "1.7", "1.8", "1.9", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9" }
releases.newest = releases.known[#releases.known]
---Releases that came out without changing any model's layout.
releases.unchanged = { ["2.10"] = true }

releases.place = {}
for i, release in ipairs(releases.known) do releases.place[release] = i end

---Whether `a` is at least as new as `b`.
function releases.since(a, b) return (releases.place[a] or 0) >= releases.place[b] end

---Whether source keys may begin with `model.`: on the way to Hugging Face, except from 1.7, and on the way to 1.6.
---@param src string   formats
---@param tgt string
function releases.reads_prefix(src, tgt) return tgt == "hf" and src ~= "cs-1.7" or tgt == "cs-1.6" end

---Whether a step keeps only the model, as steps to and from 1.6 do.
function releases.keeps_model_only(src, tgt) return src == "cs-1.6" or tgt == "cs-1.6" end

local untied = { ["cs-1.6"] = true, ["cs-1.7"] = true, ["cs-1.8"] = true, ["cs-1.9"] = true }

---Whether a step writes tied tensors under all their names, as those into and out of 2.0 do.
function releases.names_all(src, tgt) return untied[src] and tgt == "cs-2.0" or untied[tgt] and src == "cs-2.0" or false end

return releases

-- The releases of the Model Zoo, and their order.

local releases = {}

---Every CS release that formats are named after, oldest first.
releases.known = { "1.6", "1.7", "1.8", "1.9", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9" }
releases.newest = releases.known[#releases.known]
---Releases that came out without changing any model's layout.
releases.unchanged = { ["2.10"] = true }

releases.place = {}
for i, release in ipairs(releases.known) do releases.place[release] = i end

---True where `a` is at least as new as `b`.
function releases.since(a, b) return (releases.place[a] or 0) >= releases.place[b] end

return releases

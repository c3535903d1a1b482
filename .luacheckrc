std = "luajit"
max_line_length = 140
-- Annotations only: its functions have no bodies.
exclude_files = { "scripts/lib/cbk/meta.lua", "scripts/lib/cstorch/meta.lua" }

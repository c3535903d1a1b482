-- cbk list-converters: the name that `cbk list` had before.
local here = debug.getinfo(1, "S").source:match "^@(.*)list%-converters%.lua$"
dofile(here .. "list.lua")

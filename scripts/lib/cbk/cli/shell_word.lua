-- A text as one word of a shell's command line.

---@param text string
---@return string   in quotes, where it needs them
return function(text)
  if text:find "^[%w_./:@%%+=-]+$" then return text end
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

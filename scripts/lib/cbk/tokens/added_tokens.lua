-- Finds added tokens, such as <|endoftext|>, in a text that comes in pieces. What lies between them goes on as separate texts.

local added_tokens = {}

---@class TokenSink   A step of encoding.
---@field feed fun(self: TokenSink, text: string)   more of a text
---@field stop fun(self: TokenSink)                 its end
---@field token fun(self: TokenSink, id: integer)   a token after it

---@class AddedTokens : TokenSink
local Finder = {}
Finder.__index = Finder

---@param ids table<string, integer>   content → id
---@param sink TokenSink
---@return TokenSink
function added_tokens.finder(ids, sink)
  if next(ids) == nil then return sink end
  local contents, firsts, longest = {}, {}, 0
  for content in pairs(ids) do
    contents[#contents + 1], firsts[content:sub(1, 1):gsub("%W", "%%%0")], longest = content, true, math.max(longest, #content)
  end
  table.sort(contents, function(a, b) return #a > #b end)
  local classes = {}
  for first in pairs(firsts) do classes[#classes + 1] = first end
  return setmetatable({ ids = ids, sink = sink, contents = contents, longest = longest, kept = "",
    first = "[" .. table.concat(classes) .. "]" }, Finder)
end

function Finder:_at(text, at)
  for _, content in ipairs(self.contents) do
    if text:sub(at, at + #content - 1) == content then return content end
  end
end

--- Passes on what is certain; keeps what may be the beginning of a token unless the text is whole.
function Finder:_pass(text, is_whole)
  local first, from = 1, 1
  while true do
    local at = text:find(self.first, from)
    if not at then break end
    if not is_whole and at + self.longest - 1 > #text then
      self.sink:feed(text:sub(first, at - 1))
      self.kept = text:sub(at)
      return
    end
    local content = self:_at(text, at)
    if content then
      self.sink:feed(text:sub(first, at - 1))
      self.sink:stop()
      self.sink:token(self.ids[content])
      first = at + #content
    end
    from = content and first or at + 1
  end
  self.sink:feed(text:sub(first))
  self.kept = ""
end

function Finder:feed(text) self:_pass(self.kept .. text, false) end

function Finder:stop()
  self:_pass(self.kept, true)
  self.sink:stop()
end

function Finder:token(id) self.sink:token(id) end

return added_tokens

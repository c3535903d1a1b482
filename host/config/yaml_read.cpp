#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <istream>
#include <numeric>
#include <streambuf>
#include <unordered_map>

#include "host/base/utf8.hpp"
#include "host/config/yaml.hpp"
#include "host/config/yaml_quoted.hpp"
#include "host/config/yaml_scalar.hpp"
#include "host/value/kind.hpp"
#include "host/value/repeated_keys.hpp"
#include "host/value/tree_memory.hpp"

namespace cbk::yaml {
namespace {

constexpr size_t deepest_read = 400;

std::string place_of(const YAML::Mark& mark) {
  return fmt::format("line {}, column {}", mark.line + 1, mark.column + 1);
}

[[noreturn]] void fail_at(const YAML::Mark& mark, Errc code, std::string message) {
  throw Error(code, std::move(message)).in(place_of(mark));
}

/// The characters that YAML allows in a file. The parser uses some of the others as its own marks.
bool is_printable(uint32_t c) {
  return c == '\t' || c == '\n' || c == '\r' || (c >= 0x20 && c <= 0x7E) || c == 0x85 ||
         (c >= 0xA0 && c <= 0xD7FF) || (c >= 0xE000 && c <= 0xFFFD && c != 0xFEFF) || c >= 0x10000;
}

void check_characters(std::string_view text) {
  size_t line = 1;
  for (size_t i = 0; i < text.size();) {
    const auto character = decode_utf8(text, i);
    if (!character) fail(Errc::format, "line {}: not UTF-8 text", line);
    if (!is_printable(*character))
      fail(Errc::format, "line {}: the character U+{:04X} is not allowed", line, *character);
    if (*character == '\n') ++line;
  }
}

std::string from_base_64(std::string_view text, const YAML::Mark& mark) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  size_t digits = 0;
  size_t padding = 0;
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (char c : text) {
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r') continue;
    if (c == '=') {
      ++padding;
      continue;
    }
    ++digits;
    const size_t value = alphabet.find(c);
    if (value == std::string_view::npos) fail_at(mark, Errc::format, "!!binary is not base64");
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xFF);
    }
  }
  if (digits % 4 != 0 && digits % 4 + padding < 4) fail_at(mark, Errc::format, "!!binary is cut off");
  return out;
}

/// A directive belongs to a document that begins with "---"; the parser would ignore the rest.
void check_directives(std::string_view text) {
  size_t number = 1;
  bool has_directive = false;
  for (; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || line[first] == '#') continue;
    if (line[0] == '%') {
      has_directive = true;
    } else {
      if (has_directive && !line.starts_with("---"))
        fail(Errc::format, "line {}: a document whose first line begins with '%' needs '---' after it",
             number);
      return;
    }
  }
  if (has_directive) fail(Errc::format, "line {}: no document follows the lines that begin with '%'", number);
}

/// The memory that the parser needs for the tokens that begin at this character: inside brackets it keeps all
/// of them until the brackets close.
uint64_t queued(char c) {
  constexpr uint64_t token = 96;
  if (c == '"' || c == '\'') return token;
  if (c == '-' || c == '.') return token / 3;  // lines of three separate documents
  return std::string_view("[]{},:?&*!").find(c) == std::string_view::npos ? 0 : 3 * token;
}

uint64_t queued(std::string_view text) {
  return std::accumulate(text.begin(), text.end(), uint64_t{0},
                         [](uint64_t sum, char c) { return sum + queued(c); });
}

/// Passes the text to the parser in pieces, and charges the memory that the parser needs for them.
class Source : public std::streambuf {
 public:
  Source(std::string_view text, TreeMemory& memory) : text_(text), memory_(memory) {}

  /// The parser has released everything before `position`.
  void pass(size_t position) {
    if (position <= passed_) return;
    memory_.refund(queued(text_.substr(passed_, position - passed_)));
    passed_ = position;
  }

 protected:
  int_type underflow() override {
    constexpr size_t piece_size = 4096;
    const std::string_view piece = text_.substr(handed_out_, piece_size);
    if (piece.empty()) return traits_type::eof();
    try {
      memory_.charge(queued(piece));
    } catch (const Error& error) {
      const auto lines = std::count(text_.begin(), piece.begin(), '\n');
      throw error.in(fmt::format("line {}", lines + 1));
    }
    handed_out_ += piece.size();
    char* begin = const_cast<char*>(piece.data());  // streambuf's interface; it only reads
    setg(begin, begin, begin + piece.size());
    return traits_type::to_int_type(*begin);
  }

 private:
  std::string_view text_;
  TreeMemory& memory_;
  size_t handed_out_ = 0;
  size_t passed_ = 0;
};

/// Builds the tree from the parser's events.
class Builder : public YAML::EventHandler {
 public:
  Builder(std::string_view source, bool hides_surrogates, const std::function<void(std::string)>& warn,
          TreeMemory& memory, Source& queue)
      : source_(source),
        hides_surrogates_(hides_surrogates),
        repeated_(warn),
        memory_(memory),
        queue_(queue) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) fail_at(mark, Errc::format, "a second document; a config is one document");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto position = static_cast<size_t>(mark.pos);
    const bool is_nothing = anchor == 0 && position < source_.size() && source_[position] == ',';
    if (is_nothing && expects_flow_item()) fail_at(mark, Errc::format, "a ',' with nothing in front of it");
    add(mark, Value(), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail_at(mark, Errc::format, "the alias is inside of what it refers to");
    add(mark, copy(found->second, mark, stack_.size()), 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& parsed) override {
    const std::string text = hides_surrogates_ ? restore_surrogates(parsed) : parsed;
    is_merge_key_ = tag == "?" && text == "<<";
    within_mark(mark, [&] {
      const bool may_be_quoted = tag != "?";
      const auto position = static_cast<size_t>(mark.pos);
      const auto own = may_be_quoted ? decode_quoted(source_, position) : std::nullopt;
      const auto kept = own || !may_be_quoted ? std::nullopt : end_folded(source_, position, text);
      Value value = scalar(mark, tag, own ? *own : kept ? *kept : text);
      memory_.charge(own_memory(value));
      add(mark, std::move(value), anchor);
    });
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    const std::string_view name = standard_tag(tag, mark);
    Shape shape = Shape::list;
    if (name == "omap" || name == "pairs") {
      shape = Shape::pairs;
    } else if (!name.empty() && name != "seq") {
      fail_at(mark, Errc::format, fmt::format("a list cannot be tagged !!{}", name));
    }
    open(mark, shape, Value::list(), anchor, style);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    const std::string_view name = standard_tag(tag, mark);
    if (!name.empty() && name != "map" && name != "set") {
      fail_at(mark, Errc::format, fmt::format("a map cannot be tagged !!{}", name));
    }
    open(mark, name == "set" ? Shape::set : Shape::map, Value::dict(), anchor, style);
  }
  void OnMapEnd() override { close(); }

  Value take() {
    repeated_.finish();
    return std::move(root_);
  }

 private:
  enum class Shape { list, pairs, map, set };
  struct Frame {
    YAML::Mark mark;
    Shape shape = Shape::list;
    Value container;
    YAML::anchor_t anchor = 0;
    bool is_flow = false;  // in brackets
    bool has_key = false;
    bool merges = false;  // the key is <<
    Value key;
    std::vector<Value> merged;  // dicts, in the order in which they are taken over
  };

  /// Whether an item of a list or a key comes next, inside brackets.
  [[nodiscard]] bool expects_flow_item() const {
    return !stack_.empty() && stack_.back().is_flow && !stack_.back().has_key;
  }

  template <typename Body>
  static void within_mark(const YAML::Mark& mark, Body&& body) {
    try {
      body();
    } catch (const Error& error) {
      if (!error.parts().context.empty()) throw;  // the place inside of it
      throw error.in(place_of(mark));
    }
  }

  /// "int" of "tag:yaml.org,2002:int"; empty for none.
  static std::string_view standard_tag(std::string_view tag, const YAML::Mark& mark) {
    if (tag.empty() || tag == "?" || tag == "!") return {};
    constexpr std::string_view prefix = "tag:yaml.org,2002:";
    constexpr std::array<std::string_view, 12> known = {
        "null", "bool", "int", "float", "str", "seq", "map", "binary", "timestamp", "set", "omap", "pairs"};
    const std::string_view name = tag.starts_with(prefix) ? tag.substr(prefix.size()) : "";
    for (std::string_view candidate : known) {
      if (candidate == name) return candidate;
    }
    fail_at(mark, Errc::refused,
            fmt::format("the tag {} would make an object; only YAML's own tags are read", quote(tag, 80)));
  }

  static Value scalar(const YAML::Mark& mark, std::string_view tag, const std::string& text) {
    if (tag == "?") return resolve(text);
    const std::string_view name = standard_tag(tag, mark);
    if (name.empty() || name == "str") return text;
    if (name == "null") return {};
    if (name == "bool") return convert(text, ScalarKind::boolean);
    if (name == "int") return convert(text, ScalarKind::integer);
    if (name == "float") return convert(text, ScalarKind::real);
    if (name == "binary") return Value::bytes(from_base_64(text, mark));
    const ScalarKind kind = classify(text);
    if (name == "timestamp" && (kind == ScalarKind::date || kind == ScalarKind::time)) return resolve(text);
    fail_at(mark, Errc::format, fmt::format("{} cannot be tagged !!{}", quote(text, 60), name));
  }

  void charge(const YAML::Mark& mark, uint64_t bytes) {
    within_mark(mark, [&] { memory_.charge(bytes); });
  }

  static uint64_t of_text(const std::shared_ptr<const std::string>& text) {
    return text ? sizeof(std::string) + TreeMemory::beside(*text) : 0;
  }

  /// The memory of a value besides its place in a container, without the values in it.
  static uint64_t own_memory(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::integer:
        return of_text(value.as_integer().digits);
      case Value::Kind::real:
        return of_text(value.as_real().spelling);
      case Value::Kind::string:
        return TreeMemory::beside(value.as_string());
      case Value::Kind::bytes:
        return sizeof(ByteString) + value.as_bytes().data.size();
      case Value::Kind::object:
        return sizeof(Object) + TreeMemory::beside(value.as_object().repr);
      case Value::Kind::sequence:
      case Value::Kind::dict:
        return TreeMemory::container;
      default:
        return 0;
    }
  }

  static void check_depth(const YAML::Mark& mark, size_t depth) {
    if (depth >= deepest_read)
      fail_at(mark, Errc::format, fmt::format("nested deeper than {} levels", deepest_read));
  }

  /// A copy of the target of an alias.
  Value copy(const Value& value, const YAML::Mark& mark, size_t depth) {
    charge(mark, own_memory(value));
    check_depth(mark, depth);
    if (value.is(Value::Kind::sequence)) {
      auto out = std::make_shared<Sequence>();
      out->kind = value.as_sequence().kind;
      charge(mark, TreeMemory::item * value.as_sequence().items.size());
      for (const Value& item : value.as_sequence().items) out->items.push_back(copy(item, mark, depth + 1));
      return out;
    }
    if (value.is(Value::Kind::dict)) {
      charge(mark, TreeMemory::entry * value.as_dict().size());
      auto out = std::make_shared<Dict>(value.as_dict().kind);
      for (const auto& [key, item] : value.as_dict().entries()) out->set(key, copy(item, mark, depth + 1));
      return out;
    }
    return value;
  }

  void open(const YAML::Mark& mark, Shape shape, Value container, YAML::anchor_t anchor,
            YAML::EmitterStyle::value style) {
    check_depth(mark, stack_.size());
    charge(mark, TreeMemory::container);
    Frame frame;
    frame.mark = mark;
    frame.shape = shape;
    frame.container = std::move(container);
    frame.anchor = anchor;
    frame.is_flow = style == YAML::EmitterStyle::Flow;
    stack_.push_back(std::move(frame));
    is_merge_key_ = false;
  }

  void close() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    add(frame.mark, finished(frame), frame.anchor);
  }

  Value finished(Frame& frame) {
    switch (frame.shape) {
      case Shape::list:
        return frame.container;
      case Shape::map:
        return frame.merged.empty() ? frame.container : merge(frame);
      case Shape::set: {
        auto set = std::make_shared<Sequence>();
        set->kind = Sequence::Kind::set;
        for (const auto& entry : frame.container.as_dict().entries()) set->items.push_back(entry.first);
        return set;
      }
      case Shape::pairs:
        return pairs(frame);
    }
    return {};
  }

  /// As PyYAML: merged keys come first, and the map's own keys win.
  Value merge(const Frame& frame) {
    Value out = Value::dict();
    for (const Value& source : frame.merged) {
      for (const auto& [key, value] : source.as_dict().entries())
        out.as_dict().set(key, copy(value, frame.mark, stack_.size() + 1));
    }
    for (const auto& [key, value] : frame.container.as_dict().entries()) out.as_dict().set(key, value);
    return out;
  }

  /// A list of maps with one entry each, as PyYAML reads ordered maps and pairs: a list of tuples.
  Value pairs(const Frame& frame) {
    std::vector<Value> list;
    charge(frame.mark,
           frame.container.as_sequence().items.size() * (TreeMemory::container + 3 * TreeMemory::item));
    for (const Value& item : frame.container.as_sequence().items) {
      if (!item.is(Value::Kind::dict) || item.as_dict().size() != 1) {
        fail_at(frame.mark, Errc::format, "expected a list of maps with one key each");
      }
      const auto& [key, value] = item.as_dict().entries().front();
      list.push_back(Value::tuple({key, value}));
    }
    return Value::list(std::move(list));
  }

  void add(const YAML::Mark& mark, Value value, YAML::anchor_t anchor) {
    queue_.pass(static_cast<size_t>(mark.pos));
    const bool is_merge_key = std::exchange(is_merge_key_, false);
    if (anchor != 0) {
      charge(mark, TreeMemory::entry);
      anchors_[anchor] = value;
    }
    if (stack_.empty()) {
      root_ = std::move(value);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.container.is(Value::Kind::sequence)) {
      charge(mark, TreeMemory::item);
      frame.container.as_sequence().items.push_back(std::move(value));
    } else if (!frame.has_key) {
      charge(mark, TreeMemory::entry);
      set_key(mark, frame, std::move(value), is_merge_key && frame.shape == Shape::map);
    } else if (frame.merges) {
      add_merge(mark, frame, value);
    } else {
      frame.container.as_dict().set(std::move(frame.key), std::move(value));
    }
    if (frame.container.is(Value::Kind::dict)) frame.has_key = !frame.has_key;
  }

  void set_key(const YAML::Mark& mark, Frame& frame, Value key, bool is_merge_key) {
    if (key.is(Value::Kind::sequence) || key.is(Value::Kind::dict)) {
      fail_at(mark, Errc::format, fmt::format("{} cannot be a key", a_kind(key)));
    }
    if (key.is(Value::Kind::object)) key = key.as_object().repr;  // a date
    frame.merges = is_merge_key;
    if (!is_merge_key && frame.shape == Shape::map && frame.container.as_dict().find(key) != nullptr) {
      repeated_.add([&] {
        return fmt::format("{}: the key {} is repeated in one map; this value is used", place_of(mark),
                           quote(key_text(key)));
      });
    }
    frame.key = std::move(key);
  }

  void add_merge(const YAML::Mark& mark, Frame& frame, const Value& value) {
    if (value.is(Value::Kind::dict)) {
      frame.merged.push_back(value);
      return;
    }
    const bool is_list = value.is(Value::Kind::sequence);
    const size_t size = is_list ? value.as_sequence().items.size() : 0;
    for (size_t i = size; i-- > 0;) {  // of several, the first wins: it is taken over last
      const Value& item = value.as_sequence().items[i];
      if (!item.is(Value::Kind::dict)) fail_at(mark, Errc::format, "<< takes a map or a list of maps");
      frame.merged.push_back(item);
    }
    if (!is_list) fail_at(mark, Errc::format, "<< takes a map or a list of maps");
  }

  std::string_view source_;
  bool hides_surrogates_;  // from the parser, not in `source_`
  RepeatedKeys repeated_;
  TreeMemory& memory_;
  Source& queue_;
  int documents_ = 0;
  bool is_merge_key_ = false;  // of the scalar that is being added
  std::vector<Frame> stack_;
  std::unordered_map<YAML::anchor_t, Value> anchors_;
  Value root_;
};

/// The line with this number, from 0.
std::string_view line_at(std::string_view text, int number) {
  for (; number > 0; --number) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

bool is_indented_with_tab(std::string_view line) {
  const std::string_view indentation = line.substr(0, line.find_first_not_of(" \t"));
  return indentation.size() < line.size() && indentation.find('\t') != std::string_view::npos;
}

/// The parser's words for frequent mistakes in better ones.
std::string_view in_words(std::string_view problem) {
  if (problem == YAML::ErrorMsg::MAP_VALUE)
    return "a key cannot be here; check the indentation, and quote a value that has ': ' in it";
  if (problem == YAML::ErrorMsg::END_OF_MAP || problem == YAML::ErrorMsg::END_OF_SEQ)
    return "the indentation fits no line above it";
  if (problem == YAML::ErrorMsg::END_OF_MAP_FLOW) return "a '{' is never closed";
  if (problem == YAML::ErrorMsg::END_OF_SEQ_FLOW) return "a '[' is never closed";
  if (problem == YAML::ErrorMsg::UNKNOWN_TOKEN) return "a value cannot begin like this; quote it";
  return problem;
}

[[noreturn]] void fail_as(const YAML::Exception& error, std::string_view text) {
  if (error.mark.is_null()) fail(Errc::format, "{}", error.msg);
  if (is_indented_with_tab(line_at(text, error.mark.line))) {
    throw Error(Errc::format, "indented with a tab; YAML needs spaces")
        .in(fmt::format("line {}", error.mark.line + 1));
  }
  fail_at(error.mark, Errc::format, std::string(in_words(error.msg)));
}

}  // namespace

Value read(std::string_view text, const std::function<void(std::string)>& warn) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  check_characters(text);
  check_directives(text);
  const std::optional<std::string> hidden = hide_surrogates(text);
  TreeMemory memory(text.size());
  Source source(hidden ? std::string_view(*hidden) : text, memory);
  std::istream stream(&source);
  Builder builder(text, hidden.has_value(), warn, memory, source);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    fail_as(error, text);
  }
  return builder.take();
}

}  // namespace cbk::yaml

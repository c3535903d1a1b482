#include "host/value/outline.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "host/base/digits.hpp"
#include "host/base/hash.hpp"
#include "host/value/row_index.hpp"

namespace cbk {
namespace {

constexpr size_t deepest = 40;

/// Compares as "layer.2" < "layer.10"; texts that differ only in leading zeros of numbers are equal.
bool is_naturally_less(std::string_view a, std::string_view b) {
  size_t i = 0;
  size_t k = 0;
  const auto number = [](std::string_view text, size_t& at) {
    while (at < text.size() && text[at] == '0') ++at;
    const size_t begin = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return text.substr(begin, at - begin);
  };
  while (i < a.size() && k < b.size()) {
    if (is_digit(a[i]) && is_digit(b[k])) {
      const std::string_view x = number(a, i);
      const std::string_view y = number(b, k);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else if (a[i] != b[k]) {
      return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[k]);
    } else {
      ++i;
      ++k;
    }
  }
  return a.size() - i < b.size() - k;
}

struct Part {
  size_t end;   // of its text
  size_t next;  // where the part behind it begins
};

bool has_slashes(std::string_view name) {
  return name.find('/') != std::string_view::npos;
}

/// The part at `from`; none after the last one. The parts of TensorFlow's "a/b/w" are "a/", "b/" and "w",
/// because a variable and the variables below it have separate lines.
std::optional<Part> part_at(std::string_view name, size_t from, bool by_slash) {
  const Part last{name.size(), name.size() + 1};
  if (by_slash) {
    if (from >= name.size()) return std::nullopt;
    const size_t slash = name.find('/', from);
    if (slash == std::string_view::npos) return last;  // "w/x" has the part "w/", not "w"
    return Part{slash + 1, slash + 1};
  }
  if (from > name.size()) return std::nullopt;
  for (size_t at = from;;) {
    const size_t stop = name.find_first_of(".{", at);
    if (stop == std::string_view::npos) return last;
    if (name[stop] == '.') return Part{stop, stop + 1};
    const size_t brace = name.find('}', stop);
    if (brace == std::string_view::npos) return last;
    at = brace + 1;
  }
}

class Outliner {
 public:
  Outliner(const OutlineEntries& entries, const OutlineVisitor& visitor)
      : source_(entries), visitor_(visitor) {}

  void run() {
    std::vector<uint32_t> all(source_.count);
    std::iota(all.begin(), all.end(), 0);
    if (!all.empty()) lines(all, 0, 0, 0);
  }

 private:
  using Entries = std::span<uint32_t>;
  struct Branches {
    size_t ended = 0;            // entries that have no part at the position; they come first
    std::vector<uint32_t> ends;  // of each branch behind them
    size_t next = 0;             // where the parts behind the first branch begin
  };

  [[nodiscard]] std::string part_text(uint32_t entry, size_t from) const {
    const std::string name = source_.name(entry);
    const auto part = part_at(name, from, has_slashes(name));
    return part ? name.substr(from, part->end - from) : std::string();
  }

  /// The length of the common beginning of all names.
  [[nodiscard]] size_t common_size(Entries entries) const {
    const std::string first = source_.name(entries[0]);
    size_t common = first.size();
    for (const uint32_t entry : entries.subspan(1)) {
      const std::string name = source_.name(entry);
      common =
          static_cast<size_t>(std::mismatch(first.begin(), first.begin() + static_cast<ptrdiff_t>(common),
                                            name.begin(), name.end())
                                  .first -
                              first.begin());
    }
    return common;
  }

  /// Groups entries by their part at `from`; each group keeps its order.
  Branches branch(Entries entries, size_t from) const {
    constexpr uint32_t ended = 0;
    RowIndex parts;
    std::vector<uint32_t> branch_of(entries.size());
    std::vector<uint32_t> first_of{0};  // by branch; 0 is for those that end
    for (uint32_t i = 0; i < entries.size(); ++i) {
      const std::string name = source_.name(entries[i]);
      const auto part = part_at(name, from, has_slashes(name));
      branch_of[i] = ended;
      if (!part) continue;
      const std::string_view text = std::string_view(name).substr(from, part->end - from);
      const auto fresh = static_cast<uint32_t>(first_of.size());
      const auto known = parts.find_or_add(
          KeyedHash()(text), fresh, [&](uint32_t other) { return part_text(first_of[other], from) == text; });
      branch_of[i] = known.value_or(fresh);
      if (!known) first_of.push_back(entries[i]);
    }
    parts = {};
    const std::vector<uint32_t> rank = ranks(first_of, from);
    std::vector<uint32_t> ends(first_of.size());
    for (uint32_t& one : branch_of) ++ends[one = rank[one]];
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    std::vector<uint32_t> sorted(entries.size());
    std::vector<uint32_t> next(ends.size());
    std::copy(ends.begin(), ends.end() - 1, next.begin() + 1);
    for (size_t i = 0; i < entries.size(); ++i) sorted[next[branch_of[i]]++] = entries[i];
    std::ranges::copy(sorted, entries.begin());
    Branches out{ends[0], {ends.begin() + 1, ends.end()}, 0};
    if (!out.ends.empty()) {
      const std::string name = source_.name(entries[out.ended]);
      const auto part = part_at(name, from, has_slashes(name));
      out.next = part ? part->next : name.size() + 1;
    }
    return out;
  }

  /// The rank of each branch: numbers in ascending order, names in their original order.
  [[nodiscard]] std::vector<uint32_t> ranks(const std::vector<uint32_t>& first_of, size_t from) const {
    std::vector<uint32_t> order(first_of.size());
    std::iota(order.begin(), order.end(), 0);
    const auto number = [&](uint32_t branch) {
      const std::string text = part_text(first_of[branch], from);
      return text.starts_with('{') ? text.substr(1) : text;  // "{0,1}" comes before "2"
    };
    const auto is_number = [&](uint32_t branch) {
      const std::string text = part_text(first_of[branch], from);
      return !text.empty() && (is_digit(text[0]) || text[0] == '{');
    };
    const auto is_less = [&](uint32_t a, uint32_t b) { return is_naturally_less(number(a), number(b)); };
    const std::span<uint32_t> branches = std::span(order).subspan(1);
    if (std::ranges::all_of(branches, is_number) && !std::ranges::is_sorted(branches, is_less))
      std::ranges::stable_sort(branches, is_less);
    std::vector<uint32_t> rank(order.size());
    for (uint32_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
    return rank;
  }

  void entry_line(uint32_t entry, size_t start, size_t indent) const {
    const std::string name = source_.name(entry);
    visitor_.entry(indent, std::string_view(name).substr(std::min(start, name.size())), entry);
  }

  /// Prints the lines of entries that are equal up to `from`, where a part begins. On these lines, names
  /// begin at `start`.
  void lines(Entries entries, size_t start, size_t from, size_t indent) const {
    if (entries.size() == 1 || indent == deepest) {
      for (const uint32_t entry : entries) entry_line(entry, start, indent);
      return;
    }
    // A container with one entry shares the line with it.
    const std::string first = source_.name(entries[0]);
    const bool by_slash = has_slashes(first);
    const size_t common = common_size(entries);
    for (auto part = part_at(first, from, by_slash); part && part->next <= common;
         part = part_at(first, from, by_slash))
      from = part->next;
    Branches below = branch(entries, from);
    while (below.ended == 0 && below.ends.size() == 1) {
      from = below.next;
      below = branch(entries, from);
    }

    const bool is_root = from == 0;
    if (!is_root && below.ended == 0 && !below.ends.empty()) {
      const std::string_view name = std::string_view(first).substr(0, from - (by_slash ? 0 : 1));
      visitor_.container(indent, name.substr(start), entries, name);
    }
    for (const uint32_t entry : entries.first(below.ended)) entry_line(entry, start, indent);
    size_t begin = below.ended;
    for (const uint32_t end : below.ends) {
      const Entries branch = entries.subspan(begin, end - begin);
      const std::string name = source_.name(branch[0]);
      // A visitor may have changed the tree and the names, so this part may no longer exist.
      const auto part = part_at(name, from, has_slashes(name));
      lines(branch, from, part ? part->next : name.size() + 1, is_root ? indent : indent + 1);
      begin = end;
    }
  }

  const OutlineEntries& source_;
  const OutlineVisitor& visitor_;
};

}  // namespace

void outline(const OutlineEntries& entries, const OutlineVisitor& visitor) {
  Outliner(entries, visitor).run();
}

}  // namespace cbk

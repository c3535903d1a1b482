#include "host/value/natural_order.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <unordered_map>

namespace cbk {
namespace {

/// A part of a key: "layer_10" is "layer_" and the digits "10", without zeros before them.
struct NumberedName {
  std::string_view stem;
  std::string_view digits;
  bool has_number = false;

  explicit NumberedName(std::string_view part) : stem(part) {
    const size_t last = part.find_last_not_of("0123456789");
    stem = part.substr(0, last == std::string_view::npos ? 0 : last + 1);
    digits = part.substr(stem.size());
    has_number = !digits.empty();
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  }
  [[nodiscard]] bool is_before(const NumberedName& other) const {
    return digits.size() != other.digits.size() ? digits.size() < other.digits.size() : digits < other.digits;
  }
};

std::string_view part_at(std::string_view path, size_t start) {
  return path.substr(start, std::min(path.find('.', start), path.size()) - start);
}

/// Whether a key comes behind one with a greater number in its place.
bool is_behind_greater(std::string_view before, std::string_view path) {
  size_t start = 0;
  while (start < path.size() && start < before.size()) {
    const std::string_view own = part_at(path, start);
    const std::string_view other = part_at(before, start);
    if (own != other) {
      const NumberedName part(own);
      const NumberedName greater(other);
      return part.has_number && greater.has_number && part.stem == greater.stem && part.is_before(greater);
    }
    start += own.size() + 1;
  }
  return false;
}

bool is_in_order(const LeafRows& rows) {
  std::string before;
  for (size_t row = 0; row < rows.size(); ++row) {
    std::string path = rows.path(row);
    if (is_behind_greater(before, path)) return false;
    before = std::move(path);
  }
  return true;
}

/// Appends `members`, rows of one parent whose next part begins at `start`.
void append_ordered(const LeafRows& rows, const std::vector<size_t>& members, size_t start,
                    std::vector<size_t>& out) {
  struct Child {
    std::string name;
    std::vector<size_t> rows;
  };
  std::vector<Child> children;
  std::unordered_map<std::string, size_t> by_name;
  std::vector<size_t> leaves;
  for (const size_t row : members) {
    const std::string path = rows.path(row);
    if (start > path.size()) {  // the parent itself has a value: a key with dots beside it
      leaves.push_back(row);
      continue;
    }
    std::string name(part_at(path, start));
    const auto [found, is_new] = by_name.try_emplace(name, children.size());
    if (is_new) children.push_back({std::move(name), {}});
    children[found->second].rows.push_back(row);
  }
  std::map<std::string_view, std::vector<size_t>> numbered;  // children by their stems
  for (size_t i = 0; i < children.size(); ++i) {
    const NumberedName part(children[i].name);
    if (part.has_number) numbered[part.stem].push_back(i);
  }
  std::vector<size_t> order(children.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (const auto& [stem, places] : numbered) {
    std::vector<size_t> sorted = places;
    std::ranges::stable_sort(sorted, [&](size_t a, size_t b) {
      return NumberedName(children[a].name).is_before(NumberedName(children[b].name));
    });
    for (size_t i = 0; i < places.size(); ++i) order[places[i]] = sorted[i];
  }
  out.insert(out.end(), leaves.begin(), leaves.end());
  for (const size_t i : order) {
    const Child& child = children[i];
    if (child.rows.size() == 1) {
      out.push_back(child.rows[0]);
    } else {
      append_ordered(rows, child.rows, start + child.name.size() + 1, out);
    }
  }
}

}  // namespace

std::vector<size_t> natural_order(const LeafRows& rows) {
  std::vector<size_t> all(rows.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (is_in_order(rows)) return all;
  std::vector<size_t> out;
  out.reserve(all.size());
  append_ordered(rows, all, 0, out);
  return out;
}

}  // namespace cbk

#include "host/value/key_fold.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_set>
#include <utility>

#include "host/base/digits.hpp"
#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/value/key_numbers.hpp"
#include "host/value/row_index.hpp"

namespace cbk {
namespace {

constexpr size_t most_numbers = 16;  // a key with more is not a layer's
constexpr char place_mark =
    '\1';  // a number's place in a template; the number of its digits follows, if some have leading zeros

struct Template {
  std::string text;
  std::vector<uint32_t> numbers;
};

/// The widths that numbers with leading zeros have, by the hash of the template without widths, the place and
/// the width.
using Widths = std::unordered_set<size_t>;

size_t width_id(const std::string& text, size_t place, size_t width) {
  return KeyedHash()(fmt::format("{}{}{:c}{}", text, place_mark, static_cast<char>(place), width));
}

/// The numbers of a key, and the text around them.
struct Parts {
  std::string text;  // with marks
  std::vector<std::pair<size_t, size_t>> ranges;
};

Parts parts_of(const std::string& key) {
  Parts out;
  size_t copied = 0;
  KeyNumbers numbers(key);
  while (const auto number = numbers.next()) {
    if (out.ranges.size() == most_numbers) return {key, {}};
    out.text.append(key, copied, number->first - copied);
    out.text += place_mark;
    copied = number->second;
    out.ranges.push_back(*number);
  }
  out.text.append(key, copied);
  return out;
}

bool has_leading_zero(const std::string& key, const std::pair<size_t, size_t>& range) {
  return range.second - range.first > 1 && key[range.first] == '0';
}

/// Adds the widths of the numbers with leading zeros.
void add_widths(const std::string& key, Widths& widths) {
  const Parts parts = parts_of(key);
  for (size_t place = 0; place < parts.ranges.size(); ++place) {
    const auto& range = parts.ranges[place];
    if (has_leading_zero(key, range)) widths.insert(width_id(parts.text, place, range.second - range.first));
  }
}

/// The width of a number: its digits if it has leading zeros, or if others in its place with as many digits
/// have them, or with fewer: "08", "09", "10" and "100"; 0 if there are none.
size_t width_of(const std::string& key, const Parts& parts, size_t place, const Widths& widths) {
  const auto& range = parts.ranges[place];
  size_t width = range.second - range.first;
  if (has_leading_zero(key, range)) return width;
  while (width > 1 && !widths.empty() && !widths.contains(width_id(parts.text, place, width))) --width;
  return width > 1 && !widths.empty() ? width : 0;
}

/// "a.0.b.12" → "a.▯.b.▯" and 0, 12.
Template template_of(const std::string& key, const Widths& widths) {
  Template out;
  const Parts parts = parts_of(key);
  for (size_t place = 0, at = 0; place < parts.ranges.size(); ++place) {
    const size_t mark = parts.text.find(place_mark, at);
    out.text.append(parts.text, at, mark + 1 - at);
    at = mark + 1;
    if (const size_t width = width_of(key, parts, place, widths)) out.text += static_cast<char>('0' + width);
    uint32_t value = 0;
    const auto [begin, end] = parts.ranges[place];
    for (size_t i = begin; i < end; ++i) value = 10 * value + static_cast<uint32_t>(key[i] - '0');
    out.numbers.push_back(value);
    if (place + 1 == parts.ranges.size()) out.text.append(parts.text, at);
  }
  if (parts.ranges.empty()) out.text = parts.text;
  return out;
}

/// 0, 1, 2, 5 → "{0..2,5}"; the numbers have at least `width` digits.
std::string range_text(const std::vector<uint32_t>& numbers, int width) {
  if (numbers.size() == 1) return fmt::format("{:0{}}", numbers[0], width);
  std::string out = "{";
  size_t first = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i + 1 < numbers.size() && numbers[i + 1] == numbers[i] + 1) continue;
    if (out.size() > 1) out += ',';
    out += fmt::format("{:0{}}", numbers[first], width);
    if (i > first) out += fmt::format("{}{:0{}}", i == first + 1 ? "," : "..", numbers[i], width);
    first = i + 1;
  }
  return out + "}";
}

/// The template with a text for each of its numbers.
std::string filled(const std::string& text, const std::vector<std::vector<uint32_t>>& numbers) {
  std::string out;
  size_t place = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != place_mark) {
      out += text[i];
      continue;
    }
    // The digit of a width follows, and after it, as after any number, a separator or the end.
    const bool has_width = i + 1 < text.size() && is_digit(text[i + 1]);
    out += range_text(numbers[place++], has_width ? text[i + 1] - '0' : 1);
    if (has_width) ++i;
  }
  return out;
}

}  // namespace

/// Makes the groups of a KeyFold.
class KeyFold::Folder {
 public:
  Folder(KeyFold& fold, size_t count, const Text& signature)
      : fold_(fold), count_(count), signature_(signature) {}

  void run() {
    find_repeated_keys();
    for (uint32_t row = 0; row < count_; ++row) add_widths(fold_.key_(row), widths_);
    partition();
    for (size_t i = 0; i + 1 < begins_.size(); ++i) emit(begins_[i], begins_[i + 1], 0);
    std::ranges::sort(fold_.groups_, {}, [&](const Group& group) { return fold_.members_[group.begin]; });
  }

 private:
  /// Sets `times_`: for the few repeated keys, how often the key occurred before.
  void find_repeated_keys() {
    RowIndex keys;
    std::vector<std::pair<uint32_t, uint32_t>> counts;  // by first row
    for (uint32_t row = 0; row < count_; ++row) {
      const std::string key = fold_.key_(row);
      const auto first =
          keys.find_or_add(KeyedHash()(key), row, [&](uint32_t other) { return fold_.key_(other) == key; });
      if (first) repeated_.emplace_back(*first, row);
    }
    std::ranges::sort(repeated_);
    for (size_t i = 0; i < repeated_.size(); ++i) {
      const bool goes_on = i > 0 && repeated_[i].first == repeated_[i - 1].first;
      counts.emplace_back(repeated_[i].second, goes_on ? counts.back().second + 1 : 1);
    }
    repeated_ = std::move(counts);
    std::ranges::sort(repeated_);
  }

  [[nodiscard]] Template template_at(uint32_t row) const { return template_of(fold_.key_(row), widths_); }

  /// The common label of the rows in one part.
  std::string label(uint32_t row) const {
    std::string out = template_at(row).text;
    out += '\0';
    out += signature_(row);
    const auto found = std::ranges::lower_bound(repeated_, std::pair{row, uint32_t{0}});
    if (found != repeated_.end() && found->first == row) out += fmt::format("\2{}", found->second);
    return out;
  }

  /// Sorts the rows into parts of one label each; in a part they keep their order.
  void partition() {
    RowIndex labels;
    std::vector<uint32_t> part_of(count_);
    std::vector<uint32_t> first_rows;
    for (uint32_t row = 0; row < count_; ++row) {
      const std::string own = label(row);
      const auto part = static_cast<uint32_t>(first_rows.size());
      const auto known = labels.find_or_add(KeyedHash()(own), part,
                                            [&](uint32_t other) { return label(first_rows[other]) == own; });
      part_of[row] = known.value_or(part);
      if (!known) first_rows.push_back(row);
    }
    begins_.assign(first_rows.size() + 1, 0);
    for (const uint32_t part : part_of) ++begins_[part + 1];
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    fold_.members_.resize(count_);
    std::vector<uint32_t> next(begins_.begin(), begins_.end() - 1);
    for (uint32_t row = 0; row < count_; ++row) fold_.members_[next[part_of[row]]++] = row;
  }

  [[nodiscard]] uint32_t number_at(uint32_t row, size_t place) const {
    return template_at(row).numbers[place];
  }

  /// The sorted distinct numbers of all members at a place.
  [[nodiscard]] std::vector<uint32_t> distinct(uint32_t begin, uint32_t end, size_t place) const {
    std::vector<uint32_t> numbers(end - begin);
    for (uint32_t i = begin; i < end; ++i) numbers[i - begin] = number_at(fold_.members_[i], place);
    std::ranges::sort(numbers);
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    return numbers;
  }

  /// One name for all members, if their numbers are the full product of the numbers at each place.
  [[nodiscard]] std::optional<std::string> common_name(uint32_t begin, uint32_t end) const {
    const Template of_first = template_at(fold_.members_[begin]);
    std::vector<std::vector<uint32_t>> numbers;
    uint64_t product = 1;
    for (size_t place = 0; place < of_first.numbers.size(); ++place) {
      numbers.push_back(distinct(begin, end, place));
      product *= numbers.back().size();
      if (product > end - begin) return std::nullopt;
    }
    if (product != end - begin) return std::nullopt;
    return filled(of_first.text, numbers);
  }

  /// The place of a number behind a '_' that takes two values, as in "ln_1" and "ln_2", which are parts of a
  /// layer, and no layers. Names such as "block_00" are of layers.
  [[nodiscard]] std::optional<size_t> pair_place(uint32_t begin, uint32_t end) const {
    const Template first = template_at(fold_.members_[begin]);
    if (first.text.find('/') != std::string::npos) return std::nullopt;
    size_t place = 0;
    for (size_t i = 0; i < first.text.size(); ++i) {
      if (first.text[i] != place_mark) continue;
      const bool is_behind = i > 0 && first.text[i - 1] == '_';
      const bool has_width = i + 1 < first.text.size() && is_digit(first.text[i + 1]);
      if (is_behind && !has_width && distinct(begin, end, place).size() == 2) return place;
      ++place;
    }
    return std::nullopt;
  }

  void emit(uint32_t begin, uint32_t end, size_t place) {
    if (end - begin == 1) {
      fold_.groups_.push_back({begin, end, 0});
      return;
    }
    if (const auto pair = pair_place(begin, end)) return split(begin, end, *pair, place);
    if (auto name = common_name(begin, end)) {
      fold_.groups_.push_back({begin, end, static_cast<uint32_t>(fold_.names_.size())});
      fold_.names_.push_back(std::move(*name));
      return;
    }
    while (distinct(begin, end, place).size() == 1) ++place;
    split(begin, end, place, place + 1);
  }

  /// Splits members by the number at a place; `next` is the first place where those of one number may differ.
  void split(uint32_t begin, uint32_t end, size_t place, size_t next) {
    std::vector<std::pair<uint32_t, uint32_t>> order;  // number, row
    order.reserve(end - begin);
    for (uint32_t i = begin; i < end; ++i)
      order.emplace_back(number_at(fold_.members_[i], place), fold_.members_[i]);
    std::ranges::sort(order);
    std::vector<uint32_t> ends;
    for (uint32_t i = begin; i < end; ++i) {
      fold_.members_[i] = order[i - begin].second;
      if (i + 1 == end || order[i + 1 - begin].first != order[i - begin].first) ends.push_back(i + 1);
    }
    order = {};
    for (uint32_t from = begin; const uint32_t to : ends) {
      emit(from, to, next);
      from = to;
    }
  }

  KeyFold& fold_;
  size_t count_;
  const Text& signature_;
  Widths widths_;
  std::vector<std::pair<uint32_t, uint32_t>> repeated_;  // a row, and how often its key occurred before
  std::vector<uint32_t> begins_;                         // of the parts in `members_`
};

KeyFold::KeyFold(size_t count, Text key, const Text& signature) : key_(std::move(key)) {
  Folder(*this, count, signature).run();
}

std::string KeyFold::name(size_t group) const {
  const Group& found = groups_[group];
  return found.end - found.begin == 1 ? key_(members_[found.begin]) : names_[found.name];
}

std::span<const uint32_t> KeyFold::rows(size_t group) const {
  return std::span(members_).subspan(groups_[group].begin, groups_[group].end - groups_[group].begin);
}

}  // namespace cbk

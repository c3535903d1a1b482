#include "host/value/key_fold.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "host/base/digits.hpp"
#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/value/row_index.hpp"

namespace cbk {
namespace {

constexpr size_t most_numbers = 16;  // a key with more is not a layer's
constexpr size_t most_digits = 9;
constexpr char place_mark =
    '\1';  // a number's place in a template; the number of its digits follows, if it begins with 0

struct Template {
  std::string text;
  std::vector<uint32_t> numbers;
};

/// The range of the next number in `key` at or after `from`: digits that fill a part between dots, or end it
/// after a '_', as in "block_00"; in TensorFlow's names, "a/b_0/_w1", digits that end a part.
std::optional<std::pair<size_t, size_t>> next_number(std::string_view key, size_t from, bool is_tensorflow) {
  const char separator = is_tensorflow ? '/' : '.';
  while (from <= key.size()) {
    const size_t end = std::min(key.find(separator, from), key.size());
    size_t begin = end;
    while (begin > from && is_digit(key[begin - 1])) --begin;
    const bool is_apart = begin == from || key[begin - 1] == '_';
    const bool is_number = begin < end && end - begin <= most_digits && (is_tensorflow || is_apart);
    if (is_number) return std::pair{begin, end};
    from = end + 1;
  }
  return std::nullopt;
}

/// "a.0.b.12" → "a.▯.b.▯" and 0, 12.
Template template_of(const std::string& key) {
  Template out;
  const bool is_tensorflow = key.find('/') != std::string::npos;
  size_t copied = 0;
  size_t from = 0;
  while (const auto number = next_number(key, from, is_tensorflow)) {
    if (out.numbers.size() == most_numbers) return {key, {}};
    const auto [begin, end] = *number;
    out.text.append(key, copied, begin - copied);
    out.text += place_mark;
    if (end - begin > 1 && key[begin] == '0') out.text += static_cast<char>('0' + (end - begin));
    uint32_t value = 0;
    for (size_t i = begin; i < end; ++i) value = 10 * value + static_cast<uint32_t>(key[i] - '0');
    out.numbers.push_back(value);
    copied = from = end;
  }
  out.text.append(key, copied);
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

  /// The common label of the rows in one part.
  std::string label(uint32_t row) const {
    std::string out = template_of(fold_.key_(row)).text;
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
    return template_of(fold_.key_(row)).numbers[place];
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
    const Template of_first = template_of(fold_.key_(fold_.members_[begin]));
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
    const Template first = template_of(fold_.key_(fold_.members_[begin]));
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

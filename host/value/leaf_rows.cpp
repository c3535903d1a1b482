#include "host/value/leaf_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "host/base/glob.hpp"
#include "host/tensor/expression.hpp"

namespace cbk {
namespace {

const Value no_value;

/// Groups rows twice: by their keys, then also by their shapes where a group has few of these.
class RowFolder {
 public:
  RowFolder(const LeafRows& rows, const TypeOf& stored_type)
      : rows_(rows), stored_type_(stored_type), by_shape_(rows.size()) {}

  KeyFold fold() {
    KeyFold first = fold_once();
    for (size_t group = 0; group < first.size(); ++group) separate_shapes(first.rows(group));
    return has_separated_ ? fold_once() : std::move(first);
  }

 private:
  static constexpr size_t few_shapes = 3;

  KeyFold fold_once() {
    const auto key = [&rows = rows_](size_t row) { return shown_key(rows.path(row)); };
    return {rows_.size(), key, [this](size_t row) { return signature(row); }};
  }

  [[nodiscard]] std::string signature(size_t row) const {
    const Value& value = rows_.value(row);
    std::string out(stored_type_(value));
    if (const std::string_view problem = problem_with(value); !problem.empty()) {
      out += problem;
    } else if (value.is(Value::Kind::tensor)) {
      const TensorLeaf& leaf = value.as_leaf();
      out += fmt::format(" {} {}", static_cast<int>(leaf.role), leaf.tensor.shape().size());
      const size_t number = rows_.leaf(row);
      if (rows_.ties().tied_to(number)) {
        out += " =";
      } else if (const auto other = rows_.ties().shares_with(number)) {
        out += fmt::format(" {}", *other);
      }
    }
    if (by_shape_[row]) out += shape_text(value.as_tensor().shape(), value.as_tensor().shape());
    return out;
  }

  void separate_shapes(std::span<const uint32_t> members) {
    if (members.size() == 1 || !rows_.value(members[0]).is(Value::Kind::tensor)) return;
    std::vector<const Shape*> shapes;
    for (const uint32_t member : members) {
      const Value& value = rows_.value(member);
      if (!value.is(Value::Kind::tensor)) return;
      const Shape& shape = value.as_tensor().shape();
      if (std::ranges::any_of(shapes, [&](const Shape* other) { return *other == shape; })) continue;
      shapes.push_back(&shape);
      if (shapes.size() > few_shapes) return;
    }
    if (shapes.size() == 1) return;
    has_separated_ = true;
    for (const uint32_t member : members) by_shape_[member] = true;
  }

  const LeafRows& rows_;
  const TypeOf& stored_type_;
  std::vector<bool> by_shape_;
  bool has_separated_ = false;
};

}  // namespace

LeafRows::LeafRows(const Value& root, std::optional<std::string_view> pattern)
    : all_(std::make_shared<const All>(root)) {
  if (!pattern) return;
  const Glob glob(*pattern);
  const Glob below(std::string(*pattern) + "[./]*");
  chosen_.emplace();
  for (uint32_t number = 0; number < table().size(); ++number) {
    const std::string path = table().path(number);
    if (glob.matches(path) || below.matches(path)) chosen_->push_back(number);
  }
}

LeafRows LeafRows::chosen(const std::vector<size_t>& rows) const {
  LeafRows out = *this;
  out.chosen_.emplace();
  out.in_order_ = false;
  for (const size_t row : rows) out.chosen_->push_back(static_cast<uint32_t>(leaf(row)));
  return out;
}

const Value& LeafRows::value(size_t row) const {
  const Value* value = table().value(leaf(row));
  return value == nullptr ? no_value : *value;
}

std::optional<size_t> LeafRows::find(std::string_view path, size_t times) const {
  const auto number = table().find(path, times);
  if (!number || !chosen_) return number;
  const auto found =
      in_order_ ? std::ranges::lower_bound(*chosen_, *number) : std::ranges::find(*chosen_, *number);
  if (found == chosen_->end() || *found != *number) return std::nullopt;
  return static_cast<size_t>(found - chosen_->begin());
}

std::string_view problem_with(const Value& value) {
  if (value.is(Value::Kind::tensor)) return problem_of(*value.as_tensor().expression());
  const bool is_unreadable = value.is(Value::Kind::object) && value.as_object().type == "unreadable";
  return is_unreadable ? std::string_view(value.as_object().repr) : std::string_view();
}

uint64_t stored_bytes(const Tensor& tensor) {
  const Encoding* encoding = tensor.encoding();
  return encoding != nullptr ? encoding->blocks->size() : tensor.nbytes();
}

std::string shape_text(const Shape& low, const Shape& high) {
  std::string out = "[";
  for (size_t dim = 0; dim < low.size(); ++dim) {
    out += fmt::format("{}{}", dim > 0 ? ", " : "", low[dim]);
    if (high[dim] != low[dim]) out += fmt::format("..{}", high[dim]);
  }
  return out + "]";
}

std::string shown_key(const std::string& path) {
  return path.empty() ? "\"\"" : shown(path);
}

KeyFold fold_rows(const LeafRows& rows, const TypeOf& stored_type) {
  return RowFolder(rows, stored_type).fold();
}

void TensorTotals::add(const Tensor& tensor) {
  const auto add_to = [](uint64_t& sum, uint64_t number) {
    sum = number > UINT64_MAX - sum ? UINT64_MAX : sum + number;
  };
  add_to(tensors, 1);
  add_to(numel, static_cast<uint64_t>(tensor.numel()));
  add_to(bytes, stored_bytes(tensor));
}

RowTotals totals_of(const LeafRows& rows, const TypeOf& stored_type) {
  RowTotals out;
  for (size_t row = 0; row < rows.size(); ++row) {
    const Value& value = rows.value(row);
    out.objects += value.is(Value::Kind::object) ? 1 : 0;
    if (!value.is(Value::Kind::tensor)) continue;
    const Tensor& tensor = value.as_tensor();
    const std::string_view type = stored_type(value);
    auto dtype = std::ranges::find(out.dtypes, type, &std::pair<std::string_view, TensorTotals>::first);
    if (dtype == out.dtypes.end()) dtype = out.dtypes.insert(out.dtypes.end(), {type, {}});
    dtype->second.add(tensor);
    out.all.add(tensor);
    if (!rows.ties().tied_to(rows.leaf(row))) out.stored.add(tensor);
  }
  return out;
}

}  // namespace cbk

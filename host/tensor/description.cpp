#include "host/tensor/description.hpp"

#include "host/base/sha256.hpp"

namespace cbk {
namespace {

std::string numbers(std::span<const int64_t> list) {
  return fmt::format("{}", fmt::join(list, ","));
}

/// The elements themselves, as far as they are in no file.
std::string memory_of(const Storage& storage) {
  Bytes bytes(storage.size());
  storage.read(0, bytes);
  return sha256(ByteView(bytes));
}

}  // namespace

size_t Descriptions::add(const Expression& expression, std::string& out) {
  if (const auto found = known_.find(&expression); found != known_.end()) return found->second;
  std::string inputs;
  expression.each_input([&](const Expression& input) { inputs += fmt::format(" {}", add(input, out)); });
  const size_t number = known_.size() + 1;
  out += fmt::format("{} {} [{}] {}{}\n", number, name_of(expression.dtype()), expression.numel(),
                     expression.parameters(), inputs);
  known_.emplace(&expression, number);
  return number;
}

std::string ViewExpression::parameters() const {
  const Storage::Place place = view_.storage->place();
  const bool is_in_memory = place.file.empty() && view_.storage->problem().empty();
  return fmt::format("{} {}+{} shape {} stride {}",
                     is_in_memory ? fmt::format("memory {}", memory_of(*view_.storage))
                                  : fmt::format("file {}", quote(place.file, 4096)),
                     place.offset, view_.offset, numbers(view_.shape), numbers(view_.strides));
}

std::string StridedExpression::parameters() const {
  std::string out = fmt::format("strided {}", offset_);
  for (const Loop& loop : loops_) out += fmt::format(" {}x{}", loop.extent, loop.stride);
  return out;
}

std::string ConcatExpression::parameters() const {
  return fmt::format("concat {} {}", dim_, numbers(widths_));
}

std::string GatherExpression::parameters() const {
  const std::span<const int64_t> all(indices_);
  return fmt::format("gather {} {} {}", extent_, inner_, sha256(std::as_bytes(all)));
}

std::string CastExpression::parameters() const {
  return purpose_ == Purpose::rounding ? "round" : "cast";
}

std::string BitsExpression::parameters() const {
  return "bits";
}

std::string UnaryExpression::parameters() const {
  return fmt::format("{} {} {}", op_.kind == UnaryOp::Kind::affine ? "affine" : "replace_nan", op_.a, op_.b);
}

std::string FiniteExpression::parameters() const {
  return "finite";
}

std::string BinaryExpression::parameters() const {
  return kind_ == BinaryOp::add ? "add" : "multiply";
}

std::string MatmulExpression::parameters() const {
  return fmt::format("matmul {} {}", depth_, columns_);
}

std::string FillExpression::parameters() const {
  return "fill " + to_hex(element_);
}

std::string GeneratedExpression::parameters() const {
  std::string out = "generated";
  for (const int64_t at : {int64_t{0}, int64_t{1}, numel() / 2, numel() - 1})
    if (at >= 0 && at < numel()) out += fmt::format(" {}", generator_(at));
  return out;
}

}  // namespace cbk

#include "host/tensor/merge.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "host/base/error.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/kernels/finite.hpp"
#include "host/tensor/kernels/merge.hpp"

namespace cbk {
namespace {

constexpr int64_t merge_chunk = int64_t{64} * 1024;  // elements that are read at once
constexpr int64_t merge_tile = 2048;            // elements of which all inputs stay in the first-level cache
constexpr size_t most_room = size_t{32} << 20;  // bytes, of inputs that prefer whole rows

int64_t elements_in(std::span<const std::byte> bytes, DType dtype) {
  return static_cast<int64_t>(bytes.size() / size_of(dtype));
}

/// Something that is measured by the first thread that asks for it.
template <typename T>
class Measured {
 public:
  template <typename Measure>
  const T& get(Measure&& measure) const {
    const std::lock_guard lock(mutex_);
    if (!value_) value_ = measure();
    return *value_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::optional<T> value_;
};

// --- linear

class WeightedExpression final : public MergedExpression {
 public:
  WeightedExpression(std::vector<ExpressionPtr> inputs, std::vector<double> weights, double divisor)
      : MergedExpression(std::move(inputs)), weights_(std::move(weights)), divisor_(divisor) {}
  [[nodiscard]] std::string parameters() const override {
    return fmt::format("weighted {} / {}", fmt::join(weights_, " "), divisor_);
  }

 private:
  void mix(int64_t /*begin*/, std::span<std::byte* const> inputs, std::byte* out,
           int64_t count) const override {
    add_weighted(dtype(), inputs, weights_, divisor_, out, count);
  }
  std::vector<double> weights_;
  double divisor_;
};

// --- slerp

/// The factors of two vectors in their interpolation.
std::array<double, 2> slerp_factors(const Products& products, double t) {
  constexpr double nearly_parallel = 0.9995;
  constexpr double negligible = 1e-8;
  const auto divisor = [](double square) {
    const double norm = std::sqrt(square);
    return norm > negligible ? norm : 1.0;
  };
  const double cosine = products.ab / divisor(products.aa) / divisor(products.bb);
  if (std::abs(cosine) > nearly_parallel) return {1 - t, t};
  const double angle = std::acos(cosine);
  return {std::sin(angle - angle * t) / std::sin(angle), std::sin(angle * t) / std::sin(angle)};
}

class SlerpExpression final : public MergedExpression {
 public:
  SlerpExpression(std::vector<ExpressionPtr> inputs, double t) : MergedExpression(std::move(inputs)), t_(t) {}
  [[nodiscard]] std::string parameters() const override { return fmt::format("slerp {}", t_); }

 private:
  void mix(int64_t /*begin*/, std::span<std::byte* const> inputs, std::byte* out,
           int64_t count) const override {
    const auto& factors = factors_.get([&] { return slerp_factors(products(), t_); });
    add_weighted(dtype(), inputs, factors, 1, out, count);
  }

  [[nodiscard]] Products products() const {
    constexpr int64_t most_ranges = 16;  // results do not depend on the number of threads
    const int64_t ranges = std::clamp<int64_t>(numel() / merge_chunk, 1, most_ranges);
    std::array<Products, most_ranges> sums;
    parallel_for(ranges, [&](int64_t range) {
      const int64_t stop = numel() * (range + 1) / ranges;
      Scratch a(static_cast<size_t>(merge_chunk) * itemsize());
      Scratch b(static_cast<size_t>(merge_chunk) * itemsize());
      for (int64_t begin = numel() * range / ranges; begin < stop; begin += merge_chunk) {
        check_interrupt();
        const int64_t count = std::min(merge_chunk, stop - begin);
        const size_t bytes = static_cast<size_t>(count) * itemsize();
        inputs()[0]->read(begin, a.bytes().first(bytes));
        inputs()[1]->read(begin, b.bytes().first(bytes));
        for (const ExpressionPtr& input : inputs()) input->drop(begin, begin + count);
        sums[static_cast<size_t>(range)] += products_of(dtype(), a.data(), b.data(), count);
      }
    });
    Products total;
    for (const Products& sum : sums) total += sum;
    return total;
  }

  double t_;
  Measured<std::array<double, 2>> factors_;
};

// --- differences from a base

class DifferencesExpression final : public MergedExpression {
 public:
  /// The first input is the base.
  DifferencesExpression(std::vector<ExpressionPtr> inputs, DifferenceRule rule)
      : MergedExpression(std::move(inputs)), rule_(std::move(rule)) {}

  [[nodiscard]] std::string parameters() const override {
    std::string out =
        fmt::format("differences {} {} {}", rule_.has_consensus, rule_.is_normalized, rule_.factor);
    for (size_t i = 0; i < rule_.weights.size(); ++i)
      out += fmt::format(" {} {}", rule_.weights[i], rule_.trims[i].text());
    return out;
  }

 private:
  void mix(int64_t begin, std::span<std::byte* const> inputs, std::byte* out, int64_t count) const override {
    const auto& trims = trims_.get([&] { return measured(); });
    const auto tuned = inputs.subspan(1);
    for (size_t i = 0; i < tuned.size(); ++i) {
      subtract(dtype(), tuned[i], inputs[0], count);
      apply_trim(rule_.trims[i], trims[i], dtype(), begin, tuned[i], count);
    }
    const DifferenceMix mix{rule_.weights, rule_.has_consensus, rule_.is_normalized, rule_.factor};
    mix_differences(dtype(), mix, tuned, inputs[0], out, count);
  }

  [[nodiscard]] std::vector<Trim> measured() const {
    std::vector<Trim> out;
    for (size_t i = 0; i < rule_.trims.size(); ++i)
      out.push_back(measure_trim(rule_.trims[i], *inputs()[0], *inputs()[i + 1]));
    return out;
  }

  DifferenceRule rule_;
  Measured<std::vector<Trim>> trims_;
};

void check_alike(const std::vector<Tensor>& tensors) {
  if (tensors.empty()) fail(Errc::value, "there are no tensors to merge");
  const Tensor& first = tensors.front();
  if (first.dtype() != DType::float32 && first.dtype() != DType::float64)
    fail(Errc::dtype, "cannot merge {} tensors; cast them to float32 or float64", name_of(first.dtype()));
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype() != first.dtype())
      fail(Errc::dtype, "cannot merge {} with {}", name_of(first.dtype()), name_of(tensor.dtype()));
    if (tensor.shape() != first.shape())
      fail(Errc::shape, "cannot merge the shapes {} and {}", to_string(first.shape()),
           to_string(tensor.shape()));
  }
}

void check_count(size_t tensors, size_t numbers, std::string_view what) {
  if (tensors != numbers) fail(Errc::value, "{} tensors have {} {}", tensors, numbers, what);
}

std::vector<ExpressionPtr> expressions_of(const std::vector<Tensor>& tensors) {
  std::vector<ExpressionPtr> out;
  out.reserve(tensors.size());
  for (const Tensor& tensor : tensors) out.push_back(tensor.expression());
  return out;
}

/// What is read in the place of an input: what it is cast from, if the cast loses nothing.
ExpressionPtr stored(const ExpressionPtr& input) {
  const auto* cast = dynamic_cast<const CastExpression*>(input.get());
  return cast != nullptr && !loses(cast->input()->dtype(), cast->dtype()) ? cast->input() : input;
}

/// The sum as the dtype adds it.
double sum_in(DType dtype, const std::vector<double>& numbers) {
  double wide = 0;
  float narrow = 0;
  for (const double number : numbers) {
    wide += number;
    narrow += static_cast<float>(number);
  }
  return dtype == DType::float64 ? wide : double{narrow};
}

}  // namespace

MergedExpression::MergedExpression(std::vector<ExpressionPtr> inputs)
    : Expression(inputs.at(0)->dtype(), inputs.at(0)->numel()), inputs_(std::move(inputs)) {
  for (const ExpressionPtr& input : inputs_) stored_.push_back(stored(input));
}

int64_t MergedExpression::granularity() const {
  int64_t most = 1;
  for (const ExpressionPtr& input : inputs_) most = std::max(most, input->granularity());
  return most;
}

bool MergedExpression::drop(int64_t begin, int64_t end) const noexcept {
  bool all = true;
  for (const ExpressionPtr& input : inputs_) all = input->drop(begin, end) && all;
  return all;
}

void MergedExpression::each_input(const std::function<void(const Expression&)>& visit) const {
  for (const ExpressionPtr& input : inputs_) visit(*input);
}

std::vector<std::byte*> MergedExpression::parted(std::span<std::byte> room) const {
  std::vector<std::byte*> out;
  for (size_t i = 0; i < inputs_.size(); ++i) out.push_back(room.data() + i * (room.size() / inputs_.size()));
  return out;
}

Losses MergedExpression::read(int64_t begin, std::span<std::byte> out) const {
  const int64_t total = elements_in(out, dtype());
  const bool is_whole = granularity() > 1 && out.size() * inputs_.size() <= most_room;
  const int64_t chunk = std::max<int64_t>(1, is_whole ? total : std::min(total, merge_chunk));
  Scratch room(static_cast<size_t>(chunk) * itemsize() * inputs_.size());
  const std::vector<std::byte*> rooms = parted(room.bytes());
  Losses lost;
  for (int64_t done = 0; done < total; done += chunk) {
    const int64_t count = std::min(chunk, total - done);
    lost += read_chunk(
        begin + done, rooms,
        out.subspan(static_cast<size_t>(done) * itemsize(), static_cast<size_t>(count) * itemsize()));
  }
  return lost;
}

Losses MergedExpression::read_chunk(int64_t begin, std::span<std::byte* const> rooms,
                                    std::span<std::byte> out) const {
  Losses lost;
  const int64_t count = elements_in(out, dtype());
  for (size_t i = 0; i < stored_.size(); ++i) {
    const size_t size = static_cast<size_t>(count) * stored_[i]->itemsize();
    lost += stored_[i]->read(begin, {rooms[i], size});
  }
  Scratch room(static_cast<size_t>(merge_tile) * itemsize() * inputs_.size());
  const std::vector<std::byte*> tile = parted(room.bytes());
  for (int64_t first = 0; first < count; first += merge_tile) {
    const int64_t length = std::min(merge_tile, count - first);
    for (size_t i = 0; i < stored_.size(); ++i)
      cast_elements(stored_[i]->dtype(), rooms[i] + static_cast<size_t>(first) * stored_[i]->itemsize(),
                    dtype(), tile[i], length);
    mix(begin + first, tile, out.data() + static_cast<size_t>(first) * itemsize(), length);
  }
  if (first_not_finite(dtype(), out.data(), count) >= 0) lost.overflowed += overflowed(begin, rooms, out);
  return lost;
}

int64_t MergedExpression::overflowed(int64_t begin, std::span<std::byte* const> rooms,
                                     std::span<const std::byte> out) const {
  for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i]->read(begin, {rooms[i], out.size()});
  const auto is_finite = [&](const std::byte* elements, int64_t i) {
    return first_not_finite(dtype(), elements + static_cast<size_t>(i) * itemsize(), 1) < 0;
  };
  int64_t found = 0;
  for (int64_t i = 0; i < elements_in(out, dtype()); ++i) {
    const bool was_finite =
        std::all_of(rooms.begin(), rooms.end(), [&](const std::byte* room) { return is_finite(room, i); });
    found += static_cast<int64_t>(was_finite && !is_finite(out.data(), i));
  }
  return found;
}

Tensor weighted_sum(const std::vector<Tensor>& tensors, std::vector<double> weights, bool is_normalized) {
  check_alike(tensors);
  check_count(tensors.size(), weights.size(), "weights");
  const double divisor = is_normalized ? sum_in(tensors.front().dtype(), weights) : 1;
  if (divisor == 0)
    fail(Errc::value,
         "the weights have the sum 0, by which the result would be divided; set normalize: false");
  return Tensor::from_expression(
      std::make_shared<WeightedExpression>(expressions_of(tensors), std::move(weights), divisor),
      tensors.front().shape());
}

Tensor slerp(const Tensor& a, const Tensor& b, double t) {
  check_alike({a, b});
  return Tensor::from_expression(std::make_shared<SlerpExpression>(expressions_of({a, b}), t), a.shape());
}

Tensor add_differences(const Tensor& base, const std::vector<Tensor>& tuned, DifferenceRule rule) {
  std::vector<Tensor> all = {base};
  all.insert(all.end(), tuned.begin(), tuned.end());
  check_alike(all);
  check_count(tuned.size(), rule.weights.size(), "weights");
  check_count(tuned.size(), rule.trims.size(), "densities");
  for (const TrimRule& trim : rule.trims) {
    const bool is_by_size = trim.kind == TrimRule::Kind::magnitude && !trim.keeps_all();
    if (is_by_size && base.numel() > 0 && kept_by_size(trim, base.numel()) < 1)
      fail(Errc::value, "the density {} keeps none of {} elements", trim.density, base.numel());
  }
  return Tensor::from_expression(
      std::make_shared<DifferencesExpression>(expressions_of(all), std::move(rule)), base.shape());
}

}  // namespace cbk

#include "host/tensor/summary.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "host/base/interrupt.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk {
namespace {

constexpr int64_t block_bytes = 1 << 20;

/// Count, mean and sum of squared deviations. A long double holds the squares of all doubles.
struct Moments {
  int64_t count = 0;
  long double mean = 0;
  long double squares = 0;

  static Moments of(std::span<const double> numbers) {
    if (numbers.empty()) return {};
    Moments out{.count = static_cast<int64_t>(numbers.size())};
    for (const double x : numbers) out.mean += x;
    out.mean /= static_cast<long double>(out.count);
    for (const double x : numbers) out.squares += (x - out.mean) * (x - out.mean);
    return out;
  }

  void merge(const Moments& other) {
    if (other.count == 0) return;
    const long double delta = other.mean - mean;
    const auto total = static_cast<long double>(count + other.count);
    mean += delta * static_cast<long double>(other.count) / total;
    squares += other.squares + delta * delta * static_cast<long double>(count) *
                                   static_cast<long double>(other.count) / total;
    count += other.count;
  }

  [[nodiscard]] double deviation() const {
    return static_cast<double>(std::sqrt(squares / static_cast<long double>(count)));
  }
};

/// Integers and bools: least, most and sum as they are, deviations from the first element.
class WholeSummary {
 public:
  explicit WholeSummary(DType dtype) : dtype_(dtype) {}

  void add(ByteView block, Statistics& out) {
    const size_t itemsize = size_of(dtype_);
    deviations_.clear();
    for (size_t at = 0; at < block.size(); at += itemsize) {
      const Wide number = whole_at(dtype_, block.data() + at);
      if (moments_.count == 0 && at == 0) first_ = min_ = max_ = number;
      min_ = std::min(min_, number);
      max_ = std::max(max_, number);
      sum_ += number;
      if (number == 0) ++out.zeros;
      deviations_.push_back(static_cast<double>(number - first_));
    }
    moments_.merge(Moments::of(deviations_));
  }

  void finish(Statistics& out) const {
    if (moments_.count == 0) return;
    const Wide whole = sum_ / moments_.count;
    const auto rest =
        static_cast<long double>(sum_ % moments_.count) / static_cast<long double>(moments_.count);
    out.min = min_;
    out.max = max_;
    out.mean = static_cast<double>(static_cast<long double>(whole) + rest);
    out.std = moments_.deviation();
  }

 private:
  DType dtype_;
  Wide first_ = 0;
  Wide min_ = 0;
  Wide max_ = 0;
  Wide sum_ = 0;
  Moments moments_;
  std::vector<double> deviations_;
};

class RealSummary {
 public:
  explicit RealSummary(DType dtype) : dtype_(dtype) {}

  void add(ByteView block, Statistics& out) {
    const auto count = static_cast<int64_t>(block.size() / size_of(dtype_));
    numbers_.resize(static_cast<size_t>(count));
    cast_elements(dtype_, block.data(), DType::float64, reinterpret_cast<std::byte*>(numbers_.data()), count);
    const auto end = std::remove_if(numbers_.begin(), numbers_.end(), [&](double x) {
      if (std::isfinite(x)) return false;
      ++(std::isnan(x) ? out.nan : out.inf);
      return true;
    });
    numbers_.erase(end, numbers_.end());
    for (const double x : numbers_) {
      min_ = std::min(min_, x);
      max_ = std::max(max_, x);
      if (x == 0) ++out.zeros;
    }
    moments_.merge(Moments::of(numbers_));
  }

  void finish(Statistics& out) const {
    if (moments_.count == 0) return;
    out.min = min_;
    out.max = max_;
    out.mean = static_cast<double>(moments_.mean);
    out.std = moments_.deviation();
  }

 private:
  DType dtype_;
  double min_ = std::numeric_limits<double>::infinity();
  double max_ = -std::numeric_limits<double>::infinity();
  Moments moments_;
  std::vector<double> numbers_;
};

template <typename Summary>
Statistics summarised(const Tensor& tensor) {
  Statistics out;
  out.numel = tensor.numel();
  Summary summary(tensor.dtype());
  for_each_block(tensor, [&](ByteView block) { summary.add(block, out); });
  summary.finish(out);
  return out;
}

}  // namespace

void for_each_block(const Tensor& tensor, const std::function<void(ByteView block)>& visit) {
  const auto itemsize = static_cast<int64_t>(size_of(tensor.dtype()));
  const int64_t step = block_bytes / itemsize;
  Bytes buffer(static_cast<size_t>(std::min(step, tensor.numel()) * itemsize));
  for (int64_t begin = 0; begin < tensor.numel(); begin += step) {
    check_interrupt();
    const int64_t count = std::min(step, tensor.numel() - begin);
    const std::span<std::byte> block(buffer.data(), static_cast<size_t>(count * itemsize));
    tensor.read(begin, block);
    visit(block);
  }
}

Statistics statistics(const Tensor& tensor) {
  if (is_complex(tensor.dtype())) {
    fail(Errc::dtype,
         "{} numbers have no order, so they have no statistics; tolist() gives their parts as {{re, im}}",
         name_of(tensor.dtype()));
  }
  if (tensor.fill() && tensor.numel() > 1) {  // of any size: described by its one element
    Statistics out = statistics(Tensor::full_bytes(tensor.dtype(), {1}, *tensor.fill()));
    for (int64_t* count : {&out.nan, &out.inf, &out.zeros, &out.numel}) *count *= tensor.numel();
    return out;
  }
  return is_whole(tensor.dtype()) ? summarised<WholeSummary>(tensor) : summarised<RealSummary>(tensor);
}

std::string sha256(const Tensor& tensor) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    fail(Errc::internal, "SHA-256 is not available");
  }
  for_each_block(tensor,
                 [&](ByteView block) { EVP_DigestUpdate(context.get(), block.data(), block.size()); });
  Bytes digest(32);
  EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return to_hex(digest);
}

std::string to_hex(ByteView bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    out += digits[std::to_integer<size_t>(byte) >> 4];
    out += digits[std::to_integer<size_t>(byte) & 15];
  }
  return out;
}

}  // namespace cbk

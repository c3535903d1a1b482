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

/// Count, mean and sum of squared deviations; blocks are merged by Chan's formula, so long tensors lose no
/// digits.
struct Moments {
  int64_t count = 0;
  double mean = 0;
  double squares = 0;

  void merge(const Moments& other) {
    if (other.count == 0) return;
    const double delta = other.mean - mean;
    const auto total = static_cast<double>(count + other.count);
    mean += delta * static_cast<double>(other.count) / total;
    squares +=
        other.squares + delta * delta * static_cast<double>(count) * static_cast<double>(other.count) / total;
    count += other.count;
  }
};

void add_block(const std::vector<double>& elements, Statistics& out, Moments& moments) {
  Moments block;
  double sum = 0;
  for (const double x : elements) {
    if (std::isnan(x)) {
      ++out.nan;
      continue;
    }
    out.min = std::min(out.min, x);
    out.max = std::max(out.max, x);
    if (x == 0) ++out.zeros;
    if (std::isinf(x)) {
      ++out.inf;
    } else {
      ++block.count;
      sum += x;
    }
  }
  if (block.count == 0) return;
  block.mean = sum / static_cast<double>(block.count);
  for (const double x : elements) {
    if (std::isfinite(x)) block.squares += (x - block.mean) * (x - block.mean);
  }
  moments.merge(block);
}

/// A file may declare a constant of any size: it is described by its one element.
Statistics statistics_of_constant(const Tensor& tensor) {
  double value = 0;
  cast_elements(tensor.dtype(), tensor.fill()->data(), DType::float64, reinterpret_cast<std::byte*>(&value),
                1);
  const int64_t count = tensor.numel();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Statistics out{.min = value, .max = value, .numel = count};
  out.nan = std::isnan(value) ? count : 0;
  out.inf = std::isinf(value) ? count : 0;
  out.zeros = value == 0 ? count : 0;
  out.mean = std::isfinite(value) && count > 0 ? value : nan;
  out.std = std::isfinite(value) && count > 1 ? 0 : nan;
  if (count == 0) out.min = out.max = nan;
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
  check_cast(tensor.dtype(), DType::float64);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Statistics out{.min = infinity, .max = -infinity, .numel = tensor.numel()};
  Moments moments;
  std::vector<double> elements;
  if (tensor.fill()) return statistics_of_constant(tensor);
  for_each_block(tensor, [&](ByteView block) {
    const auto count = static_cast<int64_t>(block.size() / size_of(tensor.dtype()));
    elements.resize(static_cast<size_t>(count));
    cast_elements(tensor.dtype(), block.data(), DType::float64, reinterpret_cast<std::byte*>(elements.data()),
                  count);
    add_block(elements, out, moments);
  });
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (out.nan == out.numel) out.min = out.max = nan;
  out.mean = moments.count > 0 ? moments.mean : nan;
  out.std = moments.count > 1 ? std::sqrt(moments.squares / static_cast<double>(moments.count - 1)) : nan;
  return out;
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

#include "host/tensor/scan.hpp"

#include <array>
#include <cmath>
#include <cstring>

#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/blocks.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/kernels/differences.hpp"
#include "host/tensor/kernels/fingerprint.hpp"
#include "host/tensor/kernels/finite.hpp"

namespace cbk {
namespace {

constexpr int64_t scanned_together = 1 << 12;

// --- a part

/// The result for a part; parts are joined in order.
struct ScanOfPart {
  int64_t nan = 0;
  int64_t inf = 0;
  int64_t first_nan = -1;
  int64_t first_inf = -1;
  uint64_t fingerprint = 0;
  bool is_constant = true;  // equal to the first element of the part
  bool is_zero = true;      // 0 or −0
  Bytes first;
  std::vector<Losses> losses;
  double largest = 0;
  RowSums sums;
  RowCollector::Part rows;

  void join(const ScanOfPart& later) {
    nan += later.nan;
    inf += later.inf;
    if (first_nan < 0) first_nan = later.first_nan;
    if (first_inf < 0) first_inf = later.first_inf;
    fingerprint += later.fingerprint;
    is_constant = is_constant && later.is_constant && first == later.first;
    is_zero = is_zero && later.is_zero;
    for (size_t i = 0; i < losses.size(); ++i) losses[i] += later.losses[i];
    largest = std::max(largest, later.largest);
    sums += later.sums;
  }
};

/// The range of sizes that a dtype holds without a relevant loss. Outside of it, a cast decides.
Sizes range_of(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return {65504, 0x1p-24};
    case DType::bfloat16:
      return {0x1.fep127, 0x1p-133};
    case DType::float32:
      return {std::numeric_limits<float>::max(), 0x1p-149};
    case DType::float8_e4m3fn:
      return {448, 0x1p-9};
    case DType::float8_e5m2:
      return {57344, 0x1p-16};
    case DType::float64:
      return {std::numeric_limits<double>::max(), std::numeric_limits<double>::denorm_min()};
    default:
      return {-1, std::numeric_limits<double>::infinity()};
  }
}

/// What a scan is asked for besides faults.
struct Question {
  const std::vector<DType>& targets;
  bool with_sizes = false;
  RowCollector* rows = nullptr;  // of a matrix whose rows are kept
  int64_t columns = 1;
};

/// The dtype of the one or two real numbers of each element.
DType number_of(DType dtype) {
  if (dtype == DType::complex64) return DType::float32;
  return dtype == DType::complex128 ? DType::float64 : dtype;
}

/// Whether all numbers are 0 or −0.
bool all_zero(DType dtype, ByteView bytes) {
  const DType part = number_of(dtype);
  const size_t size = size_of(part);
  const bool has_sign = is_floating(part) && part != DType::float8_e4m3fnuz && part != DType::float8_e5m2fnuz;
  const auto mask = has_sign ? std::byte{0x7f} : std::byte{0xff};
  for (size_t at = 0; at < bytes.size(); at += size) {
    for (size_t i = 0; i + 1 < size; ++i) {
      if (bytes[at + i] != std::byte{0}) return false;
    }
    if ((bytes[at + size - 1] & mask) != std::byte{0}) return false;
  }
  return dtype != DType::float8_e8m0fnu;  // which has no 0
}

class Scanner {
 public:
  Scanner(DType dtype, const Question& question)
      : dtype_(dtype), itemsize_(size_of(dtype)), question_(question), targets_(question.targets) {
    found_.losses.resize(targets_.size());
  }

  /// Works in pieces, so that several passes find them in the first-level cache.
  void add(int64_t begin, ByteView block) {
    if (found_.first.empty()) found_.first.assign(block.begin(), block.begin() + itemsize_);
    const bool is_finite = question_.rows != nullptr && add_rows(begin, block);
    const auto step = static_cast<size_t>(scanned_together * itemsize_);
    for (size_t at = 0; at < block.size(); at += step) {
      add_piece(begin + static_cast<int64_t>(at) / itemsize_,
                block.subspan(at, std::min(step, block.size() - at)), is_finite);
    }
  }

  [[nodiscard]] ScanOfPart& found() { return found_; }

 private:
  /// Whether all elements of the rows are finite.
  bool add_rows(int64_t begin, ByteView block) {
    const RowSums sums = question_.rows->add(found_.rows, begin / question_.columns, block);
    found_.sums += sums;
    return sums.count * itemsize_ == static_cast<int64_t>(block.size());
  }

  void add_piece(int64_t begin, ByteView piece, bool is_finite) {
    const auto size = static_cast<size_t>(itemsize_);
    // Equal to the first element of all, and each to the one before it.
    found_.is_constant = found_.is_constant && std::memcmp(piece.data(), found_.first.data(), size) == 0 &&
                         std::memcmp(piece.data(), piece.data() + size, piece.size() - size) == 0;
    found_.is_zero = found_.is_zero && all_zero(dtype_, piece);
    found_.fingerprint += hash_of(static_cast<uint64_t>(begin * itemsize_), piece);
    const int64_t count = static_cast<int64_t>(piece.size()) / itemsize_;
    if (!is_finite && first_not_finite(dtype_, piece.data(), count) >= 0) count_strange(begin, piece);
    if (!targets_.empty()) add_losses(piece.data(), count);
    if (question_.with_sizes && question_.rows == nullptr)
      found_.sums += sums_of_row(dtype_, piece.data(), count);
  }

  void count_strange(int64_t begin, ByteView piece) {
    const DType part = number_of(dtype_);
    const int64_t parts = itemsize_ / size_of(part);
    const int64_t count = static_cast<int64_t>(piece.size()) / itemsize_;
    std::array<double, 2 * scanned_together> numbers{};
    cast_elements(part, piece.data(), DType::float64, reinterpret_cast<std::byte*>(numbers.data()),
                  count * parts);
    for (int64_t i = 0; i < count; ++i) {
      const double* number = numbers.data() + i * parts;
      note(begin + i, std::isnan(number[0]) || std::isnan(number[parts - 1]),
           std::isinf(number[0]) || std::isinf(number[parts - 1]));
    }
  }

  void note(int64_t position, bool is_nan, bool is_inf) {
    if (is_nan) {
      if (found_.nan++ == 0) found_.first_nan = position;
    } else if (is_inf) {
      if (found_.inf++ == 0) found_.first_inf = position;
    }
  }

  /// `room`: for the elements as doubles.
  [[nodiscard]] Sizes sizes_in(const std::byte* elements, int64_t count, double* room) const {
    const auto size = static_cast<size_t>(count);
    if (dtype_ == DType::float32) return sizes_of(reinterpret_cast<const float*>(elements), size);
    cast_elements(dtype_, elements, DType::float64, reinterpret_cast<std::byte*>(room), count);
    return sizes_of(room, size);
  }

  void add_losses(const std::byte* elements, int64_t count) {
    std::array<double, scanned_together> room;
    const Sizes sizes = sizes_in(elements, count, room.data());
    found_.largest = std::max(found_.largest, sizes.most);
    for (size_t i = 0; i < targets_.size(); ++i) {
      const Sizes range = range_of(targets_[i]);
      if (sizes.most <= range.most && sizes.least >= range.least) continue;
      found_.losses[i] +=
          cast_elements(dtype_, elements, targets_[i], reinterpret_cast<std::byte*>(room.data()), count);
    }
  }

  DType dtype_;
  int64_t itemsize_;
  const Question& question_;
  const std::vector<DType>& targets_;
  ScanOfPart found_;
};

ScanOfPart scan_part(const Tensor& tensor, const Blocks& blocks, int64_t part, const Question& question) {
  const int64_t itemsize = size_of(tensor.dtype());
  Scanner scanner(tensor.dtype(), question);
  Scratch room(static_cast<size_t>(blocks.block() * itemsize));
  blocks.each(part, [&](int64_t begin, int64_t end) {
    check_interrupt();
    const auto block = room.bytes().first(static_cast<size_t>((end - begin) * itemsize));
    tensor.read(begin, block);
    tensor.expression()->drop(begin, end);
    scanner.add(begin, block);
  });
  return std::move(scanner.found());
}

Scan as_scan(ScanOfPart found, int64_t numel, bool with_sizes) {
  Scan out;
  out.numel = numel;
  out.nan = found.nan;
  out.inf = found.inf;
  out.first_nan = found.first_nan;
  out.first_inf = found.first_inf;
  // Independent of the division of a constant tensor: some are not stored at all.
  const auto size = static_cast<uint64_t>(numel);
  out.fingerprint = mixed((found.is_constant ? hash_of(0, found.first) : found.fingerprint) ^ mixed(size));
  if (found.is_constant) {
    out.constant = std::move(found.first);
  } else if (found.is_zero) {
    out.constant = Bytes(found.first.size());
  }
  out.losses = std::move(found.losses);
  out.largest = std::max(found.largest, found.sums.largest);
  if (with_sizes) out.sums = found.sums;
  return out;
}

/// A tensor of one repeated element may have any size: one element describes it.
Scan repeated(ByteView element, const Tensor& tensor, const Question& question) {
  Scanner scanner(tensor.dtype(), question);
  scanner.add(0, element);
  ScanOfPart& found = scanner.found();
  found.nan *= tensor.numel();
  found.inf *= tensor.numel();
  for (Losses& losses : found.losses) {
    for (int64_t* count : {&losses.overflowed, &losses.changed, &losses.vanished}) *count *= tensor.numel();
  }
  found.sums.count *= tensor.numel();
  found.sums.sum *= static_cast<double>(tensor.numel());
  found.sums.squares *= static_cast<double>(tensor.numel());
  return as_scan(std::move(found), tensor.numel(), question.with_sizes);
}

/// The parts of a tensor, scanned on several threads.
std::vector<ScanOfPart> scan_parts(const Tensor& tensor, const Blocks& blocks, const Question& question) {
  std::vector<ScanOfPart> parts(static_cast<size_t>(blocks.parts()));
  parallel_for(blocks.parts(), [&](int64_t part) {
    parts[static_cast<size_t>(part)] = scan_part(tensor, blocks, part, question);
  });
  std::unordered_set<const Expression*> seen;
  verify_sources(*tensor.expression(), &Storage::verify_whole, seen);
  drop_sources(*tensor.expression());
  return parts;
}

OddRows odd_rows_of(const RowCollector& rows, const std::vector<ScanOfPart>& parts, double quiet) {
  std::vector<const RowCollector::Part*> pointers;
  pointers.reserve(parts.size());
  for (const ScanOfPart& part : parts) pointers.push_back(&part.rows);
  return rows.found(pointers, quiet);
}

}  // namespace

Scan scan(const Tensor& tensor, const std::vector<DType>& targets, std::optional<double> quiet) {
  for (const DType target : targets) check_cast(tensor.dtype(), target);
  if (tensor.numel() == 0) {
    Scan out;
    out.losses.resize(targets.size());
    return out;
  }
  Question question{targets, quiet && is_floating(tensor.dtype())};
  if (const auto element = tensor.fill()) return repeated(*element, tensor, question);
  const Shape& shape = tensor.shape();
  std::optional<RowCollector> rows;
  const bool may_have_rows =
      question.with_sizes && shape.size() == 2 && RowCollector::is_suitable(shape[0], shape[1]);
  const Blocks blocks({&tensor}, may_have_rows ? shape[1] : 1);
  if (may_have_rows && blocks.block() % shape[1] == 0) {
    question.rows = &rows.emplace(tensor.dtype(), shape[0], shape[1]);
    question.columns = shape[1];
  }
  std::vector<ScanOfPart> parts = scan_parts(tensor, blocks, question);
  std::optional<OddRows> odd;
  if (rows) odd = odd_rows_of(*rows, parts, *quiet);
  for (size_t i = 1; i < parts.size(); ++i) parts.front().join(parts[i]);
  Scan out = as_scan(std::move(parts.front()), tensor.numel(), question.with_sizes);
  out.rows = std::move(odd);
  return out;
}

}  // namespace cbk

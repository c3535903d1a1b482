#include "host/formats/gguf/blocks.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "host/base/error.hpp"
#include "host/tensor/kernels/small_float.hpp"
#include "host/tensor/packed_storage.hpp"

namespace cbk::gguf {
namespace {

constexpr size_t small_block = 32;
constexpr size_t large_block = 256;

float half_at(const uint8_t* bytes) {
  return half_to_float(static_cast<uint16_t>(bytes[0] | bytes[1] << 8));
}

int signed_at(const uint8_t* bytes, size_t i) {
  return static_cast<int8_t>(bytes[i]);
}

/// Bits [shift, shift + count) of a byte.
constexpr int bits_of(uint8_t byte, size_t shift, size_t count) {
  return (byte >> shift) & ((1 << count) - 1);
}

/// The four bits of element i of 32: the first 16 elements are the low halves of the bytes.
int nibble(const uint8_t* bytes, size_t i) {
  return bits_of(bytes[i % 16], i / 16 * 4, 4);
}

// --- blocks of 32 elements: a scale, in some types a minimum, and the elements

void decode_q4_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (size_t i = 0; i < small_block; ++i) out[i] = scale * static_cast<float>(nibble(block + 2, i) - 8);
}

void decode_q4_1(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  for (size_t i = 0; i < small_block; ++i)
    out[i] = scale * static_cast<float>(nibble(block + 4, i)) + minimum;
}

/// The fifth bits are in four bytes before the others.
int five_bits(const uint8_t* bytes, size_t i) {
  return nibble(bytes + 4, i) | bits_of(bytes[i / 8], i % 8, 1) << 4;
}

void decode_q5_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (size_t i = 0; i < small_block; ++i) out[i] = scale * static_cast<float>(five_bits(block + 2, i) - 16);
}

void decode_q5_1(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  for (size_t i = 0; i < small_block; ++i)
    out[i] = scale * static_cast<float>(five_bits(block + 4, i)) + minimum;
}

void decode_q8_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (size_t i = 0; i < small_block; ++i) out[i] = scale * static_cast<float>(signed_at(block + 2, i));
}

/// After the scale comes the sum of the elements, which products use.
void decode_q8_1(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (size_t i = 0; i < small_block; ++i) out[i] = scale * static_cast<float>(signed_at(block + 4, i));
}

constexpr std::array<int8_t, 16> iq4_values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

void decode_iq4_nl(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (size_t i = 0; i < small_block; ++i)
    out[i] = scale * static_cast<float>(iq4_values.at(static_cast<size_t>(nibble(block + 2, i))));
}

/// Twice the values of a float of four bits (E2M1), as the scale here is half of the block's.
constexpr std::array<int8_t, 16> mxfp4_values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void decode_mxfp4(const uint8_t* block, float* out) {
  const uint32_t exponent = block[0];
  const auto scale = std::bit_cast<float>(exponent < 2 ? 0x00200000U << exponent : (exponent - 1) << 23);
  for (size_t i = 0; i < small_block; ++i)
    out[i] = scale * static_cast<float>(mxfp4_values.at(static_cast<size_t>(nibble(block + 1, i))));
}

/// Half of an unsigned 8-bit float (E4M3), as the values of four bits are doubled. Its NaN is 0 here.
float half_of_ue4m3(uint8_t byte) {
  constexpr uint8_t nan = 0x7f;
  const int exponent = bits_of(byte, 3, 4);
  const auto mantissa = static_cast<float>(bits_of(byte, 0, 3));
  if (byte == nan) return 0;
  return exponent == 0 ? std::ldexp(mantissa, -10) : std::ldexp(1 + mantissa / 8, exponent - 8);
}

/// Four groups of 16 elements, each with a scale.
void decode_nvfp4(const uint8_t* block, float* out) {
  for (size_t i = 0; i < 64; ++i) {
    const size_t group = i / 16;
    const auto code = static_cast<size_t>(bits_of(block[4 + group * 8 + i % 8], i % 16 / 8 * 4, 4));
    out[i] = half_of_ue4m3(block[group]) * static_cast<float>(mxfp4_values.at(code));
  }
}

void decode_q1_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (size_t i = 0; i < 128; ++i) out[i] = bits_of(block[2 + i / 8], i % 8, 1) != 0 ? scale : -scale;
}

void decode_q2_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (size_t i = 0; i < 64; ++i)
    out[i] = scale * static_cast<float>(bits_of(block[2 + i / 4], i % 4 * 2, 2) - 1);
}

// --- blocks of 256 elements: scales of groups, and a scale of the scales

void decode_q2_k(const uint8_t* block, float* out) {
  const uint8_t* scales = block;
  const uint8_t* bytes = block + 16;
  const float scale = half_at(block + 80);
  const float minimum = half_at(block + 82);
  for (size_t i = 0; i < large_block; ++i) {
    const uint8_t group = scales[i / 16];
    const int number = bits_of(bytes[i / 128 * 32 + i % 32], i / 32 % 4 * 2, 2);
    const float low = minimum * static_cast<float>(group >> 4);
    out[i] = scale * static_cast<float>(group & 15) * static_cast<float>(number) - low;
  }
}

void decode_q3_k(const uint8_t* block, float* out) {
  const uint8_t* high = block;
  const uint8_t* bytes = block + 32;
  const uint8_t* scales = block + 96;
  const float scale = half_at(block + 108);
  for (size_t i = 0; i < large_block; ++i) {
    const size_t group = i / 16;
    const int group_scale =
        bits_of(scales[group % 8], group / 8 * 4, 4) | bits_of(scales[8 + group % 4], group / 4 * 2, 2) << 4;
    const int is_upper = bits_of(high[i % 32], i / 32, 1);  // else 4 is subtracted
    const int number = bits_of(bytes[i / 128 * 32 + i % 32], i / 32 % 4 * 2, 2) - (is_upper == 0 ? 4 : 0);
    out[i] = scale * static_cast<float>(group_scale - 32) * static_cast<float>(number);
  }
}

struct ScaleAndMinimum {
  int scale;
  int minimum;
};

/// The scale and minimum of one of eight groups: six bits each, in twelve bytes.
ScaleAndMinimum packed_scale(const uint8_t* bytes, size_t group) {
  if (group < 4) return {bytes[group] & 63, bytes[group + 4] & 63};
  return {(bytes[group + 4] & 15) | bytes[group - 4] >> 6 << 4,
          bytes[group + 4] >> 4 | bytes[group] >> 6 << 4};
}

void decode_q4_k(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  const uint8_t* bytes = block + 16;
  for (size_t group = 0; group < 8; ++group) {
    const ScaleAndMinimum packed = packed_scale(block + 4, group);
    const float factor = scale * static_cast<float>(packed.scale);
    const float low = minimum * static_cast<float>(packed.minimum);
    for (size_t i = 0; i < 32; ++i) {
      const int number = bits_of(bytes[group / 2 * 32 + i], group % 2 * 4, 4);
      out[group * 32 + i] = factor * static_cast<float>(number) - low;
    }
  }
}

void decode_q5_k(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  const uint8_t* high = block + 16;
  const uint8_t* bytes = block + 48;
  for (size_t group = 0; group < 8; ++group) {
    const ScaleAndMinimum packed = packed_scale(block + 4, group);
    const float factor = scale * static_cast<float>(packed.scale);
    const float low = minimum * static_cast<float>(packed.minimum);
    for (size_t i = 0; i < 32; ++i) {
      const int number = bits_of(bytes[group / 2 * 32 + i], group % 2 * 4, 4) | bits_of(high[i], group, 1)
                                                                                    << 4;
      out[group * 32 + i] = factor * static_cast<float>(number) - low;
    }
  }
}

void decode_q6_k(const uint8_t* block, float* out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const uint8_t* scales = block + 192;
  const float scale = half_at(block + 208);
  for (size_t i = 0; i < large_block; ++i) {
    const size_t half = i / 128;
    const int number = bits_of(low[half * 64 + i % 64], i / 64 % 2 * 4, 4) |
                       bits_of(high[half * 32 + i % 32], i / 32 % 4 * 2, 2) << 4;
    out[i] = scale * static_cast<float>(signed_at(scales, i / 16)) * static_cast<float>(number - 32);
  }
}

void decode_q8_k(const uint8_t* block, float* out) {
  float scale = 0;
  std::memcpy(&scale, block, sizeof scale);
  for (size_t i = 0; i < large_block; ++i) out[i] = scale * static_cast<float>(signed_at(block + 4, i));
}

void decode_iq4_xs(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const uint8_t* low = block + 4;
  const uint8_t* bytes = block + 8;
  for (size_t group = 0; group < 8; ++group) {
    const int group_scale =
        bits_of(low[group / 2], group % 2 * 4, 4) | bits_of(block[2 + group / 4], group % 4 * 2, 2) << 4;
    const float factor = scale * static_cast<float>(group_scale - 32);
    for (size_t i = 0; i < 32; ++i) {
      const auto code = static_cast<size_t>(nibble(bytes + group * 16, i));
      out[group * 32 + i] = factor * static_cast<float>(iq4_values.at(code));
    }
  }
}

/// Digit `place` (the first is the highest) of five digits of base 3, which encode a fraction of 256.
int ternary_digit(uint8_t byte, size_t place) {
  constexpr std::array<uint8_t, 5> powers = {1, 3, 9, 27, 81};
  const auto rest = static_cast<uint8_t>(byte * powers.at(place));
  return rest * 3 >> 8;
}

void decode_tq1_0(const uint8_t* block, float* out) {
  const float scale = half_at(block + 52);
  for (size_t i = 0; i < large_block; ++i) {
    const int digit = i < 160   ? ternary_digit(block[i % 32], i / 32)
                      : i < 240 ? ternary_digit(block[32 + i % 16], (i - 160) / 16)
                                : ternary_digit(block[48 + i % 4], (i - 240) / 4);
    out[i] = scale * static_cast<float>(digit - 1);
  }
}

void decode_tq2_0(const uint8_t* block, float* out) {
  const float scale = half_at(block + 64);
  for (size_t i = 0; i < large_block; ++i) {
    const int number = bits_of(block[i / 128 * 32 + i % 32], i / 32 % 4 * 2, 2);
    out[i] = scale * static_cast<float>(number - 1);
  }
}

constexpr auto types = std::to_array<Type>({
    {0, "F32", 1, 4, DType::float32},
    {1, "F16", 1, 2, DType::float16},
    {2, "Q4_0", 32, 18, {}, decode_q4_0},
    {3, "Q4_1", 32, 20, {}, decode_q4_1},
    {6, "Q5_0", 32, 22, {}, decode_q5_0},
    {7, "Q5_1", 32, 24, {}, decode_q5_1},
    {8, "Q8_0", 32, 34, {}, decode_q8_0},
    {9, "Q8_1", 32, 36, {}, decode_q8_1},
    {10, "Q2_K", 256, 84, {}, decode_q2_k},
    {11, "Q3_K", 256, 110, {}, decode_q3_k},
    {12, "Q4_K", 256, 144, {}, decode_q4_k},
    {13, "Q5_K", 256, 176, {}, decode_q5_k},
    {14, "Q6_K", 256, 210, {}, decode_q6_k},
    {15, "Q8_K", 256, 292, {}, decode_q8_k},
    {16, "IQ2_XXS", 256, 66, {}, nullptr},
    {17, "IQ2_XS", 256, 74, {}, nullptr},
    {18, "IQ3_XXS", 256, 98, {}, nullptr},
    {19, "IQ1_S", 256, 50, {}, nullptr},
    {20, "IQ4_NL", 32, 18, {}, decode_iq4_nl},
    {21, "IQ3_S", 256, 110, {}, nullptr},
    {22, "IQ2_S", 256, 82, {}, nullptr},
    {23, "IQ4_XS", 256, 136, {}, decode_iq4_xs},
    {24, "I8", 1, 1, DType::int8},
    {25, "I16", 1, 2, DType::int16},
    {26, "I32", 1, 4, DType::int32},
    {27, "I64", 1, 8, DType::int64},
    {28, "F64", 1, 8, DType::float64},
    {29, "IQ1_M", 256, 56, {}, nullptr},
    {30, "BF16", 1, 2, DType::bfloat16},
    {34, "TQ1_0", 256, 54, {}, decode_tq1_0},
    {35, "TQ2_0", 256, 66, {}, decode_tq2_0},
    {39, "MXFP4", 32, 17, {}, decode_mxfp4},
    {40, "NVFP4", 64, 36, {}, decode_nvfp4},
    {41, "Q1_0", 128, 18, {}, decode_q1_0},
    {42, "Q2_0", 64, 18, {}, decode_q2_0},
});

class DecodedStorage final : public PackedStorage {
 public:
  DecodedStorage(StoragePtr blocks, const Type& type, std::string_view why_not)
      : encoding_{type.name, std::move(blocks), type.block_elements, type.block_bytes},
        decode_(type.decode),
        why_not_(why_not) {}

  [[nodiscard]] uint64_t size() const override { return block_count() * floats_size(); }
  [[nodiscard]] uint64_t stored_size() const override { return encoding_.blocks->size(); }
  [[nodiscard]] const Encoding* encoding() const override { return &encoding_; }
  [[nodiscard]] std::string_view problem() const override { return why_not_; }

  void read(uint64_t offset, std::span<std::byte> out) const override {
    if (!why_not_.empty()) fail(Errc::unsupported, "{}", why_not_);
    constexpr uint64_t piece = 512;  // blocks
    Bytes blocks;
    std::array<float, large_block> floats{};
    while (!out.empty()) {
      const uint64_t first = offset / floats_size();
      const uint64_t end = (offset + out.size() + floats_size() - 1) / floats_size();
      const uint64_t count = std::min(end - first, piece);
      blocks.resize(count * encoding_.block_bytes);
      encoding_.blocks->read(first * encoding_.block_bytes, blocks);
      for (uint64_t i = 0; i < count; ++i) {
        decode_(reinterpret_cast<const uint8_t*>(blocks.data()) + i * encoding_.block_bytes, floats.data());
        const uint64_t skipped = offset % floats_size();
        const uint64_t length = std::min<uint64_t>(floats_size() - skipped, out.size());
        std::memcpy(out.data(), reinterpret_cast<const std::byte*>(floats.data()) + skipped, length);
        out = out.subspan(length);
        offset += length;
      }
    }
  }

  void verify() const override { encoding_.blocks->verify(); }
  void verify_whole() const override { encoding_.blocks->verify_whole(); }
  void drop(uint64_t offset, uint64_t length) const noexcept override {
    const uint64_t first = offset / floats_size();
    const uint64_t end = (offset + length) / floats_size();
    if (first < end)
      encoding_.blocks->drop(first * encoding_.block_bytes, (end - first) * encoding_.block_bytes);
  }
  [[nodiscard]] Place place() const override { return encoding_.blocks->place(); }
  void add_files(SourceFiles& files) const override { encoding_.blocks->add_files(files); }

 private:
  [[nodiscard]] uint64_t floats_size() const { return encoding_.block_elements * sizeof(float); }
  [[nodiscard]] uint64_t block_count() const { return encoding_.blocks->size() / encoding_.block_bytes; }

  Encoding encoding_;
  DecodeBlock decode_;
  std::string why_not_;
};

}  // namespace

const Type* find_type(uint32_t number) {
  const auto* found = std::ranges::find(types, number, &Type::number);
  return found == types.end() ? nullptr : found;
}

StoragePtr decoded_storage(StoragePtr blocks, const Type& type, std::string_view why_not) {
  return std::make_shared<DecodedStorage>(std::move(blocks), type, why_not);
}

}  // namespace cbk::gguf

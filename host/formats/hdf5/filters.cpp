#include "host/formats/hdf5/filters.hpp"

#include <libdeflate.h>
#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

namespace cbk::hdf5 {
namespace {

template <typename T>
T load_be(ByteView bytes, uint64_t offset, const char* what) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) damaged("{} ends too early", what);
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value << 8 | std::to_integer<T>(bytes[offset + i]));
  return value;
}

/// Fails if a chunk claims to unpack to more than its filter can produce.
void check_ratio(uint64_t stored, uint64_t size, uint64_t ratio) {
  if (size / ratio > stored + 64) damaged("a chunk of {} bytes cannot hold {}", stored, size);
}

Bytes undo_lz4(ByteView in, uint64_t limit) {
  constexpr const char* what = "an LZ4 chunk";
  const auto total = load_be<uint64_t>(in, 0, what);
  const auto block = load_be<uint32_t>(in, 8, what);
  if (total > limit) damaged("an LZ4 chunk claims {} bytes, but holds at most {}", total, limit);
  if (total > 0 && block == 0) damaged("an LZ4 chunk with empty blocks");
  check_ratio(in.size(), total, 255);
  Bytes out(total);
  uint64_t at = 12;
  for (uint64_t done = 0; done < total;) {
    const uint64_t want = std::min<uint64_t>(block, total - done);
    const auto stored = load_be<uint32_t>(in, at, what);
    at += 4;
    if (stored > in.size() - at) damaged("{} ends too early", what);
    const ByteView source = in.subspan(at, stored);
    if (stored == want) {
      std::memcpy(out.data() + done, source.data(), want);
    } else {
      if (want > LZ4_MAX_INPUT_SIZE || stored > LZ4_MAX_INPUT_SIZE) damaged("an LZ4 block of {} bytes", want);
      const int got = LZ4_decompress_safe(reinterpret_cast<const char*>(source.data()),
                                          reinterpret_cast<char*>(out.data() + done),
                                          static_cast<int>(stored), static_cast<int>(want));
      if (got < 0 || static_cast<uint64_t>(got) != want) damaged("an LZ4 block cannot be decoded");
    }
    at += stored;
    done += want;
  }
  return out;
}

Bytes undo_deflate(ByteView in, uint64_t limit) {
  check_ratio(in.size(), limit, 1040);
  thread_local std::unique_ptr<libdeflate_decompressor, void (*)(libdeflate_decompressor*)> decoder(
      libdeflate_alloc_decompressor(), libdeflate_free_decompressor);
  Bytes out(limit);
  size_t got = 0;
  if (libdeflate_zlib_decompress(decoder.get(), in.data(), in.size(), out.data(), out.size(), &got) !=
      LIBDEFLATE_SUCCESS) {
    damaged("a deflated chunk cannot be decoded");
  }
  out.resize(got);
  return out;
}

Bytes undo_zstd(ByteView in, uint64_t limit) {
  check_ratio(in.size(), limit, 33'000);  // a block of 128 KiB in 4 bytes
  thread_local std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> decoder(ZSTD_createDCtx(), ZSTD_freeDCtx);
  Bytes out(limit);
  const size_t got = ZSTD_decompressDCtx(decoder.get(), out.data(), out.size(), in.data(), in.size());
  if (ZSTD_isError(got) != 0) damaged("a Zstandard chunk cannot be decoded: {}", ZSTD_getErrorName(got));
  out.resize(got);
  return out;
}

/// LZF: a control byte below 32 begins a run of literals; otherwise 3 bits of length and 13 bits of distance.
Bytes undo_lzf(ByteView in, uint64_t limit) {
  constexpr const char* what = "an LZF chunk";
  check_ratio(in.size(), limit, 264);
  Bytes out;
  out.reserve(limit);
  for (uint64_t at = 0; at < in.size();) {
    const auto control = std::to_integer<uint32_t>(in[at++]);
    if (control < 32) {
      const uint64_t count = control + 1;
      if (count > in.size() - at || count > limit - out.size()) damaged("{} cannot be decoded", what);
      out.insert(out.end(), in.begin() + static_cast<ptrdiff_t>(at),
                 in.begin() + static_cast<ptrdiff_t>(at + count));
      at += count;
      continue;
    }
    uint64_t count = control >> 5;
    if (count == 7) count += load_be<uint8_t>(in, at++, what);
    count += 2;
    const uint64_t distance = ((control & 31U) << 8 | load_be<uint8_t>(in, at++, what)) + 1;
    if (distance > out.size() || count > limit - out.size()) damaged("{} cannot be decoded", what);
    for (uint64_t i = 0; i < count; ++i) out.push_back(out[out.size() - distance]);
  }
  return out;
}

Bytes undo_shuffle(ByteView in, const Filter& filter) {
  const uint64_t itemsize = filter.values.empty() ? 1 : filter.values[0];
  Bytes out(in.begin(), in.end());
  if (itemsize <= 1 || itemsize > in.size()) return out;
  const uint64_t count = in.size() / itemsize;  // a rest that fills no element stays where it is
  for (uint64_t b = 0; b < itemsize; ++b) {
    for (uint64_t i = 0; i < count; ++i) out[i * itemsize + b] = in[b * count + i];
  }
  return out;
}

/// The last four bytes are the checksum of the bytes before.
Bytes undo_fletcher32(ByteView in) {
  if (in.size() < 4) damaged("a chunk of {} bytes with a checksum of 4", in.size());
  const ByteView data = in.first(in.size() - 4);
  const auto stored = load_le<uint32_t>(in.data() + data.size());
  const uint32_t sum = fletcher32(data);
  // HDF5 1.6.2 and before stored the bytes of each half in the opposite order.
  const uint32_t old_sum = (sum & 0x00FF00FF) << 8 | (sum >> 8 & 0x00FF00FF);
  if (stored != sum && stored != old_sum) damaged("a chunk does not have its Fletcher-32 checksum");
  return {data.begin(), data.end()};
}

/// The usual name of a filter; "" for an unknown one.
std::string_view name_of_filter(uint16_t id) {
  switch (id) {
    case 4:
      return "szip";
    case 5:
      return "nbit";
    case 6:
      return "scaleoffset";
    case 307:
      return "bzip2";
    case 32001:
      return "Blosc";
    case 32008:
      return "bitshuffle";
    case 32013:
      return "ZFP";
    case 32026:
      return "Blosc2";
    default:
      return "";
  }
}

template <typename T>
void store_be(Bytes& out, size_t offset, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    out[offset + i] = static_cast<std::byte>(value >> (8 * (sizeof(T) - 1 - i)));
}

}  // namespace

Bytes shuffled(ByteView chunk, size_t itemsize) {
  Bytes out(chunk.begin(), chunk.end());
  const size_t count = chunk.size() / itemsize;
  for (size_t b = 0; b < itemsize; ++b) {
    for (size_t i = 0; i < count; ++i) out[b * count + i] = chunk[i * itemsize + b];
  }
  return out;
}

Bytes deflated(ByteView chunk) {
  thread_local std::unique_ptr<libdeflate_compressor, void (*)(libdeflate_compressor*)> encoder(
      libdeflate_alloc_compressor(deflate_level), libdeflate_free_compressor);
  Bytes out(libdeflate_zlib_compress_bound(encoder.get(), chunk.size()));
  out.resize(libdeflate_zlib_compress(encoder.get(), chunk.data(), chunk.size(), out.data(), out.size()));
  return out;
}

Bytes lz4_packed(ByteView chunk) {
  constexpr size_t head = 8 + 4 + 4;  // one block
  const auto size = static_cast<int>(chunk.size());
  Bytes out(head + static_cast<size_t>(LZ4_compressBound(size)));
  const int packed = LZ4_compress_default(reinterpret_cast<const char*>(chunk.data()),
                                          reinterpret_cast<char*>(out.data() + head), size,
                                          static_cast<int>(out.size() - head));
  store_be<uint64_t>(out, 0, chunk.size());
  store_be(out, 8, static_cast<uint32_t>(chunk.size()));
  store_be(out, 12, static_cast<uint32_t>(packed));
  out.resize(head + static_cast<size_t>(packed));
  return out;
}

Bytes zstd_packed(ByteView chunk) {
  Bytes out(ZSTD_compressBound(chunk.size()));
  const size_t size = ZSTD_compress(out.data(), out.size(), chunk.data(), chunk.size(), zstd_level);
  if (ZSTD_isError(size) != 0) fail(Errc::internal, "Zstandard: {}", ZSTD_getErrorName(size));
  out.resize(size);
  return out;
}

uint32_t fletcher32(ByteView bytes) {
  uint32_t low = 0;
  uint32_t high = 0;
  const auto fold = [](uint32_t sum) { return (sum & 0xFFFF) + (sum >> 16); };
  constexpr size_t most = 720;  // bytes whose sums fit 32 bits
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.size(), at + most);
    for (; at < end; at += 2) {
      const auto first = std::to_integer<uint32_t>(bytes[at]);
      const auto second = at + 1 < bytes.size() ? std::to_integer<uint32_t>(bytes[at + 1]) : 0U;
      low += first << 8 | second;
      high += low;
    }
    low = fold(low);
    high = fold(high);
  }
  return fold(high) << 16 | fold(low);
}

std::vector<Filter> read_filters(Cursor& in) {
  const uint8_t version = in.u8();
  if (version != 1 && version != 2) damaged("a filter list of unknown version {}", version);
  const uint8_t count = in.u8();
  if (count > 32) damaged("{} filters", count);
  if (version == 1) in.skip(6);
  std::vector<Filter> filters;
  for (uint8_t i = 0; i < count; ++i) {
    Filter filter;
    filter.id = in.u16();
    const uint16_t name = version == 1 || filter.id >= 256 ? in.u16() : uint16_t{0};
    filter.optional = (in.u16() & 1) != 0;
    const uint16_t values = in.u16();
    in.skip(version == 1 ? align_up(name, 8) : name);
    for (uint16_t v = 0; v < values; ++v) filter.values.push_back(in.u32());
    if (version == 1 && values % 2 != 0) in.skip(4);
    filters.push_back(std::move(filter));
  }
  return filters;
}

void check_filters(const std::vector<Filter>& filters) {
  for (const Filter& filter : filters) {
    switch (filter.id) {
      case Filter::deflate:
      case Filter::shuffle:
      case Filter::fletcher32:
      case Filter::lzf:
      case Filter::lz4:
      case Filter::zstd:
        break;
      default:
        const std::string_view name = name_of_filter(filter.id);
        fail(Errc::unsupported, "its filter {}{} is not supported", filter.id,
             name.empty() ? "" : fmt::format(" ({})", name));
    }
  }
}

Bytes decode_chunk(const std::vector<Filter>& filters, uint32_t mask, ByteView stored, uint64_t size) {
  Bytes owned;
  for (size_t i = filters.size(); i-- > 0;) {
    if (i < 32 && ((mask >> i) & 1) != 0) continue;
    // Inside a pipeline of two compressors the intermediate size is unknown; incompressible data grows
    // a little.
    const uint64_t limit = i == 0 ? size : size + size / 16 + 1024;
    switch (filters[i].id) {
      case Filter::lz4:
        owned = undo_lz4(stored, limit);
        break;
      case Filter::deflate:
        owned = undo_deflate(stored, limit);
        break;
      case Filter::zstd:
        owned = undo_zstd(stored, limit);
        break;
      case Filter::lzf:
        owned = undo_lzf(stored, limit);
        break;
      case Filter::shuffle:
        owned = undo_shuffle(stored, filters[i]);
        break;
      case Filter::fletcher32:
        owned = undo_fletcher32(stored);
        break;
      default:
        check_filters({filters[i]});
    }
    stored = owned;
  }
  if (stored.size() != size) damaged("a chunk has {} bytes instead of {}", stored.size(), size);
  return stored.data() == owned.data() ? std::move(owned) : Bytes(stored.begin(), stored.end());
}

}  // namespace cbk::hdf5

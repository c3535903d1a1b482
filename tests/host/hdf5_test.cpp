#include <lz4.h>

#include <catch2/catch.hpp>

#include "host/formats/hdf5/datatype.hpp"
#include "host/formats/hdf5/filters.hpp"

using namespace cbk;

TEST_CASE("HDF5: chunk filters and their limits") {
  using namespace hdf5;
  const std::string text = "abcabcabcabcabcabcabcabcabcabcabcabc repeated repeated repeated";
  std::string packed(static_cast<size_t>(LZ4_compressBound(static_cast<int>(text.size()))), '\0');
  packed.resize(static_cast<size_t>(LZ4_compress_default(
      text.data(), packed.data(), static_cast<int>(text.size()), static_cast<int>(packed.size()))));
  const auto be = [](uint64_t value, int bytes) {
    std::string out;
    for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i));
    return out;
  };
  const auto chunk = [&](uint64_t total, uint64_t block, const std::string& data) {
    return be(total, 8) + be(block, 4) + be(data.size(), 4) + data;
  };
  const std::vector<Filter> lz4{{Filter::lz4, true, {0}}};
  const auto decode = [&](const std::string& stored, uint32_t mask = 0) {
    return std::string(as_text(decode_chunk(lz4, mask, as_bytes(stored), text.size())));
  };
  CHECK(decode(chunk(text.size(), text.size(), packed)) == text);
  CHECK(decode(chunk(text.size(), 1 << 30, packed)) == text);
  CHECK(decode(chunk(text.size(), text.size(), text)) == text);  // a block that did not shrink
  CHECK(decode(text, 1) == text);                                // the filter was left out
  const std::string half = text.substr(0, 32);
  CHECK(decode(be(text.size(), 8) + be(32, 4) + be(32, 4) + half + be(text.size() - 32, 4) +
               text.substr(32)) == text);

  const std::vector<std::string> bad = {"",
                                        "short",
                                        chunk(1ULL << 60, 1 << 30, packed),
                                        chunk(text.size(), 0, packed),
                                        chunk(text.size(), text.size(), packed.substr(0, 5)),
                                        be(text.size(), 8) + be(text.size(), 4) + be(0xFFFFFFFF, 4),
                                        chunk(text.size() - 1, text.size(), packed),
                                        text};
  for (const std::string& each : bad) CHECK_THROWS_AS(decode(each), Error);
  // LZF: five literals, then a reference 5 back.
  const std::vector<Filter> lzf{{Filter::lzf, true, {}}};
  const std::string stored = std::string("\x04") + "hello" + "\x60\x04";
  CHECK(as_text(decode_chunk(lzf, 0, as_bytes(stored), 10)) == "hellohello");
  CHECK_THROWS_AS(decode_chunk(lzf, 0, as_bytes("\x60\x04"), 10), Error);
  CHECK_THROWS_WITH(check_filters({{305, false, {}}}), Catch::Contains("305"));
  CHECK_THROWS_WITH(check_filters({{4, false, {}}}), Catch::Contains("4 (szip)"));
}

TEST_CASE("HDF5: an extent beyond the largest that the dataspace allows is damage") {
  using namespace hdf5;
  const auto extents_of = [](uint64_t extent, uint64_t limit) {
    std::string stored("\x02\x01\x01\x01", 4);  // version, rank, with limits, not a scalar
    append_le(stored, extent);
    append_le(stored, limit);
    Cursor in(as_bytes(stored), {}, "a dataspace");
    return read_dataspace(in).extents;
  };
  CHECK(extents_of(5, 5) == std::vector<uint64_t>{5});
  CHECK(extents_of(5, UINT64_MAX) == std::vector<uint64_t>{5});
  CHECK_THROWS_WITH(extents_of(7, 5), Catch::Contains("an extent of 7, which can be at most 5"));
}

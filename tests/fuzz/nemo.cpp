// Tar archives: members lie within the bytes, or the archive is an Error.
#include "host/formats/nemo/tar.hpp"

#include "host/base/error.hpp"
#include "tests/fuzz/memory_bar.hpp"

using namespace cbk;

namespace {

/// An archive with the right sums of headers, so that what is behind them is looked at.
std::string with_sums(std::string archive) {
  for (size_t at = 0; at + 512 <= archive.size(); at += 512) {
    uint64_t sum = 8 * ' ';
    for (size_t i = 0; i < 512; ++i)
      if (i < 148 || i >= 156) sum += static_cast<unsigned char>(archive[at + i]);
    archive.replace(at + 148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  }
  return archive;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string archive(reinterpret_cast<const char*>(data), size);
  if (size % 2 == 1) archive = with_sums(std::move(archive));
  const MemoryBar bar(archive.size());
  try {
    const auto members = nemo::read_archive(std::as_bytes(std::span(archive))).members;
    for (const nemo::Member& member : members)
      if (member.offset > archive.size() || member.size > archive.size() - member.offset) std::abort();
  } catch (const Error&) {
    return 0;
  }
  return 0;
}

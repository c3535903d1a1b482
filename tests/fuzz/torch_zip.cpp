// Any bytes as a torch file: archive, legacy stream, or one of those that are refused. Tensors are read, too.
// An input that begins with 0 or 1 makes an archive of a deflated pickle and a deflated record.
#include <libdeflate.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "host/base/transaction.hpp"
#include "host/formats/torch/reader.hpp"
#include "tests/fuzz/memory_bar.hpp"
#include "tests/fuzz/unrolled.hpp"

using namespace cbk;

namespace {

/// Each block of the last ones of 64 MiB, where another one begins.
void read_blocks(const Tensor& tensor) {
  const auto step = static_cast<int64_t>((1 << 20) / size_of(tensor.dtype()));
  const int64_t first = std::max<int64_t>(0, tensor.numel() - 64 * step);
  for (int64_t at = first; at < tensor.numel(); at += step) {
    Bytes element(size_of(tensor.dtype()));
    tensor.read(at, element);
  }
}

void read_tensors(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::tensor:
      read_blocks(value.as_tensor());
      break;
    case Value::Kind::sequence:
      for (const Value& item : value.as_sequence().items) read_tensors(item);
      break;
    case Value::Kind::dict:
      for (const auto& entry : value.as_dict().entries()) read_tensors(entry.second);
      break;
    case Value::Kind::object:
      read_tensors(value.as_object().state);
      break;
    default:
      break;
  }
}

/// A zip archive with deflated members and right checksums.
std::string archive_of(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string out;
  std::string directory;
  libdeflate_compressor* const compressor = libdeflate_alloc_compressor(1);
  for (const auto& [name, content] : members) {
    std::string packed(libdeflate_deflate_compress_bound(compressor, content.size()), '\0');
    packed.resize(libdeflate_deflate_compress(compressor, content.data(), content.size(), packed.data(),
                                              packed.size()));
    std::string common(10, '\0');
    common[4] = 8;  // deflated
    append_le(common, libdeflate_crc32(0, content.data(), content.size()));
    append_le(common, static_cast<uint32_t>(packed.size()));
    append_le(common, static_cast<uint32_t>(content.size()));
    append_le(common, static_cast<uint32_t>(name.size()));
    directory += std::string("PK\1\2\0\0", 6) + common + std::string(10, '\0');
    append_le(directory, static_cast<uint32_t>(out.size()));
    directory += name;
    out += "PK\3\4" + common + name + packed;
  }
  libdeflate_free_compressor(compressor);
  std::string end("PK\5\6\0\0\0\0", 8);
  append_le(end, static_cast<uint16_t>(members.size()));
  append_le(end, static_cast<uint16_t>(members.size()));
  append_le(end, static_cast<uint32_t>(directory.size()));
  append_le(end, static_cast<uint32_t>(out.size()));
  return out + directory + end + std::string(2, '\0');
}

/// The input as [kind, pieces of a pickle]; in the second kind the pieces are those of a record that a pickle
/// names.
std::string bomb_of(std::string_view input) {
  const bool is_record = input[0] == 1;
  const std::string content = unrolled(input.substr(1), is_record ? 16 << 20 : 4 << 20);
  if (!is_record) return archive_of({{"m/data.pkl", content}});
  std::string count = "J";
  append_le(count, static_cast<uint32_t>(content.size()));
  const std::string pickle =
      "\x80\2ctorch._utils\n_rebuild_tensor_v2\n((U\7storagectorch\nByteStorage\nU\1"
      "0U\3cpu" +
      count + std::string("tQK\0", 4) + count + "\x85K\1\x85\x89}tR.";
  return archive_of({{"m/data.pkl", pickle}, {"m/data/0", content}});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fs::path path = fs::temp_directory_path() / fmt::format("cbk-fuzz-{}.pt", getpid());
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string file = size > 1 && data[0] < 2 ? bomb_of(input) : std::string(input);
  write_file(path, file, true);
  const MemoryBar bar(file.size());
  try {
    OpenOptions options;
    options.allow_records = size % 2 == 0;
    options.salvage = size % 4 < 2;
    read_tensors(torch::read(MappedFile::open(path), options).root);
  } catch (const Error&) {
  }
  return 0;
}

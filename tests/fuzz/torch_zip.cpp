// Any bytes as a torch file: archive, legacy stream, or one of those that are refused. Tensors are read, too.
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "host/formats/torch/reader.hpp"

using namespace cbk;

namespace {

void read_tensors(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::tensor:
      if (value.as_tensor().nbytes() < (1 << 20)) (void)value.as_tensor().to_bytes();
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fs::path path = fs::temp_directory_path() / fmt::format("cbk-fuzz-{}.pt", getpid());
  write_file(path, {reinterpret_cast<const char*>(data), size}, true);
  try {
    OpenOptions options;
    options.allow_records = size % 2 == 0;
    read_tensors(torch::read(MappedFile::open(path), options).root);
  } catch (const Error&) {
  }
  return 0;
}

// Any bytes as a pickle, in every mode; what is accepted is written and read again. In one mode the bytes are
// pieces that are repeated, in a file as small as the input.
#include <cstddef>
#include <cstdint>

#include "host/formats/torch/pickle.hpp"
#include "host/formats/torch/pickler.hpp"
#include "tests/fuzz/memory_bar.hpp"
#include "tests/fuzz/unrolled.hpp"

using namespace cbk;

namespace {

/// A storage for every persistent id, so that the tensor functions are reached.
Value any_storage(const Value& id) {
  (void)id.as_sequence();
  const Tensor elements = Tensor::from_bytes(DType::float32, {4}, Bytes(16));
  return std::make_shared<Object>(Object{"torch.storage", "FloatStorage", elements});
}

void round_trip(const Value& value) {
  torch::PicklerOptions options;
  options.store = [](const Tensor& tensor, const std::string& storage_class, const std::string&) {
    return torch::StoredTensor{storage_class, "0", 4, 0, contiguous_strides(tensor.shape())};
  };
  torch::UnpickleOptions reading;
  reading.persistent_load = any_storage;
  reading.allow_records = true;
  (void)torch::unpickle(torch::pickle(value, options), reading);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  torch::UnpickleOptions options;
  options.dill = (data[0] & 1) != 0;
  options.allow_records = (data[0] & 2) != 0;
  if ((data[0] & 4) != 0) options.persistent_load = any_storage;
  std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if ((data[0] & 8) != 0) bytes = unrolled(bytes);
  MemoryBudget budget(size);
  options.budget = &budget;
  const MemoryBar bar(size);
  try {
    const Value value = torch::unpickle(bytes, options);
    round_trip(value);
  } catch (const Error&) {
  }
  return 0;
}

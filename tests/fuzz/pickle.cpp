// Any bytes as a pickle, in every mode; what is accepted is written and read again, and its leaves are
// looked at. In one mode the bytes are pieces that are repeated, in a file as small as the input; in another
// one they choose the numbers of a tensor among those where errors are likely.
#include <array>
#include <cstddef>
#include <cstdint>

#include "host/formats/pickle/pickler.hpp"
#include "host/formats/pickle/unpickler.hpp"
#include "host/value/walk.hpp"
#include "tests/fuzz/memory_bar.hpp"
#include "tests/fuzz/unrolled.hpp"

using namespace cbk;
using namespace std::string_literals;

namespace {

/// A storage for every persistent id, so that the tensor functions are reached.
Value any_storage(const Value& id) {
  (void)id.as_sequence();
  const Tensor elements = Tensor::from_bytes(DType::float32, {4}, Bytes(16));
  return std::make_shared<Object>(Object{"torch.storage", "FloatStorage", elements});
}

std::string number(uint8_t choice) {
  constexpr int64_t most = INT64_MAX;
  constexpr std::array<int64_t, 16> numbers = {
      0, 1, 2, 3, 4, 5, -1, most / 2, 1LL << 8, 1LL << 31, 1LL << 32, 1LL << 61, 1LL << 62, most, -most, 7};
  std::string out = "\x8a\x08";
  append_le(out, numbers.at(choice % numbers.size()));
  return out;
}

/// _rebuild_tensor_v2 with [offset, extent, stride, extent, stride, ...] by number.
std::string tensor_of(std::string_view choices) {
  const auto chosen = [&](size_t i) { return number(static_cast<uint8_t>(choices[i])); };
  const std::string offset = choices.empty() ? "K\0"s : chosen(0);
  std::string shape = "(";
  std::string strides = "(";
  for (size_t i = 1; i < std::min<size_t>(choices.size(), 13); ++i)
    (i % 2 == 1 ? shape : strides) += chosen(i);
  return "\x80\2ctorch._utils\n_rebuild_tensor_v2\n()Q" + offset + shape + "t" + strides + "t\x89}tR.";
}

void look_at_ends(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  Bytes element(size_of(tensor.dtype()));
  tensor.read(0, element);
  tensor.read(tensor.numel() - 1, element);
}

void look_at(const Tensor& tensor) {
  look_at_ends(tensor);
  (void)tensor.cost();
  if (tensor.dim() == 0) return;
  look_at_ends(tensor.transpose(0, -1));
  look_at_ends(tensor.flip(0));
  look_at_ends(tensor.slice(-1, 1, INT64_MAX, 2));
  look_at_ends(Tensor::concat({tensor, tensor}, 0));
  look_at_ends(tensor.reshape({tensor.numel()}).cast(DType::float16));
}

void look_at_leaves(const Value& value) {
  int count = 0;
  each_leaf(value, [&](const std::string& path, const Value& leaf) {
    if (++count > 20) return;
    if (leaf.is(Value::Kind::tensor)) look_at(leaf.as_tensor());
    (void)find_path(value, path + ".nothing");
  });
}

void round_trip(const Value& value) {
  pickle::PicklerOptions options;
  options.store = [](const Tensor& tensor, const std::string& storage_class, const std::string&) {
    return pickle::StoredTensor{storage_class, "0", 4, 0, contiguous_strides(tensor.shape())};
  };
  pickle::UnpickleOptions reading;
  reading.persistent_load = any_storage;
  reading.allow_records = true;
  (void)pickle::load(pickle::dump(value, options), reading);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  pickle::UnpickleOptions options;
  options.dill = (data[0] & 1) != 0;
  options.allow_records = (data[0] & 2) != 0;
  options.describes = (data[0] & 32) != 0;
  if ((data[0] & 4) != 0) options.persistent_load = any_storage;
  std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if ((data[0] & 8) != 0) bytes = unrolled(bytes, 4 << 20);
  if ((data[0] & 16) != 0) bytes = tensor_of(bytes);
  MemoryBudget budget(size);
  options.budget = &budget;
  const MemoryBar bar(size);
  try {
    const Value value = pickle::load(bytes, options);
    look_at_leaves(value);
    round_trip(value);
  } catch (const Error&) {
  }
  return 0;
}

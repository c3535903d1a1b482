// Parts of a checkpoint, as pickles: what is joined can be read, or is an Error. The first byte says the
// format; the rest is cut into as many pickles as there are parts.
#include "host/formats/pickle/unpickler.hpp"
#include "host/formats/ranks/dtensor.hpp"
#include "host/formats/ranks/tensor_parallel.hpp"
#include "host/formats/ranks/zero.hpp"
#include "host/value/walk.hpp"
#include "tests/fuzz/memory_bar.hpp"

using namespace cbk;

namespace {

constexpr int64_t storage_numel = 64;

/// Any storage: floats from 0 on.
Value storage(const Value& /*id*/) {
  std::vector<float> elements(storage_numel);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i);
  const auto bytes = std::as_bytes(std::span(elements));
  return std::make_shared<Object>(
      Object{"torch.storage", "FloatStorage",
             Tensor::from_bytes(DType::float32, {storage_numel}, Bytes(bytes.begin(), bytes.end()))});
}

std::vector<ranks::Part> parts_of(std::string_view data, MemoryBudget& budget) {
  pickle::UnpickleOptions options;
  options.budget = &budget;
  options.describes = true;
  options.persistent_load = storage;
  std::vector<ranks::Part> out;
  while (!data.empty() && out.size() < 4) {
    size_t used = 0;
    Value root = pickle::load(data, options, &used);
    data.remove_prefix(used);
    out.push_back({fmt::format("part {}", out.size()), static_cast<int64_t>(out.size()), std::move(root)});
  }
  if (out.empty()) fail(Errc::format, "no part");
  return out;
}

Value joined(uint8_t format, std::vector<ranks::Part> parts, MemoryBudget& budget) {
  if (format % 4 == 0) return ranks::join_dtensors(parts);
  if (format % 4 == 1) return ranks::join_meta(parts);
  if (format % 4 == 2) return ranks::join_megatron({parts, parts});
  std::vector<ranks::Part> models = {parts.front()};
  if (parts.size() > 1) parts.erase(parts.begin());
  return ranks::join_zero(std::move(models), std::move(parts), budget);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  MemoryBudget budget(size);
  const MemoryBar bar(size);
  try {
    const std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
    const Value root = joined(data[0], parts_of(rest, budget), budget);
    each_leaf(root, [](const std::string& /*path*/, const Value& leaf) {
      if (!leaf.is(Value::Kind::tensor) || leaf.as_tensor().numel() == 0) return;
      Bytes element(size_of(leaf.as_tensor().dtype()));
      leaf.as_tensor().read(0, element);
      leaf.as_tensor().read(leaf.as_tensor().numel() - 1, element);
    });
  } catch (const Error&) {
  }
  return 0;
}

#include <libdeflate.h>
#include <catch2/catch.hpp>

#include <cstring>
#include <numeric>

#include "host/base/crc32c.hpp"
#include "host/base/interrupt.hpp"
#include "host/streaming/expansion.hpp"
#include "host/streaming/forecast.hpp"
#include "tests/host/folder.hpp"
#include "tests/host/write_one.hpp"

using namespace cbk;

namespace {

/// The simplest format: all items one after the other.
class RawWriter final : public Writer {
 public:
  RawWriter(fs::path target, std::vector<Item> items)
      : target_(std::move(target)), items_(std::move(items)) {}
  [[nodiscard]] const std::vector<Item>& items() const override { return items_; }
  [[nodiscard]] uint64_t overhead() const override { return 0; }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }
  std::vector<Slot> lay_out(Transaction& transaction) override {
    StagedFile& file = transaction.file(target_, false);
    std::vector<Slot> slots;
    uint64_t offset = 0;
    for (const Item& item : items_) {
      slots.push_back({&file, offset});
      offset += item.tensor.nbytes();
    }
    file.reserve(offset);
    return slots;
  }
  void finish(const std::vector<uint32_t>& crcs) override { crcs_ = crcs; }
  std::vector<uint32_t> crcs_;

 private:
  fs::path target_;
  std::vector<Item> items_;
  std::vector<std::string> warnings_;
};

std::vector<Item> sample_items() {
  Bytes bytes(5'000'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 311);
  const Tensor matrix = Tensor::from_bytes(DType::float32, {1250, 1000}, bytes);
  return {{"plain", matrix, Checksum::crc32},
          {"turned", matrix.transpose(0, 1), Checksum::crc32c},
          {"half", matrix.cast(DType::bfloat16)},
          {"empty", matrix.slice(0, 0, 0), Checksum::crc32},
          {"joined", Tensor::concat({matrix.transpose(0, 1), matrix.transpose(0, 1)}, 1).affine(2, 0),
           Checksum::crc32},
          {"noise", Tensor::normal(DType::float32, {100003}, 0, 1, 1), Checksum::crc32c}};
}

/// Fails when block `bad` is read.
class FailingStorage final : public Storage {
 public:
  [[nodiscard]] uint64_t size() const override { return 64ULL << 20; }
  void read(uint64_t offset, std::span<std::byte> /*out*/) const override {
    if (offset > 32ULL << 20) fail(Errc::format, "chunk 7 is damaged");
  }
};

}  // namespace

TEST_CASE("the same bytes for any number of threads and any memory", "[plan]") {
  Folder folder;
  auto items = sample_items();
  Bytes expected;
  for (const Item& item : items) {
    const Bytes bytes = item.tensor.to_bytes();
    expected.insert(expected.end(), bytes.begin(), bytes.end());
  }
  StreamingOptions options;
  options.threads = GENERATE(1, 2, 7);
  options.memory = GENERATE(uint64_t{1}, uint64_t{96} << 20);
  options.allow_overflow = true;  // the numbers are any bits
  RawWriter writer(folder.path("out"), items);
  write_one(writer, options);
  const std::string found = read_file(folder.path("out"));
  REQUIRE(found.size() == expected.size());
  CHECK(std::memcmp(found.data(), expected.data(), found.size()) == 0);
  for (size_t i = 0; i < items.size(); ++i) {
    const Bytes bytes = items[i].tensor.to_bytes();
    const uint32_t sums[] = {0, libdeflate_crc32(0, bytes.data(), bytes.size()), crc32c(bytes)};
    CHECK(writer.crcs_[i] == sums[static_cast<size_t>(items[i].checksum)]);
  }
  CHECK(folder.names().size() == 1);
}

TEST_CASE("the forecast counts what will be read and written", "[plan]") {
  Folder folder;
  RawWriter writer(folder.path("out"), sample_items());
  const Forecast forecast = cbk::forecast(writer, {});
  CHECK(forecast.bytes_read == 5'000'000ULL * 5);
  CHECK(forecast.bytes_written == 5'000'000ULL * 4 + 2'500'000 + 400'012);
  CHECK(forecast.lossy == std::vector<std::string>{"half"});
  CHECK(forecast.peak_memory <= 96ULL << 20);
  CHECK(folder.names().size() == 0);
}

TEST_CASE("lost values are counted once, whatever the blocks", "[plan]") {
  Folder folder;
  // Every third of these overflows float16, and every seventh of the others vanishes.
  std::vector<float> numbers(900'001);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i % 3 == 0 ? 1e6F : i % 7 == 0 ? 1e-9F : 1.0F;
  const auto bytes = std::as_bytes(std::span(numbers));
  const Tensor all = Tensor::from_bytes(DType::float32, {900'001}, Bytes(bytes.begin(), bytes.end()));
  const Tensor half = all.cast(DType::float16);
  const Tensor matrix = all.slice(0, 0, 900'000).reshape({900, 1000});
  const Tensor sum = matrix.add(matrix).cast(DType::float16);
  const Tensor product = half.slice(0, 0, 900'000)
                             .reshape({900, 1000})
                             .slice(0, 0, 3)
                             .slice(1, 1, 5)
                             .matmul(Tensor::full(DType::float16, {4, 300}, 1));
  const Tensor joined = Tensor::concat({half, half}, 0);
  std::vector<Losses> first;
  for (const int threads : {1, 2, 3, 7}) {
    RawWriter writer(
        folder.path("out" + std::to_string(threads)),
        {{"half", half},
         {"tied", half},
         {"sum", sum.transpose(0, 1)},
         {"thinned", matrix.multiply(matrix).cast(DType::float16).reshape({1000, 900}).slice(1, 1, 900, 3)},
         {"gaps", half.reshape({900'001, 1}).index_select(0, {0, 3, 3, 5}).slice(0, 1, 4, 2)},
         {"joined", joined},
         {"product", product}});
    StreamingOptions options;
    options.threads = threads;
    options.memory = 1 << 20;
    options.allow_overflow = true;
    const std::vector<LostValues> lost = write_one(writer, options);
    std::vector<std::string> keys;
    std::vector<Losses> losses;
    for (const LostValues& one : lost) {
      keys.push_back(one.key);
      losses.push_back(one.losses);
    }
    CHECK(keys == std::vector<std::string>{"half", "sum", "thinned", "gaps", "joined", "product"});
    if (first.empty()) first = losses;
    CHECK(losses == first);
  }
  CHECK(first[0] == Losses{300'001, 0, 85'714});
  CHECK(first[1] == Losses{300'000, 0, 85'714});
  CHECK(first[2] == Losses{0, 0, 42'857});
  CHECK(first[3] == Losses{1, 0, 0});
  CHECK(first[4] == Losses{600'002, 0, 171'428});
  CHECK(first[5] == Losses{4, 0, 2});  // of the operand, once, though it is read for each row
}

TEST_CASE("values that overflow are refused before the target appears", "[plan]") {
  Folder folder;
  RawWriter writer(folder.path("out"),
                   {{"fine", Tensor::full(DType::float32, {3}, 1).cast(DType::float16)},
                    {"large", Tensor::full(DType::float32, {3}, 1e5).cast(DType::float16)}});
  CHECK_THROWS_WITH(write_one(writer), Catch::Contains("'large' (3 of 3 values overflow float16)"));
  CHECK_FALSE(fs::exists(folder.path("out")));
}

TEST_CASE("a failure names the key and leaves nothing behind", "[plan]") {
  Folder folder;
  const Tensor bad =
      Tensor::from_view({std::make_shared<FailingStorage>(), DType::uint8, 0, {64 << 20}, {1}});
  RawWriter writer(folder.path("out"), {{"layers.3.weight", bad}});
  CHECK_THROWS_WITH(write_one(writer), "layers.3.weight: chunk 7 is damaged");
  CHECK_FALSE(fs::exists(folder.path("out")));
}

TEST_CASE("an interrupt stops and leaves nothing behind", "[plan]") {
  Folder folder;
  RawWriter writer(folder.path("out"), sample_items());
  request_interrupt();
  try {
    write_one(writer);
    FAIL("the interrupt was ignored");
  } catch (const Error& error) {
    CHECK(error.code() == Errc::interrupted);
  }
  clear_interrupt();
  CHECK_FALSE(fs::exists(folder.path("out")));
}

TEST_CASE("an existing target is refused before anything is written", "[plan]") {
  Folder folder;
  write_file(folder.path("out"), "precious", false);
  RawWriter writer(folder.path("out"), sample_items());
  CHECK_THROWS_WITH(write_one(writer), Catch::Contains("exists already"));
  CHECK(read_file(folder.path("out")) == "precious");
}

TEST_CASE("what few bytes may become is limited, before anything is written", "[plan]") {
  const Folder folder;
  const Tensor base = Tensor::from_bytes(DType::float32, {1000}, Bytes(4000));
  const auto& storage = base.view()->storage;
  const auto view = [&](int64_t offset, Shape shape, Shape strides) {
    return Tensor::from_view({storage, DType::float32, offset, std::move(shape), std::move(strides)});
  };
  const auto expands_to = [&](std::vector<Item> items, uint64_t bytes) {
    const RawWriter writer(folder.path("out"), std::move(items));
    check_expansion(writer, bytes);
    if (bytes > 0) CHECK_THROWS_WITH(check_expansion(writer, bytes - 1), Catch::Contains("--max-expansion"));
  };
  expands_to({{"all", base}, {"cast", base.cast(DType::float64).slice(0, 0, 0)}}, 0);
  expands_to({{"repeated", view(5, {50, 20}, {0, 1})}}, 4000 - 80);
  expands_to({{"expanded", base.reshape({1, 1000}).expand({3, 1000})}}, 8000);
  expands_to({{"overlapping", view(0, {10, 10}, {1, 1})}}, 400 - 19 * 4);
  expands_to({{"one", base}, {"tied", base}}, 4000);
  expands_to({{"filled", Tensor::full(DType::float32, {7, 100}, 2)}}, 2800);
  expands_to({{"half", base.cast(DType::float16)}, {"turned", base.reshape({10, 100}).transpose(0, 1)}},
             4000);

  // By default 16 GiB, and nothing is left behind.
  std::vector<Item> many;
  for (int i = 0; i < 200; ++i) many.push_back({fmt::format("t{}", i), view(i, {64, 1 << 20}, {0, 0})});
  RawWriter writer(folder.path("out"), many);
  CHECK_THROWS_WITH(write_one(writer),
                    Catch::Contains("50.0 GiB") && Catch::Contains("16.0 GiB") && Catch::Contains("'t0'"));
  CHECK_THROWS_AS(forecast(writer, {}), Error);
  CHECK(folder.names().empty());
}

#include <libdeflate.h>
#include <catch2/catch.hpp>

#include <cstring>
#include <numeric>

#include "host/base/crc32c.hpp"
#include "host/base/interrupt.hpp"
#include "host/plan/plan.hpp"
#include "tests/host/folder.hpp"

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
  std::vector<Slot> lay_out() override {
    file_ = std::make_unique<StagedFile>(target_, false);
    std::vector<Slot> slots;
    uint64_t offset = 0;
    for (const Item& item : items_) {
      slots.push_back({file_.get(), offset});
      offset += item.tensor.nbytes();
    }
    file_->reserve(offset);
    return slots;
  }
  void finish(const std::vector<uint32_t>& crcs) override { crcs_ = crcs; }
  void commit(bool /*sync*/) override { file_->commit(); }
  std::vector<uint32_t> crcs_;

 private:
  fs::path target_;
  std::vector<Item> items_;
  std::vector<std::string> warnings_;
  std::unique_ptr<StagedFile> file_;
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
  ExecuteOptions options;
  options.threads = GENERATE(1, 2, 7);
  options.memory = GENERATE(uint64_t{1}, uint64_t{96} << 20);
  RawWriter writer(folder.path("out"), items);
  execute(writer, options);
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

TEST_CASE("a failure names the key and leaves nothing behind", "[plan]") {
  Folder folder;
  const Tensor bad =
      Tensor::from_view({std::make_shared<FailingStorage>(), DType::uint8, 0, {64 << 20}, {1}});
  RawWriter writer(folder.path("out"), {{"layers.3.weight", bad}});
  CHECK_THROWS_WITH(execute(writer, {}), "layers.3.weight: chunk 7 is damaged");
  CHECK_FALSE(fs::exists(folder.path("out")));
}

TEST_CASE("an interrupt stops and leaves nothing behind", "[plan]") {
  Folder folder;
  RawWriter writer(folder.path("out"), sample_items());
  request_interrupt();
  try {
    execute(writer, {});
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
  CHECK_THROWS_WITH(execute(writer, {}), Catch::Contains("exists already"));
  CHECK(read_file(folder.path("out")) == "precious");
}
